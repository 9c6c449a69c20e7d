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
"""An operator on rows [..., K], integers [K, N] of ``bits``, the scales of their blocks [K / B, N], and a bias or none.

Rows may be rounded where it ``rounds``.
"""
CHUNK = 32
"""Weights of a column that are in as many words as a weight has bits."""

_STORED = "MatMulNBits"
_BITS = (4, 8)
_INTEGERS, _SCALES, _BIAS = 1, 2, 5
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
        parts = zip(("integers", "scales"), _stored(node, bits), strict=True)
        constants = [register_constant(graph, f"{node.name}.{part}", array) for part, array in parts]
        bias = [node.inputs[_BIAS]] if len(node.inputs) > _BIAS and node.inputs[_BIAS] is not None else []
        replace_product(node, [node.inputs[0], *constants, *bias], bits, rounds >= _ROUNDS_ROWS)
    remove_unused_initializers(graph)
    return kernel


def refuse_stored(node: onnx_ir.Node) -> str | None:
    """Return why no loops are written for a ``MatMulNBits``; None for other operators, too."""
    if node.op_type != _STORED:
        return None
    bits, block, depth = (node.attributes.get_int(name, 0) or 0 for name in ("bits", "block_size", "K"))
    if bits not in _BITS or block % CHUNK or not block or depth % block:
        return f"tvm has loops for blocks of whole {CHUNK}s of 4 or 8 bits alone"
    others = [place for place, value in enumerate(node.inputs) if value is not None and place > _SCALES]
    if others not in ([], [_BIAS]):
        return "tvm has no loops for zero points of stored weights"
    given = [node.inputs[place] for place in (_INTEGERS, _SCALES)]
    dtypes = [
        tensor.dtype.name for value in given if value is not None and (tensor := constant_tensor(value)) is not None
    ]
    return None if dtypes == ["UINT8", "FLOAT"] else "tvm has loops for constant weights with scales of float32 alone"


def _stored(node: onnx_ir.Node, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights of a ``MatMulNBits`` as integers [K, N] (int8), and the scale of each block [K / B, N] (float32)."""
    depth, columns = (node.attributes.get_int(name, 0) or 0 for name in "KN")
    tensors = [constant_tensor(value) for value in node.inputs[_INTEGERS : _SCALES + 1] if value is not None]
    packed, scales = (tensor.numpy() for tensor in tensors if tensor is not None)
    packed = packed.reshape(columns, -1)
    parts = [packed & 15, packed >> 4] if bits == _BITS[0] else [packed]
    integers = np.stack(parts, axis=-1).reshape(columns, depth).astype(np.int16) - (1 << (bits - 1))
    return np.ascontiguousarray(integers.T.astype(np.int8)), np.ascontiguousarray(scales.reshape(columns, -1).T)


def replace_product(node: onnx_ir.Node, given: Sequence[onnx_ir.Value | None], bits: int, rounds: bool) -> None:
    """Put a ``NARROW_PRODUCT`` of these inputs in the place of a product."""
    import onnx_ir

    assert isinstance(node.graph, onnx_ir.Graph)
    told = [onnx_ir.AttrInt64("bits", bits), onnx_ir.AttrInt64("rounds", rounds)]
    made = onnx_ir.Node("", NARROW_PRODUCT, given, told, name=node.name, metadata_props=node.metadata_props)
    onnx_ir.convenience.replace_nodes_and_values(node.graph, node, [node], [made], node.outputs, made.outputs)
