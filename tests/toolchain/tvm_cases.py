"""Kernels that the tests of TVM share."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from collage.target import Target
from collage.testing._toolchain_kernels import KernelCase
from collage.toolchains import LoadOptions
from collage.toolchains.tvm.toolchain import TvmToolchain

PAD = "pads = [1,1,1,1]"
TARGET = Target.parse("llvm")


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def convolution(size: int, inner: int, outer: int, kernel: int, groups: int, attributes: str, after: str) -> KernelCase:
    text = f"(float[2,{inner},{size},{size}] x) => (float[A,B,C,D] y) {{c = Conv <{attributes}> (x, w, b) {after}}}"
    weights = {"w": numbers(outer, inner // groups, kernel, kernel, seed=1), "b": numbers(outer, seed=2)}
    return KernelCase("convolution", text, [numbers(2, inner, size, size)], weights)


def product(left: tuple[int, ...], right: tuple[int, ...], after: str) -> KernelCase:
    shape = ",".join(map(str, left))
    text = f"(float[{shape}] x) => (float[{','.join('ABCD'[: len(left)])}] y) {{c = MatMul (x, w) {after}}}"
    weights = {"w": numbers(*right, seed=1), "bias": numbers(right[-1], seed=2)}
    return KernelCase("product", text, [numbers(*left)], weights)


def plain(shape: tuple[int, ...], rank: int, body: str) -> KernelCase:
    text = f"(float[{','.join(map(str, shape))}] x) => (float[{','.join('ABCDE'[:rank])}] y) {{{body}}}"
    weights = {"last": np.array([-1], np.int64), "ends": np.array([0, -1], np.int64), "one": np.float32([1.5])}
    weights |= {"scale": numbers(64, seed=1), "shift": numbers(64, seed=2), "square": numbers(8, 8, seed=3)}
    return KernelCase(
        "plain", text, [numbers(*shape)], {k: v for k, v in weights.items() if re.search(rf"\b{k}\b", body)}
    )


def agrees(
    case: KernelCase, workspace: Path, *more: list[np.ndarray], exactly: bool = False, within: float = 0
) -> None:
    """Run a case on TVM and on ONNX's reference, on its inputs and on more."""
    workspace.mkdir(exist_ok=True)
    model, toolchain = case.model(), TvmToolchain()
    names = [str(value.name) for value in model.graph.inputs]
    evaluator = ReferenceEvaluator(ir.to_proto(model))
    loaded = toolchain.load(toolchain.compile(model, TARGET, workspace), TARGET, workspace, LoadOptions())
    for inputs in (case.inputs, *more):
        with np.errstate(all="ignore"):
            expected = evaluator.run(None, dict(zip(names, inputs, strict=True)))
        for y, wanted in zip(loaded(inputs), expected, strict=True):
            assert (y.dtype, y.shape) == (np.asarray(wanted).dtype, np.shape(wanted))
            np.testing.assert_allclose(y, wanted, rtol=0 if exactly else 1e-6, atol=within)
