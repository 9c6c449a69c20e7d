"""Rewrites that round differently stay within the bounds that their docstrings state, on awkward parameters and inputs."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper, parser
from tests.unit.transform.graphs import run

from collage.frontend import read_model
from collage.transform import (
    EliminateCommonSubexpr,
    FoldScaleAxis,
    InferType,
    PassContext,
    RecogniseGelu,
    RecogniseLayerNorm,
    RecogniseRMSNorm,
    Sequential,
    SimplifyInference,
)

EPS = float(np.finfo(np.float32).eps)
LEAST = float(np.finfo(np.float32).smallest_subnormal)
FACTORS = [1.0, -1.0, 0.0, 0.5, 3.0, 1e-9, 1e9, 1e-20, 1e18, 1e-38, 1e-42, 1 + EPS]
NUMBERS = [*FACTORS, 1e-3, -2.5, 1e4, -1e4]


def draw_array(data: st.DataObject, numbers, shape: tuple[int, ...]) -> np.ndarray:
    size = math.prod(shape)
    return np.float32(data.draw(st.lists(st.sampled_from(numbers), min_size=size, max_size=size))).reshape(shape)


def model_of(nodes, inputs, weights, opset=17) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    graph = helper.make_graph(nodes, "g", values, [onnx.ValueInfoProto(name="y")], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model)


def apply(pass_, model: onnx.ModelProto) -> ir.Model:
    with PassContext(opt_level=3):
        return Sequential([InferType(), pass_])(ir.from_proto(model))


def operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def assert_near(before: np.ndarray, after: np.ndarray, allowed: np.ndarray) -> None:
    """Within the bound wherever both stay in range, which is what the bounds presuppose."""
    before, after = before.astype(np.float64), after.astype(np.float64)
    allowed = np.broadcast_to(allowed, before.shape)
    inside = np.isfinite(before) & np.isfinite(after) & (allowed < 1e30)
    assert (np.abs(before - after)[inside] <= np.broadcast_to(allowed, before.shape)[inside]).all(), (
        before,
        after,
        allowed,
    )


def convolution(data: st.DataObject):
    """A 1x1 Conv of three channels to two, its weights and input."""
    w, b, x = draw_array(data, NUMBERS, (2, 3)), draw_array(data, NUMBERS, (2,)), draw_array(data, NUMBERS, (4, 3))
    return w, b, x, helper.make_node("Conv", ["x", "w", "b"], ["c"])


def draw_batch_norm(data: st.DataObject) -> bool:
    w, b, x, conv = convolution(data)
    scale, shift, mean = (draw_array(data, NUMBERS, (2,)) for _ in range(3))
    variance = draw_array(data, [0.0, 1.0, 1e-12, 1e-42, 1e9, 2.0], (2,))
    epsilon = data.draw(st.sampled_from([1e-5, 1e-12, 0.0, 1e-3]))
    norm = helper.make_node("BatchNormalization", ["c", "scale", "shift", "mean", "var"], ["y"], epsilon=epsilon)
    weights = {"w": w[:, :, None, None], "b": b, "scale": scale, "shift": shift, "mean": mean, "var": variance}
    model = model_of([conv, norm], {"x": [4, 3, 1, 1]}, weights)
    feeds = {"x": x[:, :, None, None]}
    result = apply(SimplifyInference(), model)
    before, after = run(model, feeds)[0][:, :, 0, 0], run(result, feeds)[0][:, :, 0, 0]
    if operators(result) == ["Conv", "BatchNormalization"]:
        assert np.array_equal(before, after, equal_nan=True)
        return False
    wide = [array.astype(np.float64) for array in (w, b, x, scale, shift, mean, variance)]
    w, b, x, scale, shift, mean, variance = wide
    factor = np.abs(scale / np.sqrt(variance + np.float32(epsilon)))
    terms = np.abs(x) @ (np.abs(w) * factor[:, None]).T + np.abs(b) * factor + np.abs(mean) * factor + np.abs(shift)
    # Among subnormal numbers, the pair loses as much of what it multiplies as the one node of its weights.
    unscaled = np.abs(x) @ np.abs(w).T + np.abs(b) + np.abs(mean)
    lost = LEAST * (np.abs(x).sum(axis=1, keepdims=True) + unscaled + 4 * (1 + factor))
    assert_near(before, after, (3 + 4) * EPS * terms + lost)
    return True


def draw_scale(data: st.DataObject) -> bool:
    w, b, x, _ = convolution(data)
    forward = data.draw(st.booleans())
    scale = draw_array(data, FACTORS, (3 if forward else 2,))
    op_type = data.draw(st.sampled_from(["Mul", "Div"]))
    between = data.draw(st.sampled_from([[], ["Relu"], ["LeakyRelu"]]))
    order = [op_type, *between, "Conv"] if forward else ["Conv", *between, op_type]
    nodes, last = [], "x"
    for index, kind in enumerate(order):
        more = {"Conv": ["w", "b"], op_type: ["scale"]}.get(kind, [])
        last, read = ("y" if index == len(order) - 1 else f"v{index}"), last
        nodes.append(helper.make_node(kind, [read, *more], [last]))
    model = model_of(nodes, {"x": [4, 3, 1, 1]}, {"w": w[:, :, None, None], "b": b, "scale": scale[:, None, None]})
    feeds = {"x": x[:, :, None, None]}
    result = apply(FoldScaleAxis(), model)
    before, after = run(model, feeds)[0][:, :, 0, 0], run(result, feeds)[0][:, :, 0, 0]
    if op_type in operators(result):
        assert np.array_equal(before, after, equal_nan=True)
        return False
    assert not between or (scale > 0).all()
    w, b, x, scale = (array.astype(np.float64) for array in (w, b, x, scale))
    factor = np.abs(1 / scale if op_type == "Div" else scale)
    largest = np.abs(x).max()
    if forward:
        terms = np.abs(x * factor) @ np.abs(w).T + np.abs(b)
        lost = LEAST * (np.abs(x).sum() + np.abs(w).sum() * (1 + largest))
    else:
        terms = (np.abs(x) @ np.abs(w).T + np.abs(b)) * factor
        lost = LEAST * (np.abs(x).sum() + 4 * (1 + factor))
    assert_near(before, after, (3 + 3) * EPS * terms + lost)
    return True


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_batch_normalisation(data):
    draw_batch_norm(data)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_scales(data):
    draw_scale(data)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None)
@given(st.data())
def test_much_batch_normalisation(data):
    draw_batch_norm(data)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None)
@given(st.data())
def test_many_scales(data):
    draw_scale(data)


def test_ordinary_parameters_are_folded():
    """What the random ones above only may do."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((2, 3, 1, 1)).astype(np.float32)
    conv = helper.make_node("Conv", ["x", "w"], ["c"])
    scaled = model_of(
        [conv, helper.make_node("Mul", ["c", "s"], ["y"])], {"x": [4, 3, 1, 1]}, {"w": w, "s": np.float32(0.5)}
    )
    assert operators(apply(FoldScaleAxis(), scaled)) == ["Conv"]


