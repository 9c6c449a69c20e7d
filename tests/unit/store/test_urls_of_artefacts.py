"""Artefacts at URLs, from the library and from the command line."""

from __future__ import annotations

import uuid
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
from collage.runtime._open import plans_in
from collage.testing import executable_of


@pytest.fixture(scope="module")
def small() -> Executable:
    executable = executable_of(small_model(), [([0, 1, 2], "onnxruntime"), ([3], "openvino")])
    executable.recipe = replace(executable.recipe, model={"sha256": "a" * 64})
    return executable


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return (tmp_path / "bucket").as_uri() if request.param == "file" else f"memory://{uuid.uuid4()}/bucket"


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


def test_what_is_wrong_with_an_artefact_is_told_without_the_password_of_its_url(small: Executable) -> None:
    place = f"memory://me:secret@{uuid.uuid4()}/m.zip"
    small.save(place)
    files = fsspec.filesystem("memory")
    whole = files.cat_file(place)
    for damaged in (b"no zip", whole.replace(b'"schema": 1', b'"schema": 2')):
        files.pipe_file(place, damaged)
        for read in (collage.load, plans_in):
            with pytest.raises(ArtefactError) as caught:
                read(place)
            assert "secret" not in str(caught.value)


def test_a_pack_is_a_zip_at_a_url(small: Executable, tmp_path: Path, url: str) -> None:
    pack([small.save(tmp_path / "a.collage")], f"{url}/packed")
    assert_right(collage.load(f"{url}/packed", trusted=True))
    pack([f"{url}/packed"], tmp_path / "again.zip")
    assert_right(collage.load(tmp_path / "again.zip", trusted=True))


def test_commands_take_urls(small: Executable, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    small.save(f"{url}/m.collage")
    assert _main(["run", f"{url}/m.collage"]) == 0
    assert _main(["explain", f"{url}/m.collage"]) == 0
    assert _main(["run", "nothing://x/y"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_fsspec_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "fsspec.core", None)
    with pytest.raises(UsageError, match=r"pip install '.*\[store\]'"):
        collage.load("s3://bucket/x")


def test_an_unwritable_place_is_told_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write"):
        check_destination(Path((tmp_path / "file" / "below").as_uri()))
