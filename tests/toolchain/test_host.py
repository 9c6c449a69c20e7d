"""The host takes what nothing else does: views for nothing, the rest by falling back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collage.target import Target
from collage.testing._toolchain_case import ToolchainTestCase
from collage.testing._toolchain_kernels import kernel
from collage.toolchains import LoadOptions
from collage.toolchains.host.toolchain import HostToolchain

TARGET = Target.parse("llvm -compiler=host")


class TestHost(ToolchainTestCase):
    toolchain = HostToolchain()


@pytest.mark.parametrize(
    ("body", "runner"),
    [
        ("y = Reshape (x, s)", "numpy"),
        ("a = Transpose <perm = [1,0]> (x) y = Flatten (a)", "numpy"),
        ("t = Shape (x) y = Reshape (x, t)", "onnxruntime"),
        ("y = Relu (x)", "onnxruntime"),
    ],
)
def test_who_runs_what(body: str, runner: str, tmp_path: Path) -> None:
    model = kernel("k", f"(float[2,3] x) => (float[A,B] y) {{{body}}}", {"s": np.array([3, 2], np.int64)})
    assert HostToolchain().compile(model, TARGET, tmp_path).metadata["runner"] == runner


def test_the_reference_implementation_is_the_last_resort(tmp_path: Path) -> None:
    # ONNX Runtime has no double-precision kernel for this operator.
    model = kernel("k", "(double[1,1,4,4] x) => (double[A,B,C,D] y) {y = LpPool <kernel_shape = [2,2]> (x)}")
    toolchain, x = HostToolchain(), np.arange(16, dtype=np.float64).reshape(1, 1, 4, 4)
    compiled = toolchain.compile(model, TARGET, tmp_path)
    assert compiled.metadata["runner"] == "reference"
    (y,) = toolchain.load(compiled, TARGET, tmp_path, LoadOptions())([x])
    assert y[0, 0, 0, 0] == pytest.approx(np.sqrt(0 + 1 + 16 + 25))


def test_nothing_is_rewritten(tmp_path: Path) -> None:
    # ONNX Runtime's optimiser makes one operator of these two, and so pads with minus infinity where zeros are meant.
    pads = {"p": np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64)}
    body = "a = Pad (x, p) y = MaxPool <kernel_shape = [2,2], pads = [1,1,1,1]> (a)"
    model = kernel("k", f"(float[1,1,2,2] x) => (float[A,B,C,D] y) {{{body}}}", pads)
    toolchain, x = HostToolchain(), np.full((1, 1, 2, 2), -3, np.float32)
    (y,) = toolchain.load(toolchain.compile(model, TARGET, tmp_path), TARGET, tmp_path, LoadOptions())([x])
    assert y.shape == (1, 1, 5, 5)
    assert y[0, 0].tolist() == [[0.0] * 5, [0.0] * 5, [0.0, 0.0, -3.0, 0.0, 0.0], [0.0] * 5, [0.0] * 5]


def test_a_view_copies_nothing(tmp_path: Path) -> None:
    model = kernel("k", "(float[4,6] x) => (float[6,4] y) {y = Reshape (x, s)}", {"s": np.array([6, 4], np.int64)})
    toolchain, x = HostToolchain(), np.zeros((4, 6), np.float32)
    (y,) = toolchain.load(toolchain.compile(model, TARGET, tmp_path), TARGET, tmp_path, LoadOptions())([x])
    assert np.shares_memory(x, y)


@given(st.permutations(range(4)), st.lists(st.integers(1, 3), min_size=4, max_size=4), st.integers(-4, 4))
def test_views_are_what_onnx_says(order: list[int], shape: list[int], axis: int) -> None:
    from onnx.reference import ReferenceEvaluator
    from onnx_ir import to_proto

    from collage.toolchains.host.toolchain import _views

    text = f"""(float{shape} x) => (float[A,B] y) {{
        a = Transpose <perm = {list(order)}> (x) b = Unsqueeze (a, ends) c = Squeeze (b, ends)
        y = Flatten <axis = {axis}> (c)}}"""
    model = kernel("k", text, {"ends": np.array([0, -1], np.int64)})
    x = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    y = x
    for _, view in _views(model.graph) or ():
        y = view(y)
    (expected,) = ReferenceEvaluator(to_proto(model)).run(None, {"x": x})
    np.testing.assert_array_equal(y, expected)
    assert y.shape == expected.shape and y.flags.c_contiguous
