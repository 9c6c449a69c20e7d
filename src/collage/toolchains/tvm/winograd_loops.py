"""Loops of a convolution by Winograd's algorithm, for processors with wide vectors, channels last.

The image is cut into tiles of m x m outputs. Each tile is transformed, (m + 2)^2 products of matrices (tiles x channels by
channels x maps) follow, and their results are transformed to outputs, with the operators that follow the convolution.

* **Local**: a thread transforms a block of tiles, multiplies, and transforms back. All that lies between stays in its cache.
* **Shared**: the threads first transform all tiles. Then each takes panels of maps, and reads their weights once. This is for
  weights that no cache holds, or tiles that are few.

Accumulators live in registers: each row of a product has a small buffer of its own, which LLVM keeps there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as build

from collage.toolchains.tvm.lengths import Length, ceil_div, f32, i64
from collage.toolchains.tvm.nests import Epilogue
from collage.toolchains.tvm.products import place_of
from collage.toolchains.tvm.winograd_transforms import Transforms, transforms

__all__ = ["Blocking", "Convolution", "packed_weight", "write_loops"]

_APART = 16
"""Padding in elements between the parts of a buffer. Without it, parts of power-of-two length compete for few cache lines."""


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution of windows 3 x 3 without stride, dilation or groups.

    Attributes:
        samples: Number of images; an expression where it is free, likewise:
        height: Height of an input.
        width: Width of an input.
        rows: Rows of an output.
        columns: Columns of an output.
        channels: Channels of an input.
        maps: Number of output channels.
        top: Rows of zeros above an input.
        left: Columns of zeros beside it.
    """

    samples: Length
    height: Length
    width: Length
    rows: Length
    columns: Length
    channels: int
    maps: int
    top: int
    left: int

    @property
    def is_free(self) -> bool:
        """Return True if a length is an expression."""
        lengths = (self.samples, self.height, self.width, self.rows, self.columns)
        return not all(isinstance(length, int) for length in lengths)

    def grid(self, outputs: int) -> tuple[Length, Length]:
        """Return the numbers of tiles below and beside each other in one image."""
        return ceil_div(self.rows, outputs), ceil_div(self.columns, outputs)

    def tiles(self, outputs: int) -> Length:
        """Return the number of tiles of all images."""
        down, across = self.grid(outputs)
        return self.samples * down * across


@dataclass(frozen=True, slots=True)
class Blocking:
    """The sizes of blocks.

    Attributes:
        outputs: The number m of F(m, 3).
        lanes: Elements of a vector.
        vectors: Vectors of maps in a panel.
        rows: Tiles whose products are in registers at a time.
        tiles: Tiles of a block.
        shared: True if all tiles are transformed before any is multiplied.
        threads: Threads among which tiles are shared evenly, if their number is free. Then ``tiles`` is the most of a block.
    """

    outputs: int
    lanes: int
    vectors: int
    rows: int
    tiles: int
    shared: bool
    threads: int = 1

    @property
    def panel(self) -> int:
        """Return the number of maps in a panel."""
        return self.lanes * self.vectors


def packed_weight(weight: np.ndarray, blocking: Blocking) -> np.ndarray:
    """Return a weight [3, 3, C, K], transformed, as [(m + 2)^2, panels, C, maps of a panel], with maps of zeros in the last."""
    channels, maps = weight.shape[2:]
    panels = ceil_div(maps, blocking.panel)
    weight = np.pad(weight, [(0, 0)] * 3 + [(0, panels * blocking.panel - maps)])
    made = transforms(blocking.outputs).of_weight(weight).reshape(-1, channels, panels, blocking.panel)
    return np.ascontiguousarray(made.transpose(0, 2, 1, 3), dtype=weight.dtype)


def write_loops(
    convolution: Convolution, blocking: Blocking, parameters: Sequence[Any], name: str, epilogue: Epilogue
) -> Any:
    """Return a scheduled function of a convolution and the operators after it.

    Args:
        convolution: The convolution.
        blocking: The sizes of its blocks.
        parameters: Buffers: the input, the weight (which is replaced by a packed one), the inputs of the epilogue, the output.
            Lengths of which shapes are expressions may be among the inputs.
        name: Name of the function.
        epilogue: The operators after the convolution, computed in the same loops.
    """
    data, _, *others, output = parameters
    matrices = transforms(blocking.outputs)
    panels = ceil_div(convolution.maps, blocking.panel)
    shape = (matrices.width**2, panels, convolution.channels, blocking.panel)
    with IRBuilder() as builder, build.prim_func(s_tir=True, private=True):
        build.func_name(name)
        build.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        build.arg("data", data)
        weight = build.arg("weight", _buffer_of(shape))
        for i, other in enumerate(others):
            build.arg(f"other_{i}", other)
        build.arg("output", output)
        _Loops(convolution, blocking, matrices, data, weight, output, epilogue).write()
    return builder.get()


