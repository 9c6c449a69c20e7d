"""Every script of ``benchmarks/`` explains itself, and no test elsewhere depends on one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPTS = sorted(path.stem for path in (ROOT / "benchmarks").glob("[!_]*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_help_names_the_command(name: str) -> None:
    command = [sys.executable, "-m", f"benchmarks.{name}", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert f"python -m benchmarks.{name}" in done.stdout


def test_no_other_test_imports_a_benchmark() -> None:
    importing = re.compile(r"^\s*(from|import) benchmarks\b", re.MULTILINE)
    tests = [path for path in (ROOT / "tests").rglob("*.py") if "benchmarks" not in path.parts[len(ROOT.parts) :]]
    assert [path.name for path in tests if importing.search(path.read_text())] == []


def test_every_script_that_is_mentioned_exists() -> None:
    pages = [ROOT / "README.md", ROOT / "Makefile", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").rglob("*.md")]
    mentioned = {name for page in pages for name in re.findall(r"\bbenchmarks[./](\w+)", page.read_text())}
    files = {path.stem for path in (ROOT / "benchmarks").iterdir() if path.is_dir() or path.suffix == ".py"}
    assert mentioned and mentioned <= files, mentioned - files
