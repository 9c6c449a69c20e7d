"""ncnn keeps the contract, is right in many shapes, and refuses what it would be wrong of."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from collage._errors import ToolchainError, Unsupported
from collage.target import Target
from collage.testing import ToolchainTestCase
from collage.testing._toolchain_kernels import SYMBOLIC, kernel
from collage.testing.onnx_suite import cases, difference, same
from collage.toolchains import LoadOptions
from collage_ncnn.toolchain import NcnnToolchain

pytest.importorskip("ncnn")

TARGET = Target.parse("llvm -compiler=ncnn")
NOT_TAKEN = SYMBOLIC | {"batch_norm_pool", "gather", "topk", "layer_norm_gelu"}
NOT_FINITE = frozenset({"not_finite", "not_finite_max"})

_Weights = Mapping[str, np.ndarray]


class TestNcnn(ToolchainTestCase):
    toolchain = NcnnToolchain()
    refuses = NOT_TAKEN
    differs = NOT_FINITE


@pytest.mark.slow  # The class above checks the same kernels, and runs on one thread and on two.
class TestNcnnInOneThread(ToolchainTestCase):
    toolchain = NcnnToolchain()
    target = "llvm -compiler=ncnn -threads=1"
    refuses = NOT_TAKEN
    differs = NOT_FINITE


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def layers_of(model: ir.Model, folder: Path) -> list[str]:
    compiled = NcnnToolchain().compile(model, TARGET, folder)
    return [line.split()[0] for line in (folder / compiled.files[0]).read_text().splitlines()[2:]]


def run(model: ir.Model, folder: Path, inputs: Sequence[np.ndarray], target: Target = TARGET) -> Sequence[np.ndarray]:
    toolchain = NcnnToolchain()
    return toolchain.load(toolchain.compile(model, target, folder), target, folder, LoadOptions(2))(inputs)


def wanted_of(model: ir.Model, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    content = ir.to_proto(model).SerializeToString()
    session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [str(value.name) for value in model.graph.inputs]
    outputs: Sequence[np.ndarray] = session.run(None, dict(zip(names, inputs, strict=True)))
    return outputs


def assert_right(text: str, weights: _Weights, folder: Path, tolerance: float = 1e-4) -> None:
    """Assert that a kernel is as ONNX Runtime computes it."""
    model = kernel("k", text, weights)
    inputs = [numbers(*map(int, value.shape or ()), seed=i) for i, value in enumerate(model.graph.inputs)]
    for y, expected in zip(run(model, folder, inputs), wanted_of(model, inputs), strict=True):
        assert y.shape == expected.shape
        np.testing.assert_allclose(y, expected, rtol=0, atol=tolerance * np.abs(expected).max())


def conv_cases() -> list[Any]:
    """Convolutions of odd and even channels, kernels, strides, dilations and paddings, each drawn by a number."""
    found = []
    for number in range(60):
        draw = np.random.default_rng(number)
        group = int(draw.choice([1, 1, 1, 2, 4]))
        each, results = (group * int(n) for n in draw.choice([1, 2, 3, 4, 8, 16], 2))
        if number % 7 == 0:
            group = results = each
        kernel_shape = [int(n) for n in draw.choice([1, 2, 3, 3, 3, 5], 2)]
        strides, dilations = ([int(n) for n in draw.choice([1, 1, 2, 3], 2)] for _ in range(2))
        pads = [int(n) for n in draw.integers(0, 4, 4)]
        sizes = [int(n) for n in draw.integers(13, 27, 2)]
        found.append(pytest.param(each, results, group, kernel_shape, strides, dilations, pads, sizes, id=f"{number}"))
    return found


@pytest.mark.parametrize("transposed", [False, True], ids=["conv", "transposed"])
@pytest.mark.parametrize(
    ("channels", "results", "group", "kernel_shape", "strides", "dilations", "pads", "sizes"), conv_cases()
)
def test_convolutions_of_all_forms(
    transposed: bool,
    channels: int,
    results: int,
    group: int,
    kernel_shape: list[int],
    strides: list[int],
    dilations: list[int],
    pads: list[int],
    sizes: list[int],
    tmp_path: Path,
) -> None:
    attributes = f"group={group}, strides={strides}, dilations={dilations}, pads={pads}"
    shape = (channels, results // group) if transposed else (results, channels // group)
    weights = {"w": numbers(*shape, *kernel_shape, seed=1), "b": numbers(results, seed=2)}
    name = "ConvTranspose" if transposed else "Conv"
    out = []
    for i in range(2):
        reach, padded = dilations[i] * (kernel_shape[i] - 1) + 1, pads[i] + pads[i + 2]
        length = (sizes[i] - 1) * strides[i] + reach - padded
        out.append(length if transposed else (sizes[i] + padded - reach) // strides[i] + 1)
    assert min(out) > 0
    text = (
        f"(float[1,{channels},{sizes[0]},{sizes[1]}] x) => (float[1,{results},{out[0]},{out[1]}] y) "
        f"{{a = {name} <{attributes}> (x, w, b) y = Relu (a)}}"
    )
    text = text.replace("=[", " = [")
    assert_right(text, weights, tmp_path)


@pytest.mark.parametrize("size", [5, 8, 14, 24, 33, 64])
@pytest.mark.parametrize(("channels", "results"), [(3, 16), (16, 16), (16, 33), (64, 64)])
def test_winograd_rounds_within_the_tolerance(size: int, channels: int, results: int, tmp_path: Path) -> None:
    weights = {"w": numbers(results, channels, 3, 3, seed=1) / np.float32(np.sqrt(9 * channels))}
    text = (
        f"(float[1,{channels},{size},{size}] x) => (float[1,{results},{size},{size}] y) "
        "{y = Conv <pads = [1,1,1,1]> (x, w)}"
    )
    assert_right(text, weights, tmp_path)


@pytest.mark.parametrize("channels", [1, 3, 4, 8, 16, 20])
@pytest.mark.parametrize(
    ("kind", "ceil"), [*itertools.product(["MaxPool", "AveragePool", "AveragePool count_include_pad = 1,"], [0, 1])]
)
@pytest.mark.parametrize(("window", "stride", "pads"), [(2, 2, 0), (3, 2, 1), (3, 1, 1), (3, 3, 0), (5, 3, 2)])
def test_pools_of_all_forms(
    channels: int, kind: str, ceil: int, window: int, stride: int, pads: int, tmp_path: Path
) -> None:
    name, _, more = kind.partition(" ")
    text = (
        f"(float[1,{channels},14,17] x) => (float[1,{channels},H,W] y) {{y = {name} <{more} kernel_shape = "
        f"[{window},{window}], strides = [{stride},{stride}], pads = [{pads},{pads},{pads},{pads}], ceil_mode = {ceil}> (x)}}"
    )
    x = numbers(1, channels, 14, 17)
    model = kernel("k", text)
    (wanted,) = wanted_of(model, [x])
    model.graph.outputs[0].shape = ir.Shape(wanted.shape)
    try:
        (y,) = run(model, tmp_path, [x])
    except Unsupported as refusal:
        assert ceil and more, refusal
    else:
        np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("text", "weights", "layers"),
    [
        (
            "(float[1,16,8,8] x) => (float[1,16,8,8] y) {s = Sigmoid (x) y = Mul (s, x)}",
            {},
            ["Input", "DeepCopy", "Swish"],
        ),
        (
            "(float[1,16,8,8] x) => (float[1,16,8,8] y) {s = Softplus (x) t = Tanh (s) y = Mul (x, t)}",
            {},
            ["Input", "DeepCopy", "Mish"],
        ),
        (
            "(float[1,8,8,8] x) => (float[1,8,8,8] y) {a = Conv <pads = [1,1,1,1]> (x, w) h = HardSigmoid (a) y = Mul (a, h)}",
            {"w": numbers(8, 8, 3, 3)},
            ["Input", "Convolution"],
        ),
        (
            "(float[1,8,6,6] x) => (float[1,8,6,6] y) {a = Reshape (x, s) n = InstanceNormalization (a, one, zero) "
            "b = Reshape (n, back) c = Mul (b, scale) y = Add (c, bias)}",
            {
                "s": np.array([0, 2, -1]),
                "back": np.array([1, 8, 6, 6]),
                "one": np.ones(2, np.float32),
                "zero": np.zeros(2, np.float32),
                "scale": numbers(8, 1, 1, seed=1),
                "bias": numbers(8, 1, 1, seed=2),
            },
            ["Input", "DeepCopy", "GroupNorm"],
        ),
        (
            "(float[1,18,4,5] x) => (float[1,2,12,15] y) "
            "{a = Reshape (x, s) t = Transpose <perm = [0,1,4,2,5,3]> (a) y = Reshape (t, back)}",
            {"s": np.array([1, 2, 3, 3, 4, 5]), "back": np.array([1, 2, 12, 15])},
            ["Input", "DeepCopy", "Reshape", "PixelShuffle"],
        ),
        (
            "(float[1,16,5,7] x, float[1,16,5,7] z) => (float[1,16,5,7] y, float[1,16,5,7] t) "
            "{y = Add (x, z) t = Mul (y, two)}",
            {"two": np.array([2], np.float32)},
            ["Input", "Input", "BinaryOp", "Split", "BinaryOp"],
        ),
    ],
)
def test_several_operators_become_one_layer(text: str, weights: _Weights, layers: list[str], tmp_path: Path) -> None:
    model = ir.serde.deserialize_model(
        onnx.shape_inference.infer_shapes(ir.to_proto(kernel("k", text, weights)), data_prop=True)
    )
    got = layers_of(model, tmp_path)
    assert [name for name in got if name != "Reshape"] == [name for name in layers if name != "Reshape"]
    inputs = [numbers(*map(int, value.shape or ()), seed=i) for i, value in enumerate(model.graph.inputs)]
    for y, expected in zip(run(model, tmp_path, inputs), wanted_of(model, inputs), strict=True):
        np.testing.assert_allclose(y, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(double[2] x) => (double[2] y) {y = Neg (x)}", "double"),
        ("(int64[2] x) => (int64[2] y) {y = Neg (x)}", "int64"),
        ("(float[N] x) => (float[N] y) {y = Neg (x)}", "fixed shapes"),
        ("(float[0,4] x) => (float[0,4] y) {y = Neg (x)}", "without elements"),
        ("(float[2,2,3,4,5] x) => (float[2,2,3,4,5] y) {y = Neg (x)}", "four dimensions"),
        ("(float[2,3,8,8] x) => (float[2,4,6,6] y) {y = Conv (x, w)}", "batch of 2"),
        ("(float[1,3,8,8] x) => (float[1,4,10,10] y) {y = Conv <pads = [2,2,2,2]> (x, x)}", "constant weights"),
        ("(float[1,3,8,8] x) => (float[1,4,5,5] y) {y = Conv <pads = [-1,0,0,0]> (x, w)}", "pads"),
        ("(float[1,3,8,8] x) => (float[1,4,6,6] y) {y = Conv <dilations = [99999999,1]> (x, w)}", "dilations"),
        ("(float[1,3,8,8] x) => (float[1,4,6,6] y) {y = Conv <strides = [0,1]> (x, w)}", "strides"),
        ("(float[1,3,8,8] x) => (float[1,4,7,7] y) {y = Conv (x, w)}", "shapes other than"),
        ("(float[1,3,8,8] x) => (float[1,4,6,6] y) {y = Conv <group = 0> (x, w)}", "groups"),
        ("(float[1,3,60000,60000] x) => (float[1,3,60000,60000] y) {y = Neg (x)}", "32 bits"),
        ("(float[4] x) => (float[4] y) {y = Add (x, inf)}", "not finite"),
        ("(float[3,1] x, float[1,4] z) => (float[3,4] y) {y = Add (x, z)}", "stretches both"),
        ('(float[1,2,1,8] x) => (float[1,2,2,16] y) {y = Resize <mode = "linear"> (x, , scales)}', "beyond the image"),
        ("(float[2,4] x) => (float[2,4] y) {y = LayerNormalization (x, one)}", "sum of squares"),
        ("(float[4] x) => (float[4] y) {y = Div (x, zero)}", "makes NaN"),
        ("(float[4] x) => (float[4] y) {y = Div (one, x)}", "constant divisors"),
        ("(float[4] x) => (float[4] y) {y = Reciprocal (x)}", "not used for ONNX Reciprocal"),
        ("(float[2] x) => (float[2] y) {y = com.example.Frobnicate (x)}", "Frobnicate"),
    ],
)
def test_a_refusal_says_why_in_one_line(text: str, reason: str, tmp_path: Path) -> None:
    given = {
        "w": numbers(4, 3, 3, 3),
        "inf": np.array(np.inf, np.float32),
        "one": np.ones(4, np.float32),
        "zero": np.array([1, 0, 2, 3], np.float32),
        "scales": np.array([1, 1, 2, 2], np.float32),
    }
    weights = {name: x for name, x in given.items() if f" {name}," in text or f" {name})" in text}
    model = kernel("k", text, weights)
    with pytest.raises(Unsupported, match=rf"^ncnn.*({reason})") as refusal:
        NcnnToolchain().compile(model, TARGET, tmp_path)
    assert "\n" not in str(refusal.value)
    assert not list(tmp_path.iterdir())


def test_operators_are_refused_one_by_one() -> None:
    text = "(float[2,3,8,8] x) => (float[2,4,6,6] y, float[2,3,8,8] z) {y = Conv (x, w) z = Relu (x)}"
    model = kernel("k", text, {"w": numbers(4, 3, 3, 3)})
    found = [NcnnToolchain().supports(node, TARGET) for node in model.graph]
    assert [each.ok for each in found] == [False, True]
    assert found[0].reason is not None and "batch of 2" in found[0].reason


@pytest.mark.parametrize(
    "text",
    [
        "(float x) => (float y) {y = Pad (x, two, , two)}",
        "(float x) => (float y) {y = Slice (x, two, two, two)}",
        "(float x) => (float y) {y = ReduceMax (x, two)}",
        "(float[2] x) => (float[2] y) {y = Softmax <axis = 7> (x)}",
        "(float[2] x) => (float[2] y) {y = Concat <axis = -9> (x, x)}",
        "(float[2] x) => (float[2] y) {y = Split (x)}",
        "(float[2] x) => (float[2] y) {y = Conv (x)}",
        "(float[1,2,3] x) => (float[2] y) {y = MaxPool (x)}",
        "(float[1,4,2,2] x) => (float[1,1,4,4] y) {y = DepthToSpace <blocksize = 0> (x)}",
        "(float[1,4,2,2] x) => (float[1,4,4,4] y) {y = Resize (x, , two)}",
        "(float[2,3] x) => (float[2,3] y) {y = Add (x, two)}",
        "(float[2,3] x) => (float[3,2] y) {y = Transpose <perm = [0,0]> (x)}",
    ],
)
def test_malformed_operators_are_right_or_refused(text: str, tmp_path: Path) -> None:
    model = kernel("k", text, {"two": np.array([1, 1])} if "two" in text else {})
    for node in model.graph:
        NcnnToolchain().supports(node, TARGET)
    try:
        run(model, tmp_path, [numbers(*map(int, model.graph.inputs[0].shape or ()))])
    except ToolchainError as refusal:
        assert str(refusal) and "\n" not in str(refusal)


def test_inputs_are_not_written_over_by_layers_in_place(tmp_path: Path) -> None:
    text = (
        "(float[1,8,6,6] x) => (float[1,8,6,6] a, float[1,288] b, float[1,8,6,6] c) "
        "{a = Relu (x) b = Flatten (x) c = Add (x, one)}"
    )
    x = numbers(1, 8, 6, 6)
    before = x.copy()
    a, b, c = run(kernel("k", text, {"one": np.float32([1])}), tmp_path, [x])
    np.testing.assert_array_equal(x, before)
    np.testing.assert_array_equal(a, np.maximum(x, 0))
    np.testing.assert_array_equal(b, x.reshape(1, -1))
    np.testing.assert_array_equal(c, x + 1)


def test_kernels_end_without_a_word(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = "(float[1,8,6,5] x) => (float[1,8,7,5] y) {y = Conv <group = 8, pads = [1,0,1,0]> (x, w)}"
    for _ in range(3):
        run(kernel("k", text, {"w": numbers(8, 1, 2, 1)}), tmp_path, [numbers(1, 8, 6, 5)])
    assert capfd.readouterr() == ("", "")


def test_weights_in_bfloat16_are_another_target(tmp_path: Path) -> None:
    reduced = Target.parse("llvm -compiler=ncnn -precision=bf16")
    text = "(float[1,16,12,12] x) => (float[1,16,12,12] y) {a = Conv <pads = [1,1,1,1]> (x, w) y = Relu (a)}"
    model, x = kernel("k", text, {"w": numbers(16, 16, 3, 3)}), numbers(1, 16, 12, 12)
    (exact,), (near,) = run(model, tmp_path, [x]), run(model, tmp_path, [x], reduced)
    error = np.abs(near - exact).max() / np.abs(exact).max()
    assert reduced.is_reduced and 1e-5 < error < 0.05


@pytest.mark.slow
def test_no_case_of_onnx_is_wrong(tmp_path: Path) -> None:
    """Each case as it is, and with all inputs but the first as constants, as weights are."""
    taken, wrong = 0, []
    for case in cases():
        for inputs, outputs in case.data[:1]:
            for model in _forms(case.model, inputs):
                try:
                    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
                    read = ir.serde.deserialize_model(inferred)
                    read.graph.name = "k"
                    got = run(read, tmp_path, inputs[: len(read.graph.inputs)])
                except (ToolchainError, onnx.shape_inference.InferenceError, TypeError, ValueError):
                    continue
                taken += 1
                if len(got) != len(outputs) or not all(
                    same(*pair, 1e-3, 1e-5) for pair in zip(got, outputs, strict=True)
                ):
                    wrong.append(f"{case.name}: {difference(got, outputs)}")
    assert not wrong
    assert taken > 250


def _forms(model: onnx.ModelProto, inputs: Sequence[Any]) -> list[onnx.ModelProto]:
    held = {tensor.name for tensor in model.graph.initializer}
    names = [value.name for value in model.graph.input if value.name not in held]
    if not all(isinstance(x, np.ndarray) for x in inputs) or len(names) != len(inputs):
        return []
    plain, constant = onnx.ModelProto(), onnx.ModelProto()
    for form in (plain, constant):
        form.CopyFrom(model)
    for name, x in list(zip(names, inputs, strict=True))[1:]:
        constant.graph.initializer.append(onnx.numpy_helper.from_array(x, name))
    for form, given in ((plain, names), (constant, names[:1])):
        kept = [value for value in form.graph.input if value.name in given]
        del form.graph.input[:]
        form.graph.input.extend(kept)
    return [plain, constant] if len(names) > 1 else [plain]


def test_softplus_of_large_numbers_is_finite(tmp_path: Path) -> None:
    x = np.array([np.inf, 1e38, 1000, 89, 88, 1, 0, -1, -20, -100, -np.inf, np.nan], np.float32)
    model = kernel("k", "(float[12] x) => (float[12] y) {y = Softplus (x)}")
    np.testing.assert_allclose(run(model, tmp_path, [x])[0], wanted_of(model, [x])[0], rtol=1e-5, atol=1e-7)
    text = "(float[1,8,5,5] x) => (float[1,8,5,5] y) {a = Conv (x, w) y = Softplus (a)}"
    assert_right(text, {"w": 100 * numbers(8, 8, 1, 1)}, tmp_path)
