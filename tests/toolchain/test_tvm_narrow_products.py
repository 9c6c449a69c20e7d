"""TVM's own loops for products with weights of 4 or 8 bits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from collage._errors import Unsupported
from collage.target import Target
from collage.testing._toolchain_kernels import kernel
from collage.toolchains import IN_FLOATS, LoadOptions, compile_for
from collage.toolchains.sdk.narrow_weights import in_blocks
from collage.toolchains.sdk.precisions import NARROW_BITS
from collage.toolchains.tvm import nests, processor
from collage.toolchains.tvm.toolchain import TvmToolchain

pytest.importorskip("tvm")

Array = np.ndarray[Any, Any]


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def product_of(
    rows: int | str, depth: int, columns: int, body: str = "y = MatMul (x, w)", **more: Array
) -> tuple[ir.Model, Array]:
    """Return a product and its weights, which are of different sizes from column to column."""
    weight = numbers(depth, columns) * np.exp2(np.arange(columns) % 7, dtype=np.float32)
    given = weight.T.copy() if "transB" in body else weight
    model = kernel("k", f"(float[{rows},{depth}] x) => (float[{rows},{columns}] y) {{{body}}}", {"w": given, **more})
    for node in model.graph:
        node.outputs[0].type, node.outputs[0].shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([rows, columns])
    return model, weight


def rounded(model: ir.Model, bits: int) -> Array:
    """Return the weights that a narrowed product of a model reads."""
    node = next(node for node in model.graph if node.op_type in ("Gemm", "MatMul"))
    integers, scales = in_blocks(node, bits)
    return integers.astype(np.float64) * np.repeat(scales.astype(np.float64), len(integers) // len(scales), axis=0)


def loaded(model: ir.Model, precision: str, folder: Path) -> tuple[Any, Mapping[str, Any]]:
    toolchain, target = TvmToolchain(), Target.parse(f"llvm -precision={precision}")
    made = compile_for(toolchain, model, target, folder)
    return toolchain.load(made, target, folder, LoadOptions(2, exclusive=True)), made.metadata


@pytest.fixture(params=["as it is", "floats", "AVX2", "narrow vectors"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let the loops be those of another processor."""
    others = {
        "floats": processor.Processor(16, 32, 2),
        "AVX2": processor.Processor(8, 16, 2),
        "narrow vectors": None,
    }
    if request.param in others:
        monkeypatch.setattr(nests, "processor_of", lambda _: others[request.param])
    return str(request.param)


@pytest.mark.few(10)
@pytest.mark.parametrize("precision", ["w8", "w4"])
@pytest.mark.parametrize(
    ("rows", "depth", "columns"),
    [(1, 1024, 64), (1, 256, 1000), (1, 1024, 80), (3, 512, 257), (5, 256, 512), (9, 1056, 72), ("n", 512, 136)],
)
def test_products_are_those_of_the_rounded_weights(
    rows: int | str, depth: int, columns: int, precision: str, kind: str, tmp_path: Path
) -> None:
    model, _ = product_of(rows, depth, columns)
    weight = rounded(model, NARROW_BITS[precision])
    run, facts = loaded(model, precision, tmp_path)
    assert IN_FLOATS not in facts
    is_own = any("_narrow_" in name.replace("narrow_matmul", "") for name, _ in facts["calls"])
    assert is_own == (kind != "narrow vectors")
    for count in [rows] if isinstance(rows, int) else [1, 2, 3, 4, 7, 33]:
        x = numbers(count, depth, seed=count) * np.exp2(np.arange(depth) % 9 - 4, dtype=np.float32)
        expected = x.astype(np.float64) @ weight
        for _ in range(2):  # The second time memory holds what the first one left.
            (y,) = run([x])
            assert np.abs(y - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize(
    "body",
    [
        "p = MatMul (x, w) y = Relu (p)",
        "p = MatMul (x, w) q = Add (p, b) y = Sigmoid (q)",
        "p = Gemm <transB = 1> (x, w, b) y = Relu (p)",
        "p = Gemm (x, w) y = Mul (p, p)",
        "y = Gemm (x, w, b)",
    ],
)
def test_what_follows_a_product_is_computed_in_its_loops(body: str, tmp_path: Path) -> None:
    bias = numbers(136, seed=1)
    model, _ = product_of(1, 512, 136, body, **({"b": bias} if ", b)" in body else {}))
    weight = rounded(model, 4)
    run, facts = loaded(model, "w4", tmp_path)
    assert len(facts["calls"]) == 1
    x = numbers(1, 512, seed=2) / 1024
    p = x.astype(np.float64) @ weight + (bias if ", b)" in body else 0.0)
    y = {"Relu": np.maximum(p, 0), "Sigmoid": 1 / (1 + np.exp(-p)), "Mul": p * p}
    expected = next((value for name, value in y.items() if name in body), p)
    assert np.abs(run([x])[0] - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("precision", ["w8", "w4"])
@pytest.mark.parametrize("at", [0, 37, 511])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38, 1e-38])
def test_rows_of_odd_numbers(value: float, at: int, precision: str, tmp_path: Path) -> None:
    model, _ = product_of(2, 512, 136)
    weight = rounded(model, NARROW_BITS[precision])
    run, _ = loaded(model, precision, tmp_path)
    x = numbers(2, 512, seed=3)
    x[1, at] = value
    x[1, 64:128] = 0
    (y,) = run([x])
    expected = x.astype(np.float64) @ weight
    assert np.abs(y[0] - expected[0]).max() <= 1e-4 * np.abs(expected[0]).max()
    if np.isfinite(value) and value < 1:
        assert np.abs(y[1] - expected[1]).max() <= 1e-4 * np.abs(expected[1]).max()
    elif not np.isfinite(value):
        assert not np.isfinite(y[1]).any()


def test_products_that_split_into_no_blocks_stay_in_floats(tmp_path: Path) -> None:
    body = "h = MatMul (x, w) y = MatMul (h, v)"
    model, weight = product_of(1, 512, 260, body, v=numbers(260, 300, seed=4))
    model.graph.outputs[0].shape = ir.Shape([1, 300])
    run, facts = loaded(model, "w4", tmp_path)
    assert facts[IN_FLOATS] == [1]
    x = numbers(1, 512, seed=5)
    expected = x @ weight @ numbers(260, 300, seed=4)
    assert np.abs(run([x])[0] - expected).max() <= 0.3 * np.abs(expected).max()
    alone, _ = product_of(1, 260, 300)
    with pytest.raises(Unsupported, match="splits into blocks"):
        loaded(alone, "w4", tmp_path)


def test_narrow_weights_take_a_part_of_the_bytes(tmp_path: Path) -> None:
    model, weight = product_of(1, 1024, 2048)
    sizes = {}
    for precision in ("w8", "w4"):
        loaded(model, precision, tmp_path)
        sizes[precision] = sum(path.stat().st_size for path in tmp_path.glob(f"*{precision}*.weights"))
    assert sizes["w8"] <= 1.01 * weight.size and sizes["w4"] <= 0.57 * weight.size
