"""Artefacts at URLs and in the store, from the library and from the command line."""

from __future__ import annotations

import json
import os
import uuid
import zipfile
from dataclasses import replace
from pathlib import Path

import fsspec
import pytest
from tests.unit.runtime.conftest import assert_right, small_model

import collage
from collage._errors import ArtefactError, UsageError
from collage.cli._app import _main
from collage.integrations import InferenceSession
from collage.runtime import Executable, check_destination, pack
from collage.testing import executable_of


@pytest.fixture(scope="module")
def small() -> Executable:
    executable = executable_of(small_model(), [([0, 1, 2], "onnxruntime"), ([3], "openvino")])
    executable.recipe = replace(executable.recipe, model={"sha256": "a" * 64})
    return executable


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return (tmp_path / "bucket").as_uri() if request.param == "file" else f"memory://{uuid.uuid4()}/bucket"


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLLAGE_STORE", str(tmp_path / "store"))
    return str(tmp_path / "store")


def test_saved_to_a_url_and_loaded_from_it(small: Executable, url: str) -> None:
    place = f"{url}/m.collage"
    check_destination(Path(place))
    small.save(place)
    loaded = collage.load(place, trusted=True)
    assert_right(loaded)
    assert loaded.notes == []
    assert_right(collage.load(Path(place), trusted=True))
    fs, path = fsspec.core.url_to_fs(url)
    assert [name.rpartition("/")[2] for name in fs.find(path)] == ["m.collage"]
    workspace = loaded.workspace
    del loaded
    assert not workspace.exists()
    assert InferenceSession(place).get_inputs()[0].name == "x"


def test_a_changed_byte_at_a_url_is_found(small: Executable, url: str) -> None:
    small.save(f"{url}/m.collage")
    fs, path = fsspec.core.url_to_fs(f"{url}/m.collage")
    good = fs.cat_file(path)
    place = good.index(b"weights.bin", 0) + len(b"weights.bin") + 3
    for position in (len(good) // 2, place):
        fs.pipe_file(path, good[:position] + bytes([good[position] ^ 1]) + good[position + 1 :])
        with pytest.raises(ArtefactError) as caught:
            collage.load(f"{url}/m.collage", trusted=True)
        assert "\n" not in str(caught.value)
    with pytest.raises(UsageError, match="does not exist"):
        collage.load(f"{url}/gone.collage")


def test_saved_to_the_store_and_loaded_from_it(small: Executable, root: str) -> None:
    check_destination(Path("store://small/v1"))
    small.save("store://small/v1")
    assert_right(collage.load("store://small/v1", trusted=True))
    object_ = max(Path(root).rglob("objects/sha256/*/*"), key=lambda path: path.stat().st_size)
    data = bytearray(object_.read_bytes())
    data[7] ^= 1
    object_.write_bytes(data)
    with pytest.raises(ArtefactError, match="was changed"):
        collage.load("store://small/v1", trusted=True)
    with pytest.raises(UsageError, match="holds no artefact"):
        collage.load("store://small/v2")
    with pytest.raises(UsageError, match="cannot be a name"):
        check_destination(Path("store://../x"))


def test_a_pack_goes_through_the_store(small: Executable, tmp_path: Path) -> None:
    pack([small.save(tmp_path / "a.collage")], "store://packed")
    assert_right(collage.load("store://packed", trusted=True))
    pack(["store://packed"], tmp_path / "again.zip")
    assert_right(collage.load(tmp_path / "again.zip", trusted=True))


def test_the_commands_of_the_store(
    small: Executable, tmp_path: Path, capsys: pytest.CaptureFixture[str], root: str
) -> None:
    def told(*words: str, code: int = 0) -> dict[str, object]:
        assert _main(["store", *words, "--json"]) == code
        return dict(json.loads(capsys.readouterr().out))

    artefact = small.save(tmp_path / "m.zip")
    digest = told("put", str(artefact), "small")["digest"]
    assert told("put", str(small.save(tmp_path / "m.collage")), "same")["digest"] == digest
    assert [row["name"] for row in told("list")["artefacts"]] == ["same", "small"]  # type: ignore[attr-defined]
    assert told("get", "small", "-o", str(tmp_path / "got.collage"))["digest"] == digest
    assert told("get", f"sha256:{digest}", "-o", str(tmp_path / "got.zip"))["digest"] == digest
    got, put = (zipfile.ZipFile(path) for path in (tmp_path / "got.zip", artefact))
    assert {name: got.read(name) for name in got.namelist()} == {name: put.read(name) for name in put.namelist()}
    assert _main(["run", "store://small"]) == 0
    assert _main(["explain", "store://small"]) == 0
    assert _main(["store", "remove", "small"]) == 0
    assert _main(["store", "remove", "same"]) == 0
    assert _main(["store", "remove", "same"]) == 2
    capsys.readouterr()
    assert told("gc")["objects"] == 0
    (damaged,) = [path for path in Path(root).rglob("objects/sha256/*/*") if path.stat().st_size == 9600]
    damaged.write_bytes(b"\1" * 9600)
    assert len(told("verify", code=5)["problems"]) == 1  # type: ignore[arg-type]
    told("verify", "--remove-damaged", code=5)
    assert told("verify")["problems"] == []
    assert told("gc", "--older-than", "0m", "--dry-run")["objects"] == told("gc", "--older-than", "0m")["objects"]
    assert [path for path in Path(root).rglob("*") if path.is_file()] == []
    assert _main(["store", "put", str(tmp_path), "folder"]) == 5
    assert _main(["store", "gc", "--older-than", "soon"]) == 2
    assert _main(["run", "nothing://x/y"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_damaged_artefact_is_not_stored(small: Executable, tmp_path: Path, root: str) -> None:
    path = small.save(tmp_path / "m.collage")
    (path / "weights.bin").write_bytes(b"x" * (path / "weights.bin").stat().st_size)
    assert _main(["store", "put", str(path), "bad"]) == 5
    assert not list(Path(root).rglob("*.json"))


def test_fsspec_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "fsspec.core", None)
    with pytest.raises(UsageError, match=r"pip install '.*\[store\]'"):
        collage.load("s3://bucket/x")


def test_an_unwritable_store_is_told_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("COLLAGE_STORE", str(tmp_path / "file" / "below"))
    with pytest.raises(UsageError, match="cannot write"):
        check_destination(Path("store://x"))
    assert os.environ["COLLAGE_STORE"]
