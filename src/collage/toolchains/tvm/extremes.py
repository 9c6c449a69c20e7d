"""Reductions to extremes that begin at an infinity, and positions of extremes that lie on their axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm
from tvm import te, tirx

__all__ = ["EXTREMES", "POSITIONS", "axes_of", "extreme", "within_length"]

_AXES_ARE_INPUTS = 18
"""The opset from which reductions to extremes have their axes as an input."""


def axes_of(inputs: Sequence[Any], attrs: Mapping[str, Any], opset: int) -> tuple[int, ...]:
    """The axes to reduce, from the first; none where nothing is reduced, or where they are not known yet."""
    rank = inputs[0].ty.ndim
    if opset < _AXES_ARE_INPUTS:
        axes = attrs.get("axes", ())
    elif len(inputs) < 2 or inputs[1] is None:
        axes = ()
    elif isinstance(inputs[1], tvm.ir.GenericConst):
        axes = inputs[1].value.numpy().tolist()
    else:
        return ()
    if not axes:
        return () if attrs.get("noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(sorted({axis % rank for axis in axes}))


def _infinity(dtype: Any) -> Any:
    return tirx.const(float("inf"), dtype)


EXTREMES = {
    "ReduceMax": te.comm_reducer(lambda x, y: tirx.max(x, y), lambda dtype: -_infinity(dtype)),
    "ReduceMin": te.comm_reducer(lambda x, y: tirx.min(x, y), _infinity),
}
"""Reductions that begin at an infinity."""

POSITIONS = frozenset(("ArgMax", "ArgMin"))


def within_length(positions: Any, lengths: Sequence[Any]) -> Any:
    """Positions on an axis, brought into its length: to TVM the first of equal elements may be -1, the last the length."""
    end, zero = tirx.Cast("int64", lengths[0]) - 1, tirx.const(0, "int64")
    return te.compute(positions.shape, lambda *place: tirx.min(tirx.max(positions(*place), zero), end), name="position")


def extreme(x: Any, axes: Sequence[int], keepdims: bool, reduce: Callable[..., Any]) -> Any:
    """The reduction of a tensor over some axes, as an expression of TVM."""
    reduced = {axis: te.reduce_axis((0, x.shape[axis]), name=f"k{axis}") for axis in axes}
    kept = [axis for axis in range(len(x.shape)) if axis not in reduced]
    shape = [1 if axis in reduced else x.shape[axis] for axis in range(len(x.shape)) if keepdims or axis not in reduced]

    def element(*place: Any) -> Any:
        spatial = dict(zip(range(len(x.shape)) if keepdims else kept, place, strict=True))
        return reduce(
            x(*(reduced.get(axis, spatial.get(axis)) for axis in range(len(x.shape)))), axis=[*reduced.values()]
        )

    return te.compute(shape, element, name="extreme")
