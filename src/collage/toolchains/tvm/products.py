"""Products of rows with a constant matrix: pointwise convolutions, and others whose rows split into no equal tiles.

A pass over fused loops that are not scheduled yet. A row of a convolution, channels last, is a pixel, whose elements are those of
its window. A tile of sums in registers needs several rows, and a schedule of TVM's splits rows only into parts of equal size, of
which there are none if their number is free, a prime, or twice a prime. Here the last tile of all begins with rows that are
there, and repeats the last one.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, relax, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as build

from collage.toolchains.tvm.convolutions import Windows
from collage.toolchains.tvm.lengths import Length, ceil_div, f32, i64, lengths_of
from collage.toolchains.tvm.nests import Epilogue, Nest, Unlike, all_of, margins_of, rewrite_nests, stored
from collage.toolchains.tvm.processor import MOST_ROWS, WIDE, Processor, Tile
from collage.toolchains.tvm.tile_schedules import TILE_ROWS
from collage.toolchains.tvm.weight_layout import Packer

__all__ = [
    "MOST_VECTORS",
    "ProductLoops",
    "RowProduct",
    "are_expected",
    "are_expected_of_windows",
    "has_tiles",
    "place_of",
    "sums_of_tile",
    "use_products",
]

Each = Callable[[Callable[[int, Any, Any], None]], None]
"""Write a statement for each vector of a tile, of its row, the buffer of the row's sums, and the columns."""

MOST_VECTORS = 4
_FEW_ELEMENTS = 64
"""Elements of a window of several pixels up to which equal tiles of TVM's are 1.1 times as fast: 3 x 3 pixels of 3 colours. With
7 x 7 pixels of them, or 5 x 5 of 64 channels, its loops take 1.15 times as long, pointwise ones of any depth 1 to 1.4 times.
"""
_FEW_COLUMNS = 4
_FEW_ROWS = 2
"""A schedule splits rows into equal tiles, of two if their number is twice a prime. A product of 197 rows took 2 to 3 times as
long so; of 38 or 130 rows, both take as long.
"""
_BLOCK_BYTES = 1 << 15
"""Rows of this size stay in a first-level cache while all columns are computed."""
_MOST_TILES = 16
"""With 8 or 64 tiles to a task, pointwise convolutions of ResNet-50 and of MobileNets take as long."""
_TASK_TILES = 0.5
"""To begin a task takes as long as so many tiles: it reads its part of the matrix."""


