"""An artefact is checked once by each user, and nothing else counts as checked."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import onnx
import pytest
from tests.unit.runtime.conftest import Build, assert_right

import collage
from collage._errors import ArtefactError
from collage._version import __version__
from collage.runtime import _checked_before, _load
from collage.runtime._manifest import MANIFEST, file_digest


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "collage" / "checked"


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Folders of artefacts that are checked."""
    folders: list[Path] = []

    class Noted(_load.ModelCheck):
        def __init__(self, folder: Path, *, is_here: bool) -> None:
            folders.append(folder)
            super().__init__(folder, is_here=True)  # Without a process of its own, to be quick.

    monkeypatch.setattr(_load, "ModelCheck", Noted)
    return folders


@pytest.fixture(scope="module")
def saved(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "m.collage"
    build().save(path)
    return path


def test_the_second_load_checks_nothing_and_a_changed_artefact_is_checked(
    saved: Path, tmp_path: Path, cache: Path, checks: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(saved, tmp_path / "m.collage")
    for _ in range(2):
        assert_right(collage.load(tmp_path / "m.collage"))
    assert len(checks) == 1
    collage.load(saved)
    assert len(checks) == 1, "the same bytes elsewhere are the same artefact"
    collage.load(saved, rebuild=True)
    assert len(checks) == 2, "what is built from the models is always checked"
    monkeypatch.setattr(_checked_before, "__version__", f"{__version__}.post1")
    collage.load(saved)
    assert len(checks) == 3, "another version may check more"


def test_an_author_of_a_new_manifest_gains_nothing(
    saved: Path, tmp_path: Path, cache: Path, checks: list[Path]
) -> None:
    collage.load(saved)
    bad = shutil.copytree(saved, tmp_path / "bad.collage")
    model = onnx.load(bad / "model.onnx", load_external_data=False)
    model.graph.node.append(onnx.helper.make_node("Relu", ["nowhere"], ["more"]))
    onnx.save(model, bad / "model.onnx")
    manifest = json.loads((bad / MANIFEST).read_text())
    manifest["files"]["model.onnx"] = {
        "sha256": file_digest(bad / "model.onnx"),
        "bytes": (bad / "model.onnx").stat().st_size,
    }
    (bad / MANIFEST).write_text(json.dumps(manifest))
    for _ in range(2):
        with pytest.raises(ArtefactError):
            collage.load(bad)
    assert len(checks) == 3, "what is refused is not recorded"


def test_a_folder_that_others_can_write_to_is_not_believed(saved: Path, cache: Path, checks: list[Path]) -> None:
    collage.load(saved)
    assert oct(cache.stat().st_mode & 0o777) == "0o700"
    cache.chmod(0o770)
    collage.load(saved)
    assert len(checks) == 2
    cache.chmod(0o700)
    (entry,) = cache.iterdir()
    entry.chmod(0o602)
    collage.load(saved)
    assert len(checks) == 3
    entry.unlink()
    entry.symlink_to("/dev/null")
    collage.load(saved)
    assert len(checks) == 4 and entry.is_symlink()
    elsewhere = cache.rename(cache.with_name("elsewhere"))
    cache.symlink_to(elsewhere)
    collage.load(saved)
    assert len(checks) == 5


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="this system has no owners of files")
def test_entries_of_others_are_not_believed(
    saved: Path, cache: Path, checks: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    collage.load(saved)
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    collage.load(saved)
    assert len(checks) == 2


@pytest.mark.parametrize("place", ["/proc/nowhere", "file"])
def test_without_a_folder_everything_is_checked(
    place: str, saved: Path, tmp_path: Path, checks: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", place if place.startswith("/") else str(tmp_path / place))
    for _ in range(2):
        assert_right(collage.load(saved))
    assert len(checks) == 2


def test_the_record_does_not_grow_without_end(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_checked_before, "_MOST", 3)
    for i in range(5):
        _checked_before.note_as_checked({"number": i})
        assert _checked_before.was_checked({"number": i})
    assert len(list(cache.iterdir())) == 2
