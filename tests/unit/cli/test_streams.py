"""The standard output: one that nobody reads, one that is full, one that is closed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from collage.cli._app import _main
from collage.cost.outcome import Outcome
from collage.cost.statistics import summarise
from collage.cost.workload_key import WorkloadKey
from collage.database import Database
from collage.status import Status

ARGUMENTS = {"plain": ("--version",), "a table": ("db", "show"), "JSON": ("db", "show", "--json")}

KEY = WorkloadKey("kernel", "(1, 2)float32", "llvm", "tvm 1", "machine", 0, 4)


@pytest.mark.few(4)
@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)
@pytest.mark.parametrize(("to", "code", "told"), [("| :", 0, ""), (">/dev/full", 2, "No space left"), (">&-", 0, "")])
def test_the_exit_code_says_if_the_output_was_written(
    arguments: tuple[str, ...], to: str, code: int, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "full" in to and not Path("/dev/full").exists():
        pytest.skip("Linux has /dev/full")
    monkeypatch.setenv("COLLAGE_DB", str(tmp_path / "t.sqlite"))
    with Database(os.environ["COLLAGE_DB"]) as database:
        database.record(KEY, Outcome(Status.OK, time=summarise([0.02])))
    script = f'set -o pipefail; "$@" {to}'
    command = [sys.executable, "-m", "collage", *arguments]
    found = subprocess.run(["bash", "-c", script, "bash", *command], capture_output=True, text=True, check=False)
    assert found.returncode == code
    assert "Traceback" not in found.stderr and "ignored" not in found.stderr
    assert told in found.stderr


def test_a_name_that_is_too_long_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert _main(["run", "a" * 3000]) == 2
    assert "too long" in capsys.readouterr().err


def test_too_little_memory_is_a_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def too_large(**_: object) -> None:
        raise MemoryError("Unable to allocate 12 GiB")

    monkeypatch.setattr("collage.cli._app.app", too_large)
    assert _main(["run", "m.collage"]) == 1
    assert (
        capsys.readouterr().err == "collage: the memory of this machine does not suffice: Unable to allocate 12 GiB\n"
    )
