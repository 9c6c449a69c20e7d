"""Kernels with 8-bit integers inside: what is rounded, how, and what is left alone."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator
from tests.calibrated import calibrated

from collage._errors import Unsupported
from collage.graph import NODE_PRECISION, VALUE_RANGE, set_value_range
from collage.testing._toolchain_kernels import kernel
from collage.toolchains.sdk.int8_model import in_int8, scale_and_zero_point, weight_scales
from collage.toolchains.sdk.int8_placement import Int8Style

WHOLE = Int8Style(
    products=frozenset(("Conv", "Gemm", "MatMul")),
    between=frozenset(("Add", "Concat", "GlobalAveragePool", "Mul", "Sigmoid")),
    carriers=frozenset(("Flatten", "MaxPool", "Reshape", "Transpose")),
    whole=True,
    float_results=frozenset(("Gemm", "MatMul")),
    rounds_biases=True,
)
"""As ONNX Runtime has it."""
MERGED = Int8Style(
    products=frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul")),
    between=frozenset(("Add", "Concat", "GlobalAveragePool")),
    carriers=frozenset(("MaxPool", "Reshape", "Transpose")),
    whole=False,
)
"""As OpenVINO has it."""
STYLES = pytest.mark.parametrize("style", [WHOLE, MERGED], ids=["whole", "merged"])


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def ready(text: str, weights: Mapping[str, Any], folder: Path, **feeds: Any) -> ir.Model:
    """A kernel with the ranges that it has on some inputs."""
    return calibrated(kernel("k", text, weights), [feeds], folder)


def run(model: ir.Model, **feeds: Any) -> list[Any]:
    """What ONNX says of a model: nothing is merged."""
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    return [np.asarray(y) for y in ReferenceEvaluator(proto).run(None, feeds)]


def operators(model: ir.Model) -> Counter[str]:
    return Counter(node.op_type for node in model.graph)


def fake(x: Any, low: float, high: float) -> Any:
    """An independent account of rounding to unsigned bytes."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = np.float32((high - low) / 255)
    zero = np.clip(np.rint(-low / scale), 0, 255)
    return ((np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * scale).astype(np.float32)


def fake_weights(w: Any, axis: int) -> Any:
    rows = np.moveaxis(w, axis, 0).reshape(w.shape[axis], -1)
    scales = (np.abs(rows).max(axis=1, keepdims=True) / 127).astype(np.float32)
    return np.moveaxis((np.rint(rows / scales) * scales).reshape(np.moveaxis(w, axis, 0).shape), 0, axis)


@pytest.fixture
def has_vnni(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have weights keep eight bits on every machine."""
    from collage.toolchains.sdk import int8_model

    machine = dataclasses.replace(int8_model.this_machine(), flags=("ssse3", "avx512_vnni"))
    monkeypatch.setattr(int8_model, "this_machine", lambda: machine)


PERCEPTRON = "(float[5,16] x) => (float[5,6] y) {a = Gemm (x, w, b) r = Relu (a) y = Gemm <transB = 1> (r, v, c)}"
PERCEPTRON_WEIGHTS = {"w": numbers(16, 8), "b": numbers(8, seed=1), "v": numbers(6, 8, seed=2), "c": numbers(6, seed=3)}


@pytest.mark.usefixtures("has_vnni")
@STYLES
def test_the_answer_is_that_of_rounded_values_and_weights(style: Int8Style, tmp_path: Path) -> None:
    x, (w, b, v, c) = numbers(5, 16, seed=4), PERCEPTRON_WEIGHTS.values()
    hidden = np.maximum(x @ w + b, 0)
    rounded = fake(x, x.min(), x.max()) @ fake_weights(w, 1) + b
    rounded = fake(np.maximum(rounded, 0), 0.0, hidden.max())
    expected = rounded @ fake_weights(v, 0).T + c
    (y,) = run(in_int8(ready(PERCEPTRON, PERCEPTRON_WEIGHTS, tmp_path, x=x), style), x=x)
    # Biases are rounded too, to millionths of their size.
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
    exact = hidden @ v.T + c
    assert 0 < np.abs(y - exact).max() < 3e-2 * np.abs(exact).max()


@pytest.mark.usefixtures("has_vnni")
def test_a_library_makes_the_same_numbers(tmp_path: Path) -> None:
    from onnxruntime.quantization import QuantType
    from onnxruntime.quantization.calibrate import TensorData
    from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

    x = numbers(1, 3, 8, 8)
    text = "(float[1,3,8,8] x) => (float[1,4,6,6] y) {y = Conv (x, w, b)}"
    model = ready(text, {"w": numbers(4, 3, 3, 3, seed=1), "b": numbers(4, seed=2)}, tmp_path, x=x)
    proto = ir.to_proto(model)
    ranges = {
        str(v.name): TensorData(lowest=np.float32(words[0]), highest=np.float32(words[1]))
        for v in (*model.graph.inputs, *model.graph.outputs)
        for words in [v.metadata_props[VALUE_RANGE].split()]
    }
    library = QDQQuantizer(
        proto, True, False, QuantType.QInt8, QuantType.QUInt8, ranges, [], [], ["Conv"], {}
    ).quantize_model()
    theirs = {i.name: onnx.numpy_helper.to_array(i) for i in library.graph.initializer}
    ours = [v.const_value.numpy() for v in in_int8(model, WHOLE).graph.initializers.values() if v.const_value]
    for name, array in theirs.items():
        same = [each for each in ours if each.dtype == array.dtype and each.size == array.size]
        apart = 1 if array.dtype == np.int32 else 0  # They multiply scales in float32.
        assert any(np.allclose(each.reshape(-1), array.reshape(-1), rtol=1e-6, atol=apart) for each in same), name


CNN = """(float[1,3,12,12] x) => (float[1,4] y) {
    a = Conv <pads = [1,1,1,1]> (x, w1, b1) r = Relu (a) p = MaxPool <kernel_shape = [2,2], strides = [2,2]> (r)
    d = Conv <pads = [1,1,1,1], group = 8> (p, w2, b2) c = Clip (d, zero, six)
    e = Conv (c, w3, b3) s = Add (e, p) t = Relu (s)
    f = Conv (t, w4) g = Sigmoid (f) h = Mul (f, g)
    i = Conv (h, w3, b3) k = GlobalAveragePool (i) l = Flatten (k) m = Gemm (l, w5, b5) y = Softmax (m)
}"""
CNN_WEIGHTS = {
    "w1": numbers(8, 3, 3, 3) / 3,
    "b1": numbers(8, seed=1),
    "w2": numbers(8, 1, 3, 3, seed=2) / 3,
    "b2": numbers(8, seed=3),
    "w3": numbers(8, 8, 1, 1, seed=4) / 3,
    "b3": numbers(8, seed=5),
    "w4": numbers(8, 8, 1, 1, seed=6) / 3,
    "w5": numbers(8, 4, seed=7),
    "b5": numbers(4, seed=8),
    "zero": np.array(0, np.float32),
    "six": np.array(6, np.float32),
}


@STYLES
def test_a_convolutional_network(style: Int8Style, tmp_path: Path) -> None:
    x = numbers(1, 3, 12, 12, seed=9)
    model = ready(CNN, CNN_WEIGHTS, tmp_path, x=x)
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    made = in_int8(model, style)
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before, "the kernel was changed"
    assert [v.name for v in made.graph.inputs] == ["x"] and [v.name for v in made.graph.outputs] == ["y"]
    (exact,), (y,) = run(model, x=x), run(made, x=x)
    assert 0 < np.abs(y - exact).max() < 0.1
    # Where all must be in 8 bits, no activation is left that rounding stands for.
    left = operators(made)
    assert (left["Relu"], left["Clip"]) == ((0, 0) if style.whole else (2, 1))
    integers = [v for v in made.graph.initializers.values() if v.dtype == ir.DataType.INT8 and v.const_value.size > 8]
    assert sorted(v.const_value.size for v in integers) == sorted([216, 72, 64, 64, 64, 32])
    readers = {node.op_type for node in made.graph if node.op_type not in ("QuantizeLinear", "DequantizeLinear")}
    assert "Softmax" in readers


@STYLES
def test_both_runtimes_read_it(style: Int8Style, tmp_path: Path) -> None:
    x = numbers(1, 3, 12, 12, seed=9)
    made = in_int8(ready(CNN, CNN_WEIGHTS, tmp_path, x=x), style)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(ir.to_proto(made).SerializeToString(), options)
    (y,), (expected,) = session.run(None, {"x": x}), run(made, x=x)
    np.testing.assert_allclose(y, expected, atol=2e-2)


def test_floats_read_what_was_not_rounded(tmp_path: Path) -> None:
    # As in a transformer: what is normalised is multiplied, and added to the product.
    text = """(float[2,8] x) => (float[2,8] y, float[2,8] n) {
        n = LayerNormalization (x, s) m = MatMul (n, w) y = Add (m, n)
    }"""
    x = numbers(2, 8)
    model = ready(text, {"s": np.ones(8, np.float32), "w": np.zeros((8, 8), np.float32)}, tmp_path, x=x)
    made = in_int8(model, WHOLE)
    assert operators(made)["QuantizeLinear"] == 1
    for found, exact in zip(run(made, x=x), run(model, x=x), strict=True):
        np.testing.assert_array_equal(found, exact)


@STYLES
def test_nodes_are_left_in_float_where_the_model_says_so(style: Int8Style, tmp_path: Path) -> None:
    x = numbers(1, 3, 12, 12, seed=9)
    model = ready(CNN, CNN_WEIGHTS, tmp_path, x=x)
    for node in model.graph:
        if node.op_type in ("Gemm", "Sigmoid") or (node.inputs[1:2] and node.inputs[1].name == "w1"):
            node.metadata_props[NODE_PRECISION] = "float32"
    made = in_int8(model, style)
    weights = {node.inputs[1].name for node in made.graph if node.op_type in ("Conv", "Gemm")}
    assert {"w1", "w5"} < weights and not {"w2", "w3", "w4"} & weights
    for node in model.graph:
        node.metadata_props[NODE_PRECISION] = "float32"
    with pytest.raises(Unsupported, match="no Conv"):
        in_int8(model, style)


@pytest.mark.parametrize("text", [None, "", "1", "a b", "1 2 3"])
@STYLES
def test_unknown_ranges_are_refused(text: str | None, style: Int8Style, tmp_path: Path) -> None:
    model = ready(PERCEPTRON, PERCEPTRON_WEIGHTS, tmp_path, x=numbers(5, 16))
    given = model.graph.inputs[0].metadata_props
    given.pop(VALUE_RANGE)
    given.update({} if text is None else {VALUE_RANGE: text})
    with pytest.raises(Unsupported, match="the range of 'x' is not known"):
        in_int8(model, style)


HOSTILE = [
    "0 0",
    "-0.0 0.0",
    "1e-42 1e-41",
    "nan nan",
    "0 nan",
    "-inf inf",
    "0 inf",
    "2 1",
    "-1e38 1e38",
    "-1e300 1e300",
]


@pytest.mark.parametrize("text", HOSTILE)
@STYLES
def test_what_has_no_usable_range_stays_in_float(text: str, style: Int8Style, tmp_path: Path) -> None:
    x = numbers(5, 16)
    model = ready(PERCEPTRON, PERCEPTRON_WEIGHTS, tmp_path, x=x)
    model.graph.inputs[0].metadata_props[VALUE_RANGE] = text
    made = in_int8(model, style)
    assert next(node.inputs[1].name for node in made.graph if node.op_type == "Gemm") == "w"
    assert operators(made)["QuantizeLinear"] == 1
    (y,), (exact,) = run(made, x=x), run(model, x=x)
    assert np.abs(y - exact).max() < 3e-2 * np.abs(exact).max()


@pytest.mark.parametrize(("low", "high"), [(5.0, 5.0), (-3.0, -3.0), (1.0, 2.0), (-1e-10, 1e-12), (-1e10, 1.0)])
def test_ranges_hold_zero(low: float, high: float) -> None:
    covered = min(low, 0.0), max(high, 0.0)
    scale, zero = scale_and_zero_point(covered)
    assert (np.float32(zero) - np.float32(zero)) * scale == 0 and 0 <= zero <= 255
    x = np.array([low, high, 0.0], np.float32)
    got = (np.clip(np.rint(x / scale) + np.float32(zero), 0, 255) - np.float32(zero)) * scale
    np.testing.assert_allclose(got, x, atol=1.01 * float(scale))


def test_activations_that_promise_too_much_are_held_to_what_they_let_through(tmp_path: Path) -> None:
    """A range that goes below what Relu lets through would have negative numbers pass where Relu is left out."""
    text = "(float[1,2,4,4] x) => (float[1,2,4,4] y) {a = Conv (x, w) y = Relu (a)}"
    x, w = numbers(1, 2, 4, 4), numbers(2, 2, 1, 1, seed=1)
    model = ready(text, {"w": w}, tmp_path, x=x)
    set_value_range(model.graph.outputs[0], -8.0, 8.0)
    made = in_int8(model, WHOLE)
    assert operators(made)["Relu"] == 0
    (y,), (exact,) = run(made, x=x), run(model, x=x)
    assert y.min() == 0 and np.abs(y - exact).max() < 0.1


@STYLES
def test_an_activation_behind_an_operator_that_only_moves_elements(style: Int8Style, tmp_path: Path) -> None:
    text = """(float[1,2,4,4] x) => (float[1,2,4,4] y) {
        a = Conv (x, w) t = Transpose <perm = [0, 1, 3, 2]> (a) r = Relu (t) y = Conv (r, w)
    }"""
    x = numbers(1, 2, 4, 4, seed=1)
    model = ready(text, {"w": numbers(2, 2, 1, 1)}, tmp_path, x=x)
    (y,), (exact,) = run(in_int8(model, style), x=x), run(model, x=x)
    assert np.abs(y - exact).max() < 5e-2 * np.abs(exact).max()
    set_value_range(next(node.outputs[0] for node in model.graph if node.op_type == "Relu"), 0.0, 0.0)
    assert operators(in_int8(model, style))["Relu"] == 1


@STYLES
def test_clips_that_let_no_zeros_through_are_kept(style: Int8Style, tmp_path: Path) -> None:
    text = "(float[1,2,4,4] x) => (float[1,2,4,4] y) {a = Conv (x, w) c = Clip (a, one, six) y = Conv (c, w)}"
    weights = {"w": numbers(2, 2, 1, 1), "one": np.array(1, np.float32), "six": np.array(6, np.float32)}
    x = numbers(1, 2, 4, 4, seed=1)
    model = ready(text, weights, tmp_path, x=x)
    made = in_int8(model, style)
    assert operators(made)["Clip"] == 1
    (y,), (exact,) = run(made, x=x), run(model, x=x)
    assert np.abs(y - exact).max() < 5e-2 * np.abs(exact).max()


@STYLES
def test_values_that_bodies_and_outputs_read_are_still_there(style: Int8Style, tmp_path: Path) -> None:
    text = """(float[1,2,4,4] x, bool c) => (float[1,2,4,4] y, float[1,2,4,4] a, float[1,2,4,4] z) {
        a = Conv (x, w, b) r = Relu (a) y = Conv (r, w, b)
        z = If (c) <then_branch = t () => (float[1,2,4,4] u) {u = Add (r, w5)},
                    else_branch = e () => (float[1,2,4,4] v) {v = Mul (y, w5)}>
    }"""
    weights = {"w": numbers(2, 2, 1, 1), "b": numbers(2, seed=1), "w5": numbers(1, 2, 1, 1, seed=2)}
    x = numbers(1, 2, 4, 4, seed=3)
    model = ready(text, weights, tmp_path, x=x, c=np.array(True))
    made = in_int8(model, style)
    assert [v.name for v in made.graph.outputs] == ["y", "a", "z"]
    for c in (True, False):
        for found, exact in zip(run(made, x=x, c=np.array(c)), run(model, x=x, c=np.array(c)), strict=True):
            assert np.abs(found - exact).max() < 5e-2 * np.abs(exact).max()


@STYLES
def test_shared_weights_serve_each_reader(style: Int8Style, tmp_path: Path) -> None:
    text = """(float[4,8] x, int64[3] i) => (float[4,8] y, float[3,8] e) {
        a = MatMul (x, w) y = Gemm <transB = 1> (a, w, b) e = Gather (w, i)
    }"""
    weights = {"w": numbers(8, 8), "b": numbers(8, seed=1)}
    feeds = {"x": numbers(4, 8, seed=2), "i": np.array([0, 3, 7])}
    model = ready(text, weights, tmp_path, **feeds)
    (y, e), (exact, exact_e) = run(in_int8(model, style), **feeds), run(model, **feeds)
    np.testing.assert_array_equal(e, exact_e)
    assert 0 < np.abs(y - exact).max() < 5e-2 * np.abs(exact).max()


def test_names_that_would_clash(tmp_path: Path) -> None:
    text = """(float[4,8] x) => (float[4,8] x_scale, float[4,8] x_q) {
        x_zero = MatMul (x, w) x_dq = Relu (x_zero) x_scale = MatMul (x_dq, w) x_q = Neg (x_scale)
    }"""
    x, w = numbers(4, 8), numbers(8, 8, seed=1)
    model = ready(text, {"w": w}, tmp_path, x=x)
    for found, exact in zip(run(in_int8(model, WHOLE), x=x), run(model, x=x), strict=True):
        assert np.abs(found - exact).max() < 5e-2 * np.abs(exact).max()


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        ("(float[4,8] x, float[8,8] w) => (float[4,8] y) {y = MatMul (x, w)}", {}),
        ("(float[8,4] x) => (float[4,8] y) {y = Gemm <transA = 1> (x, w)}", {"w": numbers(8, 8)}),
        ("(float[4,8] x) => (float[4,8] y) {y = Gemm <alpha = 0.5> (x, w)}", {"w": numbers(8, 8)}),
        ("(float[4,8] x) => (float[4,8] y) {y = Gemm (x, w, b)}", {"w": numbers(8, 8), "b": numbers(4, 8)}),
        ("(float[8,8] x) => (float[8,8] y) {y = Gemm (x, w, b)}", {"w": numbers(8, 8), "b": numbers(8, 1)}),
        ("(float[4,8] x) => (float[4,8] y) {y = MatMul (w, x)}", {"w": numbers(4, 4)}),
        ("(float[4,8] x) => (float[4,8] y) {y = MatMul (x, w)}", {"w": np.full((8, 8), np.inf, np.float32)}),
        ("(float16[4,8] x) => (float16[4,8] y) {y = MatMul (x, w)}", {"w": numbers(8, 8).astype(np.float16)}),
        ("(float[4,8] x) => (float[4,8] y) {y = Relu (x)}", {}),
    ],
)
def test_what_does_not_profit_is_refused(text: str, weights: Mapping[str, Any], tmp_path: Path) -> None:
    model = kernel("k", text, weights)
    for value in (*model.graph.inputs, *model.graph.outputs):
        set_value_range(value, -4.0, 4.0)
    with pytest.raises(Unsupported, match="profits"):
        in_int8(model, WHOLE)


def test_models_that_are_quantised_already_stay_what_they_are() -> None:
    text = "(float[4] x) => (float[4] y) {q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, s, z)}"
    model = kernel("k", text, {"s": np.array(0.1, np.float32), "z": np.array(3, np.uint8)})
    with pytest.raises(Unsupported, match="already"):
        in_int8(model, WHOLE)


def test_old_operator_sets_are_refused() -> None:
    model = kernel("k", "(float[4] x) => (float[4] y) {y = Relu (x)}")
    model.graph.opset_imports[""] = 12
    with pytest.raises(Unsupported, match="operator set 13"):
        in_int8(model, WHOLE)


@pytest.mark.parametrize(
    ("weight", "bias"),
    list(itertools.product([0.0, 1e-38, 1e-25, 1e-10, 1.0, 1e10], [0.0, 1e-20, 1.0, 1e8, 1e14])),
)
def test_extreme_weights_and_biases_leave_finite_numbers(weight: float, bias: float, tmp_path: Path) -> None:
    text = "(float[4,8] x) => (float[4,2] y) {y = Gemm (x, w, b)}"
    w = np.stack([np.full(8, weight, np.float32), np.ones(8, np.float32)], axis=1)
    b, x = np.array([bias, -1.0], np.float32), numbers(4, 8)
    model = ready(text, {"w": w, "b": b}, tmp_path, x=x)
    (y,), (exact,) = run(in_int8(model, WHOLE), x=x), run(model, x=x)
    for column in range(2):
        allowed = 3e-2 * np.abs(exact[:, column]).max() + 1e-18
        np.testing.assert_allclose(y[:, column], exact[:, column], rtol=0, atol=allowed)


@pytest.mark.parametrize("constant", [0.0, 1e-44, -1e-44, 1e-30])
@STYLES
def test_tiny_constants_between_products(constant: float, style: Int8Style, tmp_path: Path) -> None:
    text = "(float[1,2,4,4] x) => (float[1,2,4,4] y) {a = Conv (x, w) b = Add (a, c) y = Conv (b, w)}"
    weights = {"w": numbers(2, 2, 1, 1), "c": np.full((2, 1, 1), constant, np.float32)}
    x = numbers(1, 2, 4, 4, seed=1)
    model = ready(text, weights, tmp_path, x=x)
    (y,), (exact,) = run(in_int8(model, style), x=x), run(model, x=x)
    assert np.abs(y - exact).max() < 5e-2 * np.abs(exact).max()


@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 1), st.sampled_from([7, 8]))
@settings(max_examples=40, deadline=None)
def test_weights_are_off_by_half_a_step(rows: int, columns: int, axis: int, bits: int) -> None:
    w = numbers(rows, columns, seed=rows * 10 + columns)
    scales = weight_scales(w, axis, bits)
    along = scales.reshape((-1, 1) if axis == 0 else (1, -1))
    steps = np.rint(w / along)
    assert np.abs(steps).max() <= 2 ** (bits - 1) - 1
    assert (np.abs(steps * along - w) <= 0.501 * along).all()


def test_dynamic_shapes(tmp_path: Path) -> None:
    text = "(float[N,16] x) => (float[N,6] y) {a = Gemm (x, w, b) r = Relu (a) y = Gemm <transB = 1> (r, v, c)}"
    model = ready(text, PERCEPTRON_WEIGHTS, tmp_path, x=numbers(7, 16))
    made = in_int8(model, WHOLE)
    for n in (1, 7):
        x = numbers(7, 16)[:n]
        (y,), (exact,) = run(made, x=x), run(model, x=x)
        assert y.shape == (n, 6) and np.abs(y - exact).max() < 3e-2 * np.abs(exact).max()


def test_weights_have_seven_bits_where_sums_would_saturate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from collage.toolchains.sdk import int8_model

    model = ready(PERCEPTRON, PERCEPTRON_WEIGHTS, tmp_path, x=numbers(5, 16))
    for flags, limit in ((("ssse3",), 63), (("ssse3", "avx512_vnni"), 127)):
        machine = dataclasses.replace(int8_model.this_machine(), flags=flags)
        monkeypatch.setattr(int8_model, "this_machine", lambda machine=machine: machine)
        values = in_int8(model, WHOLE).graph.initializers.values()
        bytes_ = [v.const_value.numpy() for v in values if v.dtype == ir.DataType.INT8 and v.const_value.size > 8]
        assert [int(np.abs(array).max()) for array in bytes_] == [limit, limit]


LAYERS = {
    "Conv": "Conv (%a, w)",
    "Biased": "Conv <pads = [1,1,1,1]> (%a, v, b)",
    "Relu": "Relu (%a)",
    "Clip": "Clip (%a, low, high)",
    "Add": "Add (%a, %b)",
    "Constant": "Add (%a, row)",
    "Mul": "Mul (%a, gate)",
    "Sigmoid": "Sigmoid (%a)",
    "MaxPool": "MaxPool <kernel_shape = [3,3], pads = [1,1,1,1]> (%a)",
    "Transpose": "Transpose <perm = [0,1,3,2]> (%a)",
    "Reshape": "Reshape (%a, shape)",
    "Tanh": "Tanh (%a)",
    "MatMul": "MatMul (%a, square)",
}
LAYER_WEIGHTS = {
    "w": numbers(3, 3, 1, 1) / 2,
    "v": numbers(3, 3, 3, 3, seed=1) / 4,
    "b": numbers(3, seed=2),
    "low": np.array(-1, np.float32),
    "high": np.array(2, np.float32),
    "row": numbers(1, 3, 1, 1, seed=3),
    "gate": np.array([0.5], np.float32),
    "shape": np.array([1, 3, 4, 4]),
    "square": numbers(4, 4, seed=4) / 2,
}


@STYLES
@pytest.mark.parametrize("hostile", [False, True])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_random_networks(data: st.DataObject, hostile: bool, style: Int8Style, tmp_path_factory: Any) -> None:
    lines, names = [], ["x"]
    for i in range(data.draw(st.integers(2, 9))):
        layer = LAYERS[data.draw(st.sampled_from(sorted(LAYERS)))]
        pick = st.sampled_from(names[-3:])
        lines.append(f"n{i} = {layer.replace('%a', data.draw(pick)).replace('%b', data.draw(pick))}")
        names.append(f"n{i}")
    outputs = data.draw(st.sets(st.sampled_from(names[1:]), max_size=2)) | {names[-1]}
    listed = ", ".join(f"float[1,3,4,4] {name}" for name in sorted(outputs))
    x = numbers(1, 3, 4, 4, seed=5)
    model = ready(
        f"(float[1,3,4,4] x) => ({listed}) {{{' '.join(lines)}}}", LAYER_WEIGHTS, tmp_path_factory.mktemp("k"), x=x
    )
    if hostile:
        for value in (*model.graph.inputs, *(v for node in model.graph for v in node.outputs)):
            if data.draw(st.booleans()):
                value.metadata_props[VALUE_RANGE] = data.draw(st.sampled_from(HOSTILE))
    try:
        made = in_int8(model, style)
    except Unsupported:
        return
    for found, exact in zip(run(made, x=x), run(model, x=x), strict=True):
        assert found.shape == exact.shape and np.isfinite(found).all()
        distance = float(np.linalg.norm(found - exact) / max(float(np.linalg.norm(exact)), 1e-6))
        assert distance < 0.15
