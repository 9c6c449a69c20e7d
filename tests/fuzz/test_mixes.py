"""Random models as artefacts of several toolchains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx.parser
import pytest

from tests.fuzz.draft import sample
from tests.fuzz.kernels import cases_of
from tests.fuzz.kinds import KINDS
from tests.fuzz.mixes import mixed, why_wrong
from tests.fuzz.odd_names import oddly_named
from tests.fuzz.references import Case

Outputs = Mapping[str, Any]


@pytest.mark.parametrize("symbolic", [False, True])
def test_mixes_are_right_whatever_their_values_are_called(symbolic: bool) -> None:
    found = [mixed(seed, sample(seed), ("onnxruntime", "openvino"), symbolic) for seed in range(1442, 1447)]
    assert {verdict.how for verdict in found} <= {"right", "skipped"}, found
    assert sum(verdict.how == "right" for verdict in found) >= 3
    assert any("onnxruntime" in verdict.target and "openvino" in verdict.target for verdict in found)


def test_a_renamed_model_computes_the_same() -> None:
    given = KINDS["mixes"].draw(6)
    odd = oddly_named(given, 6)
    first, second = (cases_of(6, each, 1e-4, False)[1][0].expected for each in (given, odd))
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
def test_what_is_wrong_is_told(run: Any, said: str | None) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20]> g (float[2] x) => (float[2] y) {y = Neg (x)}'
    )
    x = np.array([1.0, 2.0], np.float32)
    right: Outputs = {"y": -x}
    told = why_wrong(lambda feeds: run(feeds, right), model, [Case({"x": x}, [right["y"]])], 1e-4)
    assert told is None if said is None else said in told
