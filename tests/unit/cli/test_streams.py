"""The standard output: one that nobody reads, one that is full, one that is closed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from collage.cli._app import _main

ARGUMENTS = {"plain": ("--version",), "a table": ("targets",), "JSON": ("targets", "--json")}


@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)
@pytest.mark.parametrize(("to", "code", "told"), [("| :", 0, ""), (">/dev/full", 2, "No space left"), (">&-", 0, "")])
def test_the_exit_code_says_if_the_output_was_written(
    arguments: tuple[str, ...], to: str, code: int, told: str
) -> None:
    if "full" in to and not Path("/dev/full").exists():
        pytest.skip("Linux has /dev/full")
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
