"""Biases that make up for rounded weights: against products of inputs that are their mean everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator
from tests.calibrated import calibrated

from collage.calibration import mean_axes
from collage.graph import set_value_means
from collage.testing._toolchain_kernels import kernel
from collage.toolchains.sdk.bias_correction import input_means, mean_shift
from collage.toolchains.sdk.int8_model import in_int8
from collage.toolchains.sdk.int8_placement import Int8Style

STYLE = Int8Style(
    products=frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul")),
    between=frozenset(("Add",)),
    carriers=frozenset(),
    whole=False,
)
ROUNDING = Int8Style(
    products=frozenset(("Conv", "Gemm", "MatMul")),
    between=frozenset(("Add",)),
    carriers=frozenset(),
    whole=True,
    float_results=frozenset(("Gemm", "MatMul")),
    rounds_biases=True,
)
PRODUCTS = {
    "padded, strided, dilated": (
        "x[2, 3, 9, 7]",
        "y[2, 4, 4, 5]",
        "Conv <pads = [1, 2, 1, 2], strides = [2, 1], dilations = [2, 3]> (x, w)",
        (4, 3, 3, 3),
    ),
    "depthwise on a small map": (
        "x[1, 4, 2, 2]",
        "y[1, 4, 2, 2]",
        "Conv <group = 4, pads = [1, 1, 1, 1]> (x, w)",
        (4, 1, 3, 3),
    ),
    "one axis, two groups": ("x[1, 4, 11]", "y[1, 6, 9]", "Conv <group = 2> (x, w)", (6, 2, 3)),
    "transposed": ("x[1, 3, 4, 4]", "y[1, 5, 8, 8]", "ConvTranspose <strides = [2, 2]> (x, w)", (3, 5, 2, 2)),
    "Gemm": ("x[5, 6]", "y[5, 4]", "Gemm (x, w)", (6, 4)),
    "Gemm of transposed weights": ("x[5, 6]", "y[5, 4]", "Gemm <transB = 1> (x, w)", (4, 6)),
    "MatMul": ("x[2, 5, 6]", "y[2, 5, 4]", "MatMul (x, w)", (6, 4)),
}


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def shape_of(value: str) -> tuple[int, ...]:
    return tuple(int(size) for size in value.partition("[")[2].rstrip("]").split(","))


def product(name: str, weights: Any) -> ir.Model:
    given, made, call, _ = PRODUCTS[name]
    return kernel("k", f"(float{given[1:]} x) => (float{made[1:]} y) {{ y = {call} }}", {"w": weights})


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_shift_is_what_a_change_adds_to_inputs_that_are_their_mean(name: str) -> None:
    given, _, _, shape = PRODUCTS[name]
    change = numbers(*shape, seed=1)
    model = product(name, change)
    axis = mean_axes(model)["x"]
    x = np.zeros(shape_of(given), np.float32)
    means = numbers(x.shape[axis], seed=2)
    x += means.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])
    y = ReferenceEvaluator(ir.to_proto(model)).run(None, {"x": x})[0]
    assert isinstance(y, np.ndarray)
    expected = y.mean(axis=tuple(i for i in range(y.ndim) if i != axis % y.ndim))
    np.testing.assert_allclose(mean_shift(model.graph[0], change, means), expected, rtol=1e-4, atol=1e-5)


SUMS = {
    "Conv without a bias": ("float[1, 3, 8, 8] x", "float[1, 4, 6, 6] y", "y = Conv (x, w)", (4, 3, 3, 3), None),
    "Conv with a bias": ("float[1, 3, 8, 8] x", "float[1, 4, 6, 6] y", "y = Conv (x, w, b)", (4, 3, 3, 3), (4,)),
    "Gemm": ("float[64, 6] x", "float[64, 4] y", "y = Gemm (x, w, b)", (6, 4), (1, 4)),
    "Gemm without a bias": ("float[64, 6] x", "float[64, 4] y", "y = Gemm (x, w)", (6, 4), None),
    "MatMul and a sum": ("float[2, 64, 6] x", "float[2, 64, 4] y", "m = MatMul (x, w) y = Add (b, m)", (6, 4), (4,)),
}


@pytest.mark.parametrize("style", [STYLE, ROUNDING], ids=["merged", "whole"])
@pytest.mark.parametrize("name", SUMS)
def test_means_of_results_come_closer(name: str, style: Int8Style, tmp_path: Path) -> None:
    given, made, body, shape, bias = SUMS[name]
    weights = {"w": numbers(*shape, seed=3)} | ({} if bias is None else {"b": numbers(*bias, seed=4)})
    x = np.abs(numbers(*shape_of(given.rpartition(" ")[0]), seed=5))
    plain = calibrated(kernel("k", f"({given}) => ({made}) {{ {body} }}", weights), [{"x": x}], tmp_path)
    exact = run(plain, x)

    def mean_error(model: ir.Model) -> float:
        error = run(in_int8(model, style), x) - exact
        return float(np.abs(error.mean(axis=tuple(i for i in range(error.ndim) if i != axis % error.ndim))).max())

    axis = mean_axes(plain)["x"]
    before = mean_error(plain)
    means = x.mean(axis=tuple(i for i in range(x.ndim) if i != axis % x.ndim))
    set_value_means(plain.graph.inputs[0], axis, means)
    assert mean_error(plain) < 0.5 * before


@pytest.mark.parametrize("means", [numbers(5), np.full(3, np.nan, np.float32), np.zeros(0, np.float32)])
def test_means_that_do_not_fit_are_left_aside(means: Any) -> None:
    model = kernel(
        "k", "(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) { y = Conv (x, w) }", {"w": numbers(4, 3, 3, 3)}
    )
    set_value_means(model.graph.inputs[0], 1, means)
    assert input_means(model.graph[0]) is None
    set_value_means(model.graph.inputs[0], -1, numbers(3))
    assert input_means(model.graph[0]) is None
    set_value_means(model.graph.inputs[0], 1, numbers(3))
    assert input_means(model.graph[0]) is not None


def run(model: ir.Model, x: Any) -> Any:
    return np.asarray(ReferenceEvaluator(ir.to_proto(model)).run(None, {"x": x})[0])
