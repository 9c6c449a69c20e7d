"""Kernels of 8 bits are proposed, and targets of 8 bits measured, only if something profits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from collage.compiler.candidates import has_what_profits
from collage.compiler.survey import share_left, why_no_gain
from collage.frontend import read_model
from collage.graph import DataflowGraph, IndexSet, SubGraph
from collage.measure.baselines import TargetBaseline
from collage.options import CompileOptions
from collage.target import Target
from collage.toolchains import Availability

TEXT = """<ir_version: 10, opset_import: ["": 20]> g (float[2, 256] x) => (float[2, 256] y) <float[256, 256] w, float[2, 256] a> {
  a = Tanh (x)
  b = MatMul (a, w)
  t = Transpose (b)
  s = MatMul (b, t)
  y = MatMul (s, a)
}"""


@pytest.fixture
def graph() -> DataflowGraph:
    proto = onnx.parser.parse_model(TEXT)
    del proto.graph.initializer[:]
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((256, 256), np.float32), "w"))
    return DataflowGraph(read_model(proto))


@pytest.mark.parametrize(
    ("options", "alone"),
    [("", True), (" -precision=bf16", True)]
    + [(f" -precision={name}", False) for name in ("int8", "int8-dynamic", "w8", "w4")],
)
def test_kernels_without_constant_weights_are_for_floats(graph: DataflowGraph, options: str, alone: bool) -> None:
    target = Target.parse(f"llvm -compiler=onnxruntime{options}")
    for index, node in enumerate(graph.nodes):
        kernel = SubGraph(graph, IndexSet(1 << index))
        has_weights = any(str(value.name) == "w" for value in node.inputs if value is not None)
        assert has_what_profits(kernel, target) == (alone or has_weights)
    assert has_what_profits(SubGraph(graph, IndexSet((1 << len(graph)) - 1)), target)


@pytest.mark.parametrize(
    ("precision", "seconds", "is_left_out"),
    [("w8", 1.0, True), ("w8", 3.0, False), ("int8", 1.0, True), ("bf16", 1.0, False), ("w4", None, False)],
)
def test_targets_whose_products_take_no_time_are_left_out(
    graph: DataflowGraph, precision: str, seconds: float | None, is_left_out: bool
) -> None:
    plain = Target.parse("llvm -compiler=onnxruntime")
    problem, found = timed(graph, plain, seconds)
    reason = why_no_gain(problem, plain.with_options(precision=precision), found)
    assert (reason is not None) == is_left_out
    assert reason is None or "1.0%" in reason


@pytest.mark.parametrize(
    ("precision", "seconds", "share"),
    [
        ("w4", 60.0, 0.25),
        ("w8", 60.0, 0.25),
        ("w4", 40.0, 0.65),
        ("w4", None, 0.65),
        ("int8", 90.0, 0.5),
        ("bf16", 1.0, 0.25),
    ],
)
def test_narrow_weights_come_early_where_their_products_decide(
    graph: DataflowGraph, precision: str, seconds: float | None, share: float
) -> None:
    plain = Target.parse("llvm -compiler=onnxruntime")
    problem, found = timed(graph, plain, seconds)
    assert share_left(problem, plain.with_options(precision=precision), found) == share


def timed(graph: DataflowGraph, plain: Target, seconds: float | None) -> tuple[Any, Any]:
    """A problem, and the baseline of a target of which products with weights take so many of 100 seconds."""
    products = [i for i, node in enumerate(graph.nodes) if any(value.name == "w" for value in node.inputs)]
    rest = (100.0 - (seconds or 0.0)) / (len(graph) - len(products))
    profile = (
        {} if seconds is None else {i: seconds / len(products) if i in products else rest for i in range(len(graph))}
    )
    problem: Any = SimpleNamespace(graph=graph, options=CompileOptions(min_gain=0.02))
    return problem, {plain: TargetBaseline(plain, Availability(True), profile=profile)}
