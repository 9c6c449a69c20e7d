"""Schedules for TVM's loops on CPUs over rows: threads share the rows, and vector instructions sum along a row.

For functions that reduce contiguous elements, and may then use the results on them: softmax, normalisations over the
last axes and over groups of channels, sums and maxima along rows. TVM's own rule computes such a row at a time as well,
but adds it up one element after the other, and with groups of channels all of a group once for each of its channels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo, normalize_prim_func

from collage.toolchains.tvm.tile_schedules import LANES, divisor, extent, parallel, product

__all__ = ["Rows"]

_WIDTHS = (LANES, 8, 4)
_SPATIAL, _REDUCED = int(tirx.IterVar.DataPar), int(tirx.IterVar.CommReduce)


class Rows:
    """Computes all results of a row in one pass, with as many partial results as a vector has lanes."""

    def apply(self, func: tirx.PrimFunc, target: Any, tunable: bool) -> s_tir.Schedule | None:
        """A schedule of ``func``, or None if the rule is not meant for it."""
        sch = s_tir.Schedule(func)
        blocks = normalize_prim_func(sch)
        if blocks is None or any(block.is_injective() and sch.get(block.block_rv).init is not None for block in blocks):
            return None
        blocks = _inlined(sch, blocks)
        reductions = [block for block in blocks if not block.is_injective()]
        if not reductions or not all(_is_along_rows(sch, block) for block in reductions):
            return None
        work = max((product(sch, sch.get_loops(block.block_rv)) or 0 for block in blocks), default=0)
        rows = _rows(sch, blocks, reductions[0])
        parts = {block.name: part for block in reductions if (part := _in_parts(sch, block)) is not None}
        row = _loop_of_rows(sch, blocks[-1], rows, work or None)
        if row is None:
            return None
        for block in reversed(blocks):
            if block is not blocks[-1]:
                sch.compute_at(block.block_rv, row, preserve_unit_loops=True)
            if block.name in parts:
                sch.compute_at(parts[block.name], row, preserve_unit_loops=True)
        for block in blocks:
            if block.is_injective():
                _vectorise(sch, block.block_rv)
            elif block.name in parts:
                _vectorise_parts(sch, parts[block.name])
        return sch


def _inlined(sch: s_tir.Schedule, blocks: Sequence[SBlockInfo]) -> list[SBlockInfo]:
    """Inline blocks into their readers if nothing is computed twice for that; return the remaining blocks."""
    kept: list[SBlockInfo] = []
    for block in blocks:
        readers = sch.get_consumers(block.block_rv)
        is_read_once = len(readers) == 1 and _lengths(sch, readers[0]) == _lengths(sch, block.block_rv)
        if block.is_injective() and readers and (is_read_once or _is_copy(sch.get(block.block_rv))):
            sch.compute_inline(block.block_rv)
        else:
            kept.append(block)
    return kept


def _lengths(sch: s_tir.Schedule, block: Any) -> list[str]:
    """Return the lengths of a block's axes except those of 1, with names for unknown ones."""
    return sorted(length for each in sch.get(block).iter_vars if (length := str(each.dom.extent)) != "1")


def _is_copy(block: Any) -> bool:
    return isinstance(block.body, tirx.BufferStore) and isinstance(block.body.value, ir.TensorLoad)


def _is_along_rows(sch: s_tir.Schedule, info: SBlockInfo) -> bool:
    """True if a block reduces elements that are contiguous in memory, and not products of several tensors."""
    block = sch.get(info.block_rv)
    spatial, reduced = (
        [each.var for each in block.iter_vars if int(each.iter_type) == kind] for kind in (_SPATIAL, _REDUCED)
    )
    read = [[place.min for place in region.region] for region in block.reads]
    read = [places for places in read if _used(places, reduced)]
    across = any(_used(places[-1:], spatial) for places in read)
    return not across and len({frozenset(_used(places, spatial)) for places in read}) == 1


def _used(places: Iterable[Any], variables: Sequence[Any]) -> set[int]:
    """Return the numbers of the variables that occur."""
    found: list[Any] = []
    for place in places:
        tvm_ffi.structural_walk(place, (ir.Var, found.append))
    return {i for i, variable in enumerate(variables) if any(variable.same_as(other) for other in found)}


def _rows(sch: s_tir.Schedule, blocks: Sequence[SBlockInfo], reduction: SBlockInfo) -> list[Any]:
    """The lengths of the axes that all blocks begin with, but for those of length 1."""
    kinds = [block.dom_kind() for block in blocks]
    count = min(len(kind) - len(kind.lstrip("S")) for kind in kinds)
    loops = sch.get_loops(reduction.block_rv)[:count]
    return [sch.get(loop).extent for loop in loops if extent(sch, loop) != 1]


def _loop_of_rows(sch: s_tir.Schedule, last: SBlockInfo, rows: Sequence[Any], work: int | None) -> Any:
    """The loop of the last block that goes through the rows, which threads share; None if there is none.

    A loop over members of groups is split. If no block begins with axes of all, everything is one row.
    """
    loops = sch.get_loops(last.block_rv)
    if not rows and loops:
        return sch.add_unit_loop(loops[0])
    leading: list[Any] = []
    loops = [loop for loop in loops if extent(sch, loop) != 1]
    for loop, length in zip(loops, rows, strict=False):
        if tvm_ffi.structural_equal(sch.get(loop).extent, length):
            leading.append(loop)
            continue
        groups = int(length) if isinstance(length, tirx.IntImm) else 0
        if groups > 1 and extent(sch, loop) and extent(sch, loop) % groups == 0:
            leading.append(sch.split(loop, [groups, None])[0])
        break
    return parallel(sch, leading, work) if leading else None


def _in_parts(sch: s_tir.Schedule, block: SBlockInfo) -> Any:
    """Let a reduction first make one partial result per lane of a vector; return that block, None if no split fits."""
    *_, last = sch.get_loops(block.block_rv)
    width = divisor(extent(sch, last), _WIDTHS) if block.iters[-1].kind == "R" else None
    if width is None:
        return None
    _, lanes = sch.split(last, [None, width])
    try:
        return sch.rfactor(lanes, len(sch.get(block.block_rv).writes[0].region))
    except s_tir.ScheduleError:
        return None  # TVM does not recognise maxima that begin with infinity


def _vectorise_parts(sch: s_tir.Schedule, block: Any) -> None:
    """Make a vector of the results that a block adds up side by side; it has them as its first axis."""
    _, lanes, *others = sch.get_loops(block)
    first = next(i for i, each in enumerate(sch.get(block).iter_vars[1:]) if int(each.iter_type) == _REDUCED)
    sch.reorder(*others, lanes)
    sch.vectorize(lanes)
    init = sch.decompose_reduction(block, others[first])
    sch.vectorize(sch.get_loops(init)[-1])


def _vectorise(sch: s_tir.Schedule, block: Any) -> None:
    """Vectorise the innermost loop. If no width divides its length, the compiler decides."""
    _, *inner = sch.get_loops(block)
    if inner and (width := divisor(extent(sch, inner[-1]), _WIDTHS)):
        _, lanes = sch.split(inner[-1], [None, width])
        sch.vectorize(lanes)
