"""What TVM's own importer reads wrongly, or so that TVM cannot compile it, comes out as ONNX has it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator
from tests.combinations import covering
from tests.toolchain.tvm_cases import TARGET, agrees, numbers

from collage.testing._toolchain_kernels import KernelCase
from collage.testing._toolchain_kernels import kernel as parsed_kernel
from collage.toolchains import LoadOptions, Unsupported
from collage.toolchains.tvm.toolchain import TvmToolchain

tvm_importer = pytest.importorskip("collage.toolchains.tvm.importer")

pytest.importorskip("tvm")


@pytest.mark.parametrize(
    ("operator", "reduced", "dtype"),
    covering(
        ["ReduceMax", "ReduceMin"],
        [([-1], 1, "6,1"), ([0], 0, "5"), ([0, 1], 0, ""), ([1, 0], 1, "1,1")],
        ["float", "double", "float16"],
    ),
)
def test_extremes_of_infinities_are_infinite(
    operator: str, reduced: tuple[list[int], int, str], dtype: str, tmp_path: Path
) -> None:
    axes, keepdims, shape = reduced
    x = numbers(6, 5).astype({"float": np.float32}.get(dtype, dtype))
    x[1], x[2], x[:, 3] = -np.inf, np.inf, -np.inf
    x[3], x[4, :2] = np.finfo(x.dtype).min, np.finfo(x.dtype).max
    text = f"({dtype}[6,5] x) => ({dtype}{f'[{shape}]' if shape else ''} y) {{y = {operator} <keepdims = {keepdims}> (x, axes)}}"
    agrees(KernelCase("extreme", text, [x], {"axes": np.array(axes)}), tmp_path, [-x])


@pytest.mark.parametrize(
    ("operator", "dtype", "attributes", "length"),
    covering(
        ["ArgMax", "ArgMin"],
        ["float", "uint8", "int64"],
        ["axis = 0, keepdims = 0", "axis = -1", "axis = 1, select_last_index = 1"],
        ["5", "N"],
    ),
)
def test_positions_of_extremes_are_in_the_tensor(
    operator: str, dtype: str, attributes: str, length: str, tmp_path: Path
) -> None:
    limits = (-np.inf, np.inf) if dtype == "float" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    x, z = (np.full((3, 5), limit, {"float": np.float32}.get(dtype, dtype)) for limit in limits)
    x[1, 2] = x[1, 3] = z[1, 2] = z[1, 3] = 7
    made = "A" if "keepdims" in attributes else "A,B"
    text = f"({dtype}[3,{length}] x) => (int64[{made}] y) {{y = {operator} <{attributes}> (x)}}"
    agrees(KernelCase("position", text, [x]), tmp_path, [z])


DEMANDING = {
    "AffineGrid": ("float[N,2,3] x", "y = AffineGrid (x, image)", [(2, 2, 3)], [(1, 2, 3)]),
    "Conv": ("float[1,N,5] x", "y = Conv (x, square3)", [(1, 8, 5)], [(1, 2, 5)]),
    "ConvTranspose": ("float[N] b", "y = ConvTranspose (square3, square3, b)", [(8,)], [(1,)]),
    "DepthToSpace": ("float[1,N,4,4] x", "y = DepthToSpace <blocksize = 2> (x)", [(1, 8, 4, 4)], [(1, 7, 4, 4)]),
    "Gemm": ("float[N,2] x", "y = Gemm <transA = 1> (x, square)", [(8, 2)], [(3, 2)]),
    "GatherND": (
        "float[N,6] x, int64[M,1] i",
        "y = GatherND <batch_dims = 1> (x, i)",
        [(3, 6), (3, 1)],
        [(2, 6), (3, 1)],
    ),
    "GridSample": (
        "float[1,1,4,4] x, float[N,2,2,2] z",
        "y = GridSample (x, z)",
        [(1, 1, 4, 4), (1, 2, 2, 2)],
        [(1, 1, 4, 4), (2, 2, 2, 2)],
    ),
    "GroupNormalization": (
        "float[2,N,3] x, float[M] b",
        "y = GroupNormalization <num_groups = 2> (x, b, b)",
        [(2, 4, 3), (4,)],
        [(2, 1, 3), (1,)],
    ),
    "InstanceNormalization": (
        "float[2,4,N] x, float[M] b",
        "y = InstanceNormalization (x, b, b)",
        [(2, 4, 3), (4,)],
        [(2, 4, 3), (1,)],
    ),
    "MatMul": ("float[2,N] x, float[M,3] z", "y = MatMul (x, z)", [(2, 8), (8, 3)], [(2, 8), (2, 3)]),
    "MatMulInteger": ("int8[2,N] x, int8[M,3] z", "y = MatMulInteger (x, z)", [(2, 8), (8, 3)], [(2, 8), (2, 3)]),
    "NonMaxSuppression": (
        "float[1,N,4] x, float[1,1,M] z",
        "y = NonMaxSuppression (x, z, count, half, half)",
        [(1, 5, 4), (1, 1, 5)],
        [(1, 2, 4), (1, 1, 5)],
    ),
    "Reshape": ("float[2,N] x", "y = Reshape (x, shape)", [(2, 6)], [(2, 3)]),
    "ScatterElements": (
        "float[M] x, int64[N] i",
        'y = ScatterElements <reduction = "add"> (row, i, x)',
        [(9,), (9,)],
        [(2,), (9,)],
    ),
    "TopK": ("float[N] x", "y, i = TopK (x, count)", [(7,)], [(2,)]),
}
"""Operators that demand lengths: inputs, the operator, and lengths of inputs that are good and bad."""


@pytest.mark.few(6)
@pytest.mark.parametrize("operator", DEMANDING)
def test_lengths_that_an_operator_demands_are_checked(operator: str, tmp_path: Path) -> None:
    inputs, body, good, bad = DEMANDING[operator]
    weights = {"shape": np.array([-1, 4]), "count": np.array([3]), "square": numbers(8, 8), "square3": numbers(8, 8, 1)}
    weights |= {"row": numbers(4), "image": np.array([2, 1, 3, 4]), "half": np.float32([0.5])}
    used = {name: weight for name, weight in weights.items() if re.search(rf"\b{name}\b", body)}
    made, wrong = (
        [
            numbers(*shape).astype(port.split("[")[0].replace("float", "float32"))
            for shape, port in zip(shapes, inputs.split(", "), strict=True)
        ]
        for shapes in (good, bad)
    )
    case = KernelCase("demanding", f"({inputs}) => (float y) {{{body}}}", made, used)
    agrees(case, tmp_path, within=1e-5)
    with pytest.raises((RuntimeError, ValueError), match="ismatch"):
        toolchain = TvmToolchain()
        loaded = toolchain.load(toolchain.compile(case.model(), TARGET, tmp_path), TARGET, tmp_path, LoadOptions())
        loaded(wrong)


@pytest.mark.parametrize("length", ["5", "N"])
def test_pads_longer_than_the_tensor_reflect_it_again(length: str, tmp_path: Path) -> None:
    text = f'(float[2,{length}] x) => (float[A,B] y) {{y = Pad <mode = "reflect"> (x, pads)}}'
    case = KernelCase("reflected", text, [numbers(2, 5)], {"pads": np.array([1, 4, 3, 12])})
    agrees(case, tmp_path, *([[numbers(2, n)] for n in (1, 2, 30)] if length == "N" else []))


@pytest.mark.parametrize(
    ("operator", "shapes"),
    covering(
        ["Max", "Min", "Mean", "Sum"],
        [[(), ()], [(), (), ()], [(3,)], [(2, 1), (3,), ()], [(1, 3), (2, 1, 1)]],
        strength=1,
    ),
)
def test_operators_of_many_inputs_broadcast_all_of_them(
    operator: str, shapes: list[tuple[int, ...]], tmp_path: Path
) -> None:
    inputs = [np.asarray(numbers(*shape, seed=i), np.float32) for i, shape in enumerate(shapes)]
    stacked = np.stack(np.broadcast_arrays(*inputs))
    expected = getattr(stacked, operator.lower())(axis=0)
    ports = ", ".join(f"{declared(x)} {name}" for x, name in zip(inputs, "abc", strict=False))
    body = f"{declared(expected)} y) {{y = {operator} ({', '.join('abc'[: len(inputs)])})}}"
    case, toolchain = KernelCase("many", f"({ports}) => ({body}", inputs), TvmToolchain()
    loaded = toolchain.load(toolchain.compile(case.model(), TARGET, tmp_path), TARGET, tmp_path, LoadOptions())
    (y,) = loaded(inputs)
    assert (y.dtype, y.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(y, expected, rtol=1e-6)


def declared(x: np.ndarray) -> str:
    return f"float[{','.join(map(str, x.shape))}]" if x.ndim else "float"


def test_attention_yields_nothing_where_all_is_masked(tmp_path: Path) -> None:
    mask = np.array([[True, False, True], [False, False, False], [True, True, True]])
    text = """(float[3,3] scores, bool[3,3] mask) => (float[3,3] y) {
        bias = Where (mask, zero, low)  masked = Add (scores, bias)  p = Softmax (masked)
        top = ReduceMax (bias, last)  none = Equal (top, low)  y = Where (none, zero, p)}"""
    weights = {"zero": np.float32([0]), "low": np.float32([-np.inf]), "last": np.array([-1])}
    agrees(KernelCase("masked", text, [numbers(3, 3), mask], weights), tmp_path)


@pytest.mark.parametrize(("axis", "scale"), [(1, (8, 5, 6)), (-3, (5, 1)), (2, (5, 6)), (2, (6,)), (3, (6,))])
@pytest.mark.parametrize("bias", ["", ", b"])
def test_what_a_convolution_makes_is_normalised_over_all_that_is_asked(
    axis: int, scale: tuple[int, ...], bias: str, tmp_path: Path
) -> None:
    """TVM's own importer turned the image channels-last, and not the scale, of which it then read what lay behind."""
    body = f"c = Conv (x, w) r = Relu (c) y = LayerNormalization <axis = {axis}> (r, s{bias})"
    weights = {"w": numbers(8, 4, 1, 1), "s": numbers(*scale, seed=1), "b": numbers(*scale, seed=2)}
    used = {name: weights[name] for name in (*"ws", *("b" if bias else ""))}
    case = KernelCase("normalised", f"(float[2,4,5,6] x) => (float[2,8,5,6] y) {{{body}}}", [numbers(2, 4, 5, 6)], used)
    agrees(case, tmp_path, within=1e-5)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint64, np.int8])
