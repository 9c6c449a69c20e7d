"""The notebooks under ``examples`` run, and hold the output of a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
TAKES_LONG = {"compile.ipynb"}


def code_cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.slow] if path.name in TAKES_LONG else []) for path in NOTEBOOKS],
    ids=lambda path: path.name,
)
def test_the_cells_run_in_order(path: Path, tmp_path: Path) -> None:
    """Cells have no magics, so that they are a script."""
    script = "\n".join("".join(cell["source"]) for cell in code_cells(path))
    (tmp_path / "cells.py").write_text(script)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "cells.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_outputs_are_of_one_run_from_the_top(path: Path) -> None:
    cells = code_cells(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert outputs and {output["output_type"] for output in outputs} <= {"execute_result", "stream"}
    assert not any(output.get("name") == "stderr" for output in outputs)


def test_there_are_notebooks() -> None:
    assert {path.name for path in NOTEBOOKS} >= TAKES_LONG
