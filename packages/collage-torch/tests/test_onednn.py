"""oneDNN through torch keeps the contract, and its fused operators are used and compute what the single ones do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator
from tests.combinations import covering

from collage.testing._toolchain_case import ToolchainTestCase
from collage.testing._toolchain_kernels import kernel
from collage_torch.onednn.toolchain import OneDnnToolchain

torch = pytest.importorskip("torch")

from collage_torch.onednn.fusion import _pays_row_major, find_groups  # noqa: E402
from collage_torch.ops import Program, from_array, to_array  # noqa: E402


class TestOneDnn(ToolchainTestCase):
    toolchain = OneDnnToolchain()


@pytest.mark.slow
class TestOneDnnInOneThread(ToolchainTestCase):
    toolchain = OneDnnToolchain()
    target = "llvm -libs=onednn -threads=1"


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def inferred(model: ir.Model) -> ir.Model:
    """The model with the shapes of its inner values, which kernels come with."""
    return ir.from_proto(onnx.shape_inference.infer_shapes(ir.to_proto(model)))


ACTIVATIONS = {
    "none": ("", "c"),
    "relu": ("y = Relu (c)", "y"),
    "sigmoid": ("y = Sigmoid (c)", "y"),
    "tanh": ("y = Tanh (c)", "y"),
    "leaky": ("y = LeakyRelu <alpha = 0.2> (c)", "y"),
    "relu6": ("y = Clip (c, low, high)", "y"),
    "hardswish": ("y = HardSwish (c)", "y"),
    "gelu": ("y = Gelu (c)", "y"),
    "gelu_tanh": ('y = Gelu <approximate = "tanh"> (c)', "y"),
    "swish": ("s = Sigmoid (c) y = Mul (c, s)", "y"),
    "swish_turned": ("s = Sigmoid (c) y = Mul (s, c)", "y"),
}

PRODUCTS: dict[str, tuple[tuple[int, ...], str, dict[str, np.ndarray]]] = {
    "conv1d": ((2, 3, 20), "Conv <pads = [1,1], strides = [2]>", {"w": numbers(8, 3, 3)}),
    "conv2d": ((2, 4, 9, 10), "Conv <pads = [2,1,2,1], dilations = [2,1]>", {"w": numbers(8, 4, 3, 3)}),
    "grouped": ((1, 4, 9, 9), "Conv <group = 2>", {"w": numbers(8, 2, 3, 3)}),
    "depthwise": ((1, 6, 9, 9), "Conv <group = 6, pads = [1,1,1,1]>", {"w": numbers(6, 1, 3, 3)}),
    "conv3d": ((1, 3, 5, 6, 7), "Conv <pads = [1,1,1,1,1,1]>", {"w": numbers(4, 3, 3, 3, 3)}),
    "transposed1d": ((1, 3, 9), "ConvTranspose <strides = [2], pads = [1,1]>", {"w": numbers(3, 4, 4)}),
    "transposed2d": (
        (1, 4, 6, 5),
        "ConvTranspose <strides = [2,3], pads = [1,0,1,0], output_padding = [1,2]>",
        {"w": numbers(4, 5, 3, 3)},
    ),
    "transposed_grouped": ((1, 4, 6, 5), "ConvTranspose <group = 2, strides = [2,2]>", {"w": numbers(4, 3, 2, 2)}),
    "transposed3d": ((1, 3, 4, 5, 6), "ConvTranspose <strides = [2,2,2]>", {"w": numbers(3, 2, 3, 3, 3)}),
    "matmul": ((2, 70, 100), "MatMul", {"w": numbers(100, 90) / 10}),
    "gemm": ((140, 100), "Gemm <transB = 1>", {"w": numbers(90, 100) / 10}),
    "long_sums": ((40, 300), "Gemm <transB = 1>", {"w": numbers(90, 300) / 20}),
}


def product(name: str, after: str, result: str, bias: bool) -> tuple[str, dict[str, np.ndarray]]:
    """A graph ``x -> product -> epilogue``, and its constants."""
    shape, call, weights = PRODUCTS[name]
    constants = weights | {"low": np.array(0, np.float32), "high": np.array(6, np.float32)}
    sizes, rank = ",".join(map(str, shape)), len(shape)
    first = f"c = {call} (x, w)"
    if bias:
        channels = weights["w"].shape[0]
        if name.startswith("transposed"):
            channels = weights["w"].shape[1] * (2 if "grouped" in name else 1)
        constants["b"] = numbers(weights["w"].shape[1] if name == "matmul" else channels, seed=1)
        first = f"p = {call} (x, w) c = Add (p, b)" if name == "matmul" else f"c = {call} (x, w, b)"
    unknown = ",".join("ABCDE"[:rank])
    return f"(float[{sizes}] x) => (float[{unknown}] {result}) {{{first} {after}}}", constants


def assert_fused_as_plain(
    text: str, constants: Mapping[str, np.ndarray], inputs: Sequence[np.ndarray], steps: int
) -> None:
    """The fused program has ``steps`` calls, and computes what the unfused one does."""
    used = {name: value for name, value in constants.items() if f" {name}" in text or f"({name}" in text}
    with torch.inference_mode():
        fused, plain = Program(kernel("k", text, used), fuse=find_groups), Program(kernel("k", text, used))
        got, wanted = ([to_array(y) for y in p(*map(from_array, inputs))] for p in (fused, plain))
    assert len(fused.steps) == steps
    for y, expected in zip(got, wanted, strict=True):
        assert y.shape == expected.shape
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("name", "activation", "bias"), covering(sorted(PRODUCTS), sorted(ACTIVATIONS), [False, True]))
def test_a_product_with_bias_and_activation_is_one_call(name: str, activation: str, bias: bool) -> None:
    text, constants = product(name, *ACTIVATIONS[activation], bias)
    assert_fused_as_plain(text, constants, [numbers(*PRODUCTS[name][0], seed=3)], steps=1)


@pytest.mark.parametrize("name", ["conv1d", "conv2d", "depthwise", "conv3d", "matmul", "gemm"])
@pytest.mark.parametrize(
    ("after", "result"), [("y = Add (c, r)", "y"), ("a = Add (r, c) y = Relu (a)", "y")], ids=["add", "add_relu"]
)
def test_a_residual_is_added_by_the_call(name: str, after: str, result: str) -> None:
    text, constants = product(name, after, result, bias=True)
    shape = PRODUCTS[name][0]
    x = numbers(*shape, seed=3)
    head, tail = text.split("{", 1)
    with torch.inference_mode():
        (c,) = Program(kernel("k", *product(name, "", "c", bias=False)))(from_array(x))
    sizes = ",".join(map(str, c.shape))
    text = head.replace(" x)", f" x, float[{sizes}] r)") + "{" + tail
    # A sum with known, equal shapes only: the product's is inferred by the front door in real models.
    text = text.replace("{", f"<float[{sizes}] c> {{", 1)
    steps = 2 if "Relu" in after and name in ("matmul", "gemm") else 1
    assert_fused_as_plain(text, constants, [x, numbers(*c.shape, seed=4)], steps)


CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], str, bool]] = {
    "images": ((1, 8, 24, 24), (8, 8, 3, 3), "pads = [1,1,1,1]", True),
    "groups": ((2, 8, 9, 10), (8, 2, 3, 3), "pads = [1,1,1,1], group = 4", True),
    "sequences": ((2, 8, 190), (8, 8, 3), "pads = [2,2], dilations = [2]", True),
    "volumes": ((1, 4, 8, 9, 10), (4, 4, 3, 3, 3), "pads = [1,1,1,1,1,1]", True),
    "of one pixel": ((4, 8, 1, 1), (8, 1, 1, 1), "group = 8", True),
    "many weights": ((1, 64, 3, 3), (64, 64, 3, 3), "pads = [1,1,1,1]", False),
    "a long depthwise filter": ((1, 8, 900), (8, 1, 31), "pads = [15,15], group = 8", False),
}


@pytest.mark.parametrize("name", sorted(CONVOLUTIONS))
def test_convolutions_of_few_weights_take_the_tensors_at_the_borders_as_they_are(name: str) -> None:
    """Twice in a row, the second with a residual, so that a layout mistaken for another shows."""
    shape, filters, attributes, expected = CONVOLUTIONS[name]
    sizes, rank = ",".join(map(str, shape)), ",".join("ABCDE"[: len(shape)])
    text = (
        f"(float[{sizes}] x) => (float[{rank}] y) {{c = Conv <{attributes}> (x, w, b) r = Relu (c) "
        f"d = Conv <{attributes}> (r, w, b) a = Add (d, x) y = Relu (a)}}"
    )
    model = inferred(kernel("k", text, {"w": numbers(*filters), "b": numbers(filters[0], seed=1)}))
    assert _pays_row_major(model.graph) == expected
    fused, plain, x = Program(model, fuse=find_groups), Program(model), from_array(numbers(*shape, seed=2))
    assert len(fused.steps) == 2
    with torch.inference_mode():
        np.testing.assert_allclose(fused(x)[0], plain(x)[0], rtol=1e-4, atol=1e-3)
        np.testing.assert_array_equal(fused(x)[0], fused(x)[0])


@pytest.mark.parametrize(
    ("text", "filters"),
    [
        ("(float[N,8,12,12] x) => (float[A,B,C,D] y) {y = Conv (x, w)}", (8, 8, 3, 3)),
        ("(float[1,8,12,12] x) => (float[A,B,C,D] y) {y = Conv <group = 8> (x, w)}", (16, 1, 3, 3)),
        (
            "(float[1,8,12,12] x) => (float[A,B,C,D] y) {c = Conv (x, w) y = MaxPool <kernel_shape = [2,2]> (c)}",
            (4, 8, 1, 1),
        ),
        (
            "(float[1,8,12,12] x) => (float[A,B,C,D] y) {c = Conv (x, w) d = Conv (c, w) e = Conv (d, w) y = Conv (e, w)}",
            (8, 8, 1, 1),
        ),
    ],
    ids=["of unknown size", "two filters a channel", "before a pool", "in a long chain"],
)
def test_other_convolutions_compute_channels_last(text: str, filters: tuple[int, ...]) -> None:
    assert not _pays_row_major(inferred(kernel("k", text, {"w": numbers(*filters)})).graph)


POOL, ODD_POOL = (
    f"MaxPool <kernel_shape = [1,2,2], strides = [1,2,2]{more}>" for more in ("", ", pads = [0,1,1,0,1,1]")
)
CHAINS: dict[str, tuple[str, int]] = {
    "two convolutions": ("c = Conv <pads = [1,2,2,1,2,2]> (x, large, b) y = Conv (c, small)", 2),
    "two large ones": ("c = Conv <pads = [1,2,2,1,2,2]> (x, large, b) y = Conv <strides = [1,2,2]> (c, large)", 1),
    "a pool": (f"c = Conv (x, large) r = Relu (c) y = {POOL} (r)", 1),
    "pools of borders": (f"c = Conv (x, large) r = Relu (c) p = {ODD_POOL} (r) y = {ODD_POOL} (p)", 1),
    "all of it": (
        f"c = Conv (x, large, b) r = Relu (c) p = {POOL} (r) d = Conv <pads = [1,1,1,1,1,1]> (p, small) e = Relu (d) "
        "f = Conv <pads = [1,2,2,1,2,2], dilations = [1,1,1]> (e, large, b) y = Tanh (f)",
        2,
    ),
    "a small one first": (
        f"s = Conv (x, small) c = Conv (s, large) r = Relu (c) p = {POOL} (r) y = Conv (p, small)",
        3,
    ),
    "alone": ("y = Conv (x, large)", 1),
    "a pool of any number": (f"c = Conv (x, large) y = {POOL} (c)", 2),
    "small ones": (f"c = Conv (x, small) r = Relu (c) p = {POOL} (r) y = Conv (p, small)", 3),
    "read twice": (f"c = Conv (x, large) r = Relu (c) p = {POOL} (r) s = ReduceMax (r) y = Add (p, s)", 4),
    "a pool that rounds up": (
        "c = Conv (x, large) r = Relu (c) y = MaxPool <kernel_shape = [2,2,2], strides = [2,2,2], ceil_mode = 1> (r)",
        2,
    ),
    "uneven borders": (f"c = Conv <pads = [1,1,1,0,1,1]> (x, large) r = Relu (c) y = {POOL} (r)", 3),
}


@pytest.mark.parametrize("name", sorted(CHAINS))
def test_chains_that_begin_with_large_filters_in_three_dimensions_are_one_call(name: str) -> None:
    body, steps = CHAINS[name]
    weights = {"large": numbers(4, 4, 3, 5, 5), "small": numbers(4, 4, 1, 3, 3, seed=1), "b": numbers(4, seed=2)}
    used = {key: value / 10 for key, value in weights.items() if key in body}
    model = inferred(kernel("k", f"(float[2,4,6,13,17] x) => (float[A,B,C,D,E] y) {{{body}}}", used))
    fused, plain, x = Program(model, fuse=find_groups), Program(model), from_array(numbers(2, 4, 6, 13, 17, seed=3))
    assert len(fused.steps) == steps
    with torch.inference_mode():
        given = x.clone()
        np.testing.assert_allclose(fused(x)[0], plain(x)[0], rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(fused(x)[0], fused(x)[0])
        turned = x.contiguous(memory_format=torch.channels_last_3d)
        np.testing.assert_allclose(fused(turned)[0], plain(x)[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(x, given)


def test_depthwise_transposed_convolutions_are_torchs_own() -> None:
    text = "(float[1,8,5,5] x) => (float[A,B,C,D] y) {c = ConvTranspose <group = 8> (x, w, b) y = Relu (c)}"
    weights = {"w": numbers(8, 1, 4, 4), "b": numbers(8, seed=1)}
    assert_fused_as_plain(text, weights, [numbers(1, 8, 5, 5)], steps=2)


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        # the product is an output itself
        ("(float[1,4,9,9] x) => (float[A,B,C,D] c, float[A,B,C,D] y) {c = Conv (x, w) y = Relu (c)}", 2),
        # somebody else reads it
        ("(float[1,4,9,9] x) => (float[A,B,C,D] y) {c = Conv (x, w) r = Relu (c) y = Add (c, r)}", 3),
        # weights that vary, padding that is uneven
        ("(float[1,4,9,9] x, float[8,4,3,3] v) => (float[A,B,C,D] y) {c = Conv (x, v) y = Relu (c)}", 2),
        ("(float[1,4,9,9] x) => (float[A,B,C,D] y) {c = Conv <pads = [0,1,1,0]> (x, w) y = Relu (c)}", 2),
    ],
)
def test_what_must_not_be_merged_is_not(text: str, steps: int) -> None:
    weights = {"w": numbers(8, 4, 3, 3)} if " w)" in text else {}
    inputs = [numbers(1, 4, 9, 9, seed=3), numbers(8, 4, 3, 3)][: 1 + (" v)" in text)]
    assert_fused_as_plain(text, weights, inputs, steps)


HALVES = {
    "matmul": ("y = MatMul (x, w)", {"w": (512, 300)}),
    "gemm": ("y = Gemm (x, w, b)", {"w": (512, 300), "b": (300,)}),
    "gemm_turned": ("y = Gemm <transB = 1> (x, w, b)", {"w": (300, 512), "b": (1, 300)}),
    "scaled": ("y = Gemm <alpha = 0.5> (x, w, b)", {"w": (512, 300), "b": (300,)}),
    "varying": ("t = Transpose <perm = [1,0]> (x) y = MatMul (x, t)", {}),
}


@pytest.mark.parametrize("name", sorted(HALVES))
def test_products_of_halves_are_those_of_singles_rounded_once(name: str) -> None:
    body, shapes = HALVES[name]
    weights = {k: numbers(*shape, seed=i).astype(np.float16) for i, (k, shape) in enumerate(shapes.items())}
    text = f"(float16[30,512] x) => (float16[A,B] y) {{{body}}}"
    x = numbers(30, 512, seed=3).astype(np.float16)
    with torch.inference_mode():
        (got,) = Program(kernel("k", text, weights), fuse=find_groups)(from_array(x))
    single = {k: v.astype(np.float32) for k, v in weights.items()}
    (wanted,) = ReferenceEvaluator(ir.to_proto(kernel("k", text.replace("float16", "float"), single))).run(
        None, {"x": x.astype(np.float32)}
    )
    assert got.dtype == torch.float16
    np.testing.assert_allclose(to_array(got), wanted.astype(np.float16), rtol=2**-10, atol=1e-3)


@pytest.mark.parametrize("text", ["c = MatMul (x, w) a = Add (c, b)", "a = Gemm (x, w, b)"], ids=["matmul", "gemm"])
def test_small_products_are_called_with_their_bias_only(text: str) -> None:
    weights = {"w": numbers(16, 12), "b": numbers(12, seed=1)}
    text = f"(float[5,16] x) => (float[A,B] y) {{{text} y = Gelu (a)}}"
    assert_fused_as_plain(text, weights, [numbers(5, 16)], steps=2)


@pytest.mark.parametrize("name", sorted(PRODUCTS))
def test_no_elements_at_all(name: str) -> None:
    text, constants = product(name, "y = Relu (c)", "y", bias=True)
    shape = (0, *PRODUCTS[name][0][1:])
    first = f"float[{PRODUCTS[name][0][0]},"
    assert_fused_as_plain(text.replace(first, "float[N,", 1), constants, [numbers(*shape)], steps=1)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("name", ["LSTM", "GRU", "GRU_after", "RNN"])
def test_a_recurrent_layer_is_one_call_and_onnx_runtimes_equal(name: str, direction: str) -> None:
    ort = pytest.importorskip("onnxruntime")
    op_type, steps, batch, size, hidden = name.split("_")[0], 7, 3, 5, 6
    gates, ways = {"LSTM": 4, "GRU": 3, "RNN": 1}[op_type], 2 if direction == "bidirectional" else 1
    more = ", linear_before_reset = 1" if name == "GRU_after" else ""
    states = "h, c" if op_type == "LSTM" else "h"
    weights = {
        "w": numbers(ways, gates * hidden, size, seed=1),
        "r": numbers(ways, gates * hidden, hidden, seed=2),
        "b": numbers(ways, 2 * gates * hidden, seed=3),
        "h": numbers(ways, batch, hidden, seed=4),
    }
    if op_type == "LSTM":
        weights["c"] = numbers(ways, batch, hidden, seed=5)
    text = (
        f"(float[{steps},{batch},{size}] x) => (float[A,B,C,D] y, float[B,C,D] last) "
        f'{{y, last = {op_type} <hidden_size = {hidden}, direction = "{direction}"{more}> (x, w, r, b, , {states})}}'
    )
    model, x = kernel("k", text, weights), numbers(steps, batch, size)
    program = Program(model, fuse=find_groups)
    assert len(program.steps) == 1
    with torch.inference_mode():
        got = [to_array(y) for y in program(from_array(x))]
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    for y, wanted in zip(got, session.run(None, {"x": x}), strict=True):
        np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "layout"), [((4, 2, 5), 0), ((1, 1, 5), 0), ((3, 0, 5), 0), ((4, 2, 5), 1), ((0, 3, 5), 1)]
)
def test_packed_lstms_take_other_lengths_and_layouts(shape: tuple[int, ...], layout: int) -> None:
    text = (
        "(float[T,N,5] x) => (float[A,B,C,D] y, float[B,C,D] h, float[B,C,D] c) "
        f"{{y, h, c = LSTM <hidden_size = 6, layout = {layout}> (x, w, r)}}"
    )
    assert_fused_as_plain(text, {"w": numbers(1, 24, 5), "r": numbers(1, 24, 6, seed=1)}, [numbers(*shape)], steps=1)


HEADS = "float[1,2,6,8]"
ATTENTION = {
    "scaled": (
        f"({HEADS} q, {HEADS} k, {HEADS} v) => (float[A,B,C,D] y) {{"
        "t = Transpose <perm = [0,1,3,2]> (k) s = MatMul (q, t) d = Div (s, f) p = Softmax (d) y = MatMul (p, v)}",
        [(1, 2, 6, 8)] * 3,
    ),
    "masked": (
        f"({HEADS} q, {HEADS} k, {HEADS} v, float[1,1,1,6] m) => (float[A,B,C,D] y) {{"
        "t = Transpose <perm = [0,1,3,2]> (k) s = MatMul (q, t) d = Mul (f, s) a = Add (m, d) "
        "p = Softmax <axis = 3> (a) y = MatMul (p, v)}",
        [*[(1, 2, 6, 8)] * 3, (1, 1, 1, 6)],
    ),
    "heads split by the transposition": (
        f"({HEADS} q, float[1,6,2,8] k, {HEADS} v) => (float[A,B,C,D] y) {{"
        "t = Transpose <perm = [0,2,3,1]> (k) s = MatMul (q, t) p = Softmax (s) y = MatMul (p, v)}",
        [(1, 2, 6, 8), (1, 6, 2, 8), (1, 2, 6, 8)],
    ),
    "keys given transposed": (
        "(float[2,6,8] q, float[2,8,5] k, float[2,5,4] v) => (float[A,B,C] y) {"
        "s = MatMul (q, k) p = Softmax (s) y = MatMul (p, v)}",
        [(2, 6, 8), (2, 8, 5), (2, 5, 4)],
    ),
}


@pytest.mark.parametrize("name", sorted(ATTENTION))
def test_attention_is_one_call(name: str) -> None:
    text, shapes = ATTENTION[name]
    model = inferred(kernel("k", text, {"f": np.array(2.5, np.float32)} if " f" in text or "(f" in text else {}))
    fused, plain = Program(model, fuse=find_groups), Program(model)
    assert len(fused.steps) == 1
    inputs = [from_array(numbers(*shape, seed=i)) for i, shape in enumerate(shapes)]
    masks: list[float] = [0.0, -np.inf] if name == "masked" else [0.0]
    for hidden in masks:
        if name == "masked":
            inputs[3][..., 2:] = hidden
        np.testing.assert_allclose(fused(*inputs)[0], plain(*inputs)[0], rtol=1e-4, atol=1e-5)
    if name == "masked":
        inputs[3][:] = -np.inf
        assert torch.isnan(fused(*inputs)[0]).all() and torch.isnan(plain(*inputs)[0]).all()


@pytest.mark.parametrize(
    "after",
    [
        "p = Softmax <axis = 1> (s) y = MatMul (p, v)",
        "p = Softmax (s) y = MatMul (v, p)",
        "p = Softmax (s) z = MatMul (p, v) y = Add (z, p)",
    ],
    ids=["over columns", "from the left", "weights used twice"],
)
def test_what_is_no_attention_is_left_alone(after: str) -> None:
    text = f"(float[2,6,6] q, float[2,6,6] k, float[2,6,6] v) => (float[A,B,C] y) {{s = MatMul (q, k) {after}}}"
    model = inferred(kernel("k", text))
    assert len(Program(model, fuse=find_groups).steps) == len(Program(model).steps)


GROUP_NORM = """({shape} x) => ({shape} y) {{
    g = Reshape (x, three) n = InstanceNormalization <epsilon = 0.1> (g, s, b) z = Reshape (n, back) {after}}}"""
AFTER = {
    "affine": "m = Mul (z, w) y = Add (m, o)",
    "turned": "m = Mul (w, z) y = Add (o, m)",
    "scaled": "m = Mul (z, w) y = Neg (m)",
    "shifted": "m = Add (z, o) y = Neg (m)",
    "plain": "y = Neg (z)",
    "other factors": "m = Mul (z, u) y = Add (m, o)",
}


def group_norm_kernel(shape: str, after: str, groups: int = 3, rank: int = 4, **changed: np.ndarray) -> ir.Model:
    ones = [1] * (rank - 2)
    constants = {
        "three": np.array([0, groups, -1]),
        "s": numbers(groups, seed=1),
        "b": numbers(groups, seed=2),
        "back": np.array([2, 6, 5, 4][:rank]),
        "w": numbers(6, *ones, seed=3),
        "o": numbers(1, 6, *ones, seed=4),
        "u": numbers(5, 4, seed=5),
        **changed,
    }
    text = GROUP_NORM.format(shape=f"float[{shape}]", after=after)
    return inferred(
        kernel(
            "k",
            text,
            {
                name: value
                for name, value in constants.items()
                if f"{name})" in text or f"({name}," in text or f"{name}," in text
            },
        )
    )


@pytest.mark.parametrize("after", sorted(AFTER))
@pytest.mark.parametrize("rank", [3, 4])
def test_a_norm_of_groups_of_channels_is_one_call(after: str, rank: int) -> None:
    if after == "other factors" and rank == 3:
        pytest.skip("of a matrix these would be factors of channels")
    shape = [2, 6, 5, 4][:rank]
    model = group_norm_kernel(",".join(map(str, shape)), AFTER[after], rank=rank)
    fused, plain = Program(model, fuse=find_groups), Program(model)
    assert len(fused.steps) == {"affine": 1, "turned": 1, "other factors": 3}.get(after, 2)
    x = from_array(numbers(*shape))
    for given in (x, x.to(memory_format=torch.channels_last) if rank == 4 else x):
        np.testing.assert_allclose(fused(given)[0], plain(given)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("groups", "changed"),
    [
        (4, {"three": np.array([2, 4, -1]), "back": np.array([2, 6, 5, 4])}),
        (6, {"three": np.array([1, 6, -1])}),
        (3, {"back": np.array([2, 3, 10, 4])}),
    ],
    ids=["groups of parts of channels", "over the batch", "to another shape"],
)
def test_other_norms_between_reshapes_are_left_alone(groups: int, changed: dict[str, np.ndarray]) -> None:
    text = """(float[2,6,5,4] x) => (float[A,B,C,D] y) {
        g = Reshape (x, three) n = InstanceNormalization (g, s, b) y = Reshape (n, back)}"""
    constants = {
        "s": numbers(groups, seed=1),
        "b": numbers(groups),
        "three": np.array([0, groups, -1]),
        "back": np.array([2, 6, 5, 4]),
    }
    model = inferred(kernel("k", text, constants | changed))
    fused, plain = Program(model, fuse=find_groups), Program(model)
    assert len(fused.steps) == len(plain.steps) == 3
    x = from_array(numbers(2, 6, 5, 4))
    np.testing.assert_allclose(fused(x)[0], plain(x)[0], rtol=1e-4, atol=1e-5)


def test_a_norm_of_groups_takes_one_element_none_and_any_batch() -> None:
    after, back = AFTER["affine"], np.array([0, 6, 5, 4])
    model = group_norm_kernel("N,6,5,4", after, back=back)
    fused, plain = Program(model, fuse=find_groups), Program(model)
    assert len(fused.steps) == 1
    for batch in (3, 1):
        x = from_array(numbers(batch, 6, 5, 4))
        np.testing.assert_allclose(fused(x)[0], plain(x)[0], rtol=1e-4, atol=1e-5)
    single = Program(group_norm_kernel("1,6,1", after, groups=6, rank=3, back=np.array([1, 6, 1])), fuse=find_groups)
    assert len(single.steps) == 1
    assert single(from_array(numbers(1, 6, 1)))[0].shape == (1, 6, 1)


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("shape", [(1, 7, 4), (1, 1, 4), (1, 2, 3), (1, 2, 40)])
def test_first_states_of_other_sizes_are_refused_when_it_runs(shape: tuple[int, ...], is_packed: bool) -> None:
    """OneDNN reads and writes beyond them otherwise."""
    text = """(float[3,2,5] x, float[1,B,H] h, float[1,B,H] c) => (float[3,1,2,4] y) {
        y = LSTM <hidden_size = 4> (x, w, r, , , h, c)}"""
    model = kernel("k", text, {"w": numbers(1, 16, 5), "r": numbers(1, 16, 4)})
    program = Program(model, fuse=find_groups if is_packed else None)
    with torch.inference_mode(), pytest.raises(ValueError, match="first state"):
        program(*map(from_array, (numbers(3, 2, 5), numbers(*shape), numbers(*shape))))


@pytest.mark.parametrize("values", [7, 100])
def test_attention_needs_a_value_for_each_key(values: int) -> None:
    """Torch reads beyond the values otherwise."""
    text = """(float[1,2,4,8] q, float[1,2,8,B] k, float[1,2,B,8] v) => (float[1,2,4,8] y) {
        s = MatMul (q, k) p = Softmax (s) y = MatMul (p, v)}"""
    single = "(float[1,2,4,8] q, float[1,2,K,8] k, float[1,2,V,8] v) => (float[1,2,4,8] y) {y = Attention (q, k, v)}"
    for model, keys in ((kernel("k", text), (1, 2, 8, 24)), (kernel("k", single), (1, 2, 24, 8))):
        model.opset_imports[""] = 23
        program = Program(inferred(model), fuse=find_groups)
        assert len(program.steps) == 1
        with torch.inference_mode(), pytest.raises(ValueError, match=f"24 keys and {values} values"):
            program(*map(from_array, (numbers(1, 2, 4, 8), numbers(*keys), numbers(1, 2, values, 8))))


@pytest.mark.parametrize("made", ["Conv (x, w)", "ConvTranspose (x, w)", "MatMul (x, w)"])
def test_gelu_in_a_call_lets_the_largest_numbers_and_infinity_through(made: str) -> None:
    x = np.ones((1, 1, 1024, 2), np.float32)
    x[0, 0, :2] = [[np.inf, 0], [3e38, 0]]
    w = np.zeros((2, 1024), np.float32) if "MatMul" in made else np.ones((1, 1, 1, 1), np.float32)
    w.flat[0] = 1
    sizes = "1,1,1024," + ("1024" if "MatMul" in made else "2")
    text = f"(float[1,1,1024,2] x) => (float[{sizes}] y) {{a = {made} y = Gelu (a)}}"
    program = Program(inferred(kernel("k", text, {"w": w})), fuse=find_groups)
    assert len(program.steps) == 1
    y = to_array(program(from_array(x))[0])
    assert y[0, 0, :2, 0].tolist() == x[0, 0, :2, 0].tolist()
    np.testing.assert_allclose(y[0, 0, 2, 0], 0.8413447, rtol=1e-5)