def test_signs_are_those_that_the_type_has(dtype: type[np.number[Any]], tmp_path: Path) -> None:
    name, limits = np.dtype(dtype).name, np.iinfo(dtype)
    x = np.array([0, 1, 7, limits.min, limits.max], dtype)
    agrees(KernelCase("sign", f"({name}[5] x) => ({name}[5] y) {{y = Sign (x)}}", [x]), tmp_path)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("exponent", [np.array(1), np.array(3.0, np.float32), np.array(8, np.int32)])
def test_powers_of_integers_are_exact(dtype: str, exponent: np.ndarray, tmp_path: Path) -> None:
    text = f"({dtype}[2,5] x) => ({dtype}[2,5] y) {{y = Pow (x, p)}}"
    x = np.arange(-5, 5).reshape(2, 5).astype(dtype)
    agrees(KernelCase("power", text, [x], {"p": exponent}), tmp_path)


@pytest.mark.parametrize(
    ("form", "given", "bias"),
    covering(
        [
            ("", 1),
            ("kernel_shape = [3], strides = [2], pads = [2, 1]", 1),
            ("dilations = [3], pads = [0, 4]", 1),
            ('auto_pad = "SAME_UPPER", strides = [3]', 1),
            ('auto_pad = "SAME_LOWER"', 1),
            ('auto_pad = "VALID", group = 2', 2),
            ("group = 4, pads = [1, 1]", 4),
        ],
        [False, True],
        [False, True],
    ),
)
def test_convolutions_over_one_dimension(form: tuple[str, int], given: bool, bias: bool, tmp_path: Path) -> None:
    attributes, group = form
    weights = {"w": numbers(8, 4 // group, 3, seed=1), **({"b": numbers(8, seed=2)} if bias else {})}
    body = (
        f"{{y = Conv <{attributes}> (x, {', '.join(weights)})}}"
        if attributes
        else f"{{y = Conv (x, {', '.join(weights)})}}"
    )
    # Weights may be computed by the kernel before.
    ports = "".join(f", {declared(w)} {name}" for name, w in weights.items()) if given else ""
    text = f"(float[2,4,11] x{ports}) => (float[A,B,C] y) {body}"
    inputs = [numbers(2, 4, 11), *(weights.values() if given else ())]
    agrees(KernelCase("convolution", text, inputs, {} if given else weights), tmp_path, within=1e-5)


@pytest.mark.few(8)
@pytest.mark.parametrize("auto_pad", ["NOTSET", "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize(
    ("rank", "attributes", "wanted"),
    [
        (1, "", [4]),
        (2, "", [1, 2]),
        (1, ", strides = [2], output_padding = [1]", [9]),
        (2, ", strides = [3,2]", [12, 7]),
        (2, ", strides = [3,2]", [14, 10]),
        (2, ", strides = [2,2]", [8, 8]),
        (3, ", strides = [2,2,2]", [8, 9, 7]),
    ],
)
def test_transposed_convolutions_reach_the_shape_that_they_are_given(
    rank: int, attributes: str, wanted: list[int], auto_pad: str, tmp_path: Path
) -> None:
    import onnx_ir as ir
    import onnxruntime

    length, made = ",".join(["4"] * rank), ",".join(map(str, wanted))
    body = f'ConvTranspose <auto_pad = "{auto_pad}", output_shape = [{made}]{attributes}> (x, w, b)'
    text = f"(float[2,3,{length}] x) => (float[2,5,{made}] y) {{y = {body}}}"
    weights = {"w": numbers(3, 5, *[3] * rank, seed=1), "b": numbers(5, seed=2)}
    model, x, toolchain = parsed_kernel("k", text, weights), numbers(2, 3, *[4] * rank), TvmToolchain()
    # ONNX's own reference cannot crop as it must here.
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": x})
    (y,) = toolchain.load(toolchain.compile(model, TARGET, tmp_path), TARGET, tmp_path, LoadOptions())([x])
    assert y.shape == expected.shape
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5)


def test_a_transposed_convolution_of_unknown_length_to_a_fixed_shape_is_refused(tmp_path: Path) -> None:
    text = "(float[1,1,N] x) => (float[1,1,4] y) {y = ConvTranspose <output_shape = [4]> (x, w)}"
    model = parsed_kernel("k", text, {"w": np.ones((1, 1, 3), np.float32)})
    with pytest.raises(Unsupported, match="cannot import"):
        TvmToolchain().compile(model, TARGET, tmp_path)


def test_a_transposed_convolution_is_followed_by_zeros_where_its_shape_reaches_further(tmp_path: Path) -> None:
    """ONNX's formula gives a negative padding then. ONNX Runtime refuses it, so no whole model ever has it."""
    text = "(float[1,1,2] x) => (float[1,1,9] y) {y = ConvTranspose <output_shape = [9]> (x, w)}"
    model = parsed_kernel("k", text, {"w": np.ones((1, 1, 3), np.float32)})
    toolchain = TvmToolchain()
    kernel = toolchain.load(toolchain.compile(model, TARGET, tmp_path), TARGET, tmp_path, LoadOptions())
    (y,) = kernel([np.array([[[1, 2]]], np.float32)])
    assert y.tolist() == [[[1, 3, 3, 2, 0, 0, 0, 0, 0]]]


INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_a_shift_out_of_a_number_leaves_its_sign(direction: str, dtype: str, tmp_path: Path) -> None:
    limits = np.iinfo(dtype)
    values = np.array([0, 1, 7, limits.max, limits.min, limits.max // 3], dtype)
    places = np.array([0, 1, 3, limits.bits - 1, limits.bits, limits.bits + 1, limits.max, limits.min // 2], dtype)
    x, n = (both.reshape(-1).copy() for both in np.meshgrid(values, places))
    text = f'({dtype}[48] x, {dtype}[48] n) => ({dtype}[48] y) {{y = BitShift <direction = "{direction}"> (x, n)}}'
    agrees(KernelCase("shift", text, [x, n]), tmp_path, exactly=True)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_remainders_of_floats_are_those_of_the_exact_quotient(dtype: type[np.floating[Any]], tmp_path: Path) -> None:
    numerators = [0.0, -0.0, 1, -1, 3, -3, 1e4, -1e4, np.inf, -np.inf, np.nan]
    divisors = [2, -2, 0.1, -0.1, np.inf, -np.inf, 0.0, -0.0, np.nan]
    x, n = (both.reshape(-1).astype(dtype) for both in np.meshgrid(numerators, divisors))
    name = {"float32": "float", "float64": "double"}.get(x.dtype.name, x.dtype.name)
    text = f"({name}[99] x, {name}[99] n) => ({name}[99] y, {name}[99] s) {{y = Mod (x, n) s = Reciprocal (y)}}"
    agrees(KernelCase("remainder", text, [x, n]), tmp_path, exactly=True)  # the reciprocal tells 0 from -0


@pytest.mark.few(6)
@pytest.mark.parametrize(
    ("dtype", "operator", "length"), covering(INTEGERS, ["Div", "Mod", "Mod <fmod = 1>"], ["5", "N"])
)
def test_integers_are_divided_by_anything(operator: str, dtype: str, length: str, tmp_path: Path) -> None:
    known = np.iinfo(dtype)
    x = np.array([known.max, known.min, known.min, 7, 5], dtype)
    y = np.array([0, 0, -1 if known.min else 1, 3, 9], dtype)
    text = f"({dtype}[{length}] x, {dtype}[{length}] z) => ({dtype}[{length}] y) {{y = {operator} (x, z)}}"
    with np.errstate(all="ignore"):
        agrees(KernelCase("divided", text, [x, y]), tmp_path)
        if length == "5":  # TVM cannot tell what N and 5 broadcast to.
            for name, divisor in (("nought", y), ("other", np.where(y, y, 2).astype(dtype))):
                agrees(KernelCase(name, text.replace(f", {dtype}[{length}] z", ""), [x], {"z": divisor}), tmp_path)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_mish_of_negative_numbers_keeps_its_digits(dtype: type[np.floating[Any]], tmp_path: Path) -> None:
    x = np.array([-80, -20, -10, -1, -0.0, 0, 1e-4, 1, 19.9, 20.1, 100, 1e30], dtype)
    name = {"float32": "float", "float64": "double"}[x.dtype.name]
    model = parsed_kernel("mish", f"({name}[12] x) => ({name}[12] y) {{y = Mish (x)}}")
    toolchain = TvmToolchain()
    (y,) = toolchain.load(toolchain.compile(model, TARGET, tmp_path), TARGET, tmp_path, LoadOptions())([x])
    wide = x.astype(np.longdouble)
    expected = wide * np.tanh(np.logaddexp(np.longdouble(0), wide))
    np.testing.assert_allclose(y, expected, rtol=8 * np.finfo(dtype).eps)


def test_truth_values_are_compared(tmp_path: Path) -> None:
    x, z = np.array([0, 1, 0, 1], bool), np.array([0, 0, 1, 1], bool)
    agrees(KernelCase("equal", "(bool[4] x, bool[4] z) => (bool[4] y) {y = Equal (x, z)}", [x, z]), tmp_path)


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4)])
@pytest.mark.parametrize("operator", ["RMSNormalization", "LayerNormalization"])
def test_what_is_normalised_as_a_whole_may_have_any_shape(
    operator: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    port = f"float[{','.join(map(str, shape))}]"
    text = f"({port} x, {port} s) => ({port} y) {{y = {operator} <axis = 0> (x, s)}}"
    agrees(KernelCase("whole", text, [numbers(*shape), numbers(*shape, seed=1)]), tmp_path, within=1e-5)


def test_a_shape_that_is_an_output_is_a_tensor(tmp_path: Path) -> None:
    text = "(float[N,3,M] x) => (int64[2] y, float[N,3,M] z) {y = Shape <start = 1> (x) z = Neg (x)}"
    for length in (2, 5):
        agrees(KernelCase("shape", text, [numbers(4, 3, length)]), tmp_path / str(length))


HALVES = {
    "chain": "p = Mul (x, z) s = Add (p, x) q = Mul (s, s) d = Sub (q, p) y = Div (d, z)",
    "chosen": "n = Neg (x) c = Less (x, z) w = Where (c, n, z) y = Max (w, x)",
    "moved": "t = Transpose <perm = [1,0]> (x) u = Transpose <perm = [1,0]> (t) y = Concat <axis = 0> (u, z)",
    "rounded": "f = Cast <to = 1> (x) e = Exp (f) h = Cast <to = 10> (e) s = Sqrt (h) y = Mul (s, x)",
}


@pytest.mark.parametrize("body", HALVES.values(), ids=list(HALVES))
def test_float16_is_rounded_by_each_operator_once(body: str, tmp_path: Path) -> None:
    x, z = (numbers(16, 33, seed=seed).astype(np.float16) for seed in (1, 2))
    x[0, :6] = [0, -0.0, np.inf, -np.inf, 6e-8, 65504]
    text = f"(float16[16,33] x, float16[16,33] z) => (float16[A,B] y) {{{body}}}"
    agrees(KernelCase("half", text, [x, z]), tmp_path, exactly=True)


@pytest.mark.parametrize("body", ["y = Softplus (x)", "y = MatMul (x, x)", "y = ReduceSum (x)", "y = Tanh (x)"])
def test_float16_is_refused_where_code_would_round_between_steps(body: str, tmp_path: Path) -> None:
    model = parsed_kernel("k", f"(float16[8,8] x) => (float16[A,B] y) {{{body}}}")
    (node,) = model.graph
    assert "float16" in str(TvmToolchain().supports(node, TARGET).reason)
    with pytest.raises(Unsupported, match="float16"):
        TvmToolchain().compile(model, TARGET, tmp_path)


@pytest.mark.parametrize(
    ("have", "text"),
    [
        ((5, 4), "(float[N,4] x) => (float[N,4] y) {y = Expand (x, one)}"),
        ((5, 4), "(float[N,4] x) => (float[3,N,4] y) {y = Expand (x, three)}"),
        ((5, 4), "(float[N,4] x) => (float[N,4] y) {s = Shape (x) y = Expand (x, s)}"),
        ((1, 4), "(float[1,4] x, float[N,4] z) => (float[N,4] y) {s = Shape (z) y = Expand (x, s)}"),
        ((7, 4), "(float[7,4] x, float[N,4] z) => (float[7,4] y) {s = Shape (z) y = Expand (x, s)}"),
    ],
)
@pytest.mark.parametrize("other", [1, 7])
def test_expand_keeps_lengths_where_the_shape_says_one(
    have: tuple[int, ...], text: str, other: int, tmp_path: Path
) -> None:
    inputs = [numbers(*have), *([numbers(other, 4)] if " z)" in text else [])]
    constants = {"one": np.array([1, 1]), "three": np.array([3, 1, 1])}
    used = {name: value for name, value in constants.items() if f" {name})" in text}
    agrees(KernelCase("expand", text, inputs, used), tmp_path)


@pytest.mark.parametrize(
    ("shapes", "equation"),
    [
        (("1,3,2", "5,3,4"), "bij,bik->bjk"),
        (("N,3,2", "N,3,4"), "b i j, b i k -> b j k"),
        (("N,3,2", "3,2"), "bij,ij->b"),
        (("N,3,2", "N,3,4"), "...ij,...ik->...jk"),
        (("N,N", ""), "ii->i"),
    ],
)
def test_sums_of_products_of_lengths_that_are_told_apart(
    shapes: tuple[str, str], equation: str, tmp_path: Path
) -> None:
    given = [shape for shape in shapes if shape]
    inputs = [numbers(*(int(n.replace("N", "6")) for n in shape.split(","))) for shape in given]
    names = ["x", "z"][: len(given)]
    declared = ", ".join(f"float[{shape}] {name}" for shape, name in zip(given, names, strict=True))
    rank = ",".join("ABC"[: len(equation.split("->")[1].replace(" ", "").replace("...", "."))])
    text = f'({declared}) => (float[{rank}] y) {{y = Einsum <equation = "{equation}"> ({", ".join(names)})}}'
    agrees(KernelCase("einsum", text, inputs), tmp_path)


@pytest.mark.parametrize(("other", "equation"), [("5,3,4", "bij,bik->bjk"), ("M,3,4", "...ij,...ik->...jk")])
def test_a_letter_of_two_lengths_that_may_be_one_is_refused(other: str, equation: str, tmp_path: Path) -> None:
    text = f'(float[N,3,2] x, float[{other}] z) => (float[B,2,4] y) {{y = Einsum <equation = "{equation}"> (x, z)}}'
    with pytest.raises(Unsupported, match=r"cannot decide which of N and .* is the length"):
        TvmToolchain().compile(parsed_kernel("einsum", text), TARGET, tmp_path)


@pytest.mark.parametrize(
    ("sizes", "mode", "scale"),
    covering(["1,2,6,6", "N,2,H,W"], ["half_pixel", "output_half_pixel"], [0.7, 1.0]),
)
def test_regions_are_scaled_and_then_moved(sizes: str, mode: str, scale: float, tmp_path: Path) -> None:
    attributes = (
        f'coordinate_transformation_mode = "{mode}", output_height = 2, output_width = 3, sampling_ratio = 2, '
        f"spatial_scale = {scale}"
    )
    text = f"(float[{sizes}] x) => (float[A,2,2,3] y) {{y = RoiAlign <{attributes}> (x, boxes, places)}}"
    boxes = np.array([[0.2, 0.4, 2.3, 2.6], [1, 1, 5, 4]], np.float32)
    constants = {"boxes": boxes, "places": np.array([0, 0])}
    agrees(KernelCase("regions", text, [numbers(1, 2, 6, 6)], constants), tmp_path, within=1e-6)


@pytest.mark.parametrize(
    "body",
    [
        "b = Expand (x, s) y = Unsqueeze (b, two)",
        "b = Expand (x, s) y = Slice (b, one, two, zero)",
        "b = Pow (x, p) y = Unsqueeze (b, one)",
    ],
)
def test_what_asks_for_ranks_may_follow_what_is_converted_here(body: str, tmp_path: Path) -> None:
    weights = {"s": np.array([3, 4]), "p": np.float32(3.0)}
    weights |= {"zero": np.array([0]), "one": np.array([1]), "two": np.array([2])}
    used = {name: value for name, value in weights.items() if re.search(rf"\b{name}\b", body)}
    rank = 2 if "Slice" in body else 3
    text = f"(float[1,4] x) => (float[{','.join('ABC'[:rank])}] y) {{{body}}}"
    agrees(KernelCase("ranks", text, [numbers(1, 4)], used), tmp_path)


def test_convolutions_of_one_dimension_have_a_rank_too(tmp_path: Path) -> None:
    text = "(float[1,4,9] x) => (float[A,B,C,D] y) {c = Conv (x, w) y = Unsqueeze (c, three)}"
    weights = {"w": numbers(5, 4, 3, seed=1), "three": np.array([3])}
    agrees(KernelCase("ranks", text, [numbers(1, 4, 9)], weights), tmp_path, within=1e-5)


def test_expand_is_refused_where_either_may_be_one(tmp_path: Path) -> None:
    text = "(float[N,4] x, float[M,4] z) => (float[K,4] y) {s = Shape (z) y = Expand (x, s)}"
    with pytest.raises(Unsupported, match="cannot decide if a length of N is kept or broadcast to M"):
        TvmToolchain().compile(parsed_kernel("expand", text), TARGET, tmp_path)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_blocks_of_images_become_channels_and_blocks_again_at_any_lengths(mode: str, tmp_path: Path) -> None:
    body = f'd = DepthToSpace <blocksize = 2, mode = "{mode}"> (x) r = Relu (d) y = SpaceToDepth <blocksize = 3> (r)'
    model = parsed_kernel("k", f"(float[n,c,h,w] x) => (float[n,C,H,W] y) {{{body}}}")
    toolchain = TvmToolchain()
    loaded = toolchain.load(toolchain.compile(model, TARGET, tmp_path), TARGET, tmp_path, LoadOptions())
    for shape in ((1, 8, 3, 6), (2, 4, 6, 3)):
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        (wanted,) = ReferenceEvaluator(ir.to_proto(model)).run(None, {"x": x})
        np.testing.assert_array_equal(loaded([x])[0], wanted)
