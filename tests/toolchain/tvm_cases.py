"""Kernels that the tests of TVM share."""

from __future__ import annotations

import re

import numpy as np

from collage.testing._toolchain_kernels import KernelCase

PAD = "pads = [1,1,1,1]"


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