class _Loops:
    """Writes the loops of one convolution into the function that is being built."""

    def __init__(
        self,
        convolution: Convolution,
        blocking: Blocking,
        matrices: Transforms,
        data: Any,
        weight: Any,
        output: Any,
        epilogue: Epilogue,
    ) -> None:
        self._conv = convolution
        self._blocking = blocking
        self._matrices = matrices
        self._data, self._weight, self._output = data, weight, output
        self._epilogue = epilogue
        self._tiles = convolution.tiles(blocking.outputs)
        self._size: Length = blocking.tiles
        self._blocks = ceil_div(self._tiles, self._size)
        self._block_rows = ceil_div(blocking.tiles, blocking.rows) * blocking.rows
        self._panels = ceil_div(convolution.maps, blocking.panel)

    def write(self) -> None:
        """Write all loops."""
        if self._conv.is_free:
            # Each thread has as many blocks as the others, as large as the number of tiles allows. There may be no tile.
            self._tiles = build.bind(self._tiles)
            rounds = build.bind(tirx.max(ceil_div(self._tiles, self._blocking.threads * self._blocking.tiles), i64(1)))
            self._size = build.bind(tirx.max(ceil_div(self._tiles, self._blocking.threads * rounds), i64(1)))
            self._blocks = build.bind(ceil_div(self._tiles, self._size))
        if self._blocking.shared:
            self._write_shared()
        else:
            self._write_local()

    def _write_local(self) -> None:
        with build.parallel(i64(self._blocks)) as block:
            transformed = self._scratch(self._block_rows * self._conv.channels)
            products, tile = self._scratch(self._block_rows * self._blocking.panel), self._tile()
            first, count = self._extent_of(block)
            with build.serial(count) as i:
                self._transform_tile(first + i, i, transformed, tile)
            with build.serial(i64(self._panels)) as panel:
                self._multiply(transformed, i64(0), panel, count, products)
                with build.serial(count) as i:
                    self._finish_tile(first + i, i, panel, products, tile)

    def _write_shared(self) -> None:
        transformed = self._scratch(self._blocks * self._block_rows * self._conv.channels)
        with build.parallel(i64(self._tiles)) as i:
            self._transform_tile(i, i, transformed, self._tile())
        with build.parallel(i64(self._panels * self._blocks)) as task:
            panel = build.bind(task // self._blocks)
            first, count = self._extent_of(build.bind(task % self._blocks))
            products, tile = self._scratch(self._block_rows * self._blocking.panel), self._tile()
            self._multiply(transformed, first, panel, count, products)
            with build.serial(count) as i:
                self._finish_tile(first + i, i, panel, products, tile)

    def _scratch(self, length: int) -> Any:
        return build.alloc_buffer((i64(self._matrices.width**2), i64(length + _APART)), "float32", layout=None)

    def _tile(self) -> Any:
        width = self._matrices.width
        return build.alloc_buffer((i64(width), i64(width), i64(self._blocking.lanes)), "float32", layout=None)

    def _extent_of(self, block: Any) -> tuple[Any, Any]:
        """Return the first tile of a block, and the number of its tiles."""
        first = build.bind(block * self._size)
        if not self._conv.is_free and self._tiles % self._size == 0:
            return first, i64(self._size)
        return first, build.bind(tirx.min(i64(self._size), self._tiles - first))

    def _place_of(self, tile: Any) -> tuple[Any, Any, Any]:
        """Return the sample of a tile, and its first row and column of outputs."""
        sample, row, column = place_of(tile, [self._conv.samples, *self._conv.grid(self._blocking.outputs)])
        return sample, row * self._blocking.outputs, column * self._blocking.outputs

    def _transform_tile(self, tile: Any, place: Any, transformed: Any, scratch: Any) -> None:
        """Transform one tile of all channels to the given place, a vector of channels at a time."""
        conv, width, full = self._conv, self._matrices.width, self._blocking.lanes
        sample, row, column = self._place_of(tile)
        top, left = build.bind(row - conv.top), build.bind(column - conv.left)
        inside = _all(top >= 0, left >= 0, top + width <= conv.height, left + width <= conv.width)

        def element(i: int, j: Any, channel: Any) -> Any:
            return self._data[sample, top + i, left + j, channel]

        def element_or_zero(i: int, j: Any, channel: Any) -> Any:
            y, x = top + i, left + j
            there = _all(y >= 0, y < conv.height, x >= 0, x < conv.width)
            return tirx.if_then_else(there, self._data[sample, y, x, channel], f32(0.0))

        # From rows that lie a free length apart, LLVM takes a minute to compile the loads of a transform.
        patch = None if isinstance(conv.height, int) and isinstance(conv.width, int) else self._tile()

        def copy(first: Any, lanes: int) -> None:
            with build.serial(i64(width)) as i, build.serial(i64(width)) as j, build.vectorized(i64(lanes)) as lane:
                build.buffer_store(patch, element_or_zero(i, j, first + lane), [i, j, lane])

        def transform(first: Any, lanes: int) -> None:
            def columns(read: Callable[[int, Any, Any], Any]) -> None:
                with build.serial(i64(width)) as j, build.vectorized(i64(lanes)) as lane:
                    values = [build.bind(read(i, j, first + lane)) for i in range(width)]
                    for i, value in enumerate(self._matrices.of_data(values)):
                        build.buffer_store(scratch, value, [i64(i), j, lane])

            if patch is not None:
                copy(first, lanes)
                columns(lambda i, j, channel: patch[i, j, channel - first])
            else:
                _either(inside, lambda: columns(element), lambda: columns(element_or_zero))
            with build.serial(i64(width)) as i, build.vectorized(i64(lanes)) as lane:
                values = [build.bind(scratch[i, j, lane]) for j in range(width)]
                for j, value in enumerate(self._matrices.of_data(values)):
                    build.buffer_store(transformed, value, [i * width + j, place * conv.channels + first + lane])

        if whole := conv.channels // full:
            with build.serial(i64(whole)) as vector:
                transform(vector * full, full)
        if left_over := conv.channels % full:
            transform(i64(whole * full), left_over)

    def _multiply(self, transformed: Any, first: Any, panel: Any, count: Any, products: Any) -> None:
        """Multiply the tiles of a block with one panel of weights."""
        rows = self._blocking.rows
        with (
            build.serial(i64(self._matrices.width**2)) as part,
            build.serial((count + (rows - 1)) // rows) as group,
        ):
            self._multiply_rows(transformed, build.bind(first + group * rows), part, panel, products, group * rows)

    def _multiply_rows(self, transformed: Any, row: Any, part: Any, panel: Any, products: Any, place: Any) -> None:
        """Multiply as many tiles as there are accumulators for."""
        size, vectors, lanes, channels = (
            self._blocking.rows,
            self._blocking.vectors,
            self._blocking.lanes,
            self._conv.channels,
        )
        shape = (i64(vectors * lanes),)
        sums = [build.alloc_buffer(shape, "float32", scope="local", layout=None) for _ in range(size)]

        def each(do: Callable[[Any, int, Any], None]) -> None:
            for i, total in enumerate(sums):
                for vector in range(vectors):
                    with build.vectorized(i64(lanes)) as lane:
                        do(total, i, vector * lanes + lane)

        def add(total: Any, i: int, at: Any) -> None:
            product = transformed[part, (row + i) * channels + channel] * self._weight[part, panel, channel, at]
            build.buffer_store(total, total[at] + product, [at])

        each(lambda total, _, at: build.buffer_store(total, f32(0.0), [at]))
        with build.serial(i64(channels)) as channel:
            each(add)
        width = self._blocking.panel
        each(lambda total, i, at: build.buffer_store(products, total[at], [part, (place + i) * width + at]))

    def _finish_tile(self, tile: Any, place: Any, panel: Any, products: Any, scratch: Any) -> None:
        """Transform one tile of products of one panel to outputs, apply the epilogue, and store the results."""
        conv, m, width, full = self._conv, self._blocking.outputs, self._matrices.width, self._blocking.lanes
        sample, top, left = self._place_of(tile)

        def rows(store: Callable[[Any, Sequence[Any]], None], lanes: int) -> None:
            with build.serial(i64(m)) as i, build.vectorized(i64(lanes)) as lane:
                outputs = self._matrices.of_products([build.bind(scratch[i, j, lane]) for j in range(width)])
                for j, value in enumerate(outputs):
                    store(value, [sample, top + i, left + j, first + lane])

        def anywhere(value: Any, where: Sequence[Any]) -> None:
            self._epilogue(self._output, value, list(where))

        def within(value: Any, where: Sequence[Any]) -> None:
            with build.If(_all(where[1] < conv.rows, where[2] < conv.columns)), build.Then():
                anywhere(value, where)

        def finish(lanes: int) -> None:
            if not conv.is_free and conv.rows % m == 0 and conv.columns % m == 0:
                rows(anywhere, lanes)
            else:
                whole = _all(top + m <= conv.rows, left + m <= conv.columns)
                _either(whole, lambda: rows(anywhere, lanes), lambda: rows(within, lanes))

        with build.serial(i64(self._blocking.vectors)) as vector:
            with build.serial(i64(width)) as j, build.vectorized(i64(full)) as lane:
                at = place * self._blocking.panel + vector * full + lane
                values = [build.bind(products[i * width + j, at]) for i in range(width)]
                for i, value in enumerate(self._matrices.of_products(values)):
                    build.buffer_store(scratch, value, [i64(i), j, lane])
            first = panel * self._blocking.panel + vector * full
            left_over = conv.maps % full
            if not left_over:
                finish(full)
            elif conv.maps < full:
                finish(left_over)
            else:
                _either(first + full <= conv.maps, lambda: finish(full), lambda: finish(left_over))


def _either(condition: Any, then: Callable[[], None], otherwise: Callable[[], None]) -> None:
    with build.If(condition):
        with build.Then():
            then()
        with build.Else():
            otherwise()


def _all(*conditions: Any) -> Any:
    return tirx.all(*conditions)


def _buffer_of(shape: Sequence[int]) -> Any:
    return build.buffer([i64(n) for n in shape], "float32", layout=None)
