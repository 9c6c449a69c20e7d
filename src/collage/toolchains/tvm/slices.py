"""Slices whose ends follow from lengths: counted and limited as ONNX does, and never read beyond the tensor."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx

from collage.toolchains.tvm.free_lengths import of_lengths
from collage.toolchains.tvm.length_numbers import FAR, has_lengths, of_any_lengths, simplified

__all__ = ["kept_within", "within_reach"]

_MOST_BYTES = 1 << 40
"""More than any tensor has."""


def within_reach(ends: Any) -> Any:
    """Return the ends of a slice, limited to a number that is longer than any tensor."""
    if not isinstance(ends, tvm.ir.GenericConst):
        return ends
    return relax.const(np.clip(ends.value.numpy(), -FAR, FAR), str(ends.ty.dtype))


def kept_within(bb: Any, y: Any, values: Iterable[Any]) -> Any:
    """Return a slice whose ends, if they follow from lengths, are counted from the end or limited to the tensor, as ONNX does.

    Args:
        bb: TVM's builder of the module.
        y: The slice as TVM's importer makes it.
        values: The values before it. That their lengths are not negative makes the slice's own lengths simpler.
    """
    y = bb.normalize(_within(bb, y))
    have = list(y.ty.shape.values) if has_lengths(y) else []
    lengths = [simplified(n, values) for n in have]
    return y if all(map(operator.is_, have, lengths)) else of_lengths(bb, y, lengths)


def _within(bb: Any, y: Any) -> Any:
    """Return a slice of which ends that follow from lengths are counted from the end, or limited to the tensor.

    Axes that it keeps whole are left out. TVM would write their free lengths as the lesser of them and the end.
    """
    if not isinstance(y, relax.Call):
        return y
    if y.op == tvm.ir.Op.get("relax.dynamic_strided_slice"):
        return _in_order(bb, *y.args)
    if y.op != tvm.ir.Op.get("relax.strided_slice"):
        return y
    x, *limits = y.args
    kept = [limit for limit in zip(*(part.fields for part in limits), strict=True) if not _is_whole(x, *limit)]
    if not kept:
        return x
    y = relax.op.strided_slice(x, *map(list, zip(*kept, strict=True)))
    follows_lengths = not all(isinstance(n, tirx.IntImm) for limit in kept for n in limit[1:])
    if not (follows_lengths and has_lengths(x) and all(_counts_upwards(*limit[1:]) for limit in kept)):
        return y
    shape, starts = list(x.ty.shape.values), [tirx.IntImm("int64", 0)] * x.ty.ndim
    for axis, begin, end, _ in kept:
        length = tirx.max(tirx.min(end, shape[int(axis)]) - begin, 0)
        shape[int(axis)], starts[int(axis)] = of_any_lengths(length).simplify(length), begin

    def sliced(x: Any) -> Any:
        return te.compute(shape, lambda *at: x(*map(operator.add, at, starts)), name="slice")

    return bb.emit_te(sliced, x, primfunc_name_hint="slice")


def _in_order(bb: Any, x: Any, begins: Any, ends: Any, steps: Any) -> Any:
    """Return a slice by limits that are computed, of which none upwards ends before it begins: TVM would count less than none."""
    zero = relax.const(np.zeros(x.ty.ndim, np.int64), "int64")
    sides = bb.normalize(relax.op.shape_to_tensor(bb.normalize(relax.op.shape_of(x))))

    def from_start(limits: Any) -> Any:
        counted = relax.op.where(relax.op.less(limits, zero), relax.op.add(limits, sides), limits)
        return bb.normalize(relax.op.minimum(relax.op.maximum(counted, zero), sides))

    in_order = relax.op.maximum(from_start(begins), from_start(ends))
    ends = bb.normalize(relax.op.where(relax.op.greater(steps, zero), in_order, ends))
    return relax.op.dynamic_strided_slice(x, begins, ends, steps)


def _counts_upwards(begin: Any, end: Any, step: Any) -> bool:
    """True for a slice of neighbours of which no limit counts from the end.

    The code that TVM makes of others asks if a limit is negative, by a function that no length may contain.
    """
    return (
        isinstance(step, tirx.IntImm)
        and int(step) == 1
        and all(of_any_lengths(n).can_prove(n >= 0) for n in (begin, end))
    )


def _is_whole(x: Any, axis: Any, begin: Any, end: Any, step: Any) -> bool:
    """True if a slice keeps an axis as it is, whatever its length."""
    if not all(isinstance(n, tirx.IntImm) for n in (begin, end, step)):
        return False
    if int(step) != 1 or -FAR < int(begin) != 0:
        return False
    if int(end) >= FAR:
        return True
    if not has_lengths(x):
        return False
    # TensorFlow's exporter writes 10^9 for the end.
    others = (n for place, n in enumerate(x.ty.shape.values) if place != int(axis))
    known = math.prod(int(n) for n in others if isinstance(n, tirx.IntImm) and int(n) > 0)
    return bool(int(end) * known * tvm.DataType(str(x.ty.dtype)).itemsize >= _MOST_BYTES)