@dataclass(frozen=True, slots=True)
class RowProduct:
    """A product of rows and a matrix.

    Attributes:
        lengths: The lengths of the rows' axes.
        padded: The lengths of the axes that rows are read from, without that of their elements.
        margins: Rows and columns of zeros before those of the input; None if nothing is added around it.
        windows: Sizes of a window of each pixel; none for plain rows.
        strides: Pixels between windows.
        dilations: Pixels between those of a window.
        depth: Elements of a row, or of a pixel.
        columns: Columns of the matrix.
        tile: The tile that is computed at once.
        threads: Number of threads.
    """

    lengths: Sequence[Length]
    padded: Sequence[Length]
    margins: tuple[int, int] | None
    windows: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    depth: int
    columns: int
    tile: Tile
    threads: int

    @property
    def groups(self) -> int:
        """Return the number of tiles below each other that one task computes. If it can be, threads have equal shares."""
        count = math.prod(self.lengths)
        if not isinstance(count, int):
            return max(1, _BLOCK_BYTES // (4 * self.depth * self.tile.rows))
        tiles = math.ceil(count / self.tile.rows)

        def cost(groups: int) -> float:
            tasks = math.ceil(self.panels * math.ceil(tiles / groups) / self.threads)
            return tasks * (min(groups, tiles) + _TASK_TILES)

        return min(range(1, _MOST_TILES + 1), key=cost)

    @property
    def is_deep(self) -> bool:
        """Return True if the matrix is known to be larger than the rows: threads share it, and it is read once."""
        count = math.prod(self.lengths)
        return isinstance(count, int) and self.columns * math.prod(self.windows) >= count

    @property
    def panels(self) -> int:
        """Return the number of tiles beside each other."""
        return math.ceil(self.columns / self.tile.panel)


def are_expected(x: Any) -> bool:
    """Return True if products of a tensor in single precision with weights have own loops on a processor with wide vectors."""
    is_free = isinstance(x.ty.shape, relax.ShapeExpr) and not all(isinstance(n, tirx.IntImm) for n in x.ty.shape.values)
    return is_free and str(x.ty.dtype) == "float32"


def are_expected_of_windows(x: Any, weight: Any, windows: Windows, processor: Processor) -> bool:
    """Return True if a convolution over two dimensions, in one group, has own loops: they need no maps that fill vectors.

    Args:
        x: The input in Relax, in ONNX's layout.
        weight: The weight, which is known.
        windows: The windows.
        processor: The processor.
    """
    if are_expected(x):
        return True
    if not isinstance(x.ty.shape, relax.ShapeExpr) or str(x.ty.dtype) != "float32":
        return False
    maps, channels, *sides = map(int, weight.ty.shape.values)
    samples, _, *image = map(int, x.ty.shape.values)
    lengths = [samples, *windows.outputs(image, sides)]
    return processor.is_wide and _is_faster(lengths, sides, channels, maps, processor)


def use_products(target: Any) -> Any:
    """Return a pass that rewrites products of such rows. It runs at TVM's highest optimisation level only."""
    return rewrite_nests(target, "rows", _rewritten)


def _rewritten(nest: Nest, function: Any, processor: Processor) -> tuple[Any, Mapping[int, Packer]]:
    """Return other loops, and the function that converts each weight for them, by position.

    Raises:
        Unlike: The loops stay.
    """
    product = _product_of(nest, function.params[0], function.params[1], processor)
    return _write(product, function, nest), {1: functools.partial(_packed, product=product)}


def _product_of(nest: Nest, data: Any, weight: Any, processor: Processor) -> RowProduct:
    """Return the product of a nest.

    Raises:
        Unlike: It is none, or a schedule of TVM's is as fast.
    """
    store = nest.anchor.body
    source = data if nest.padding is None else stored(nest.padding).buffer
    *padded, depth = lengths_of(source)
    *windows, _, columns = lengths_of(weight)
    *lengths, _ = lengths_of(store.buffer)
    if any(str(x.dtype) != "float32" for x in (data, weight, store.buffer)):
        raise Unlike
    if not all(isinstance(n, int) for n in (depth, columns, *windows)):
        raise Unlike
    if not windows and columns < _FEW_COLUMNS:
        raise Unlike  # A sum along a row is one of vectors.
    strides, dilations = _steps(nest.anchor, source, weight, len(windows))
    margins = None if nest.padding is None else margins_of(nest.padding, data)
    if margins == (0, 0) and tvm_ffi.structural_equal(source.shape, data.shape):
        margins = None  # TVM copies where it would pad.
    if has_tiles(lengths) and not _is_faster(lengths, windows, depth, columns, processor):
        raise Unlike
    if {*windows, *strides} <= {1}:
        windows, strides, dilations = [], (), ()
    tile, threads = _tile(lengths, ceil_div(columns, processor.lanes), processor), processor.threads
    return RowProduct(lengths, padded, margins, tuple(windows), strides, dilations, depth, columns, tile, threads)


def _tile(lengths: Sequence[Length], vectors: int, processor: Processor) -> Tile:
    """Return the fastest tile for so many vectors of columns, with fewer rows if fewer are then computed twice."""
    tiles = (Tile.of(processor, n) for n in range(1, MOST_VECTORS + 1) if vectors % n == 0)
    tile, count = max(tiles, key=lambda tile: tile.speed), math.prod(lengths)
    return tile.for_rows(count) if isinstance(count, int) else tile


def has_tiles(lengths: Sequence[Length]) -> bool:
    """Return True if a schedule can make tiles of rows: of each length that is fixed, or of the few rows that there are."""
    if not all(isinstance(n, int) for n in lengths):
        return False
    last = next((n for n in reversed(lengths) if n != 1), 1)
    return math.prod(lengths) <= MOST_ROWS or any(last % rows == 0 for rows in TILE_ROWS if rows > _FEW_ROWS)


def _is_faster(lengths: Sequence[Any], windows: Sequence[int], depth: int, columns: int, processor: Processor) -> bool:
    """Return True for rows of fixed lengths that own loops multiply faster than equal tiles.

    Equal tiles whose sums fit into 16 registers are so small that a BERT takes 2.2 times as long by them.
    """
    if math.prod(lengths) <= MOST_ROWS or columns < processor.lanes:
        return False
    pixels = math.prod(windows)
    if not windows:
        return processor.registers < WIDE.registers
    return pixels == 1 or pixels * depth > _FEW_ELEMENTS


def _steps(block: Any, source: Any, weight: Any, windows: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return strides and dilations of a block that multiplies windows, or rows, with a weight, and adds up.

    Raises:
        Unlike: It computes something else.
    """
    spatial, reduced = (
        [each.var for each in block.iter_vars if int(each.iter_type) == kind]
        for kind in (int(tirx.IterVar.DataPar), int(tirx.IterVar.CommReduce))
    )
    loads = [load for load in all_of(block.body.value, ir.TensorLoad) if load.source.same_as(source)]
    if len(loads) != 1 or len(reduced) != windows + 1 or len(loads[0].indices) != len(spatial):
        raise Unlike
    *rows, column = spatial
    *places, element = loads[0].indices
    product = source[*loads[0].indices] * weight[*reduced, column]
    if not tvm_ffi.structural_equal(block.body.value, block.body.buffer[*spatial] + product):
        raise Unlike
    steps = []
    for axis, (place, row) in enumerate(zip(places, rows, strict=True)):
        within = reduced[axis - 1 : axis] if axis <= windows else []
        steps.append([int(n) for n in tvm.sym.detect_linear_equation(place, [row, *within])])
    if not element.same_as(reduced[-1]) or any(base for *_, base in steps):
        raise Unlike
    if steps[0] != [1, 0] or not (windows or all(step == [1, 0] for step in steps)):
        raise Unlike
    pixels = steps[1:] if windows else []
    return tuple(step[0] for step in pixels), tuple(step[1] for step in pixels)


def _packed(weight: np.ndarray, product: RowProduct) -> np.ndarray:
    """Return a weight [..., C, K] as [panels, elements of a window, columns of a panel], with columns of zeros in the last."""
    matrix = weight.reshape(-1, product.columns)
    matrix = np.pad(matrix, [(0, 0), (0, product.panels * product.tile.panel - product.columns)])
    parts = matrix.reshape(-1, product.panels, product.tile.panel)
    return np.ascontiguousarray(parts.transpose(1, 0, 2))


def _write(product: RowProduct, function: Any, nest: Nest) -> Any:
    """Return a scheduled function of a product and the operators after it."""
    data, _, *others, output = function.params
    with IRBuilder() as builder, build.prim_func(s_tir=True, private=True):
        build.func_name("rows")
        build.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        build.arg("data", data)
        shape = [i64(n) for n in (product.panels, math.prod(product.windows) * product.depth, product.tile.panel)]
        weight = build.arg("weight", build.buffer(shape, "float32", layout=None))
        for i, other in enumerate(others):
            build.arg(f"other_{i}", other)
        build.arg("output", output)
        ProductLoops(product, data, weight, output, nest.finish).write()
    return builder.get()


class ProductLoops:
    """Writes the loops of one product into the function that is being built."""

    def __init__(self, product: RowProduct, data: Any, weight: Any, output: Any, epilogue: Epilogue) -> None:
        self._product = product
        self._data, self._weight, self._output = data, weight, output
        self._epilogue = epilogue

    def _begin(self) -> RowProduct:
        """Bind lengths, and return the product with these."""
        # Long expressions of free lengths, divided by for each row of a tile, take TVM and LLVM several times as long.
        lengths, padded = (list(map(_bound, each)) for each in (self._product.lengths, self._product.padded))
        product = self._product = replace(self._product, lengths=lengths, padded=padded)
        self._count = build.bind(math.prod(product.lengths))
        size = math.prod(self._data.shape)
        self._source = build.decl_buffer((size,), "float32", data=self._data.data, layout=None)
        return product

    def write(self) -> None:
        """Write all loops."""
        product = self._begin()
        if product.margins is not None:
            self._source = self._padded(product.margins)
        size = product.groups * product.tile.rows
        chunks = ceil_div(self._count, size)
        with build.parallel(i64(chunks * product.panels)) as task:
            by = chunks if product.is_deep else product.panels
            chunk, panel = (task % by, task // by) if product.is_deep else (task // by, task % by)
            first, panel = build.bind(chunk * size), build.bind(panel)
            left = build.bind(tirx.min(i64(size), self._count - first))
            with build.serial(ceil_div(left, product.tile.rows)) as group:
                row = build.bind(first + group * product.tile.rows)
                self._finish(self._sums(row, panel), row, panel)

    def _padded(self, margins: tuple[int, int]) -> Any:
        """Copy the input to where there are zeros around it."""
        (samples, height, width), depth = self._product.padded, self._product.depth
        _, rows, columns, _ = lengths_of(self._data)
        made = build.alloc_buffer((i64(samples * height * width * depth),), "float32", layout=None)

        def fill(first: Any, length: Any, value: Callable[[Any], Any]) -> None:
            with build.serial(i64(length)) as i:
                build.buffer_store(made, value(i), [first + i])

        with build.parallel(i64(samples * height)) as line:
            row, first = build.bind(line % height - margins[0]), build.bind(line * width * depth)
            with build.If(tirx.all(row >= 0, row < rows)):
                with build.Then():
                    at = build.bind((line // height * rows + row) * columns * depth)
                    before = margins[1] * depth
                    fill(first, before, lambda _: f32(0.0))
                    fill(first + before, columns * depth, lambda i: self._source[at + i])
                    after = before + columns * depth
                    fill(first + after, width * depth - after, lambda _: f32(0.0))
                with build.Else():
                    fill(first, width * depth, lambda _: f32(0.0))
        return made

    def _sums(self, row: Any, panel: Any) -> Any:
        """Add up a tile in registers, and return a buffer with the sums of its rows."""
        product, depth = self._product, self._product.depth
        # In a buffer, since of an expression for each row TVM makes one that tells how much of the input they read together.
        places = build.alloc_buffer((i64(product.tile.rows),), "int64", layout=None)
        for i in range(product.tile.rows):
            build.buffer_store(places, self._begin_of(tirx.min(row + i, self._count - 1)), [i])

        def multiply(pixel: Any, tap: Any, count: int) -> None:
            def add(i: int, total: Any, at: Any) -> None:
                value = self._source[places[i] + pixel + k] * self._weight[panel, tap + k, at]
                build.buffer_store(total, total[at] + value, [at])

            with build.serial(i64(count)) as k:
                each(add)

        with sums_of_tile(product.tile) as (each, kept):
            if not product.windows:
                multiply(i64(0), i64(0), depth)
                return kept
            (height, width), (down, across) = product.windows, product.dilations
            # Pixels beside each other are one run of elements.
            beside, run = (1, width * depth) if across == 1 else (width, depth)
            with build.serial(i64(height)) as y, build.serial(i64(beside)) as x:
                pixel = build.bind((y * down * product.padded[-1] + x * across) * depth)
                multiply(pixel, build.bind((y * width + x) * depth), run)
        return kept

    def _begin_of(self, row: Any) -> Any:
        """Return where the elements of a row begin."""
        product = self._product
        if not product.windows:
            return row * product.depth
        sample, y, x = place_of(row, product.lengths)
        (_, height, width), (down, across) = product.padded, product.strides
        return ((sample * height + y * down) * width + x * across) * product.depth

    def _finish(self, sums: Any, row: Any, panel: Any) -> None:
        """Apply the epilogue to the rows of a tile that are there, and store the results."""
        product, tile = self._product, self._product.tile
        lanes = tile.lanes
        left_over = product.columns % lanes
        with build.serial(tirx.min(i64(tile.rows), self._count - row)) as i:
            place = place_of(row + i, product.lengths)

            def finish(vector: Any, lanes: int) -> None:
                with build.vectorized(i64(lanes)) as lane:
                    at = vector * tile.lanes + lane
                    where = [*place, panel * tile.panel + at]
                    self._epilogue(self._output, sums[i, at], where)

            with build.serial(i64(tile.vectors)) as vector:
                if not left_over:
                    finish(vector, lanes)
                elif product.columns < lanes:
                    finish(vector, left_over)
                else:
                    with build.If(panel * tile.panel + (vector + 1) * lanes <= product.columns):
                        with build.Then():
                            finish(vector, lanes)
                        with build.Else():
                            finish(vector, left_over)


@contextlib.contextmanager
def sums_of_tile(tile: Tile) -> Iterator[tuple[Each, Any]]:
    """Keep the sums of a tile in registers, from zero on, for as long as the context lasts.

    Args:
        tile: The tile.

    Yields:
        A function that writes a statement for each vector of the tile, and a buffer that has all sums afterwards, row by row.
    """
    panel = i64(tile.panel)
    # Not of the scope "local": TVM has small buffers of the scope "global" alone on the stack, where they become registers.
    sums = [build.alloc_buffer((panel,), "float32", layout=None) for _ in range(tile.rows)]
    kept = build.alloc_buffer((i64(tile.rows), panel), "float32", layout=None)

    def each(do: Callable[[int, Any, Any], None]) -> None:
        for i, total in enumerate(sums):
            for vector in range(tile.vectors):
                with build.vectorized(i64(tile.lanes)) as lane:
                    do(i, total, vector * tile.lanes + lane)

    each(lambda _, total, at: build.buffer_store(total, f32(0.0), [at]))
    yield each, kept
    each(lambda i, total, at: build.buffer_store(kept, total[at], [i, at]))


def place_of(row: Any, lengths: Sequence[Length]) -> list[Any]:
    """Return the indices of a row."""
    bind = build.bind if all(isinstance(length, int) for length in lengths[1:]) else _kept
    place: list[Any] = []
    for length in reversed(lengths[1:]):
        row = bind(row)
        place.insert(0, bind(row % length))
        row = row // length
    return [bind(row), *place]


def _kept(value: Any) -> Any:
    """Return a variable with an integer that TVM does not see through.

    TVM puts what a variable is bound to in its place wherever it simplifies, so that an index of several quotients by free
    lengths becomes an expression of thousands of terms.
    """
    place = build.alloc_buffer((i64(1),), "int64", layout=None)
    build.buffer_store(place, value, [0])
    return build.bind(place[0])


def _bound(length: Length) -> Length:
    return length if isinstance(length, int) else build.bind(length)
