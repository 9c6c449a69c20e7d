"""OpenVINO keeps the contract, and refuses what it would compute in another type."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx.parser
import onnx.shape_inference
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator
from tests.toolchain.least_profile import least_seconds

from collage._errors import Unsupported
from collage.frontend import is_contributed
from collage.target import Target
from collage.testing._toolchain_case import ToolchainTestCase
from collage.testing._toolchain_kernels import COMMON, kernel
from collage.toolchains import LoadOptions
from collage.toolchains.openvino.known_wrong import DEFECTS
from collage.toolchains.openvino.toolchain import OpenVinoToolchain

pytest.importorskip("openvino")

TARGET = Target.parse("llvm -compiler=openvino")


class TestOpenVino(ToolchainTestCase):
    toolchain = OpenVinoToolchain()
    differs = frozenset({"not_finite_relu", "not_finite_max", "not_finite_softmax"})  # it drops NaN here


@pytest.mark.slow  # The class above checks the same kernels, and runs on one thread and on two.
class TestOpenVinoInOneThread(ToolchainTestCase):
    toolchain = OpenVinoToolchain()
    target = "llvm -compiler=openvino -threads=1"
    differs = TestOpenVino.differs


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(string[2] x) => (string[2] y) {y = Identity (x)}", "string"),
        ("(double[2] x) => (double[2] y) {y = Neg (x)}", "double"),
        ("(bfloat16[2] x) => (bfloat16[2] y) {y = Neg (x)}", "bf16"),
        ("(optional(float[2]) x) => (optional(float[2]) y) {y = Identity (x)}", "not Optional"),
        ("(float[2] x) => (float[2] y) {y = com.example.Frobnicate (x)}", "Frobnicate"),
    ],
)
def test_a_refusal_says_why_in_one_line(text: str, reason: str, tmp_path: Path) -> None:
    model = kernel("k", text)
    with pytest.raises(Unsupported, match=rf"^openvino.*{reason}"):
        OpenVinoToolchain().compile(model, TARGET, tmp_path)


def test_support_is_told_by_type_before_anything_is_tried() -> None:
    toolchain = OpenVinoToolchain()
    for dtype, ok in (("float", True), ("double", False)):
        (node,) = kernel("k", f"({dtype}[2] x) => ({dtype}[2] y) {{y = Neg (x)}}").graph
        support = toolchain.supports(node, TARGET)
        assert support.ok is ok and (support.reason is None) is ok


def test_f32_is_f32_and_bf16_is_asked_for(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    w, x = (random.standard_normal((256, 256)).astype(np.float32) for _ in range(2))
    model = kernel("k", "(float[256,256] x) => (float[256,256] y) {y = MatMul (x, w)}", {"w": w})
    toolchain, exact, errors = OpenVinoToolchain(), x.astype(np.float64) @ w, {}
    for precision in ("f32", "bf16"):
        target = TARGET.with_options(precision=precision)
        compiled = toolchain.compile(model, target, tmp_path)
        (y,) = toolchain.load(compiled, target, tmp_path, LoadOptions())([x])
        errors[precision] = np.abs(y - exact).max() / np.abs(exact).max()
    assert errors["f32"] < 1e-6
    assert errors["bf16"] < 2e-2


def test_a_default_target_computes_in_f32_on_every_machine() -> None:
    from collage.toolchains.openvino.toolchain import _config

    assert _config(TARGET, LoadOptions())["INFERENCE_PRECISION_HINT"] == "f32"


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("op_type", ["Add", "Mul", "Sub", "Sum"])
def test_sums_of_bytes_are_refused_since_it_saturates_them(op_type: str, dtype: str, tmp_path: Path) -> None:
    model = kernel("k", f"({dtype}[2] x) => ({dtype}[2] y) {{y = {op_type} (x, x)}}")
    assert not OpenVinoToolchain().supports(model.graph.node(0), TARGET).ok
    with pytest.raises(Unsupported, match="wrap around"):
        OpenVinoToolchain().compile(model, TARGET, tmp_path)


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("(int32[2] x) => (int16[2] y) {y = Cast <to = 5> (x)}", True),
        ("(int32[2] x) => (int32[2] y) {a = Cast <to = 5> (x) y = Cast <to = 6> (a)}", False),
        ("(uint16[2] x) => (int32[2] y) {a = Add (x, x) y = Cast <to = 6> (a)}", False),
        ("(uint16[2] x) => (int32[2] y) {a = Identity (x) y = Cast <to = 6> (a)}", True),
    ],
)
def test_integers_of_16_bits_that_may_wrap_are_refused_between_operators(text: str, taken: bool) -> None:
    assert OpenVinoToolchain().supports(kernel("k", text).graph.node(0), TARGET).ok is taken


@pytest.mark.parametrize(("start", "delta", "taken"), [(0, 1, True), (-2, 3, True), (5, 1, False), (0, -1, False)])
def test_a_range_that_may_be_empty_is_refused(start: int, delta: int, taken: bool) -> None:
    ends = {"s": np.int64(start), "d": np.int64(delta)}
    model = kernel("k", "(int64 n) => (int64[N] y) {y = Range (s, n, d)}", {k: np.asarray(v) for k, v in ends.items()})
    assert OpenVinoToolchain().supports(model.graph.node(0), TARGET).ok is taken


@pytest.mark.parametrize("op_type", ["Abs", "Neg"])
def test_the_negative_of_the_least_byte_is_left_to_others(op_type: str) -> None:
    model = kernel("k", f"(int8[2] x) => (int8[2] y) {{y = {op_type} (x)}}")
    assert not OpenVinoToolchain().supports(model.graph.node(0), TARGET).ok


@pytest.mark.parametrize(
    ("dtype", "operator", "taken"),
    [
        ("int32", "Relu (x)", False),
        ("int64", "Relu (x)", False),
        ("float", "Relu (x)", True),
        ("int32", "Pow (x, x)", False),
        ("float", "Pow (x, x)", True),
        ("int32", "MatMul (x, x)", False),
        ("int64", "MatMul (x, x)", False),
        ("float", "MatMul (x, x)", True),
    ],
)
def test_integers_are_refused_that_it_computes_in_float32(dtype: str, operator: str, taken: bool) -> None:
    model = kernel("k", f"({dtype}[2,2] x) => ({dtype}[2,2] y) {{y = {operator}}}")
    assert OpenVinoToolchain().supports(model.graph.node(0), TARGET).ok is taken


@pytest.mark.parametrize(
    ("attributes", "outputs", "reason"),
    [
        ("left_window_size = 1", "y", "windows"),
        ("right_window_size = 0", "y", "windows"),
        ("is_causal = 1, qk_matmul_output_mode = 2", "y, , , s", "scores"),
        ("left_window_size = -1, right_window_size = -1", "y", None),
        ("is_causal = 1, qk_matmul_output_mode = 2", "y", None),
        ("qk_matmul_output_mode = 2", "y, , , s", None),
    ],
)
def test_attention_is_refused_in_the_forms_that_it_is_wrong_of(
    attributes: str, outputs: str, reason: str | None, tmp_path: Path
) -> None:
    made = ", ".join(f"float[1,2,5,{5 if y == 's' else 4}] {y}" for y in outputs.split(", ") if y)

    def parsed(attributes: str) -> onnx.ModelProto:
        graph = f"(float[1,2,5,4] x) => ({made}) {{{outputs} = Attention <{attributes}> (x, x, x)}}"
        return onnx.parser.parse_model(f'<ir_version: 11, opset_import: ["" : 25]> k {graph}')

    model, x = (
        ir.from_proto(parsed(attributes)),
        np.random.default_rng(0).standard_normal((1, 2, 5, 4)).astype(np.float32),
    )
    if reason is not None:
        with pytest.raises(Unsupported, match=reason):
            OpenVinoToolchain().compile(model, TARGET, tmp_path)
        return
    toolchain = OpenVinoToolchain()
    outputs_made = toolchain.load(toolchain.compile(model, TARGET, tmp_path), TARGET, tmp_path, LoadOptions())([x])
    # The oldest onnx that is admitted knows no windows; -1 stands for none.
    plain = parsed("is_causal = 0" if "window" in attributes else attributes)
    wanted = ReferenceEvaluator(plain).run(None, {"x": x})
    for y, expected in zip(outputs_made, wanted, strict=True):
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def test_wide_integers_are_refused_when_they_come(tmp_path: Path) -> None:
    model = kernel("k", "(int64[2] x) => (int64[2] y) {y = Add (x, x)}")
    toolchain = OpenVinoToolchain()
    loaded = toolchain.load(toolchain.compile(model, TARGET, tmp_path), TARGET, tmp_path, LoadOptions())
    assert loaded([np.array([1, -1])])[0].tolist() == [2, -2]
    for value in (2**31, -(2**31) - 1):
        with pytest.raises(Unsupported, match="32 bits"):
            loaded([np.array([1, value])])


def test_indices_are_not_looked_through_for_wide_integers_unless_they_are_computed_with(tmp_path: Path) -> None:
    toolchain = OpenVinoToolchain()
    x, i = np.arange(4, dtype=np.float32), np.array([3, -4])
    for name, more in (("only", ""), ("also", " z = Add (i, i)")):
        model = kernel(
            name,
            f"(float[4] x, int64[2] i) => (float[2] y{', int64[2] z' if more else ''}) {{y = Gather (x, i){more}}}",
        )
        compiled = toolchain.compile(model, TARGET, tmp_path)
        assert compiled.metadata["indices"] == ([] if more else [1])
        loaded = toolchain.load(compiled, TARGET, tmp_path, LoadOptions())
        assert loaded([x, i])[0].tolist() == [3, 0]
    with pytest.raises(Unsupported, match="32 bits"):
        loaded([x, np.array([0, 2**31])])


def test_merged_time_is_with_the_node_that_has_the_weights(tmp_path: Path) -> None:
    toolchain, case = OpenVinoToolchain(), COMMON[0]
    seconds = toolchain.profile(toolchain.compile(case.model(), TARGET, tmp_path), TARGET, tmp_path, case.inputs, 5)
    assert {step[0] for step in seconds} == {0}  # the Relu is part of the convolution


@pytest.mark.parametrize("scale", ["y = Mul (c, s)", "r = Relu (c) q = Mul (r, s) y = Add (q, x)"])
def test_a_scaled_convolution_keeps_its_time(scale: str, tmp_path: Path) -> None:
    text = f"(float[1,8,32,32] x) => (float[1,8,32,32] y) {{c = Conv <pads = [1, 1, 1, 1]> (x, w) {scale}}}"
    constants = {"w": np.full((8, 8, 3, 3), 0.1, np.float32), "s": np.full((), 0.5, np.float32)}
    made = OpenVinoToolchain().compile(kernel("k", text, constants), TARGET, tmp_path)
    x = np.random.default_rng(0).standard_normal((1, 8, 32, 32), np.float32)
    seconds = least_seconds(OpenVinoToolchain(), made, TARGET, tmp_path, [x])
    assert max(seconds, key=lambda place: seconds[place]) == 0


def test_weights_that_are_unpacked_first_are_their_readers(tmp_path: Path) -> None:
    text = """(float[1,8,32,32] x) => (float[1,8,32,32] y) {
        w = DequantizeLinear (q, s, z) c = Conv <pads = [1, 1, 1, 1]> (x, w) y = Relu (c)}"""
    q = np.random.default_rng(0).integers(-9, 9, (8, 8, 3, 3), np.int8)
    constants = {"q": q, "s": np.full((), 0.1, np.float32), "z": np.zeros((), np.int8)}
    made = OpenVinoToolchain().compile(kernel("k", text, constants), TARGET, tmp_path)
    x = np.random.default_rng(0).standard_normal((1, 8, 32, 32), np.float32)
    seconds = least_seconds(OpenVinoToolchain(), made, TARGET, tmp_path, [x])
    assert max(seconds, key=lambda place: seconds[place]) == 1


@pytest.mark.parametrize("layer, gates", [("GRU", 3), ("LSTM", 4), ("RNN", 1)])
def test_a_recurrent_layer_has_its_own_time(layer: str, gates: int, tmp_path: Path) -> None:
    """It has a name of OpenVINO's own, so its time was that of whatever ran before."""
    text = f"""(float[40,1,64] x) => (float[40,1,64] y) {{
        t = Tanh (x) h, last = {layer} <hidden_size = 64> (t, w, r) s = Squeeze (h, axis) y = Sigmoid (s)}}"""
    random = np.random.default_rng(0)
    w, r = ((0.1 * random.standard_normal((1, 64 * gates, 64))).astype(np.float32) for _ in range(2))
    made = OpenVinoToolchain().compile(kernel("k", text, {"w": w, "r": r, "axis": np.array([1])}), TARGET, tmp_path)
    x = random.standard_normal((40, 1, 64), np.float32)
    seconds = least_seconds(OpenVinoToolchain(), made, TARGET, tmp_path, [x])
    assert max(seconds, key=lambda place: seconds[place]) == 1


