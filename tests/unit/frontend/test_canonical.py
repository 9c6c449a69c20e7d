"""One spelling of what ONNX lets exporters write in several."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from collage.frontend import read_model

SHAPES = {"x": [1, 2, 7, 5], "w": [2, 3, 4, 3]}


def transposed(**attributes: Any) -> onnx.ModelProto:
    """A transposed convolution of symbolic lengths."""
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], name="c", **attributes)
    ports = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, "h", "w"]),
        helper.make_tensor_value_info("w", TensorProto.FLOAT, SHAPES["w"]),
    ]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * 4)
    graph = helper.make_graph([node], "g", ports, [result])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"kernel_shape": [4, 3]},
        {"strides": [2, 1]},
        {"dilations": [1, 3]},
        {"strides": [3, 3], "dilations": [2, 2]},
        {"strides": [2, 2], "output_padding": [1, 0]},
    ],
)
def test_padding_that_keeps_lengths_is_written_out(mode: str, more: dict[str, list[int]]) -> None:
    model = transposed(auto_pad=mode, **more)
    read = read_model(model)
    (node,) = read.graph
    assert "auto_pad" not in node.attributes and len(node.attributes.get_ints("pads") or ()) == 4
    feeds = {name: np.random.default_rng(0).standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    (wanted,), (got,) = (ReferenceEvaluator(each).run(None, feeds) for each in (model, ir.to_proto(read)))
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "attributes",
    [
        {"auto_pad": "VALID"},
        {"auto_pad": "SAME_UPPER", "output_shape": [7, 5]},
        {"auto_pad": "SAME_UPPER", "strides": [5, 1]},
        {},
    ],
)
def test_other_padding_is_left_as_it_is(attributes: dict[str, Any]) -> None:
    (node,) = read_model(transposed(**attributes)).graph
    assert node.attributes.keys() == attributes.keys()


def test_the_long_name_of_the_default_domain_and_graphs_without_names_are_read() -> None:
    """ONNX names its domain ``ai.onnx``, and runtimes take both names and graphs without one."""
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["ai.onnx" : 17, "my" : 1]>
        g (bool c, float[2] x) => (float[2] y)
        {
            t = If (c) <
                then_branch = one () => (float[2] a) { a = Relu (x) },
                else_branch = two () => (float[2] b) { b = Neg (x) }>
            y = my.Twice (t)
        }
        <opset_import: ["ai.onnx" : 17], domain: "my"> Twice (v) => (w) { w = Add (v, v) }""")
    branches = [attribute.g for attribute in model.graph.node[0].attribute]
    for node in (model.graph.node[0], *(branch.node[0] for branch in branches), model.functions[0].node[0]):
        node.domain = "ai.onnx"
    for graph in (model.graph, *branches):
        graph.name = ""
    before = model.SerializeToString()
    read = read_model(model)
    assert read.opset_imports == {"": 17}
    assert [(node.domain, node.op_type) for node in read.graph.all_nodes()] == [
        ("", each) for each in ("If", "Relu", "Neg", "Add")
    ]
    assert all(graph.name for graph in read.graphs())
    assert model.SerializeToString() == before


def test_a_lone_axis_becomes_a_list_for_its_readers_that_ask_for_one() -> None:
    """As PyTorch exports RMSNorm. The number is an index, too, which stays one."""
    nodes = [
        helper.make_node("ReduceMean", ["x", "axis"], ["mean"]),
        helper.make_node("Squeeze", ["mean", "axis"], ["flat"]),
        helper.make_node("Gather", ["flat", "axis"], ["row"]),
        helper.make_node("Unsqueeze", ["row", "axis_list"], ["y"]),
    ]
    weights = [helper.make_tensor("axis", TensorProto.INT64, [], [1]), helper.make_tensor("axis_list", 7, [1], [0])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    read = read_model(helper.make_model(helper.make_graph(nodes, "g", [x], [y], weights), ir_version=10))
    shapes = {node.op_type: node.inputs[1].shape for node in read.graph if node.inputs[1] is not None}
    assert shapes == {"ReduceMean": [1], "Squeeze": [1], "Gather": [], "Unsqueeze": [1]}
    feeds = {"x": np.arange(12, dtype=np.float32).reshape(3, 4)}
    assert ReferenceEvaluator(ir.to_proto(read)).run(None, feeds)[0].tolist() == [5.5]