@pytest.mark.parametrize("scale", [1e-40, 1e-45, 3e38])
def test_a_scale_that_drives_weights_out_of_range_stays(scale):
    w = np.full((2, 3, 1, 1), 2, np.float32)
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Mul", ["c", "s"], ["y"])]
    model = model_of(nodes, {"x": [4, 3, 1, 1]}, {"w": w, "s": np.float32(scale)})
    assert operators(apply(FoldScaleAxis(), model)) == ["Conv", "Mul"]


GELU = """<ir_version: 10, opset_import: ["" : 20]> g (float[6] x) => (float[6] y)
<float root = {1}, float one = {1}, float half = {0.5}> {
    a = Div (x, root)
    b = Erf (a)
    c = Add (b, one)
    d = Mul (x, c)
    y = Mul (d, half)
}"""
TANH_GELU = """<ir_version: 10, opset_import: ["" : 20]> g (float[6] x) => (float[6] y)
<float three = {3}, float cubic = {0.044715}, float root = {1}, float one = {1}, float half = {0.5}> {
    a = Pow (x, three)
    b = Mul (a, cubic)
    c = Add (x, b)
    d = Mul (c, root)
    e = Tanh (d)
    f = Add (e, one)
    g = Mul (x, f)
    y = Mul (g, half)
}"""
PIECES = {"erf": (GELU, math.sqrt(2)), "tanh": (TANH_GELU, math.sqrt(2 / math.pi))}


