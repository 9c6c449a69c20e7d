"""Folders of killed processes are swept; those of the living, of others and of nobody we know stay."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from collage._errors import UsageError
from collage.system import scratch as scratch_module
from collage.system.scratch import make_scratch, remove_scratch, scratch

HOLD = """
import sys
from collage.system.scratch import make_scratch
print(make_scratch(), flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(scratch_module, "_held", {})


def aged(folder: Path) -> Path:
    os.utime(folder, (0, 0))
    return folder


def holder() -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_folder_is_gone_at_the_end_of_the_with() -> None:
    with scratch() as folder:
        (folder / "weights").write_bytes(b"1")
    assert not folder.exists()
    remove_scratch(folder)


def test_what_a_killed_process_left_is_swept_and_what_a_living_one_has_is_not(tmp_path: Path) -> None:
    living, theirs = holder()
    killed, left = holder()
    (left / "kernel").mkdir()
    (left / "kernel" / "a.so").write_bytes(b"1")
    killed.kill()
    killed.communicate()
    assert left.is_dir()
    aged(left), aged(theirs)
    ours = make_scratch()
    assert not left.exists()
    assert theirs.is_dir()
    living.communicate("")
    remove_scratch(ours)
    with scratch():
        assert not theirs.exists()


def test_young_folders_links_and_files_stay(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    aged(elsewhere)
    young = tmp_path / "collage_scratch_young"
    young.mkdir()
    (tmp_path / "collage_scratch_link").symlink_to(elsewhere)
    (tmp_path / "collage_scratch_file").write_bytes(b"1")
    aged(tmp_path / "collage_scratch_file")
    with scratch():
        assert young.is_dir()
        assert (tmp_path / "collage_scratch_link").is_symlink()
        assert elsewhere.is_dir()
        assert (tmp_path / "collage_scratch_file").is_file()


def test_a_folder_that_cannot_be_listed_is_not_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", refuse)
        folder = make_scratch()
    assert folder.is_dir()
    remove_scratch(folder)


def test_a_fork_leaves_the_folder_to_its_maker() -> None:
    folder = make_scratch()
    if not (child := os.fork()):
        remove_scratch(folder)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert folder.is_dir()
    aged(folder)
    scratch_module._sweep(folder.parent)  # Still locked: the fork closed its copy of the descriptor only.
    assert folder.is_dir()
    remove_scratch(folder)
    assert not folder.exists()


def test_a_full_disk_is_said_with_the_way_out_and_other_errors_are_not_hidden(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(UsageError, match=f"No space left on device.*{tmp_path}.*TMPDIR"), scratch() as folder:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert not folder.exists()
    with pytest.raises(FileNotFoundError), scratch() as folder:
        (folder / "none").read_bytes()


def test_without_a_descriptor_for_the_lock_there_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    made = tmp_path / "made"
    made.mkdir()
    monkeypatch.setattr(tempfile, "mkdtemp", lambda **_: str(made))
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(UsageError, match="temporary files cannot be written: Too many open files"):
            make_scratch()
    assert not any(tmp_path.iterdir())
