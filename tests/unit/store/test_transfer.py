"""Places at URLs, and files that go there and come back, on file systems that only ``fsspec`` knows."""

from __future__ import annotations

import uuid
from pathlib import Path

import fsspec
import pytest

from collage._errors import ArtefactError, UsageError
from collage.store import check_writable, download, shown, upload, url_of
from collage.store._places import FileSystem, telling


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
    assert shown("s3://me:p@secret@host/x") == "s3://***@host/x"
    assert shown("s3://bucket/a@b") == "s3://bucket/a@b"
    assert shown("https://host/m.zip?X-Amz-Signature=secret&a=b") == "https://host/m.zip?***"
    with (
        pytest.raises(UsageError, match=r"no answer from 'http://\*\*\*@host/x\?\*\*\*', or http://host/a@b"),
        telling("read", "http://host/x"),
    ):
        raise ValueError("no answer from 'http://me:secret@host/x?sig=secret', or http://host/a@b")


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
    assert found.read_bytes() == b"new"


@pytest.mark.parametrize("stated", [2, 4])
def test_a_file_of_another_size_than_is_stated_is_refused(
    stated: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"memory://{uuid.uuid4()}/x"
    (tmp_path / "new").write_bytes(b"new")
    upload(tmp_path / "new", url)
    monkeypatch.setattr(FileSystem, "size", lambda self, path: stated)
    (tmp_path / "got").mkdir()
    with pytest.raises(ArtefactError, match="another size"):
        download(url, tmp_path / "got")
    assert not list((tmp_path / "got").iterdir())