NOTHING = np.zeros(0, np.int64)


@pytest.mark.parametrize(
    "text",
    [
        "(float[2,3] x) => (float[M,N] y) {y = Gather <axis = 0> (x, e)}",
        "(int64[1] x) => (int64[N] y) {y = Add (x, e)}",
        "(int64[1] x) => (int64[1] y, int64[0] e) {y = Neg (x)}",
    ],
)
def test_a_constant_of_no_elements_is_refused_where_it_would_be_read_as_a_scalar(text: str, tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="no elements"):
        OpenVinoToolchain().compile(kernel("k", text, {"e": NOTHING}), TARGET, tmp_path)


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("(float[1,1,2,2] x) => (float[1,1,4,4] y) {y = Resize (x, e, s)}", (1, 1, 4, 4)),
        ("(float[1,1,2,2] x) => (float[A,B,C,D] y) {y = ReduceSum <noop_with_empty_axes = 1> (x, e)}", (1, 1, 2, 2)),
        ("(float[1,1,2,2] x) => (int64[N] y) {r = Shape (x) y = Concat <axis = 0> (e, r)}", (4,)),
        ("(float[1,1,1,1] x) => (float y) {y = Reshape (x, e)}", ()),
    ],
)
def test_a_constant_of_no_elements_may_say_that_nothing_is_said(
    text: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    empty = NOTHING.astype(np.float32) if "Resize" in text else NOTHING
    model = kernel("k", text, {"e": empty, "s": np.array([1, 1, 2, 2], np.float32)})
    toolchain = OpenVinoToolchain()
    loaded = toolchain.load(toolchain.compile(model, TARGET, tmp_path), TARGET, tmp_path, LoadOptions())
    (y,) = loaded([np.ones([int(size) for size in model.graph.inputs[0].shape], np.float32)])
    assert y.shape == shape


@pytest.mark.parametrize("operator", ["Max", "Min", "Sum", "Dropout"])
def test_an_input_that_is_an_output_by_another_name_is_refused(operator: str, tmp_path: Path) -> None:
    text = "(float[4] x) => (float[4] y) {%s}"
    with pytest.raises(Unsupported, match="handed through"):
        OpenVinoToolchain().compile(kernel("k", text % f"y = {operator} (x)"), TARGET, tmp_path)
    toolchain, x = OpenVinoToolchain(), np.arange(4, dtype=np.float32)
    compiled = toolchain.compile(kernel("k", text % f"a = Neg (x) y = {operator} (a)"), TARGET, tmp_path)
    np.testing.assert_array_equal(toolchain.load(compiled, TARGET, tmp_path, LoadOptions())([x])[0], -x)


RECURRENT = "(float[3,1,2] x) => (float[3,1,1,4] y) {y = LSTM <hidden_size = 4, %s> (x, w, r%s)}"
WEIGHTS = {"w": np.zeros((1, 16, 2), "f4"), "r": np.zeros((1, 16, 4), "f4"), "p": np.zeros((1, 12), "f4")}
WEIGHTS["n"] = np.array([2], "i4")
RESIZE = '(float[1,1,4,4] x) => (float[1,1,3,3] y) {y = Resize <mode = "cubic"%s> (x, , , s)}'
SIZES = {"s": np.array([1, 1, 3, 3])}
MASKED = "(float[1,2,2] x, float[1,2,2] w, float[1,2,2] v) => (float[1,2,2] y) {y = com.microsoft.%s (x, w, v)}"
AVERAGED_BYTES = (
    "(uint8[1,1,4] x, float s, uint8 z) => (float[1,1,N] y) "
    "{a = DequantizeLinear (x, s, z) b = Neg (a) y = AveragePool <kernel_shape = [2]%s> (b)}"
)
SUMMED = '(float[2,3] x) => (y) {y = Einsum <equation = "%s"> (x)}'
ENLARGED = '(%s[1,1,4,4] x) => (%s[1,1,8,8] y) {y = Resize <mode = "%s"> (x, , , s)}'
TWICE = {"s": np.array([1, 1, 8, 8])}
REGIONS = '(float[1,1,4,4] x) => (float[1,1,1,1] y) {y = RoiAlign <mode = "%s"> (x, b, n)}'
BOXES = {"b": np.array([[0, 0, 3, 3]], "f4"), "n": np.array([0])}


def test_a_shape_that_it_takes_for_another_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nobody knew of it; of this operator it is known."""
    monkeypatch.setattr("collage.toolchains.openvino.known_wrong.known_wrong", lambda _: None)
    pool = "y = MaxPool <kernel_shape = [1, 1], strides = [2, 2], ceil_mode = 1> (x)"
    toolchain = OpenVinoToolchain()
    with pytest.raises(Unsupported, match="changes the shape"):
        toolchain.compile(kernel("k", f"(float[1,1,2,2] x) => (float[1,1,1,1] y) {{{pool}}}"), TARGET, tmp_path)
    toolchain.compile(kernel("k2", f"(float[1,1,3,3] x) => (float[1,1,2,2] y) {{{pool}}}"), TARGET, tmp_path)


POOL = (
    "(float[1,1,8] x) => (float[1,1,N] y) {y = AveragePool <ceil_mode = 1, kernel_shape = [3], strides = [2], %s> (x)}"
)
LOOPED = (
    "(float[2] x%s) => (float[2] y) {y%s = Loop (n, c, x) <body = b (int64 i, bool d, float[2] v) "
    "=> (bool e, float[2] %s) {e = Identity (d) w = Add (v, x)}>}"
)
WINDOWS = "MaxPool <kernel_shape = [2, 2], storage_order"
MAX_POOL = "(float[1,1,%s] x) => (float[1,1,M] y) {y = MaxPool <ceil_mode = 1, kernel_shape = %s, strides = %s, pads = %s> (x)}"
TRANSPOSED = "(float[1,1,%s] x, float[1,1,3] w) => (float[1,1,M] y) {y = ConvTranspose <strides = [2] %s> (x, w)}"
QUANTISED = "(float[%s] x) => (int8[A,B] y) {y = QuantizeLinear <axis = %d> (x, s, z)}"
JOINED = "(float[3,3] x) => (int8[3,3] y) {m = LpNormalization (x) y = QuantizeLinear <axis = 0> (m, s, z)}"
NORMALISED = (
    "(float[%s] x) => (int8[%s] y) <float[%s] m> {m = LayerNormalization (x, s%s) y = QuantizeLinear (m, t, o)}"
)
ONE_SCALE = {"s": np.float32([0.1, 0.2, 0.3]), "t": np.float32(0.1), "o": np.int8(1)}
WITH_BIAS = ONE_SCALE | {"b": np.float32([0.1, 0.2, 0.3])}
BRANCHES = """(float[3] x, bool[] c) => (%s) <float[3] v> {v = Neg (x)
    y = If (c) <then_branch = left () => (float[3] l) {l = Relu (v)}, else_branch = right () => (float[3] r) {r = Abs (x)}>}"""
FOURIER = "(float[2,8,1] x) => (float[2,M,N,2] y) {y = STFT <onesided = %d> (x, t, %s, l)}"
FRAMES = {"t": np.array(2), "w": np.float32([0.5, 1, 1, 0.5]), "l": np.array(4)}
SCALES = {"s": np.float32([0.1, 0.2, 0.3]), "z": np.int8([1, 2, 3])}
ENDS = {"s": np.array([0]), "e": np.array([2])}


SUPPRESSED = "(float[1,6,4] b, float[1,1,6] s%s) => (int64[N,3] y) {y = NonMaxSuppression (b, s, %s)}"


@pytest.mark.parametrize(
    ("text", "weights", "taken"),
    [
        ("(uint8[2] x, uint8[2] z) => (uint8[2] y) {y = Pow (x, z)}", {}, False),
        ("(uint16[2] x, uint16[2] z) => (uint16[2] y) {y = Pow (x, z)}", {}, False),
        ("(int32[2] x, int32[2] z) => (int32[2] y) {y = Pow (x, z)}", {}, False),
        ('(uint8[2] x, uint8[2] z) => (uint8[2] y) {y = BitShift <direction = "LEFT"> (x, z)}', {}, False),
        ('(uint8[2] x, uint8[2] z) => (uint8[2] y) {y = BitShift <direction = "RIGHT"> (x, z)}', {}, True),
        ('(uint8[n] x, uint8[n] z) => (uint8[n] y) {y = BitShift <direction = "RIGHT"> (x, z)}', {}, False),
        ('(uint16[2] x) => (uint16[2] y) {y = BitShift <direction = "LEFT"> (x, n)}', {"n": np.uint16(15)}, True),
        ('(uint16[2] x) => (uint16[2] y) {y = BitShift <direction = "LEFT"> (x, n)}', {"n": np.uint16(16)}, False),
        ("(uint8[2] x, uint8[2] z) => (uint8[2] y) {y = Div (x, z)}", {}, True),
        ("(uint8[N] x, uint8[2] z) => (uint8[2] y) {y = Div (x, z)}", {}, False),
        ("(int16[N] x, int16[2] z) => (int16[2] y) {y = Div (x, z)}", {}, True),
        ("(float[2] x) => (float[2] y) {y = ReduceL1 <noop_with_empty_axes = 1> (x)}", {}, False),
        ("(float[2] x) => (float[1] y) {y = ReduceL1 <noop_with_empty_axes = 1> (x, n)}", {"n": np.array([0])}, True),
        ("(float[2] x) => (float[1] y) {y = ReduceL1 (x)}", {}, True),
        ("(float[2,3] x) => (float[2,1] y) {y = ReduceL1 <axes = [1]> (x)}", {}, False),
        ("(float[2,3] x) => (float[2,1] y) {y = ReduceLogSumExp <axes = [-1]> (x)}", {}, False),
        ("(float[2,3] x) => (float[2,1] y) {y = ReduceL2 <axes = [1]> (x)}", {}, True),
        ("(float[2,3] x) => (float[2,3] y) {y = LpNormalization <p = 2> (x)}", {}, False),
        (TRANSPOSED % ("N", ""), {}, True),
        (TRANSPOSED % ("N", ", pads = [1, 0]"), {}, True),
        (TRANSPOSED % ("N", ', auto_pad = "SAME_LOWER"'), {}, False),
        (TRANSPOSED % ("7", ', auto_pad = "SAME_LOWER"'), {}, True),
        (TRANSPOSED % ("N", ", output_shape = [14]"), {}, False),
        (TRANSPOSED % ("7", ", output_shape = [14]"), {}, True),
        (TRANSPOSED % ("7", ', output_shape = [14], auto_pad = "SAME_LOWER"'), {}, True),
        (TRANSPOSED % ("7", ', output_shape = [14], auto_pad = "SAME_UPPER"'), {}, False),
        (MAX_POOL % ("8", "[2]", "[2]", "[0,0]"), {}, True),
        (MAX_POOL % ("N", "[2]", "[2]", "[0,0]"), {}, True),
        (MAX_POOL % ("N", "[3]", "[2]", "[1,1]"), {}, True),
        (MAX_POOL % ("N", "[2]", "[3]", "[0,0]"), {}, False),
        (MAX_POOL % ("5", "[2]", "[2]", "[1,1]"), {}, False),  # its last window would begin behind the elements
        (MAX_POOL % ("6", "[2]", "[2]", "[1,1]"), {}, True),
        (MAX_POOL % ("N", "[2]", "[2]", "[1,1]"), {}, False),
        (MAX_POOL % ("6", "[2], dilations = [2]", "[3]", "[0,1]"), {}, False),
        (MAX_POOL % ("6", "[2], dilations = [2]", "[3]", "[0,0]"), {}, True),
        ("(float[2,2,2,2] x, int64[4] n) => (float[A,B,C,D] y) {y = Tile (x, n)}", {}, False),
        ("(float[N,3] x) => (float[N,4] y) {y = MatMul (x, w)}", {"w": np.zeros((3, 4), np.float32)}, True),
        ("(float[N,M] x) => (float[N,4] y) {y = MatMul (x, w)}", {"w": np.zeros((3, 4), np.float32)}, False),
        ("(float[N,M] x, float[M,4] w) => (float[N,4] y) {y = MatMul (x, w)}", {}, True),
        ("(float[N,3] x, float[3,4] w, float[4] b) => (float[N,4] y) {y = Gemm (x, w, b)}", {}, True),
        ("(float[N,3] x, float[3,4] w, float[N,1] b) => (float[N,4] y) {y = Gemm (x, w, b)}", {}, True),
        ("(float[N,3] x, float[4,3] w, float[4] b) => (float[N,4] y) {y = Gemm <transB = 1> (x, w, b)}", {}, True),
        ("(float[N,3] x, float[3,4] w, float[K] b) => (float[N,4] y) {y = Gemm (x, w, b)}", {}, False),
        ("(float[N,3] x, float[3,4] w, float[5,4] b) => (float[N,4] y) {y = Gemm (x, w, b)}", {}, False),
        ("(float[N,3] x, float[3] w) => (float[N,3] y) {y = LayerNormalization (x, w)}", {}, True),
        ("(float[N,M] x, float[3] w) => (float[N,M] y) {y = LayerNormalization (x, w)}", {}, False),
        ("(float[N,3,M] x, float[3] w) => (float[N,3,M] y) {y = InstanceNormalization (x, w, w)}", {}, True),
        ("(float[N,C,M] x, float[3] w) => (float[N,C,M] y) {y = InstanceNormalization (x, w, w)}", {}, False),
        ("(float[N,C,M] x, float[3] w) => (float[N,C,M] y) {y = BatchNormalization (x, w, w, w, w)}", {}, False),
        ("(float[N,3,M] x, float[2,3,1] w, float[2] b) => (float[N,2,M] y) {y = Conv (x, w, b)}", {}, True),
        ("(float[N,3,M] x, float[2,3,1] w, float[B] b) => (float[N,2,M] y) {y = Conv (x, w, b)}", {}, False),
        ("(float[N,4] x, int64[N,1] i) => (float[N] y) {y = GatherND <batch_dims = 1> (x, i)}", {}, True),
        ("(float[N,4] x, int64[M,1] i) => (float[M] y) {y = GatherND <batch_dims = 1> (x, i)}", {}, False),
        ("(float[N,4] x, int64[M,2] i) => (float[M] y) {y = GatherND (x, i)}", {}, True),
        (LOOPED % (", int64 n", "", "w"), {"c": np.bool_(True)}, False),
        (LOOPED % ("", "", "w"), {"n": np.int64(2), "c": np.bool_(True)}, True),
        (LOOPED % ("", "", "w"), {"n": np.int64(-1), "c": np.bool_(True)}, False),
        (LOOPED % ("", ", o", "w, float[2] v"), {"n": np.int64(2), "c": np.bool_(True)}, True),
        (LOOPED % ("", ", o", "w, float[2] v"), {"n": np.int64(0), "c": np.bool_(True)}, False),
        (LOOPED % ("", ", o", "w, float[2] v"), {"n": np.int64(2), "c": np.bool_(False)}, False),
        ("(float[N,4,4] x, float[4] s) => (float[N,4,4] y) {y = PRelu (x, s)}", {}, False),
        ("(float[N,3,4] x, float[4] s) => (float[N,3,4] y) {y = PRelu (x, s)}", {}, True),
        ("(float[N,C,4] x, float[1] s) => (float[N,C,4] y) {y = PRelu (x, s)}", {}, True),
        ("(float[N,4] x, float[4] s) => (float[N,4] y) {y = PRelu (x, s)}", {}, True),
        (f"(float[1,1,5,5] x) => (float[1,1,4,4] y, int64[1,1,4,4] i) {{y, i = {WINDOWS} = 1> (x)}}", {}, False),
        (f"(float[1,1,5,5] x) => (float[1,1,4,4] y, int64[1,1,4,4] i) {{y, i = {WINDOWS} = 0> (x)}}", {}, True),
        ("(float[2,2,2,2] x) => (float[A,B,C,D] y) {y = Tile (x, n)}", {"n": np.full(4, 2)}, True),
        ("(float[2,2,2] x, int64[3] n) => (float[A,B,C] y) {y = Tile (x, n)}", {}, True),
        ("(float[1,4,2] x) => (float[1,4,2] y) {y = DFT (x, , n)}", {"n": np.int64(1)}, True),
        ("(float[1,4,4,2] x) => (float[1,4,4,2] y) {y = DFT (x, , n)}", {"n": np.int64(1)}, True),
        ("(float[1,4,4,2] x) => (float[1,4,4,2] y) {y = DFT (x, , n)}", {"n": np.int64(-3)}, True),
        ("(float[1,4,4,2] x) => (float[1,4,4,2] y) {y = DFT (x, , n)}", {"n": np.int64(-2)}, False),
        ("(float[1,4,4,2] x) => (float[1,4,4,2] y) {y = DFT (x)}", {}, False),
        ("(float[1,4,1] x) => (float[1,3,2] y) {y = DFT <onesided = 1> (x)}", {}, False),
        (BRANCHES % "float[3] y", {}, True),
        (BRANCHES % "float[3] y, float[3] v", {}, False),
        (NORMALISED % ("5,3", "5,3", "5,3", ""), ONE_SCALE, False),
        (NORMALISED % ("5,3", "5,3", "5,3", ", b"), WITH_BIAS, True),
        (NORMALISED % ("2,5,3", "2,5,3", "2,5,3", ""), ONE_SCALE, True),
        (RECURRENT % ("layout = 1", ""), WEIGHTS, False),
        (RECURRENT % ("layout = 0", ""), WEIGHTS, True),
        (RECURRENT % ("layout = 0", ", , , , , p"), WEIGHTS, False),
        (RECURRENT % ("layout = 0", ", , n"), WEIGHTS, True),
        (RECURRENT.replace("[3,", "[N,") % ("layout = 0", ", , n"), WEIGHTS, False),
        (RECURRENT.replace("[3,", "[N,") % ("layout = 0", ""), WEIGHTS, True),
        (RESIZE % "", SIZES, True),
        (RESIZE % ", antialias = 1", SIZES, False),
        (RESIZE % ", exclude_outside = 1", SIZES, False),
        (REGIONS % "avg", BOXES, True),
        (REGIONS % "max", BOXES, False),
        (POOL % "pads = [1, 1], count_include_pad = 1", {}, False),
        (POOL % 'auto_pad = "SAME_UPPER", count_include_pad = 1', {}, False),
        (POOL % "pads = [1, 1]", {}, True),
        (POOL % "pads = [1, 0], count_include_pad = 1", {}, True),  # no window more
        (POOL % "count_include_pad = 1", {}, True),
        ("(float[3] x, int64[1] a) => (float[N] y) {y = Slice (x, s, e, a)}", ENDS, False),
        ("(float[3] x, int64[1] a, int64[1] s) => (float[N] y) {y = Slice (x, s, e, a)}", {"e": ENDS["e"]}, True),
        ("(float[3] x) => (float[N] y) {y = Slice (x, s, e, a)}", {**ENDS, "a": np.array([0])}, True),
        ("(float[0,2,1] x) => (float[0,1,1] y) {y = Gather <axis = 1> (x, s)}", ENDS, False),
        ("(float[1,2,1] x) => (float[1,1,1] y) {y = Gather <axis = 1> (x, s)}", ENDS, True),
        ("(int64[0] x) => (int64[N] y) {y = Unique (x)}", {}, False),
        ("(int64[2] x) => (int64[N] y) {y = Unique (x)}", {}, True),
        ("(int64[0] x) => (int64[2,0] y) {y = Expand (x, s)}", {"s": np.array([2, 1])}, False),
        ("(int64[1] x) => (int64[2,1] y) {y = Expand (x, s)}", {"s": np.array([2, 1])}, True),
        ("(float[1,0] x) => (float[0,1] y) {y = Transpose (x)}", {}, False),
        ("(float[1,N] x) => (float[N,1] y) {y = Transpose (x)}", {}, True),
        ("(float[1,0] x, float[1,3] w) => (float[0,3] y) {y = Gemm <transA = 1> (x, w)}", {}, False),
        (QUANTISED % ("N,3", 0), SCALES, False),
        (QUANTISED % ("N,M", 0), SCALES, False),
        (QUANTISED % ("N,M", 1), SCALES, True),
        (QUANTISED % ("3,M", 0), SCALES, True),
        (QUANTISED % ("N,3", 0), {"s": np.float32([0.1]), "z": np.int8([1])}, True),
        (QUANTISED % ("N,3", 0), {"s": np.float32(0.1), "z": np.int8(1)}, True),
        ("(float[2] x) => (int64 n) {s = SequenceConstruct (x) n = SequenceLength (s)}", {}, False),
        (JOINED, SCALES, False),
        (JOINED, {"s": np.float32(0.1), "z": np.int8(1)}, True),
        (FOURIER % (0, "w"), FRAMES, False),
        (FOURIER % (0, ""), FRAMES, True),
        (FOURIER % (1, "w"), FRAMES, True),
        (SUPPRESSED % (", float[1] t", "m, t"), {"m": np.array([3])}, False),
        (SUPPRESSED % ("", "m"), {"m": np.array([3])}, False),
        (SUPPRESSED % ("", "m, t"), {"m": np.array([3]), "t": np.float32([0])}, False),
        (SUPPRESSED % ("", "m, t"), {"m": np.array([3]), "t": np.float32([0.5])}, True),
        (ENLARGED % ("uint8", "uint8", "linear"), TWICE, False),
        (ENLARGED % ("int32", "int32", "linear"), TWICE, False),
        (ENLARGED % ("uint8", "uint8", "nearest"), TWICE, True),
        (ENLARGED % ("float", "float", "linear"), TWICE, True),
        (MASKED % "Attention <num_heads = 1>", {}, True),
        (MASKED % "Attention <num_heads = 1, mask_filter_value = -2.0>", {}, False),
        (MASKED % "MultiHeadAttention <num_heads = 1>", {}, True),
        (MASKED % "MultiHeadAttention <num_heads = 1, unidirectional = 1>", {}, False),
        ("(float x, float w) => (float[N] y) {y = com.microsoft.Range (x, w)}", {}, False),
        (AVERAGED_BYTES % ", pads = [1, 0], count_include_pad = 1", {}, False),
        (AVERAGED_BYTES % ", pads = [1, 0]", {}, True),
        (AVERAGED_BYTES % ", count_include_pad = 1", {}, True),
        (SUMMED % "ij->ij", {}, False),
        (SUMMED % "i...->...i...", {}, False),
        (SUMMED % "ij", {}, False),
        (SUMMED % "ji", {}, True),
        (SUMMED % "ij->i", {}, True),
    ],
)
def test_operators_that_it_is_wrong_of_are_refused_in_that_form_only(
    text: str, weights: dict[str, np.ndarray], taken: bool
) -> None:
    *_, node = kernel("k", text, {name: np.asarray(x) for name, x in weights.items()}).graph
    assert OpenVinoToolchain().supports(node, TARGET).ok is taken


def test_every_defect_names_known_operators_and_a_version_of_openvino() -> None:
    for row in DEFECTS:
        assert all(onnx.defs.has(op) or is_contributed("com.microsoft", op, 21) for op in row.ops.split()), row.ops
        assert row.what.startswith("openvino") and row.seen_in.count(".") == 2


@pytest.mark.parametrize("largest", [9, 127])
def test_products_of_signed_bytes_are_right_or_refused(largest: int, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x, w = (random.integers(-largest, largest, shape).astype(np.int8) for shape in ((1, 8, 5, 5), (8, 8, 3, 3)))
    weights = {"w": w, "s": np.float32(0.02), "r": np.float32(0.002 * largest), "z": np.int8(0)}
    text = "(int8[1,8,5,5] x) => (int8[1,8,3,3] y) {y = QLinearConv (x, s, z, w, s, z, r, z)}"
    toolchain, model = OpenVinoToolchain(), kernel("k", text, {name: np.asarray(v) for name, v in weights.items()})
    if not toolchain.supports(model.graph[0], TARGET).ok:
        with pytest.raises(Unsupported, match="signed bytes"):
            toolchain.compile(model, TARGET, tmp_path)
        return
    (y,) = toolchain.load(toolchain.compile(model, TARGET, tmp_path), TARGET, tmp_path, LoadOptions())([x])
    (expected,) = ReferenceEvaluator(ir.to_proto(model)).run(None, {"x": x})
    assert np.abs(y.astype(int) - expected).max() <= 1


@pytest.mark.parametrize(("is_allowed", "is_fake"), [(False, False), (False, True), (True, True)])
def test_it_reports_to_nobody_unless_it_may(is_allowed: bool, is_fake: bool, tmp_path: Path) -> None:
    """It leaves a number for the user in their home, and sends it with what it reports: no file, and no socket, is no report.

    A fake of the package that reports tells that it is imported, by any process, and reports nothing.
    """
    program = """
import socket, sys
import os
import subprocess
import sys
from pathlib import Path

asked = []
sys.addaudithook(lambda event, told: asked.append(event) if event.startswith("socket.") else None)
from collage.target import Target
from collage.toolchains import LoadOptions, compile_for, registry
from collage.testing._toolchain_kernels import COMMON

toolchain, target = registry().get("openvino"), Target.parse("llvm -compiler=openvino")
assert toolchain.availability().available  # In another process, which imports it too.
case = COMMON[0]
compiled = compile_for(toolchain, case.model(), target, Path(sys.argv[1]))
toolchain.load(compiled, target, Path(sys.argv[1]), LoadOptions())(case.inputs)
if sys.argv[2] == "0":
    assert not asked, asked
    assert sys.modules["openvino_telemetry"] is None
"""
    home, workspace = tmp_path / "home", tmp_path / "workspace"
    home.mkdir()
    workspace.mkdir()
    # Where it takes the machine for one that tests programs, it does not report anyway.
    kept = {name: text for name, text in os.environ.items() if name not in ("CI", "COLLAGE_OPENVINO_TELEMETRY")}
    environment = {**kept, "HOME": str(home), "COLLAGE_OPENVINO_TELEMETRY": str(int(is_allowed))}
    fake = tmp_path / "fake" / "openvino_telemetry"
    fake.mkdir(parents=True)
    marker = tmp_path / "imported"
    (fake / "__init__.py").write_text(f"open({str(marker)!r}, 'a').close()\nraise ImportError('a fake')\n")
    if is_fake:
        paths = [str(fake.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    command = [sys.executable, "-c", program, str(workspace), str(int(is_allowed))]
    subprocess.run(command, check=True, timeout=120, env=environment)
    assert marker.exists() == is_allowed
    assert not list(home.glob("intel*"))
