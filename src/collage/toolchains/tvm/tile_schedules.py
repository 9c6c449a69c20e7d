"""Schedules for TVM's loops on CPUs: a tile in vector registers, and threads over the tiles.

A rule of the kind that ``tvm.s_tir.dlight`` applies to each function: a simple hand-written schedule. Before it
comes that of ``row_schedules``, after it TVM's own for reductions, where that is sound. Functions that no rule fits keep
TVM's own loops.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, sym, tirx
from tvm.s_tir import dlight
from tvm.s_tir.dlight.analysis import SBlockInfo, normalize_prim_func
from tvm.s_tir.dlight.base import try_inline_contiguous_spatial

from collage.toolchains.tvm.processor import WIDE, Processor, Tile, current_processor

__all__ = [
    "LANES",
    "PARALLEL_WORK",
    "TILE_ROWS",
    "Cautious",
    "Reductions",
    "RegisterTiles",
    "divisor",
    "extent",
    "parallel",
    "product",
    "tiled_otherwise",
]

LANES = 16
TILE_COLUMNS = (64, 48, 32, 16, 8, 4)
TILE_ROWS = (7, 6, 5, 4, 8, 3, 2)
_STACK_BYTES = 1024
"""The largest buffer that TVM keeps on the stack."""
_BEST_VECTORS = 2
"""Vectors of the tile that comes first where it fits."""
_LEAST_LANES = 4
_MOST_TAPS = 31
"""The longest row of a window that is written out, so that neighbours in a tile share what they read. The tile then has one
vector of columns. Channel by channel, ``[1, 128, 100, 76]`` by 5 x 5 takes 0.26 ms instead of 0.51, ``[1, 64, 56, 56]`` by
15 x 15 0.64 instead of 1.16. Pools take as long as before.
"""
_TURNED_ROWS, _TURNED_LANES = (16, 8, 4), (8, 4)
"""Rows and columns of the tile in which a matrix is transposed: a cache has all its lines at once, also if they are a power of
two apart. Of ``[4, 1024, 1024]`` 3.7 ms instead of 15.8, of ``[64, 128, 128]`` 0.3 instead of 3.1; with 16 columns 3.5 and 0.8.
"""
PARALLEL_WORK = 8192
"""Scalar operations below which waking a thread costs more than it saves."""


class Cautious:
    """A rule whose failures leave a function as it was."""

    def __init__(self, rule: Any) -> None:
        self._rule = rule

    def apply(self, func: tirx.PrimFunc, target: Any, tunable: bool) -> s_tir.Schedule | None:
        """Apply the rule to ``func``. Return None if one of its primitives does not fit, or if TVM cannot generate its loops."""
        try:
            sch = self._rule.apply(func, target, tunable)
        except (s_tir.ScheduleError, tvm.error.InternalError, TypeError, ValueError):
            return None
        return None if sch is None or _has_loops_in_vectors(sch) else sch


class RegisterTiles:
    """Tiles the one reduction of a function, or vectorises its element-wise loops; threads share the tiles."""

    def apply(self, func: tirx.PrimFunc, target: Any, tunable: bool) -> s_tir.Schedule | None:
        """A schedule of ``func``, or None if the rule is not meant for it."""
        return _schedule(s_tir.Schedule(func), 0)


class Reductions:
    """TVM's own rule for reductions, changed so that each thread computes only the reductions that it needs.

    With symbolic lengths it may not be able to tell which groups a channel needs. Every channel then computed the sums
    of all groups, in 4.4 s where loops as they were take some milliseconds.
    """

    def apply(self, func: tirx.PrimFunc, target: Any, tunable: bool) -> s_tir.Schedule | None:
        """A schedule of ``func``, or None if the rule is not meant for it."""
        sch = dlight.cpu.Reduction().apply(func, target, tunable)
        return None if sch is None or _computes_anything_between(sch) else sch


def tiled_otherwise(module: tvm.IRModule) -> list[s_tir.Schedule]:
    """The function ``main`` of a module with every tiling that fits it and the current target, the rule's own choice first.

    Tuning measures these: which tile suits a processor's registers, and which order of tiles its caches, is a guess
    otherwise. Empty if there is no reduction to tile.
    """
    found = list[s_tir.Schedule]()
    while (sch := Cautious(_Tiling(len(found))).apply(module, None, True)) is not None:
        found.append(sch)
    return found


class _Tiling:
    """The rule with the n-th tiling instead of the first."""

    def __init__(self, place: int) -> None:
        self._place = place

    def apply(self, module: tvm.IRModule, target: Any, tunable: bool) -> s_tir.Schedule | None:
        sch = s_tir.Schedule(module)
        blocks = normalize_prim_func(sch)
        tiles = blocks is not None and not all(block.is_injective() for block in blocks)
        return _schedule(sch, self._place) if tiles else None


def _schedule(sch: s_tir.Schedule, place: int) -> s_tir.Schedule | None:
    blocks, processor = normalize_prim_func(sch), current_processor() or WIDE
    if blocks is None or sum(not block.is_injective() for block in blocks) > 1:
        return None
    if not any(block.is_injective() and sch.get(block.block_rv).init is not None for block in blocks):
        # A sum of one term is injective too, and TVM inlines what follows into both of its halves: a bias is added twice.
        blocks = try_inline_contiguous_spatial(sch, blocks)
    kinds = [block.is_injective() for block in blocks]
    if all(kinds):
        for block in blocks:
            _elementwise(sch, block)
        return sch
    anchor = kinds.index(False)
    epilogue = blocks[anchor + 1] if len(blocks) == anchor + 2 else None
    if len(blocks) > anchor + 2:
        return None
    for block in blocks[:anchor]:
        _elementwise(sch, block)
    _reduction(sch, blocks[anchor], epilogue, place, processor)
    return sch


def _elementwise(sch: s_tir.Schedule, block: SBlockInfo) -> None:
    *outer, last = loops = sch.get_loops(block.block_rv)
    across = _axis_read_across(sch, block)
    rows = divisor(extent(sch, loops[across]), _TURNED_ROWS) if across is not None else None
    width = divisor(extent(sch, last), _TURNED_LANES if rows else (LANES, 8, 4))
    work = product(sch, loops)
    if width:
        rest, lanes = sch.split(last, [None, width])
        if across is not None and rows:
            outer[across], row = sch.split(outer[across], [None, rows])
            sch.reorder(*outer, rest, row, lanes)
        sch.vectorize(lanes)
        outer.append(rest)
    elif not outer:
        return
    parallel(sch, outer, work)


def _axis_read_across(sch: s_tir.Schedule, block: SBlockInfo) -> int | None:
    """Return the axis along which a transposed operand is contiguous, while the result is so along another; None if none is."""
    node = sch.get(block.block_rv)
    *others, last = (each.var for each in node.iter_vars)
    for region in node.reads:
        *before, innermost = (place.min for place in region.region)
        if any(place.same_as(last) for place in before):
            for axis, variable in enumerate(others):
                if innermost.same_as(variable):
                    return axis
    return None


def _reduction(
    sch: s_tir.Schedule, block: SBlockInfo, epilogue: SBlockInfo | None, place: int, processor: Processor
) -> None:
    loops = sch.get_loops(block.block_rv)
    spatial = [loop for loop, it in zip(loops, block.iters, strict=True) if it.kind == "S"]
    reduced = [loop for loop, it in zip(loops, block.iters, strict=True) if it.kind == "R"]
    work = product(sch, loops)
    # Either way the tile is finished outside the array that it is added up in, which then can live in registers.
    last = epilogue.block_rv if epilogue is not None else sch.cache_write(block.block_rv, 0, "global")
    *batch, column = spatial
    row = next((loop for loop in reversed(batch) if extent(sch, loop) != 1), None)
    is_window = len(reduced) == 2 and 0 < extent(sch, reduced[-1]) <= _MOST_TAPS
    most = processor.lanes if is_window else TILE_COLUMNS[0]
    least = extent(sch, column) if epilogue is not None and _reads_one_column(sch, block, epilogue) else 1
    columns, rows, columns_first = _tile(
        extent(sch, column), _multiple(sch, row) if row else 0, place, range(least, most + 1), processor
    )
    column_outer, column_inner = sch.split(column, [None, columns])
    *inner, lanes = _in_vectors(sch, column_inner)
    if row is not None and rows:
        batch.remove(row)
        row_outer, row_inner = sch.split(row, [None, rows])
        batch.append(row_outer)
        inner.insert(0, row_inner)
    sch.reorder(column_outer, *batch, *reduced, *inner, lanes)
    tiles = [column_outer, *batch] if columns_first else [*batch, column_outer]
    sch.reorder(*tiles)
    for loop in [*inner, *(reduced[1:] if is_window else ())]:
        sch.unroll(loop)
    sch.vectorize(lanes)
    tile = parallel(sch, tiles, work)
    sch.reverse_compute_at(last, tile)
    if not sch.get(sch.get_loops(last)[-1]).same_as(sch.get(tile)):  # Of one column no loop is left.
        _vectorise_innermost(sch, last)
    init = sch.decompose_reduction(block.block_rv, reduced[0])
    sch.vectorize(sch.get_loops(init)[-1])


def _reads_one_column(sch: s_tir.Schedule, block: SBlockInfo, epilogue: SBlockInfo) -> bool:
    """Return True if no axis of the epilogue goes through the columns. Tiles beside the first would finish what is not theirs."""
    made = sch.get(block.block_rv).writes[0].source
    reads = [region for region in sch.get(epilogue.block_rv).reads if region.source.same_as(made)]
    return any(isinstance(region.region[-1].min, tirx.IntImm) for region in reads)


def _vectorise_innermost(sch: s_tir.Schedule, block: Any) -> None:
    """Vectorise the innermost loop of the blocks after a reduction.

    It is as long as a tile's row, except where an element of the reduction is read by many: by a whole group of channels
    that is normalised. TVM has no vectors of 32768 lanes, and fails if a schedule requests one.
    """
    loop = sch.get_loops(block)[-1]
    if extent(sch, loop) > _STACK_BYTES // 4:
        width = divisor(extent(sch, loop), TILE_COLUMNS)
        if width is None:
            return
        _, loop = sch.split(loop, [None, width])
    *_, lanes = _in_vectors(sch, loop)
    sch.vectorize(lanes)


def _in_vectors(sch: s_tir.Schedule, loop: Any) -> list[Any]:
    """A loop split so that the innermost loop is as long as a vector may be.

    Of 48 lanes LLVM makes single numbers where it makes vectors of 32 or 64: a depthwise convolution took 16 times as long.
    """
    length = extent(sch, loop)
    width = length & -length
    return [loop] if width == length or width < _LEAST_LANES else list(sch.split(loop, [None, width]))


def _computes_anything_between(sch: s_tir.Schedule) -> bool:
    """True if the bounds of a loop could not be inferred exactly: it covers everything that may be needed."""
    loops, bounds = list[Any](), list[Any]()
    for function in sch.mod.functions.values():
        tvm_ffi.structural_walk(function.body, (tirx.For, loops.append))
    for loop in loops:
        tvm_ffi.structural_walk(loop.extent, (tirx.Max, bounds.append))
    return bool(bounds)


def _has_loops_in_vectors(sch: s_tir.Schedule) -> bool:
    """Return True if a loop that is a vector holds another one: TVM then fails, and the whole kernel gets slower passes."""
    vectors, loops = list[Any](), list[Any]()

    def note(loop: Any) -> None:
        if loop.kind == tirx.ForKind.VECTORIZED:
            vectors.append(loop.body)

    for function in sch.mod.functions.values():
        tvm_ffi.structural_walk(function.body, (tirx.For, note))
    for body in vectors:
        tvm_ffi.structural_walk(body, (tirx.For, loops.append))
    return bool(loops)


def parallel(sch: s_tir.Schedule, loops: Sequence[Any], work: int | None) -> Any:
    """Share loops among threads if there is enough work or an unknown amount of it. Return the innermost loop.

    Loops are fused, but of those of free length only one, which then comes first: TVM cannot divide by a free length and still
    know where it is. So a tile that it could keep in registers lies in memory. The first loop goes through samples, of which
    there is often one, so another one is shared if it can be.

    Args:
        sch: The schedule.
        loops: Loops that follow each other from the outermost one, in the order of the axes.
        work: The number of scalar operations, None if it is not known.
    """
    free = [loop for loop in loops if not extent(sch, loop)]
    before, after = list[Any](), list[Any]()
    if len(free) > 1:
        place = 1 if free[0] is loops[0] else 0
        before, after = free[:place], free[place + 1 :]
    shared = [*free[len(before) : len(free) - len(after)], *(loop for loop in loops if loop not in free)]
    if [*before, *shared, *after] != list(loops):
        sch.reorder(*before, *shared, *after)
    fused = sch.fuse(*shared) if len(shared) > 1 else shared[0]
    if work is None or work >= PARALLEL_WORK:
        sch.parallel(fused)
    return after[-1] if after else fused


def _tile(
    column_extent: int, row_extent: int, place: int, widths: Sequence[int], processor: Processor
) -> tuple[int, int | None, bool]:
    """Columns and rows of a tile, and whether tiles below each other come first: the n-th way that there is.

    Sums that do not fit into the registers, beside what they are made of, are stored and loaded for each product. With the tiles
    for 32 registers, a processor with 16 took 0.34 ms for the first convolution of a MobileNet, 0.15 with those for 16.

    Args:
        column_extent: Number of columns.
        row_extent: Number of rows, or a number of which it is a multiple.
        place: The number of the way.
        widths: Columns that a tile may have.
        processor: The processor.

    Raises:
        ValueError: There is no such way.
    """
    best = Tile.of(processor, _BEST_VECTORS)

    def tile(shape: tuple[int, int | None]) -> Tile:
        return Tile(shape[1] or 1, math.ceil(shape[0] / processor.lanes), processor.lanes)

    def fits(shape: tuple[int, int]) -> bool:
        return math.prod(shape) * 4 <= _STACK_BYTES and tile(shape).registers <= processor.registers

    by_width: list[list[tuple[int, int | None]]] = []
    for columns in (c for c in TILE_COLUMNS if c in widths and column_extent and column_extent % c == 0):
        rows: list[int | None] = [r for r in TILE_ROWS if row_extent and row_extent % r == 0 and fits((columns, r))]
        by_width.append([(columns, r) for r in rows or [None]])
    # A weight is packed by the widest columns that fit: first come tiles that divide these.
    packed = by_width[0][0][0] if by_width else 1
    by_width.sort(key=lambda shapes: (packed % shapes[0][0] != 0, -tile(shapes[0]).speed))
    is_best_packed = packed % best.panel == 0
    shapes = sorted(itertools.chain(*by_width), key=lambda s: not (is_best_packed and s == (best.panel, best.rows)))
    ways = [(*shape, columns_first) for columns_first in (True, False) for shape in shapes]
    if place >= len(ways):
        raise ValueError("nothing to vectorise")
    return ways[place]


def divisor(extent: int | None, choices: Sequence[int]) -> int | None:
    """Return the first of ``choices`` that divides ``extent``."""
    return next((choice for choice in choices if extent and extent % choice == 0), None)


def extent(sch: s_tir.Schedule, loop: Any) -> int:
    """Return the extent of ``loop``, 0 if it is not a constant."""
    extent = sch.get(loop).extent
    return int(extent) if isinstance(extent, tirx.IntImm) else 0


def _multiple(sch: s_tir.Schedule, loop: Any) -> int:
    """Return a number of which the extent of ``loop`` is a multiple: the extent if it is a constant, 1 if nothing is known."""
    known = sym.Analyzer().modular_set(sch.get(loop).extent)
    return extent(sch, loop) or (int(known.coeff) if not int(known.base) else 1)


def product(sch: s_tir.Schedule, loops: Sequence[Any]) -> int | None:
    """Return the product of the loops' extents, None if one is not a constant."""
    total = 1
    for loop in loops:
        total *= extent(sch, loop)
    return total or None
