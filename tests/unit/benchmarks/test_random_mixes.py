"""The script that runs random graphs as artefacts of several toolchains."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

Outputs = Mapping[str, Any]


@pytest.fixture
def random_mixes(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(import_module("benchmarks.zoo").__path__[0]).parent)
    return import_module("benchmarks.random_mixes")


@pytest.mark.parametrize("symbolic", [False, True])
def test_mixes_are_right_whatever_their_values_are_called(tmp_path: Path, symbolic: bool) -> None:
    """As a process of its own: it forks, which threads that other tests have started would not outlive."""
    script, written = Path(import_module("benchmarks.zoo").__path__[0]).parent / "random_mixes.py", tmp_path / "found"
    options = ["--seeds", "1450-1454", "--toolchains", "onnxruntime,openvino", "--json", str(written)]
    told = subprocess.run(
        [sys.executable, str(script), *options, *(["--symbolic"] if symbolic else [])],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    found = json.loads(written.read_text())
    assert {verdict["how"] for verdict in found} <= {"right", "skipped"}, found
    assert sum(verdict["how"] == "right" for verdict in found) >= 3
    assert any("onnxruntime" in verdict["reason"] and "openvino" in verdict["reason"] for verdict in found)


def test_a_renamed_model_computes_the_same(random_mixes: ModuleType) -> None:
    given = random_mixes.sample(5)
    odd = random_mixes.oddly_named(given, 5)
    first, second = (random_mixes.cases_of(5, each, 1e-4, False)[1][0].expected for each in (given, odd))
    assert all(np.array_equal(x, y, equal_nan=True) for x, y in zip(first, second, strict=True))
    values = [name for node in odd.model.graph.node for name in node.output if name]
    assert len(set(values)) == len(values)
    assert not set(values) & {name for node in given.model.graph.node for name in node.output}


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (lambda feeds, right: {name: y + 1 for name, y in right.items()}, "differs"),
        (lambda feeds, right: feeds["x"].fill(7) or right, "changes its inputs"),
        (lambda feeds, right: right, None),
    ],
)
def test_what_is_wrong_is_told(random_mixes: ModuleType, run: Any, said: str | None) -> None:
    import onnx.parser

    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20]> g (float[2] x) => (float[2] y) {y = Neg (x)}'
    )
    x = np.array([1.0, 2.0], np.float32)
    right: Outputs = {"y": -x}
    told = random_mixes.why_wrong(
        lambda feeds: run(feeds, right), model, [random_mixes.Case({"x": x}, [right["y"]])], 1e-4
    )
    assert told is None if said is None else said in told
