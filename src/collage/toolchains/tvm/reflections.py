"""Reflections at the ends of a tensor that are as long as the tensor, or longer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import te, tirx

from collage._errors import Unsupported

__all__ = ["long_pads", "reflected"]


def long_pads(inputs: Sequence[Any], attrs: Mapping[str, Any]) -> list[list[int]] | None:
    """Return the elements before and after each axis, if there may be as many as the axis has; None if there are fewer.

    Pads that are not constant are left to TVM, which refuses them.
    """
    x, pads, _, axes = [*inputs, None, None, None][:4]
    if any(value is not None and not isinstance(value, tvm.ir.GenericConst) for value in (pads, axes)):
        return None
    lengths = x.ty.shape.values
    counts = np.reshape(attrs["pads"] if pads is None else pads.value.numpy(), (2, -1))
    whole = np.zeros((2, len(lengths)), np.int64)
    whole[:, slice(None) if axes is None else axes.value.numpy()] = counts
    most = whole.max(0).tolist()
    if all(m <= 0 or (isinstance(n, tirx.IntImm) and m < int(n)) for n, m in zip(lengths, most, strict=True)):
        return None
    if whole.min() < 0:
        raise Unsupported("tvm reflects more elements than there are")
    return whole.tolist()


def reflected(x: Any, before: Sequence[int], after: Sequence[int]) -> Any:
    """A tensor that is reflected at its ends, as often as it takes, as an expression of TVM."""

    def source(place: Any, length: Any) -> Any:
        period = tirx.max(2 * (length - 1), 1)
        folded = tirx.floormod(place, period)
        inside = tirx.all(place >= 0, place < length)
        return tirx.if_then_else(inside, place, tirx.if_then_else(folded < length, folded, period - folded))

    def element(*place: Any) -> Any:
        pads = zip(place, x.shape, before, after, strict=True)
        return x(*(source(at - more, n) if more or end else at for at, n, more, end in pads))

    shape = [n + more + end for n, more, end in zip(x.shape, before, after, strict=True)]
    return te.compute(shape, element, name="reflected")
