"""Decisions of rounding: operators that compare computed numbers, whose results may differ between two right kernels.

A tolerance says how far numbers may be from the reference. It does not cover decisions between them. If two scores are
closer than the tolerance, ArgMax may return either, and later values follow from its choice.
Decisions are taken by ArgMax, ArgMin, TopK, the comparisons and the operators that round, in the main graph, on
computed numbers. Inputs of a kernel are exact, so decisions between them, or between moved copies of them, do not
depend on rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from collage.graph import OpKind, constant_tensor, is_view, op_kind, used_values
from collage.numerics.compare import largest_magnitude

__all__ = ["Decision", "after_decisions", "close_decisions", "followers"]

Array = np.ndarray[Any, Any]
ValueOf = Callable[[ir.Value], Array | None]

_COMPUTE_AND_MOVE = frozenset({"Resize", "Upsample"})
"""Operators that are fused like those which only move data, but interpolate."""
_COMPARISONS = frozenset({"Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
_ROUNDINGS: Mapping[str, Callable[[Array], Array]] = {
    "Cast": np.trunc,
    "Ceil": np.ceil,
    "Floor": np.floor,
    "Round": np.rint,
    "Sign": np.sign,
}


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision that lies within the tolerance, as far as it does.

    Attributes:
        value: The result of the decision: the output of an operator.
        close: True for elements that might be different, bool of the value's shape; at least one is true.
        otherwise: The other results of these elements, of the value's shape and type. Elements that are not close do not count.
    """

    value: ir.Value
    close: Array
    otherwise: Array


def after_decisions(graph: ir.Graph) -> frozenset[str]:
    """Names of the values of a model, or kernel, that follow from decisions on computed values."""
    return followers(graph, (value for node in graph if (value := _decided(node)) is not None))


def followers(graph: ir.Graph, values: Iterable[ir.Value]) -> frozenset[str]:
    """Names of some values of a graph, and of all that is computed from them."""
    found = set(values)
    for node in graph if found else ():
        if not found.isdisjoint(used_values(node)):
            found.update(node.outputs)
    return frozenset(str(value.name) for value in found)


def close_decisions(graph: ir.Graph, value_of: ValueOf, tolerance: float) -> Iterator[Decision]:
    """The decisions of a run that lie within the tolerance.

    Args:
        graph: The graph that was run.
        value_of: Its values in that run; None for one that is not known.
        tolerance: Largest error of an element, as a share of the tensor's largest magnitude, see ``collage.numerics.compare``.
    """
    for node in graph:
        if (decided := _decided(node)) is None or (was := value_of(decided)) is None:
            continue
        operands = [None if value is None else value_of(value) for value in node.inputs]
        if any(operand is None for operand in operands):
            continue
        wide = [np.asarray(operand, np.float64) for operand in operands]
        with np.errstate(invalid="ignore"):
            margins = [
                tolerance * largest_magnitude(x) if _is_computed(v) else 0.0
                for v, x in zip(node.inputs, wide, strict=True)
            ]
            found = _turned(node, wide, margins, was)
        if found is not None and found[0].any():
            yield Decision(decided, *found)


def _decided(node: ir.Node) -> ir.Value | None:
    """The output of an operator that decides something on computed floats."""
    if node.domain != "" or not any(value is not None and _is_computed(value) for value in node.inputs[:2]):
        return None
    match node.op_type:
        case "ArgMax" | "ArgMin" | "Ceil" | "Floor" | "Round" | "Sign":
            return node.outputs[0]
        case "TopK" if node.attributes.get_int("sorted", 1):
            return node.outputs[1]
        case "Cast" if (dtype := node.outputs[0].dtype) is not None and dtype.is_integer():
            return node.outputs[0]
        case kind if kind in _COMPARISONS:
            return node.outputs[0]
    return None


def _is_computed(value: ir.Value | None) -> bool:
    """Return True if a float comes from an operator that computes, not from a constant or an input that was only moved."""
    if (
        value is None
        or value.dtype is None
        or not value.dtype.is_floating_point()
        or constant_tensor(value) is not None
    ):
        return False
    node = value.producer()
    while node is not None and _only_moves(node):
        # Where several are joined, the first with a producer stands for all of them.
        value = next((v for v in node.inputs if v is not None and v.producer() is not None), None)
        node = None if value is None else value.producer()
    return node is not None


def _only_moves(node: ir.Node) -> bool:
    """Return whether an operator moves elements and computes none."""
    moves = op_kind(node) is OpKind.INJECTIVE or is_view(node)
    return moves and (node.domain != "" or node.op_type not in _COMPUTE_AND_MOVE)


def _turned(node: ir.Node, operands: list[Array], margins: list[float], was: Array) -> tuple[Array, Array] | None:
    """Return the elements of a decision that are close, and their values if it went the other way."""
    if node.op_type in _COMPARISONS:
        close = np.abs(operands[0] - operands[1]) <= margins[0] + margins[1]
        return close, ~was
    if node.op_type in _ROUNDINGS:
        round_ = _ROUNDINGS[node.op_type]
        low, high = round_(operands[0] - margins[0]), round_(operands[0] + margins[0])
        close = (low != high) & np.isfinite(operands[0])
        return close, np.where(low == was, high, low).astype(was.dtype)
    if np.isnan(operands[0]).any():
        return None
    if node.op_type == "TopK":
        sign = -1.0 if node.attributes.get_int("largest", 1) else 1.0
        return _of_the_first(sign * operands[0], node.attributes.get_int("axis", -1), 2.0 * margins[0], was)
    sign = -1.0 if node.op_type == "ArgMax" else 1.0
    axis = node.attributes.get_int("axis", 0)
    found = _of_the_first(sign * operands[0], axis, 2.0 * margins[0], _kept(was, node, axis))
    return None if found is None else (found[0].reshape(was.shape), found[1].reshape(was.shape))


def _kept(was: Array, node: ir.Node, axis: int) -> Array:
    """Indices along an axis, whether or not that was kept."""
    return was if node.attributes.get_int("keepdims", 1) else np.expand_dims(was, axis)


def _of_the_first(x: Array, axis: int, margin: float, was: Array) -> tuple[Array, Array] | None:
    """Return which of the first elements in ascending order have a neighbour within the margin, and its index."""
    x, was = np.moveaxis(x, axis, -1), np.moveaxis(was, axis, -1)
    count, size = was.shape[-1], x.shape[-1]
    if not was.size or size < 2:
        return None
    first = np.argpartition(x, count)[..., : count + 1] if count + 1 < size else np.argsort(x)
    order = np.take_along_axis(first, np.argsort(np.take_along_axis(x, first, -1), kind="stable"), -1)
    near = np.diff(np.take_along_axis(x, order, -1)) <= margin
    to_next, to_last = np.zeros(was.shape, bool), np.zeros(was.shape, bool)
    to_next[..., : near.shape[-1]] = near
    to_last[..., 1:] = near[..., : count - 1]
    following, before = np.roll(order, -1, -1)[..., :count], np.roll(order, 1, -1)[..., :count]
    otherwise = np.where(to_next, following, before)
    # Equal ones may stand in any order: what was returned is not its own alternative.
    otherwise = np.where(otherwise == was, order[..., :count], otherwise).astype(was.dtype)
    return np.moveaxis(to_next | to_last, -1, axis), np.moveaxis(otherwise, -1, axis)
