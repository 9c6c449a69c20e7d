"""Operators that gather and scatter by indices, as loops in which threads share what no index decides.

TVM finds lengths of axes while a kernel runs, turns negative indices in loops of their own, and scatters with one element in
the innermost loop. An index that an ``Expand`` repeats for each column, as exporters of graph networks write it, is read
once for each element.

Here a scatter is one of [B, D, C] by [B, K] indices: threads share B and pieces of C, so that no element belongs to two. Each
adds along K in order, as ONNX's reference does: the result does not depend on the number of threads.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tvm
from tvm import ir, relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as build

from collage.toolchains.tvm.tile_schedules import LANES, PARALLEL_WORK, divisor

__all__ = ["gathered", "gathered_elements", "gathered_points", "scattered_elements", "scattered_points"]

_PIECE_BYTES = 128
"""Of a row, for one thread: two cache lines, which processors fetch together."""

_BITS = 8

_OF_ROWS = "collage.gathers_rows"
"""Attribute of a function that copies rows: slices along the first axis, at plain indices."""

Place = Callable[[Any, Any, Any], Any]
"""Makes an index of the numbers of a batch, an index and a column."""


def gathered(bb: Any, x: Any, indices: Any, axis: int) -> Any:
    """``Gather``: slices of a tensor along an axis."""
    axis, rank = axis % x.ty.ndim, indices.ty.ndim

    def slices(x: Any, indices: Any) -> Any:
        def element(*place: Any) -> Any:
            index = _from_start(indices(*place[axis : axis + rank]), x.shape[axis])
            return x(*place[:axis], index, *place[axis + rank :])

        return te.compute([*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]], element, name="gather")

    attributes = {_OF_ROWS: True} if axis == 0 and rank == 1 else {}
    return bb.emit_te(slices, x, indices, primfunc_name_hint="gather", primfunc_attrs=attributes)


def gathered_elements(bb: Any, x: Any, indices: Any, axis: int) -> Any:
    """``GatherElements``: an element for each index, from the same place on all other axes."""
    axis, shape = axis % x.ty.ndim, indices.ty.shape.values
    once = _once(bb, indices, axis)
    lengths, others, repeated = (
        [*y.ty.shape.values[:axis], *y.ty.shape.values[axis + 1 :]] for y in (x, indices, once)
    )
    if _are_ones(repeated) and _are_equal(lengths, others):
        return gathered(bb, x, _reshaped(bb, once, [shape[axis]]), axis)

    def elements(x: Any, indices: Any, shape: Any) -> Any:
        def element(*place: Any) -> Any:
            index = _from_start(indices(*_where_long(indices, place)), x.shape[axis])
            return x(*place[:axis], index, *place[axis + 1 :])

        return te.compute(shape, element, name="gather_elements")

    return bb.emit_te(elements, x, once, relax.ShapeExpr(shape), primfunc_name_hint="gather_elements")


def gathered_points(bb: Any, x: Any, indices: Any, batches: int) -> Any:
    """``GatherND``: slices of a tensor at points."""
    rank, count = indices.ty.ndim - 1, int(indices.ty.shape.values[-1])
    if batches == 0 and count == 1:
        return gathered(bb, x, _reshaped(bb, indices, indices.ty.shape.values[:-1]), 0)

    def slices(x: Any, indices: Any) -> Any:
        def element(*place: Any) -> Any:
            point = [
                _from_start(indices(*place[:rank], i), length)
                for i, length in enumerate(x.shape[batches : batches + count])
            ]
            return x(*place[:batches], *point, *place[rank:])

        shape = [*indices.shape[:-1], *x.shape[batches + count :]]
        return te.compute(shape, element, name="gather_points")

    return bb.emit_te(slices, x, indices, primfunc_name_hint="gather_points")


def scattered_elements(bb: Any, data: Any, indices: Any, updates: Any, axis: int, reduction: str) -> Any:
    """``ScatterElements``, of indices that are as long as the data on all axes but their own."""
    axis, shape = axis % data.ty.ndim, data.ty.shape.values
    count = indices.ty.shape.values[axis]
    before, after = _product(shape[:axis]), _product(shape[axis + 1 :])
    once = _once(bb, indices, axis)
    lengths = once.ty.shape.values
    parts = (lengths[:axis], shape[:axis]), (lengths[axis + 1 :], shape[axis + 1 :])
    if not all(_are_ones(part) or _are_equal(part, whole) for part, whole in parts):
        once, lengths = indices, indices.ty.shape.values
    once = _reshaped(bb, once, [_product(lengths[:axis]), count, _product(lengths[axis + 1 :])])

    def place(indices: Any, axes: Sequence[Any]) -> Place:
        return lambda *place: _from_start(indices[tuple(_where_long(indices, place))], axes[0])

    whole = _Whole([before, shape[axis], after], count, [shape[axis]])
    return _scattered(bb, data, once, _updates(bb, updates, whole, is_of_rows=axis == 0), whole, place, reduction)


def scattered_points(bb: Any, data: Any, indices: Any, updates: Any, reduction: str) -> Any:
    """``ScatterND``: slices of a tensor at points."""
    shape, (*points, entries) = data.ty.shape.values, indices.ty.shape.values
    axes, rest = shape[: int(entries)], _product(shape[int(entries) :])
    count = _product(points)

    def place(indices: Any, axes: Sequence[Any]) -> Place:
        def row(batch: Any, k: Any, column: Any) -> Any:
            point = [_from_start(indices[k, i], length) for i, length in enumerate(axes)]
            pairs = zip(point[1:], axes[1:], strict=True)
            return functools.reduce(lambda total, pair: total * pair[1] + pair[0], pairs, point[0])

        return row

    whole, once = _Whole([1, _product(axes), rest], count, axes), _reshaped(bb, indices, [count, entries])
    more = _updates(bb, updates, whole, is_of_rows=len(points) == 1)
    return _scattered(bb, data, once, more, whole, place, reduction)


class _Whole(NamedTuple):
    """The lengths of a scatter.

    Attributes:
        shape: Lengths of the data, [B, D, C].
        count: K, the number of indices.
        axes: Lengths of the axes that an index points along, whose product is D.
    """

    shape: Sequence[Any]
    count: Any
    axes: Sequence[Any]


class _Updates(NamedTuple):
    """The values that are scattered, [B, K, C].

    Attributes:
        tensors: The tensors that it is read from.
        read: Makes of these tensors what returns an element.
    """

    tensors: Sequence[Any]
    read: Callable[[Sequence[Any]], Place]


def _updates(bb: Any, updates: Any, whole: _Whole, *, is_of_rows: bool) -> _Updates:
    """Return what is scattered. Rows that a ``Gather`` copies are read from where it reads them.

    Args:
        bb: Relax's builder.
        updates: The updates.
        whole: The lengths of the scatter.
        is_of_rows: True if K is their first axis.
    """
    made = bb.lookup_binding(updates) if isinstance(updates, relax.Var) and is_of_rows else None
    attributes = None
    if isinstance(made, relax.Call) and made.op == ir.Op.get("relax.call_tir"):
        attributes = bb.get()[made.args[0]].attrs
    batches, _, columns = whole.shape
    if made is None or attributes is None or _OF_ROWS not in attributes:
        flat = _reshaped(bb, updates, [batches, whole.count, columns])
        return _Updates([flat], lambda given: lambda *place: given[0][place])
    x, indices = made.args[1].fields

    def read(given: Sequence[Any]) -> Place:
        rows, at = given
        return lambda batch, k, column: rows[_from_start(at[k], rows.shape[0]), column]

    return _Updates([_reshaped(bb, x, [x.ty.shape.values[0], columns]), indices], read)


def _scattered(
    bb: Any, data: Any, indices: Any, updates: _Updates, whole: _Whole, place: Callable[..., Place], reduction: str
) -> Any:
    reduce, fill = _REDUCTIONS[reduction], _only_number(data)
    begins = [] if fill is not None else [_reshaped(bb, data, whole.shape)]
    lengths = relax.ShapeExpr([*whole.shape, whole.count, *whole.axes])

    def scatter(lengths: Sequence[Any], indices: Any, *tensors: Any) -> Any:
        batches, length, columns, count, *axes = lengths

        def loops(given: Sequence[Any], made: Sequence[Any]) -> Any:
            index, *more = given
            start = fill if fill is not None else more.pop()
            return _loops(made[0], start, updates.read(more), count, place(index, axes), reduce)

        shape = [batches, length, columns]
        return te.extern([shape], [indices, *tensors], loops, dtype=str(data.ty.dtype), name="scatter")

    made = bb.emit_te(scatter, lengths, indices, *updates.tensors, *begins, primfunc_name_hint="scatter")
    return _reshaped(bb, made, data.ty.shape.values)


def _loops(made: Any, start: Any, updates: Place, count: Any, place: Place, reduce: Callable[[Any, Any], Any]) -> Any:
    """Return the loops of a scatter into ``made``, which begins as ``start``: a buffer, or one number."""
    batches, length, columns = made.shape
    piece, lanes = _piece(columns, made.dtype)
    pieces = tirx.ceildiv(columns, piece)
    work = batches * columns * (length + count)
    tasks = batches * pieces
    is_small = isinstance(work, tirx.IntImm) and int(work) < PARALLEL_WORK
    is_shared = not is_small and not (isinstance(tasks, tirx.IntImm) and int(tasks) == 1)
    with IRBuilder() as builder:
        with (build.parallel if is_shared else build.serial)(0, tasks) as task:
            batch, first = task // pieces, task % pieces * piece

            def each_column(store: Callable[[Any], None]) -> None:
                if lanes is None:
                    with build.serial(0, tirx.min(piece, columns - first)) as column:
                        store(first + column)
                else:
                    with build.serial(0, piece // lanes) as vector, build.vectorized(0, lanes) as lane:
                        store(first + vector * lanes + lane)

            with build.serial(0, length) as row:
                each_column(
                    lambda column: build.buffer_store(
                        made,
                        start[batch, row, column] if isinstance(start, tirx.Buffer) else start,
                        [batch, row, column],
                    )
                )
            with build.serial(0, count) as k:

                def add(column: Any) -> None:
                    at = [batch, place(batch, k, column), column]
                    build.buffer_store(made, reduce(made[tuple(at)], updates(batch, k, column)), at)

                each_column(add)
        return builder.get()


def _piece(columns: Any, dtype: Any) -> tuple[Any, int | None]:
    """Return how many columns of a row a thread takes at a time, and the width of vectors that divides them."""
    width = _PIECE_BYTES // max(1, tvm.DataType(str(dtype)).bits // _BITS)
    if not isinstance(columns, tirx.IntImm):
        return width, None
    number = int(columns)
    if number < 2 * width:
        return max(1, number), divisor(number, (LANES, 8, 4))
    return width, LANES if number % width == 0 and width % LANES == 0 else None


def _largest(old: Any, new: Any) -> Any:
    return tirx.Select(tirx.any(old > new, *_is_nan(old)), old, new)


def _least(old: Any, new: Any) -> Any:
    return tirx.Select(tirx.any(old < new, *_is_nan(old)), old, new)


def _is_nan(x: Any) -> list[Any]:
    """Return the condition that a float is NaN; nothing for other types."""
    return [tirx.isnan(x)] if str(x.ty).startswith("float") else []


_REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "none": lambda old, new: new,
    "add": operator.add,
    "mul": operator.mul,
    "max": _largest,
    "min": _least,
}


def _only_number(data: Any) -> Any | None:
    """Return the number that all elements of a constant are; None if there are others, or it is not constant."""
    array = data.value.numpy() if isinstance(data, tvm.ir.GenericConst) else np.empty(0)
    if not array.size or array.tobytes() != array.flat[0].tobytes() * array.size:
        return None
    return tirx.const(array.flat[0].item(), str(array.dtype))


def _once(bb: Any, indices: Any, axis: int) -> Any:
    """Return indices without what repeats them along other axes than ``axis``, of length 1 there."""
    if isinstance(indices, tvm.ir.GenericConst):
        array = indices.value.numpy()
        for other in set(range(array.ndim)) - {axis}:
            first = array.take([0], other) if array.shape[other] else array
            if np.array_equal(np.broadcast_to(first, array.shape), array):
                array = first
        return relax.const(array, str(array.dtype))
    made = bb.lookup_binding(indices) if isinstance(indices, relax.Var) else indices
    if not (isinstance(made, relax.Call) and made.op == ir.Op.get("relax.broadcast_to")):
        return indices
    source = made.args[0]
    shape = [*[1] * (indices.ty.ndim - source.ty.ndim), *source.ty.shape.values]
    is_whole = _are_equal([shape[axis]], [indices.ty.shape.values[axis]])
    return _reshaped(bb, source, shape) if is_whole else indices


def _where_long(x: Any, place: Sequence[Any]) -> list[Any]:
    """Return a place in a tensor of which some axes have length 1."""
    return [0 if _is_one(length) else at for length, at in zip(x.shape, place, strict=True)]


def _from_start(index: Any, length: Any) -> Any:
    """Return an index that counts from the start."""
    if str(index.ty).startswith("uint"):
        return index
    return tirx.Select(index < 0, index + tirx.Cast(str(index.ty), length), index)


def _reshaped(bb: Any, x: Any, shape: Sequence[Any]) -> Any:
    wanted = relax.ShapeExpr([tirx.IntImm("int64", n) if isinstance(n, int) else n for n in shape])
    return bb.normalize(relax.op.reshape(x, wanted))


def _product(lengths: Sequence[Any]) -> Any:
    return functools.reduce(operator.mul, lengths, tirx.IntImm("int64", 1))


def _is_one(length: Any) -> bool:
    return isinstance(length, tirx.IntImm) and int(length) == 1


def _are_ones(lengths: Sequence[Any]) -> bool:
    return all(map(_is_one, lengths))


def _are_equal(lengths: Sequence[Any], others: Sequence[Any]) -> bool:
    return all(tvm.sym.Analyzer().can_prove_equal(n, m) for n, m in zip(lengths, others, strict=True))
