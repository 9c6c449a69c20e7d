"""What ``inspect`` finds without running anything."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper

from collage.inspection import inspect


def test_a_waist_is_where_one_value_crosses(tmp_path: Path) -> None:
    """x -> a -> {b, c} -> d -> y: one value after a, two after b and c, one after d."""
    nodes = [
        helper.make_node("Relu", ["x"], ["p"], name="a"),
        helper.make_node("Neg", ["p"], ["q"], name="b"),
        helper.make_node("Abs", ["p"], ["r"], name="c"),
        helper.make_node("Add", ["q", "r"], ["s"], name="d"),
        helper.make_node("Exp", ["s"], ["y"], name="e"),
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy"]
    graph = helper.make_graph(nodes, "diamond", ports[:1], ports[1:])
    path = tmp_path / "diamond.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)
    assert inspect(path, ["llvm"])["waists"] == [
        {"after": "a", "value": "p", "bytes": 24},
        {"after": "d", "value": "s", "bytes": 24},
    ]
