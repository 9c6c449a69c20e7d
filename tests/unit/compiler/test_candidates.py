"""Kernels of 8 bits are proposed only if something in them profits."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

from collage.compiler.candidates import has_what_profits
from collage.frontend import read_model
from collage.graph import DataflowGraph, IndexSet, SubGraph
from collage.target import Target

TEXT = """<ir_version: 10, opset_import: ["": 20]> g (float[2, 4] x) => (float[2, 4] y) <float[4, 4] w> {
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
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((4, 4), np.float32), "w"))
    return DataflowGraph(read_model(proto))


@pytest.mark.parametrize(
    ("options", "alone"),
    [("", True), (" -precision=bf16", True), (" -precision=int8-dynamic", True)]
    + [(f" -precision={name}", False) for name in ("int8", "w8", "w4")],
)
def test_kernels_without_constant_weights_are_for_floats(graph: DataflowGraph, options: str, alone: bool) -> None:
    target = Target.parse(f"llvm -compiler=onnxruntime{options}")
    for index, node in enumerate(graph.nodes):
        kernel = SubGraph(graph, IndexSet(1 << index))
        has_weights = any(str(value.name) == "w" for value in node.inputs if value is not None)
        assert has_what_profits(kernel, target) == (alone or has_weights)
    assert has_what_profits(SubGraph(graph, IndexSet((1 << len(graph)) - 1)), target)
