"""Free dimensions of inputs that have one length only: the weights or attributes of an operator demand it."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from collage.frontend.contrib_ops import CONTRIBUTED

__all__ = ["demanded_lengths"]

_KEEPS_SHAPE = frozenset({"Cast", "Clip", "Identity", "Neg", "Relu", "Sigmoid", "Tanh"})
_PRODUCTS = ("Gemm", "MatMul")
_RANK_OF_WEIGHTS = 2
_PASTS = {"GroupQueryAttention": (3, 4), "MultiHeadAttention": (6, 7)}
"""Places of the caches of an attention: keys and values, [N, heads, P, width]."""


def demanded_lengths(model: ir.Model) -> dict[str, int]:
    """Return the lengths that free dimensions of inputs must have, since nothing else runs.

    Exporters write a symbol for channels, or for the width of a head, that no caller can choose. With the number in its place
    every toolchain knows it.

    Args:
        model: A model as it was read.

    Returns:
        Lengths by symbol, or by ``input[axis]`` if a dimension has none. A symbol of which two lengths are demanded is left out.
    """
    found: dict[str, set[int]] = {}
    for value in model.graph.inputs:
        if value.shape is None or value.is_initializer():
            continue
        for axis, length in _demands(value, len(value.shape)):
            dim = value.shape[axis]
            if not isinstance(dim, int) and length > 0:
                found.setdefault(dim.value or f"{value.name}[{axis}]", set()).add(length)
    return {name: next(iter(lengths)) for name, lengths in found.items() if len(lengths) == 1}


def _demands(value: ir.Value, rank: int) -> Iterator[tuple[int, int]]:
    """Yield axes of an input with the lengths that operators demand of it."""
    waiting, seen = [value], {value}
    while waiting:
        for node, place in waiting.pop().uses():
            if node.op_type in _KEEPS_SHAPE and node.domain == "" and node.outputs[0] not in seen:
                seen.add(node.outputs[0])
                waiting.append(node.outputs[0])
            demand = _demand(node, place, rank) if node.graph is value.graph else None  # A branch may never run.
            if demand is not None and demand[0] < rank:
                yield demand


def _demand(node: ir.Node, place: int, rank: int) -> tuple[int, int] | None:
    weight = _weight(node, 1)
    if node.domain == "" and node.op_type == "Conv" and place == 0 and weight and rank == len(weight):
        return 1, weight[1] * node.attributes.get_int("group", 1)
    if node.domain == "" and node.op_type in _PRODUCTS and place == 0 and weight and len(weight) == _RANK_OF_WEIGHTS:
        axis = 0 if node.attributes.get_int("transA", 0) else rank - 1
        return axis, weight[1 if node.attributes.get_int("transB", 0) else 0]
    if node.domain == CONTRIBUTED and place in _PASTS.get(node.op_type, ()):
        return None if (width := _width_of_heads(node)) is None else (3, width)
    return None


def _width_of_heads(node: ir.Node) -> int | None:
    """Return the numbers of a head of an attention; None if its query's length is not known."""
    columns, heads = _columns(node.inputs[0]), node.attributes.get_int("num_heads", 0)
    if len(node.inputs) < 2 or node.inputs[1] is None:  # Queries, keys and values lie in one.
        heads += 2 * node.attributes.get_int("kv_num_heads", heads)
    return columns // heads if columns is not None and heads > 0 and columns % heads == 0 else None


def _columns(value: ir.Value | None) -> int | None:
    """Return the length of a value along its last axis."""
    if value is None:
        return None
    if value.shape and isinstance(value.shape[-1], int):
        return value.shape[-1]
    node = value.producer()
    if node is None:
        return None
    if node.op_type == "MatMulNBits":
        return node.attributes.get_int("N")
    weight = _weight(node, 1)
    if node.op_type in (*_PRODUCTS, "Add") and weight:
        return weight[-2 if node.attributes.get_int("transB", 0) else -1]
    return None


def _weight(node: ir.Node, place: int) -> list[int] | None:
    """Return the shape of a constant operand; None if it varies."""
    value = node.inputs[place] if len(node.inputs) > place else None
    if value is None or value.shape is None or not value.is_initializer() or value.is_graph_input():
        return None
    return [dim for dim in value.shape if isinstance(dim, int)]
