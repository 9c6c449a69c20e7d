"""Multiplications per channel are folded where that is right, and only there."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.unit.transform.graphs import assert_same, run

from collage.frontend import read_model
from collage.transform import BackwardFoldScaleAxis, FoldScaleAxis, ForwardFoldScaleAxis, PassContext, Sequential

RANDOM = np.random.default_rng(0)
SHAPES = {"Conv": (2, 4, 6, 6), "ConvTranspose": (2, 4, 6, 6), "Gemm": (3, 4), "MatMul": (2, 3, 4)}
WEIGHTS = {"Conv": (6, 4, 3, 3), "ConvTranspose": (4, 6, 3, 3), "Gemm": (4, 6), "MatMul": (4, 6)}


def positive(*shape: int) -> np.ndarray:
    return RANDOM.uniform(0.5, 2, shape).astype(np.float32)


def build(nodes, weights, shape, outputs=("y",)) -> ir.Model:
    graph = helper.make_graph(
        [helper.make_node(kind, list(inputs), [output], **attrs) for output, kind, inputs, attrs in nodes],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return read_model(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)]))


def fold(model: ir.Model, pass_) -> tuple[list[str], ir.Model]:
    inputs = {"x": RANDOM.standard_normal([d for d in model.graph.inputs[0].shape]).astype(np.float32)}
    with PassContext(opt_level=3):
        folded = pass_(model)
    assert_same(run(model, inputs), run(folded, inputs))
    assert [value.name for value in folded.graph.outputs] == [value.name for value in model.graph.outputs]
    return [node.op_type for node in folded.graph], folded


def channels(kind: str, count: int) -> tuple[int, ...]:
    return (1, count, 1, 1) if kind.startswith("Conv") else (count,)


@pytest.mark.parametrize("scale", ["channel", "scalar", "Div"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", SHAPES)
def test_backward(kind, bias, scale):
    shape = () if scale == "scalar" else channels(kind, 6)
    weights = {"w": positive(*WEIGHTS[kind]), "s": -positive(*shape), "b": positive(6)}
    operands = ("x", "w", "b") if bias and kind != "MatMul" else ("x", "w")
    attrs = {"pads": [1] * 4} if kind.startswith("Conv") else {}
    nodes = [("c", kind, operands, attrs), ("y", "Div" if scale == "Div" else "Mul", ("c", "s"), {})]
    assert fold(build(nodes, weights, SHAPES[kind]), BackwardFoldScaleAxis())[0] == [kind]


@pytest.mark.parametrize("kind", SHAPES)
def test_forward(kind):
    weights = {"w": positive(*WEIGHTS[kind]), "s": -positive(*channels(kind, 4)), "b": positive(6)}
    operands = ("m", "w") if kind == "MatMul" else ("m", "w", "b")
    attrs = {"pads": [1] * 4} if kind.startswith("Conv") else {}
    nodes = [("m", "Mul", ("s", "x"), {}), ("y", kind, operands, attrs)]
    assert fold(build(nodes, weights, SHAPES[kind]), ForwardFoldScaleAxis())[0] == [kind]


@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("groups", [2, 4])
def test_groups(kind, groups):
    shape = (8, 4 // groups, 3, 3) if kind == "Conv" else (4, 8 // groups, 3, 3)
    weights = {"w": positive(*shape), "s": positive(1, 4, 1, 1), "t": positive(1, 8, 1, 1)}
    nodes = [
        ("m", "Mul", ("x", "s"), {}),
        ("c", kind, ("m", "w"), {"group": groups}),
        ("y", "Mul", ("c", "t"), {}),
    ]
    assert fold(build(nodes, weights, (2, 4, 6, 6)), FoldScaleAxis())[0] == [kind]


@pytest.mark.parametrize("attrs", [{"transB": 1}, {"transB": 1, "alpha": 0.5, "beta": 2.0}, {"beta": 3.0}])
@pytest.mark.parametrize("bias", [(6,), (3, 1), (3, 6), (1, 6), ()])
def test_gemm_scales_its_bias_too(attrs, bias):
    weight = positive(6, 4) if "transB" in attrs else positive(4, 6)
    weights = {"w": weight, "b": positive(*bias), "s": positive(6), "t": positive(4)}
    nodes = [("m", "Mul", ("x", "t"), {}), ("c", "Gemm", ("m", "w", "b"), attrs), ("y", "Mul", ("c", "s"), {})]
    assert fold(build(nodes, weights, (3, 4)), FoldScaleAxis())[0] == ["Gemm"]


def test_a_positive_scale_passes_activations_pools_and_added_constants():
    weights = {"w": positive(6, 4, 3, 3), "b": positive(6, 1, 1), "s": positive(6, 1, 1)}
    nodes = [
        ("c", "Conv", ("x", "w"), {}),
        ("a", "Add", ("c", "b"), {}),
        ("r", "Relu", ("a",), {}),
        ("p", "MaxPool", ("r",), {"kernel_shape": [2, 2]}),
        ("y", "Mul", ("p", "s"), {}),
    ]
    assert fold(build(nodes, weights, (1, 4, 8, 8)), BackwardFoldScaleAxis())[0] == ["Conv", "Add", "Relu", "MaxPool"]
    weights["s"] = -weights["s"]
    assert "Mul" in fold(build(nodes, weights, (1, 4, 8, 8)), BackwardFoldScaleAxis())[0]


def test_a_negative_scale_passes_an_average():
    weights = {"w": positive(6, 4, 3, 3), "s": -positive(4, 1, 1)}
    nodes = [
        ("m", "Mul", ("x", "s"), {}),
        ("p", "AveragePool", ("m",), {"kernel_shape": [2, 2]}),
        ("y", "Conv", ("p", "w"), {}),
    ]
    assert fold(build(nodes, weights, (1, 4, 8, 8)), ForwardFoldScaleAxis())[0] == ["AveragePool", "Conv"]


CONV = ("c", "Conv", ("x", "w"), {})
REFUSED = {
    "the scale varies along another axis": ([CONV, ("y", "Mul", ("c", "s"), {})], {"s": positive(1, 1, 6, 6)}, ("y",)),
    "the result is used elsewhere": (
        [CONV, ("y", "Mul", ("c", "s"), {}), ("z", "Neg", ("c",), {})],
        {"s": positive(1, 4, 1, 1)},
        ("y", "z"),
    ),
    "the result is an output": ([CONV, ("y", "Mul", ("c", "s"), {})], {"s": positive(1, 4, 1, 1)}, ("y", "c")),
    "the scale adds an axis": ([CONV, ("y", "Mul", ("c", "s"), {})], {"s": positive(1, 1, 4, 1, 1)}, ("y",)),
    "the weight is shared": (
        [CONV, ("y", "Mul", ("c", "s"), {}), ("z", "Conv", ("x", "w"), {"strides": [2, 2]})],
        {"s": positive(1, 4, 1, 1)},
        ("y", "z"),
    ),
    "the operator between is not homogeneous": (
        [CONV, ("t", "Sigmoid", ("c",), {}), ("y", "Mul", ("t", "s"), {})],
        {"s": positive(1, 4, 1, 1)},
        ("y",),
    ),
    "the weight would overflow": (
        [CONV, ("y", "Mul", ("c", "s"), {})],
        {"s": np.array(1e38, np.float32), "w": np.full((4, 4, 1, 1), 1e2, np.float32)},
        ("y",),
    ),
    "the constant is divided": ([CONV, ("y", "Div", ("s", "c"), {})], {"s": positive(1, 4, 1, 1)}, ("y",)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_folded(case):
    nodes, weights, outputs = REFUSED[case]
    model = build(nodes, {"w": positive(4, 4, 1, 1), **weights}, (1, 4, 6, 6), outputs)
    before = [node.op_type for node in model.graph]
    with np.errstate(all="ignore"):
        assert fold(model, FoldScaleAxis())[0] == before


def test_an_input_that_the_scale_stretched_is_not_folded():
    weights = {"w": positive(6, 4, 1, 1), "s": positive(1, 4, 1, 1)}
    nodes = [("m", "Mul", ("x", "s"), {}), ("y", "Conv", ("m", "w"), {})]
    assert fold(build(nodes, weights, (1, 1, 6, 6)), ForwardFoldScaleAxis())[0] == ["Mul", "Conv"]


def test_it_is_a_sequence_of_both_directions_backward_first():
    names = [member.info.name for member in FoldScaleAxis().passes]
    assert isinstance(FoldScaleAxis(), Sequential)
    assert names == ["BackwardFoldScaleAxis", "ForwardFoldScaleAxis"]
