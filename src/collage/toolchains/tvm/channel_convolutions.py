"""Convolutions of each channel by a window of its own, in ONNX's layout, and their schedule.

TVM's other convolutions have channels last, where channels fill vectors. A kernel in which no channel meets another would turn
its input and its output only for that. Here columns fill vectors, and each thread pads a channel, whose windows then come from
its cache: ``[1, 64, 120, 160]`` by 3 x 3 takes 0.4 ms instead of 1.3.
"""

from __future__ import annotations

from typing import Any

import onnx
from tvm import s_tir, te, tirx

from collage.toolchains.tvm.convolutions import Windows, is_known
from collage.toolchains.tvm.processor import Processor, Tile, current_processor
from collage.toolchains.tvm.tile_schedules import PARALLEL_WORK, TILE_ROWS, divisor, extent, product

__all__ = ["Channels", "are_by_channel", "by_channel", "mixes_channels"]

_MOST_TAPS = 7
"""The longest row of a window. ``[1, 192, 48, 48]`` by 7 x 7 takes 0.36 ms, and with channels last 0.45. By 11 x 11,
``[1, 64, 56, 56]`` takes 0.43 instead of 0.28, by 15 x 15 0.68 instead of 0.48.
"""
_BLOCK, _PADDED = "by_channel", "padded_channel"


def are_by_channel(x: Any, weight: Any, windows: Windows, processor: Processor | None) -> bool:
    """Return True for a convolution of single channels whose columns lie beside each other and fill vectors."""
    if processor is None or not is_known(weight) or str(weight.ty.dtype) != "float32":
        return False
    maps, mixed, *taps = (int(n) for n in weight.ty.shape.values)
    lengths = x.ty.shape.values
    is_fixed = all(isinstance(n, tirx.IntImm) for n in lengths)
    if not is_fixed or mixed != 1 or maps != windows.groups or maps != int(lengths[1]) or windows.strides[-1] != 1:
        return False
    *_, columns = windows.outputs([int(n) for n in lengths[2:]], taps)
    return taps[-1] <= _MOST_TAPS and divisor(columns, _widths(processor)) is not None


def mixes_channels(node: onnx.NodeProto) -> bool:
    """Return True for a convolution in one group."""
    return all(attribute.name != "group" or attribute.i == 1 for attribute in node.attribute)


def by_channel(bb: Any, x: Any, weight: Any, bias: Any, windows: Windows) -> Any:
    """Convolve each channel over two dimensions.

    Args:
        bb: Relax's builder.
        x: The input, of fixed lengths.
        weight: Its weight, a map for each channel.
        bias: Its bias, or None.
        windows: Its windows.
    """
    taps = [int(n) for n in weight.ty.shape.values[2:]]
    samples, channels, height, width = (int(n) for n in x.ty.shape.values)
    rows, columns = windows.outputs((height, width), taps)
    (above, left), (below, right) = windows.begins, windows.ends
    (down, along), (apart, beside) = windows.strides, windows.dilations

    def convolved(data: Any, window: Any, *added: Any) -> Any:
        def element(sample: Any, channel: Any, row: Any, column: Any) -> Any:
            inside = tirx.all(row >= above, row < height + above, column >= left, column < width + left)
            value = data(sample, channel, row - above, column - left)
            return tirx.if_then_else(inside, value, tirx.const(0, data.dtype))

        whole = te.compute((samples, channels, height + above + below, width + left + right), element, name=_PADDED)
        i, j = te.reduce_axis((0, taps[0]), "i"), te.reduce_axis((0, taps[1]), "j")

        def summed(sample: Any, channel: Any, row: Any, column: Any) -> Any:
            value = whole(sample, channel, row * down + i * apart, column * along + j * beside)
            return te.sum(value * window(channel, 0, i, j), axis=[i, j])

        y = te.compute((samples, channels, rows, columns), summed, name=_BLOCK)
        return te.compute(y.shape, lambda *at: y(*at) + added[0](at[1]), name="with_bias") if added else y

    return bb.emit_te(convolved, x, weight, *([] if bias is None else [bias]), primfunc_name_hint=_BLOCK)


class Channels:
    """The schedule of ``by_channel``, and of what follows element by element."""

    def apply(self, func: tirx.PrimFunc, target: Any, tunable: bool) -> s_tir.Schedule | None:
        """A schedule of ``func``, or None if it is another function."""
        sch, processor = s_tir.Schedule(func), current_processor()
        blocks = sch.get_child_blocks(sch.get_sblock("root"))
        if processor is None or [sch.get(block).name_hint for block in blocks[:2]] != [_PADDED, _BLOCK]:
            return None
        padded, summed, *after = blocks
        for block in after[:-1]:
            sch.compute_inline(block)
        last = after[-1] if after else sch.cache_write(summed, 0, "global")
        sample, channel, row, column, i, j = sch.get_loops(summed)
        width = divisor(extent(sch, column), _widths(processor))
        if width is None:
            return None
        one_vector = min(width, processor.lanes)
        tiles = [Tile(rows, width // one_vector, one_vector) for rows in TILE_ROWS]
        rows = divisor(extent(sch, row), [tile.rows for tile in tiles if tile.registers <= processor.registers])
        row, below = sch.split(row, [None, rows or 1])
        column, beside = sch.split(column, [None, width])
        vector, lanes = sch.split(beside, [None, one_vector])
        work = product(sch, sch.get_loops(summed))
        sch.reorder(sample, channel, row, column, i, j, below, vector, lanes)
        channel = sch.fuse(sample, channel)
        if work is None or work >= PARALLEL_WORK:
            sch.parallel(channel)
        for loop in (j, below, vector):
            sch.unroll(loop)
        sch.vectorize(lanes)
        sch.reverse_compute_at(last, column)
        _, lanes = sch.split(sch.get_loops(last)[-1], [None, one_vector])
        sch.vectorize(lanes)
        init = sch.decompose_reduction(summed, i)
        sch.vectorize(sch.get_loops(init)[-1])
        sch.compute_at(padded, channel)
        return sch


def _widths(processor: Processor) -> tuple[int, ...]:
    """Return the numbers of columns that a tile may have, the best one first."""
    return (2 * processor.lanes, processor.lanes, 8)
