"""The content-addressed store, here and on a file system that only ``fsspec`` knows."""

from __future__ import annotations

import hashlib
import json
import random
import threading
import uuid
from pathlib import Path

import fsspec
import pytest

from collage._errors import ArtefactError, UsageError
from collage.store import Store, check_writable, download, shown, stored_name, upload, url_of
from collage.store._objects import GRACE_S
from collage.store._places import FileSystem


@pytest.fixture(params=["folder", "file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    roots = {
        "folder": str(tmp_path / "store"),
        "file": (tmp_path / "store").as_uri(),
        "memory": f"memory://{uuid.uuid4()}/store",
    }
    return Store(roots[request.param])


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    folder = tmp_path / "artefact"
    folder.mkdir()
    for name, data in (("manifest.json", b"{}"), ("weights.bin", b"w" * 1000), ("empty", b"")):
        (folder / name).write_bytes(data)
    return {entry.name: entry for entry in folder.iterdir()}


def contents(folder: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in folder.iterdir()}


def got(store: Store, reference: str, tmp_path: Path) -> dict[str, bytes]:
    folder = tmp_path / uuid.uuid4().hex
    folder.mkdir()
    store.get(reference, folder)
    return contents(folder)


def raw(store: Store) -> tuple[fsspec.AbstractFileSystem, list[str]]:
    fs, path = fsspec.core.url_to_fs(store.place.url)
    return fs, sorted(fs.find(path))


def object_of(store: Store, data: bytes) -> str:
    digest = hashlib.sha256(data).hexdigest()
    return store.place.at("objects", "sha256", digest[:2], digest[2:])


def test_what_is_put_comes_back(store: Store, files: dict[str, Path], tmp_path: Path) -> None:
    wanted = {name: path.read_bytes() for name, path in files.items()}
    digest = store.put(files, "resnet50/v3")
    assert got(store, "resnet50/v3", tmp_path) == got(store, f"sha256:{digest}", tmp_path) == wanted
    (row,) = store.names()
    assert (row.name, row.digest, row.size_bytes) == ("resnet50/v3", digest, 1002)
    assert list(store.verify()) == []
    assert not [path for path in raw(store)[1] if ".draft" in path]


def test_equal_files_are_one_object_and_equal_artefacts_have_one_digest(store: Store, files: dict[str, Path]) -> None:
    first = store.put(files, "a")
    count = len(raw(store)[1])
    assert store.put(files, "b") == first
    assert len(raw(store)[1]) == count + 1  # the name
    files["manifest.json"].write_bytes(b"{ }")
    assert store.put(files, "b") != first
    assert len(raw(store)[1]) == count + 3  # the manifest and the tree


def test_every_changed_byte_is_found(store: Store, files: dict[str, Path], tmp_path: Path) -> None:
    digest = store.put(files, "a")
    fs, paths = raw(store)
    for path in paths:
        good = fs.cat_file(path)
        if "/names/" in path or not good:
            continue
        fs.pipe_file(path, good[:-1] + bytes([good[-1] ^ 1]))
        with pytest.raises(ArtefactError, match="was changed") as caught:
            got(store, f"sha256:{digest}", tmp_path)
        assert "\n" not in str(caught.value)
        assert len([problem for problem in store.verify() if problem.path is not None]) == 1
        fs.rm_file(path)
        with pytest.raises((ArtefactError, UsageError), match=r"missing|holds no artefact"):
            got(store, f"sha256:{digest}", tmp_path)
        assert list(store.verify())
        fs.pipe_file(path, good)
    assert list(store.verify()) == []


def test_a_longer_or_shorter_object_is_found(store: Store, files: dict[str, Path], tmp_path: Path) -> None:
    store.put(files, "a")
    fs, path = raw(store)[0], object_of(store, b"w" * 1000)
    for data in (b"w" * 1001, b"w" * 999, b""):
        fs.pipe_file(path, data)
        with pytest.raises(ArtefactError, match=r"size|changed"):
            got(store, "a", tmp_path)
    store.put(files, "a")  # A file of another size is written again.
    assert list(store.verify()) == []


def test_garbage_is_what_no_name_refers_to(store: Store, files: dict[str, Path], tmp_path: Path) -> None:
    store.put(files, "old")
    files["manifest.json"].write_bytes(b'{"new": 1}')
    store.put(files, "new")
    assert store.collect(0).objects == 0
    store.remove("old")
    with pytest.raises(UsageError, match="holds no artefact 'old'"):
        store.resolve("old")
    assert store.collect().young == 2 and len(raw(store)[1]) == 7
    assert (store.collect(0, dry_run=True).objects, len(raw(store)[1])) == (2, 7)
    found = store.collect(0)
    assert found.objects == 2 and found.size_bytes > 2
    assert list(store.verify()) == []
    assert got(store, "new", tmp_path)["manifest.json"] == b'{"new": 1}'


def test_nothing_is_collected_when_a_name_cannot_be_read(store: Store, files: dict[str, Path]) -> None:
    store.put(files, "a")
    store.put(files, "b")
    fs, paths = raw(store)
    (path,) = [path for path in paths if path.endswith("/names/a.json")]
    for damage in (b"", b"[]", b"{}", b'{"schema": 1, "tree": "../x"}', b'{"schema": 2, "tree": "' + b"0" * 64 + b'"}'):
        fs.pipe_file(path, damage)
        with pytest.raises(ArtefactError):
            store.collect(0)
        assert [problem.what for problem in store.verify()] == ["a"]
    assert sorted(raw(store)[1]) == paths


def test_an_old_object_without_a_name_is_made_young_again(
    store: Store, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it could be collected between the look at it and the writing of the name."""
    store.put(files, "a")
    written: list[str] = []
    write = FileSystem.write
    monkeypatch.setattr(
        FileSystem, "write", lambda self, source, path: (written.append(path), write(self, source, path))
    )
    monkeypatch.setattr(FileSystem, "age_s", lambda *_: GRACE_S)
    store.put(files, "b")
    assert len(written) == 1  # the name, since `a` protects the objects
    store.remove("a")
    store.remove("b")
    written.clear()
    store.put(files, "c")
    assert len(written) == 5
    monkeypatch.setattr(FileSystem, "age_s", lambda *_: None)
    store.remove("c")
    assert store.collect().young == 4  # Where the age is not known, nothing is old.


TREES = [
    {"../x": {"sha256": "0" * 64, "bytes": 1}},
    {"/etc/x": {"sha256": "0" * 64, "bytes": 1}},
    {"a/b": {"sha256": "0" * 64, "bytes": 1}},
    {"x": {"sha256": "../../x", "bytes": 1}},
    {"x": {"sha256": "0" * 64, "bytes": -1}},
    {"x": {"sha256": "0" * 64, "bytes": True}},
    {"x": {"sha256": "0" * 64}},
    {"x": 1},
    [],
]


@pytest.mark.parametrize("tree", TREES, ids=str)
def test_hostile_trees_are_refused(tmp_path: Path, tree: object) -> None:
    store = Store(tmp_path / "store")
    data = json.dumps({"schema": 1, "files": tree}).encode()
    digest = hashlib.sha256(data).hexdigest()
    path = Path(object_of(store, data))
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    with pytest.raises(ArtefactError):
        got(store, f"sha256:{digest}", tmp_path)


@pytest.mark.parametrize(
    "name", ["", "..", "../x", "/x", "a//b", "a/../b", ".x", "a/.b", "a\nb", "é", "a" * 200, "a\0"]
)
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    store = Store(tmp_path / "store")
    for act in (lambda: store.put({}, name), lambda: store.resolve(name), lambda: store.remove(name)):
        with pytest.raises(UsageError, match="cannot be a name"):
            act()
    assert not (tmp_path / "x.json").exists()


def test_many_puts_and_collections_at_once_lose_nothing(tmp_path: Path) -> None:
    store, chance = Store(tmp_path / "store"), random.Random(1)
    artefacts = []
    for number in range(6):
        folder = tmp_path / f"a{number}"
        folder.mkdir()
        (folder / "shared").write_bytes(b"s" * 500)
        (folder / "own").write_bytes(bytes([number]) * chance.randint(1, 99))
        artefacts.append({entry.name: entry for entry in folder.iterdir()})
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(5):
                Store(tmp_path / "store").put(artefacts[number], f"name{number}")
                if turn % 2:
                    store.collect()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(list(store.names())) == 6 and list(store.verify()) == []


@pytest.mark.parametrize(
    ("place", "url"),
    [
        ("s3://bucket/x.collage", "s3://bucket/x.collage"),
        (Path("s3://bucket/x.collage"), "s3://bucket/x.collage"),
        (Path("file:///tmp/x"), "file:///tmp/x"),
        ("file:/tmp/x", "file:///tmp/x"),
        ("store://resnet50", "store://resnet50"),
        (Path("store://resnet50/v3"), "store://resnet50/v3"),
        ("MEMORY://a/b", "memory://a/b"),
        ("model.collage", None),
        ("/tmp/model.collage", None),
        ("C:/models/m.collage", None),
        ("a:b", None),
    ],
)
def test_urls_are_told_from_paths(place: str | Path, url: str | None) -> None:
    assert url_of(place) == url


def test_a_file_that_is_there_is_no_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s3:").mkdir()
    (tmp_path / "s3:" / "x").write_bytes(b"")
    assert url_of("s3:/x") is None
    assert url_of("s3:/y") == "s3://y"


def test_messages_hold_no_passwords() -> None:
    assert shown("ftp://me:secret@host/x") == "ftp://***@host/x"
    assert shown("s3://bucket/a@b") == "s3://bucket/a@b"
    assert stored_name("store://a/b") == "a/b" and stored_name("s3://a/b") is None


@pytest.mark.parametrize("url", ["nothing://x/y", "postgresql://me:secret@host/x"])
def test_unknown_schemes_are_refused_in_one_sentence(url: str, tmp_path: Path) -> None:
    for act in (lambda: download(url, tmp_path), lambda: upload(tmp_path, url), lambda: check_writable(url)):
        with pytest.raises(UsageError) as caught:
            act()
        assert "\n" not in str(caught.value) and "secret" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_files_at_urls_are_whole_or_not_there(scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = (tmp_path / "out" / "x").as_uri() if scheme == "file" else f"memory://{uuid.uuid4()}/x"
    (tmp_path / "new").write_bytes(b"new")
    (tmp_path / "old").write_bytes(b"old")
    (tmp_path / "got").mkdir()
    with pytest.raises(UsageError, match="does not exist"):
        download(url, tmp_path / "got")
    check_writable(url)
    upload(tmp_path / "old", url)
    fs, path = fsspec.core.url_to_fs(url)

    def broken(source: str, target: str, **_: object) -> None:
        fs.pipe_file(target, b"n")
        raise ConnectionError("the network\nis gone")

    with monkeypatch.context() as patch:
        patch.setattr(type(fs), "put_file", lambda self, source, target, **options: broken(source, target))
        with pytest.raises(UsageError, match="the network is gone"):
            upload(tmp_path / "new", url)
    assert fs.cat_file(path) == b"old"
    assert [Path(entry).name for entry in fs.find(fs._parent(path))] == ["x"]
    upload(tmp_path / "new", url)
    found = download(url, tmp_path / "got")
    assert found is not None and found.read_bytes() == b"new"
