"""``collage run``: from files to files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.unit.runtime.conftest import expected

from collage.cli._app import _main
from collage.runtime import Executable


def test_a_zip_runs_and_is_profiled(small: Executable, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    artefact, trace = small.save(tmp_path / "m.zip"), tmp_path / "trace.json"
    x = np.random.default_rng(0).standard_normal((2, 6)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    arguments = ["run", str(artefact), "--input", f"x={tmp_path / 'x.npy'}", "--output-dir", str(tmp_path / "out")]
    assert _main([*arguments, "--profile", str(trace), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    np.testing.assert_allclose(np.load(tmp_path / "out" / "y.npy"), expected(x)["y"], rtol=1e-4, atol=1e-6)
    assert found["notes"] == []
    assert [kernel["name"] for kernel in found["profile"]["kernels"]] == [
        kernel.name for kernel in small.recipe.kernels
    ]
    assert json.loads(trace.read_text())["traceEvents"]
    assert _main([*arguments, "--profile", str(tmp_path / "missing" / "trace.json")]) == 2


def test_what_was_rebuilt_is_said(artefact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _main(["run", str(artefact), "--rebuild"]) == 0
    assert capsys.readouterr().err.count("note: rebuilt") == 3