def with_constants(text: str, numbers: dict[str, float]) -> onnx.ModelProto:
    model = parser.parse_model(text)
    for tensor in model.graph.initializer:
        if tensor.name in numbers:
            tensor.CopyFrom(numpy_helper.from_array(np.asarray(numbers[tensor.name], np.float32), tensor.name))
    return model


@pytest.mark.parametrize("kind", PIECES)
def test_gelu_of_the_definition_only(kind):
    text, root = PIECES[kind]
    rounded = np.float32(root)
    for number in (rounded, np.nextafter(rounded, np.float32(9)), np.nextafter(rounded, np.float32(0))):
        assert operators(apply(RecogniseGelu(), with_constants(text, {"root": number}))) == ["Gelu"]
    for name, number in (("root", root * (1 + 1e-6)), ("one", 1.000001), ("half", 0.5000001), ("cubic", 0.0447151)):
        if f"float {name} =" not in text:
            continue
        model = with_constants(text, {"root": rounded, name: number})
        assert "Gelu" not in operators(apply(RecogniseGelu(), model)), name


@pytest.mark.parametrize("kind", PIECES)
def test_gelu_stays_within_its_bound(kind):
    text, root = PIECES[kind]
    model = with_constants(text, {"root": root})
    result = apply(RecogniseGelu(), model)
    assert operators(result) == ["Gelu"]
    rng = np.random.default_rng(1)
    for numbers in (NUMBERS[:6], NUMBERS[6:12], *rng.standard_normal((40, 6)) * 4):
        x = np.float32(numbers)
        assert_near(run(model, {"x": x})[0], run(result, {"x": x})[0], 8 * EPS * np.abs(x) + LEAST)


NORM = """<ir_version: 10, opset_import: ["" : 23]> g (float[5, 8] x) => (float[5, 8] y)
<int64[1] last = {-1}, float epsilon = {1}, float two = {2},
 float[8] scale = {1,2,-1,0.5,0,3,1,1}, float[8] bias = {0,1,-1,2,0,5,1,0}> {
    %s
    safe = Add (variance, epsilon)
    root = Sqrt (safe)
    normal = Div (%s, root)
    scaled = Mul (normal, scale)
    y = %s
}"""
LAYER_NORM = NORM % (
    "mean = ReduceMean (x, last) centred = Sub (x, mean) square = Pow (centred, two) variance = ReduceMean (square, last)",
    "centred",
    "Add (scaled, bias)",
)
RMS_NORM = (NORM % ("square = Pow (x, two) variance = ReduceMean (square, last)", "x", "Identity (scaled)")).replace(
    "scaled = Mul (normal, scale)\n    y = Identity (scaled)", "y = Mul (normal, scale)"
)


