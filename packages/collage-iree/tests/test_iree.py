"""IREE keeps the contract, and refuses what it would be wrong of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from collage.target import Target
from collage.testing import ToolchainTestCase
from collage.testing._toolchain_kernels import SYMBOLIC, kernel
from collage.toolchains import LoadOptions, Unsupported
from collage_iree.toolchain import IreeToolchain

pytest.importorskip("iree.runtime")

TARGET = Target.parse("llvm -compiler=iree")
BODY = "(float[5] state, float[5] row) => (float[5] next, float[5] each) {next = Add (state, row) each = Neg (next)}"
SCAN = f" s, y = Scan <num_scan_inputs = 1, body = body {BODY}> (zero, %s)}}"


class TestIree(ToolchainTestCase):
    toolchain = IreeToolchain()
    refuses = SYMBOLIC


@pytest.mark.slow
class TestIreeInOneThread(ToolchainTestCase):
    toolchain = IreeToolchain()
    target = "llvm -compiler=iree -threads=1"
    refuses = SYMBOLIC


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(string[2] x) => (string[2] y) {y = Identity (x)}", "string"),
        ("(float[N] x, float[M] z) => (float[K] y) {y = Add (x, z)}", "fixed shapes"),
        (
            "(float[4] x) => (float y) {n = NonZero (x) f = Cast <to = 1> (n) y = ReduceSum <keepdims = 0> (f)}",
            "fixed shapes",
        ),
        ("(float[2] x) => (float[2] y) {y = Bernoulli (x)}", "Bernoulli"),
        ("(float[1,1,4,4] x, float[1,2,2,2] g) => (float[1,1,2,2] y) {y = GridSample (x, g)}", "GridSample"),
        (
            "(float[1,1,4] x) => (float[1,1,2] y) {y = AveragePool <kernel_shape = [3], strides = [2], ceil_mode = 1, "
            "count_include_pad = 1> (x)}",
            "ceil_mode",
        ),
        (
            "(float[2] x) => (float[2] v, int64[2] i, int64[2] j) {v, i = TopK (x, k) w, j = TopK (v, k)}",
            "second TopK",
        ),
        ("(float[2] x) => (float[2] y) {y = RandomUniformLike (x)}", "RandomUniformLike"),
        (
            '(float[1,4,4,2] x) => (float[1,1,8,4] y) {y = DepthToSpace <blocksize = 2, mode = "CRD"> (x)}',
            "one channel",
        ),
        (
            "(float[1,1,4] x) => (float[1,1,5] y, int64[1,1,5] i) {y, i = MaxPool <kernel_shape = [2], pads = [1,1]> (x)}",
            "wrong indices",
        ),
        (
            "(float[1,2,4] x) => (float[1,2,2] y, int64[1,2,2] i) {y, i = MaxPool <kernel_shape = [3]> (x)}",
            "several images",
        ),
        ("(float[4] x) => (float[4] y) {y = Slice (x, start, end, axis, step)}", "beyond the end"),
        ("(float[4] x) => (float[4] y) {y = ScatterND (x, at, one)}", "one constant index"),
        ("(float[1,4] x) => (float[1,4] y) {y = ScatterElements (x, at, ones)}", "one constant index"),
        (
            "(float[2,3] x, int64[2] l, float[3] w) => (float y) {y = SoftmaxCrossEntropyLoss (x, l, w)}",
            "weights",
        ),
        ('(float[4] x) => (float[6] y) {y = Pad <mode = "wrap"> (x, ends)}', "wrap"),
        ("(float[1,5] x, float[5] zero) => (float[1,5] y) {" + SCAN % "x", "one step"),
        ("(int32[4] x, int32[4] z) => (int32[4] y) {y = Div (x, z)}", "divided by -1"),
        ("(int64[4] x) => (int64[4] y) {y = Mod (x, minus_one)}", "divided by -1"),
        ("(uint8[4] x) => (uint8[4] y) {y = Div (x, three)}", "unsigned"),
        ("(uint8[4] x) => (uint8[4] y) {y = Mod (x, three)}", "unsigned"),
        ("(uint8[4] x) => (uint8[4] y) {y = Clip (x, three)}", "unsigned"),
        ("(float[4] x, float[4] z) => (float[4] y) {y = Pow (x, z)}", "negative numbers"),
        ("(float[2] x) => (float[2] y) {y = Pow (x, powers)}", "negative numbers"),
        ("(int64[4] x, int64[4] z) => (int64[4] y) {y = Pow (x, z)}", "negative numbers"),
        ("(float[4] x, float[4] z) => (float[4] y) {y = Mod <fmod = 1> (x, z)}", "rounded"),
        ("(float[4] x) => (float[4] y) {y = Asinh (x)}", "large numbers"),
        ("(float[4] x) => (float[4] y) {y = Cos (x)}", "large numbers"),
        ("(float[4] x) => (float[4] y) {y = LpNormalization (x)}", "zeros"),
        ("(float[2] x) => (float[2] y) {y = com.example.Frobnicate (x)}", "Frobnicate|type"),
    ],
)
def test_a_refusal_says_why_in_one_line(text: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=rf"^iree.*({reason})") as refusal:
        given = {"k": [2], "start": [4], "end": [-(2**40)], "axis": [0], "step": [-1], "at": [[0]], "ends": [1, 1]}
        given |= {"three": np.array(3, np.uint8), "powers": np.float32([2, 3])}
        given |= {"minus_one": [-1], "one": np.float32([9]), "ones": np.float32([[9]])}
        weights = {name: np.array(x) for name, x in given.items() if f" {name}," in text or f" {name})" in text}
        IreeToolchain().compile(kernel("k", text, weights), TARGET, tmp_path)
    assert "\n" not in str(refusal.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("threads", [1, 2])
def test_outputs_lie_where_no_input_does(threads: int, tmp_path: Path) -> None:
    text = (
        "(float[64] x) => (float[8,8] y, float[64] z, float[8,8] t) {y = Reshape (x, s) z = Neg (x) t = Transpose (y)}"
    )
    model, toolchain = kernel("k", text, {"s": np.array([8, 8])}), IreeToolchain()
    loaded = toolchain.load(toolchain.compile(model, TARGET, tmp_path), TARGET, tmp_path, LoadOptions(threads))
    block = np.zeros(4 * 64 + 128, np.uint8)
    begin = -block.ctypes.data % 64
    for shift in (0, 4):  # aligned, and not
        x = block[begin + shift :][: 4 * 64].view(np.float32)
        for offset in (0, 100):
            x[:] = np.arange(64) + offset
            wanted = [x.reshape(8, 8).copy(), -x, x.reshape(8, 8).T.copy()]
            outputs = loaded([x])
            x[:] = -1  # the next kernel writes there
            for y, expected in zip(outputs, wanted, strict=True):
                np.testing.assert_array_equal(y, expected)


def test_doubles_stay_doubles(tmp_path: Path) -> None:
    model, toolchain = kernel("k", "(double[3] x) => (double[3] y) {y = Exp (x)}"), IreeToolchain()
    x = np.array([0.1, 1.0, -3.0])
    loaded = toolchain.load(toolchain.compile(model, TARGET, tmp_path), TARGET, tmp_path, LoadOptions())
    np.testing.assert_allclose(loaded([x])[0], np.exp(x), rtol=1e-14)


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        ('(float[1,8,4,2] x) => (float[1,2,8,4] y) {y = DepthToSpace <blocksize = 2, mode = "CRD"> (x)}', {}),
        ("(float[1,4,4,2] x) => (float[1,1,8,4] y) {y = DepthToSpace <blocksize = 2> (x)}", {}),
        (
            "(float[1,8,4,2] x) => (float[1,8,4,2] y) {y = Slice (x, start, end, axis, step)}",
            {"start": [7], "end": [-(2**40)], "axis": [1], "step": [-1]},
        ),
        (
            "(float[4] x) => (float[4] y) {n = Cast <to = 7> (x) q = Div (n, two) y = Cast <to = 1> (q)}",
            {"two": [2]},
        ),
        ("(float[4] x) => (float[4] y) {y = Div (x, x)}", {}),
        ("(float[4] x) => (float[4] y) {y = Pow (x, two)}", {"two": np.float32([2])}),
        ("(float[4] x) => (float[4] y) {y = ScatterND (x, at, x)}", {"at": [[2], [0], [3], [1]]}),
        (
            "(float[3,5] x) => (float[2,5] y) {part = Slice (x, start, end) minus = Neg (part)" + SCAN % "minus",
            {"start": [1], "end": [9], "zero": np.zeros(5, np.float32)},
        ),
    ],
)
def test_what_is_like_a_refused_form_is_right(text: str, weights: dict[str, list[int]], tmp_path: Path) -> None:
    model, toolchain = kernel("k", text, {name: np.array(x) for name, x in weights.items()}), IreeToolchain()
    x = np.random.default_rng(0).standard_normal(tuple(model.graph.inputs[0].shape)).astype(np.float32)
    (expected,) = ReferenceEvaluator(ir.to_proto(model)).run(None, {"x": x})
    loaded = toolchain.load(toolchain.compile(model, TARGET, tmp_path), TARGET, tmp_path, LoadOptions())
    np.testing.assert_array_equal(loaded([x])[0], expected)
