"""Inputs without elements on TVM: kernels whose sums still have some run, others refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from collage._errors import Unsupported
from collage.runtime._sources import HostKernels
from collage.target import Target
from collage.testing import executable_of
from collage.testing._toolchain_kernels import kernel as parsed_kernel
from collage.toolchains import EmptyTakingKernel, LoadOptions, compile_for
from collage.toolchains.tvm.toolchain import TvmToolchain

pytest.importorskip("tvm")

TARGET = Target.parse("llvm")
ATTENTION = """
    (float[1,past,8] k, float[1,new,8] x) => (float[1,new,8] y, float[1,total,8] z) {
        z = Concat <axis = 1> (k, x)
        t = Transpose <perm = [0, 2, 1]> (z)
        s = MatMul (x, t)
        p = Softmax (s)
        y = MatMul (p, z)
    }"""


def numbers(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def loaded(model: ir.Model, folder: Path) -> Any:
    toolchain = TvmToolchain()
    return toolchain.load(compile_for(toolchain, model, TARGET, folder), TARGET, folder, LoadOptions())


@pytest.mark.parametrize(("past", "new"), [(0, 1), (0, 5), (3, 1), (0, 38), (7, 0)])
def test_attention_begins_with_an_empty_cache(past: int, new: int, tmp_path: Path) -> None:
    model = parsed_kernel("attention", ATTENTION)
    kernel, given = loaded(model, tmp_path), [numbers(1, past, 8), numbers(1, new, 8)]
    if not new:  # Scores of no rows are multiplied, and a kernel does not know that nothing reads them.
        with pytest.raises(Unsupported, match="no elements"):
            kernel(given)
        given = [numbers(1, past, 8), numbers(1, 2, 8)]
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())
    for _ in range(2):  # The second time memory holds what the first one left.
        for y, expected in zip(kernel(given), session.run(None, dict(zip("kx", given, strict=True))), strict=True):
            np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("body", "takes"),
    [
        ("y = Softmax (x)", True),
        ("t = Transpose (x) y = MatMul (x, t)", True),
        ("y = ReduceMean <keepdims = 1> (x)", True),
        ("y = CumSum (x, one)", False),
        ("y = MaxPool <kernel_shape = [3], pads = [1, 1]> (x)", False),
    ],
)
def test_kernels_say_if_they_take_tensors_without_elements(body: str, takes: bool, tmp_path: Path) -> None:
    port = "float[1,3,N] x" if "Pool" in body else "float[N,8] x"
    weights = {"one": np.array(1)} if "one" in body else {}
    kernel = loaded(parsed_kernel("k", f"({port}) => (float y) {{{body}}}", weights), tmp_path)
    assert isinstance(kernel, EmptyTakingKernel) and kernel.takes_empty is takes


def test_an_executable_leaves_an_empty_cache_to_its_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = parsed_kernel("attention", ATTENTION)
    run = executable_of(model, "llvm", threads=2)
    monkeypatch.setattr(HostKernels, "run", lambda *_: pytest.fail("the host stood in"))
    given = {"k": numbers(1, 0, 8), "x": numbers(1, 4, 8)}
    expected = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString()).run(None, given)
    for y, right in zip(run.run(given).values(), expected, strict=True):
        np.testing.assert_allclose(y, right, rtol=1e-5, atol=1e-5)
    monkeypatch.undo()
    made = run.run({"k": numbers(1, 3, 8), "x": numbers(1, 0, 8)})  # The kernel refuses it, and the host stands in.
    assert [y.shape for y in made.values()] == [(1, 0, 8), (1, 3, 8)]


def test_sums_over_a_length_that_is_0_are_refused(tmp_path: Path) -> None:
    text = "(float[n,m] x, float[k,2] w) => (float[n,2] y) {s = ReduceSum <keepdims = 0> (x) p = Add (w, s) y = MatMul (x, p)}"
    kernel = loaded(parsed_kernel("sums", text), tmp_path)
    with pytest.raises(Unsupported, match="no elements"):
        kernel([numbers(3, 0), numbers(0, 2)])
    with pytest.raises(Unsupported, match="no elements"):
        kernel([numbers(0, 3), numbers(3, 2)])
    x, w = numbers(4, 3), numbers(3, 2)
    np.testing.assert_allclose(kernel([x, w])[0], x @ (w + x.sum()), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("body", "lengths"),
    [
        ("s = Slice (x, one, far) y = ReduceSum <keepdims = 0> (s)", {4: True, 1: False}),
        ("s = Slice (x, two, far) y = ReduceSum <keepdims = 0> (s)", {4: True, 3: True, 2: False, 1: False}),
        ("s = Slice (x, one, far, zero, two) y = ReduceMax <keepdims = 0> (s)", {4: True, 2: True, 1: False}),
        ("s = Slice (x, zero, last) y = ReduceMin <keepdims = 0> (s)", {4: True, 2: True, 1: False}),
        ("s = Slice (x, one, far) t = Concat <axis = 0> (s, x) y = ReduceSum <keepdims = 0> (t)", {4: True, 1: True}),
    ],
)
def test_parts_of_inputs_may_be_empty(body: str, lengths: dict[int, bool], tmp_path: Path) -> None:
    numbers_of = {"zero": 0, "one": 1, "two": 2, "far": 2**31 - 1, "last": -1}
    weights = {name: np.array([value]) for name, value in numbers_of.items() if name in body}
    model = parsed_kernel("rest", f"(float[N,3] x) => (float y) {{{body}}}", weights)
    kernel, session = loaded(model, tmp_path), onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())
    for length, is_right in lengths.items():
        x = numbers(length, 3)
        if is_right:
            np.testing.assert_allclose(kernel([x])[0], session.run(None, {"x": x})[0], rtol=1e-4, atol=1e-5)
        else:
            with pytest.raises(Unsupported, match="no elements"):
                kernel([x])


@pytest.mark.parametrize(
    "body",
    [
        "y = Pad (x, pads, half)",
        "y = Concat <axis = 0> (rows, x, rows)",
        "y = Slice (x, one, four, one)",
        "y = Tile (x, reps)",
        "c = Concat <axis = 0> (x, rows) y = ReduceMean <keepdims = 0> (c, zero)",
        "c = Concat <axis = 0> (x, rows) t = Transpose (c) y = MatMul (t, c)",
        "c = Concat <axis = 0> (x, rows) y = Softmax <axis = 0> (c)",
        "g = Greater (x, half) y = Where (g, x, half)",
    ],
)
def test_operators_are_right_on_rows_that_are_not_there(body: str, tmp_path: Path) -> None:
    constants = {
        **{"pads": np.array([1, 0, 2, 0]), "reps": np.array([2, 3]), "rows": numbers(3, 8), "half": np.float32(0.5)},
        **{name: np.array([value]) for name, value in {"zero": 0, "one": 1, "four": 4}.items()},
    }
    used = {name: np.asarray(value) for name, value in constants.items() if name in body}
    model = parsed_kernel("k", f"(float[N,8] x) => (float y) {{{body}}}", used)
    kernel, session = loaded(model, tmp_path), onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())
    assert kernel.takes_empty
    for length in (6, 0, 6, 0):
        x = numbers(length, 8)
        (right,) = session.run(None, {"x": x})
        np.testing.assert_allclose(kernel([x])[0], right, rtol=1e-4, atol=1e-5)
