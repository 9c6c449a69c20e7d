"""Products whose weights a model stores in 4 or 8 bits, ``MatMulNBits``, as an operator of our own that has loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from collage._errors import Unsupported
from collage.graph import constant_tensor, copy_model, remove_unused_initializers
from collage.toolchains.sdk.narrow_weights import register_constant

if TYPE_CHECKING:
    import onnx_ir

__all__ = ["CHUNK", "NARROW_PRODUCT", "refuse_stored", "replace_product", "use_stored_weights"]

NARROW_PRODUCT = "NarrowMatMul"
"""An operator on rows [..., K], integers [K, N] of ``bits``, and the scales of their blocks [K / B, N].

A bias and the zero points of the blocks [K / B, N] may follow. Rows may be rounded where it ``rounds``.
"""
CHUNK = 32
"""Weights of a column that are in as many words as a weight has bits."""

_STORED = "MatMulNBits"
_BITS = (4, 8)
_INTEGERS, _SCALES, _ZEROS, _BIAS = 1, 2, 3, 5
_ROUNDS_ROWS = 4
"""The level of accuracy from which on ONNX Runtime rounds rows to bytes."""


def use_stored_weights(kernel: onnx_ir.Model) -> onnx_ir.Model:
    """Return a kernel in which ``NARROW_PRODUCT`` is in the place of each ``MatMulNBits``; the kernel itself if it has none.

    Raises:
        Unsupported: Its weights are stored in a form that has no loops.
    """
    if not any(node.op_type == _STORED for node in kernel.graph):
        return kernel
    kernel = copy_model(kernel)
    graph = kernel.graph
    for node in [node for node in graph if node.op_type == _STORED]:
        if (reason := refuse_stored(node)) is not None:
            raise Unsupported(reason)
        bits, rounds = (node.attributes.get_int(name, 0) or 0 for name in ("bits", "accuracy_level"))
        parts = zip(("integers", "scales", "zeros"), _stored(node, bits), strict=False)
        integers, scales, *zeros = [register_constant(graph, f"{node.name}.{part}", array) for part, array in parts]
        bias = node.inputs[_BIAS] if len(node.inputs) > _BIAS else None
        others = [bias, *zeros] if zeros or bias is not None else []
        replace_product(node, [node.inputs[0], integers, scales, *others], bits, rounds >= _ROUNDS_ROWS)
    remove_unused_initializers(graph)
    return kernel


def refuse_stored(node: onnx_ir.Node) -> str | None:
    """Return why no loops are written for a ``MatMulNBits``; None for other operators, too."""
    if node.op_type != _STORED:
        return None
    bits, block, depth = (node.attributes.get_int(name, 0) or 0 for name in ("bits", "block_size", "K"))
    if bits not in _BITS or block % CHUNK or not block or depth % block:
        return f"tvm has loops for blocks of whole {CHUNK}s of 4 or 8 bits alone"
    given = {place: value for place, value in enumerate(node.inputs) if value is not None}
    if given.keys() - {0, _INTEGERS, _SCALES, _ZEROS, _BIAS}:
        return "tvm has no loops for weights that are stored in another order"
    tensors = [constant_tensor(given[place]) for place in (_INTEGERS, _SCALES, _ZEROS) if place in given]
    dtypes = [tensor.dtype.name for tensor in tensors if tensor is not None]
    if len(dtypes) < len(tensors) or dtypes not in (["UINT8", "FLOAT"], ["UINT8", "FLOAT", "UINT8"]):
        return "tvm has loops for constant weights with whole zero points and scales of float32 alone"
    return None


def _stored(node: onnx_ir.Node, bits: int) -> list[np.ndarray]:
    """Return the weights of a ``MatMulNBits``, the scales of their blocks, and their zero points if they have any.

    Returns:
        Integers [K, N] (int8), scales [K / B, N] (float32), and the zero points [K / B, N] (int8) of these integers.
    """
    depth, columns = (node.attributes.get_int(name, 0) or 0 for name in "KN")
    tensors = [constant_tensor(value) for value in node.inputs[_INTEGERS : _ZEROS + 1] if value is not None]
    packed, scales, *zeros = (tensor.numpy().reshape(columns, -1) for tensor in tensors if tensor is not None)
    made = [_unpacked(packed, bits, depth), np.ascontiguousarray(scales.T)]
    return [*made, *(_unpacked(each, bits, scales.shape[1]) for each in zeros)]


def _unpacked(packed: np.ndarray, bits: int, length: int) -> np.ndarray:
    """Return integers of 4 or 8 bits [N, bytes] as [length, N] (int8), less half of their range."""
    parts = [packed & 15, packed >> 4] if bits == _BITS[0] else [packed]
    stored = np.stack(parts, axis=-1).reshape(len(packed), -1)[:, :length].astype(np.int16)
    return np.ascontiguousarray((stored - (1 << (bits - 1))).T.astype(np.int8))


def replace_product(node: onnx_ir.Node, given: Sequence[onnx_ir.Value | None], bits: int, rounds: bool) -> None:
    """Put a ``NARROW_PRODUCT`` of these inputs in the place of a product."""
    import onnx_ir

    assert isinstance(node.graph, onnx_ir.Graph)
    told = [onnx_ir.AttrInt64("bits", bits), onnx_ir.AttrInt64("rounds", rounds)]
    made = onnx_ir.Node("", NARROW_PRODUCT, given, told, name=node.name, metadata_props=node.metadata_props)
    onnx_ir.convenience.replace_nodes_and_values(node.graph, node, [node], [made], node.outputs, made.outputs)
