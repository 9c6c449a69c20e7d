"""Elements on which right runs disagree are right either way; everything else is compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import collage
from collage.runtime import Executable
from collage.testing import FakeToolchain
from collage.toolchains import Registry
from tests.e2e.conftest import LENT, model_of
from tests.figures import figures

ROWS = 40_000


def classified(folder: Path, *more: onnx.NodeProto, scores: bool = True, outputs: dict[str, Any]) -> Path:
    """Rows, each of which is given the number of its largest score, and what is made of that number."""
    random = np.random.default_rng(10)
    weights = {"w": random.standard_normal((4, 10)).astype(np.float32), "table": np.float32(np.eye(10, 3) * 50.0 + 1.0)}
    start = (
        helper.make_node("MatMul", ["x", "w"], ["scores"])
        if scores
        else helper.make_node("Identity", ["x"], ["scores"])
    )
    nodes = [start, helper.make_node("ArgMax", ["scores"], ["label"], axis=1, keepdims=0), *more]
    path = folder / "classified.onnx"
    onnx.save(model_of(nodes, {"x": (TensorProto.FLOAT, [ROWS, 4])}, outputs, weights), path)
    return path


def compiled(path: Path, misbehaviour: str, folder: Path, finals: bool = False) -> Executable:
    toolchains = Registry()
    toolchains.add(FakeToolchain(misbehaviour))
    options = collage.CompileOptions(db=str(folder / "t.sqlite"), finals=finals, allow_host=True, baseline="none")
    return collage.compile(path, ["fake"], options=options, toolchains=toolchains, workers=LENT)


def single(executable: Executable) -> dict[str, Any]:
    row: dict[str, Any] = figures(executable.report)["singles"][0]
    return row


LABELS = {"label": (TensorProto.INT64, [ROWS])}
EMBEDDED = {"rows": (TensorProto.FLOAT, [ROWS, 3])}
GATHER = helper.make_node("Gather", ["table", "label"], ["rows"])


@pytest.mark.parametrize(
    ("more", "outputs", "finals"),
    [
        ((), LABELS, False),
        ((GATHER,), EMBEDDED, True),
        pytest.param((), LABELS, True, marks=pytest.mark.slow),
        pytest.param((GATHER,), EMBEDDED, False, marks=pytest.mark.slow),
    ],
)
def test_who_rounds_otherwise_is_right(more: Any, outputs: dict[str, Any], finals: bool, tmp_path: Path) -> None:
    executable = compiled(classified(tmp_path, *more, outputs=outputs), "run:rough", tmp_path, finals)
    assert (single(executable)["status"], single(executable)["reason"]) == ("ok", None)
    shares = list(executable.report["numerics"]["unsettled"].values())
    assert len(shares) == finals and all(0.0 < share < 0.02 for share in shares)


@pytest.mark.parametrize(
    "misbehaviour", ["run:later", *(pytest.param(each, marks=pytest.mark.slow) for each in ("run:wrong", "run:nan"))]
)
def test_who_is_wrong_elsewhere_is_wrong(misbehaviour: str, tmp_path: Path) -> None:
    executable = compiled(classified(tmp_path, GATHER, outputs=EMBEDDED), misbehaviour, tmp_path)
    assert single(executable)["status"] == "wrong"


def test_between_numbers_that_are_given_rounding_decides_nothing(tmp_path: Path) -> None:
    executable = compiled(classified(tmp_path, scores=False, outputs=LABELS), "run:rough", tmp_path)
    assert "of the integers differ" in single(executable)["reason"]
    assert executable.report["numerics"]["unsettled"] == {}


def test_a_sum_of_ties_may_be_any_that_right_runs_have(tmp_path: Path) -> None:
    total = helper.make_node("ReduceSum", ["label"], ["total"], keepdims=0)
    path = classified(tmp_path, total, outputs={"total": (TensorProto.INT64, [])})
    assert single(compiled(path, "run:rough", tmp_path))["status"] == "ok"
    assert single(compiled(path, "run:wrong", tmp_path))["status"] == "wrong"
