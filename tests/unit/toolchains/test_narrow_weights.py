"""Narrow weights: how weights are rounded, and that both forms of them hold the same ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage.testing._toolchain_kernels import kernel
from collage.toolchains.sdk.narrow_weights import _in_blocks, with_narrow_weights

BLOCK = 32


def values(scale: float = 1.0, shape: tuple[int, int] = (288, 256), seed: int = 0) -> Any:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def read(q: Any, scales: Any) -> Any:
    return (q.reshape(len(q), -1, BLOCK).astype(np.float64) * scales[..., np.newaxis]).reshape(q.shape)


def to_nearest(weight: Any) -> Any:
    """Round to nearest with the scale of the largest weight of each block, as NNCF does without data."""
    blocks = weight.reshape(len(weight), -1, BLOCK).astype(np.float64)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(-1, keepdims=True), -1) / -8
    scales = np.where(largest == 0, 1.0, largest)
    return (np.clip(np.rint(blocks / scales), -8, 7) * scales).reshape(weight.shape)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**16), st.sampled_from([1.0, 1e-35, 1e37, 1e-3]), st.booleans())
def test_no_block_is_further_off_than_rounded_to_nearest(seed: int, scale: float, has_zeros: bool) -> None:
    weight = values(scale, (8, 4 * BLOCK), seed)
    if has_zeros:
        weight[2, :BLOCK], weight[3, BLOCK + 1 :] = 0, 0
    q, scales = _in_blocks(weight)
    assert q.dtype == np.int8 and q.min() >= -8 and q.max() <= 7 and np.isfinite(scales).all()
    ours, theirs = (
        np.square((found - weight) / scale).reshape(8, -1, BLOCK).sum(-1)
        for found in (read(q, scales), to_nearest(weight))
    )
    # Scales have 8 binary digits.
    assert (ours <= theirs * 1.01 + 1e-4).all()
    assert ours.sum() <= theirs.sum()


def constants(model: ir.Model, part: str) -> Any:
    found = [v for name, v in model.graph.initializers.items() if name.endswith(part)]
    assert len(found) == 1 and found[0].const_value is not None
    return found[0].const_value.numpy()


@pytest.mark.parametrize("opset", [13, 17, 21])
@pytest.mark.parametrize("product", ["MatMul (x, w)", "Gemm <transB = 1> (x, w)"])
def test_both_forms_hold_the_same_weights(product: str, opset: int) -> None:
    weight = values(shape=(288, 256))
    given = weight if "transB" in product else np.ascontiguousarray(weight.T)
    model = kernel("k", f"(float[1,256] x) => (float[1,288] y) {{y = {product}}}", {"w": given})
    model.graph.opset_imports[""] = opset
    integers = with_narrow_weights(model, 4, dequantizes=True)
    assert integers.graph.opset_imports[""] == 21
    assert [node.op_type for node in integers.graph] == ["DequantizeLinear", product.split()[0]]
    q, scales = constants(integers, "_bits").astype(np.int8), constants(integers, "_scale")
    q, scales = (q, scales) if "transB" in product else (q.T, scales.T)
    packed = with_narrow_weights(model, 4)
    assert [node.op_type for node in packed.graph] == ["MatMulNBits"]
    halves = constants(packed, "_bits").reshape(288, -1)
    unpacked = np.stack([halves & 15, halves >> 4], -1).reshape(288, 256).astype(np.int8) - 8
    np.testing.assert_array_equal(unpacked, q)
    np.testing.assert_array_equal(constants(packed, "_scale"), scales)
    assert np.abs(read(q, scales) - weight).max() < np.abs(weight).max() / 8
    assert model.graph.node(0).op_type == product.split()[0], "the kernel given stays as it is"


def test_lengths_that_blocks_do_not_divide_are_padded() -> None:
    model = kernel("k", "(float[1,260] x) => (float[1,288] y) {y = MatMul (x, w)}", {"w": values(shape=(260, 288))})
    made = with_narrow_weights(model, 4, dequantizes=True)
    assert [node.op_type for node in made.graph] == ["MatMulNBits"]
    assert constants(made, "_bits").shape == (288, 9, 16)