@pytest.mark.parametrize("epsilon", [1e-5, 1e-12, 1e-30])
@pytest.mark.parametrize("name", ["LayerNormalization", "RMSNormalization"])
def test_normalisations_keep_their_epsilon_and_their_bound(name, epsilon):
    text, pass_ = (LAYER_NORM, RecogniseLayerNorm()) if name[0] == "L" else (RMS_NORM, RecogniseRMSNorm())
    model = with_constants(text, {"epsilon": epsilon})
    result = apply(pass_, model)
    assert operators(result) == [name]
    assert result.graph[0].attributes.get_float("epsilon") == np.float32(epsilon)
    rng = np.random.default_rng(2)
    for size, offset in ((1, 0), (1e-6, 0), (1e4, 0), (1e-3, 100), (1, 1e4)):
        x = (rng.standard_normal((5, 8)) * size + offset).astype(np.float32)
        x[0], x[1] = 0, offset + size
        before, after = run(model, {"x": x})[0], run(result, {"x": x})[0]
        wide = x.astype(np.float64)
        scale, bias = np.abs([1, 2, -1, 0.5, 0, 3, 1, 1]), np.abs([0, 1, -1, 2, 0, 5, 1, 0])
        deviation = np.sqrt(wide.var(axis=1, keepdims=True) + np.float32(epsilon))
        largest = np.abs(wide).max(axis=1, keepdims=True)
        allowed = (1 + largest / deviation) * scale + bias if name[0] == "L" else np.abs(before.astype(np.float64))
        assert np.isfinite(before).all() and np.isfinite(after).all()
        assert_near(before, after, 16 * EPS * allowed)


def test_common_subexpressions_differ_in_a_bit():
    """Constants are merged by bits and types, attributes by all their numbers."""
    proto = parser.parse_model("""
    <ir_version: 10, opset_import: ["" : 18]> g (float[2] x) => (float[2] a, float[2] b, float[2] c, float[2] d)
    <float plus = {0}, float minus = {-0.0}> {
        p = Add (x, plus)
        m = Add (x, minus)
        u = LeakyRelu <alpha = 0.1> (x)
        v = LeakyRelu <alpha = 0.10000001> (x)
        a = Neg (p)
        b = Neg (m)
        c = Neg (u)
        d = Neg (v)
    }""")
    proto.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.float32(-0.0), "minus"))
    result = EliminateCommonSubexpr()(ir.from_proto(proto))
    assert operators(result).count("Add") == 2 and operators(result).count("LeakyRelu") == 2
    x = np.float32([-0.0, -1])
    outputs = zip(run(proto, {"x": x}), run(result, {"x": x}), strict=True)
    assert all(np.array_equal(np.signbit(one), np.signbit(other)) for one, other in outputs)


def test_tensors_in_attributes_are_compared_to_the_last_number():
    """Of long ones, text shows the ends only."""
    arrays = [np.arange(2000, dtype=np.float32) for _ in range(2)]
    arrays[1][1000] = -1
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([2]))
    nodes = [ir.node("Neg", [x], {"given": ir.AttrTensors("given", [ir.tensor(array)])}) for array in arrays]
    last = ir.node("Concat", [node.outputs[0] for node in nodes], {"axis": 0})
    for index, node in enumerate((*nodes, last)):
        node.outputs[0].name = f"v{index}"
    graph = ir.Graph([x], [last.outputs[0]], nodes=[*nodes, last], opset_imports={"": 18}, name="g")
    result = EliminateCommonSubexpr()(ir.Model(graph, ir_version=10))
    assert operators(result).count("Neg") == 2


def test_the_front_door_reads_padding_as_onnx_runtime_does():
    """ConvTranspose's automatic padding is written out in numbers, exactly."""
    rng = np.random.default_rng(3)
    for mode in ("SAME_UPPER", "SAME_LOWER"):
        for kernel, stride, dilation in ((3, 2, 1), (4, 2, 1), (2, 1, 1), (3, 1, 2), (5, 3, 1)):
            node = helper.make_node(
                "ConvTranspose", ["x", "w"], ["y"], auto_pad=mode, strides=[stride], dilations=[dilation]
            )
            w, x = (
                rng.standard_normal((2, 3, kernel)).astype(np.float32),
                rng.standard_normal((1, 2, 7)).astype(np.float32),
            )
            model = model_of([node], {"x": [1, 2, 7]}, {"w": w})
            after = run(read_model(model), {"x": x})[0]
            assert np.array_equal(run(model, {"x": x})[0], after), (mode, kernel, stride, dilation)
