"""Products of two computed matrices, as in attention, whose rows or columns a schedule cannot split into equal tiles.

A pass over fused loops that are not scheduled yet. The last tile below repeats the last row. The last tile to the right begins
earlier, so that it ends with the last column; what it computes again is the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as build

from collage.toolchains.tvm.lengths import Length, ceil_div, f32, i64, lengths_of, numbers_of
from collage.toolchains.tvm.nests import Nest, Unlike, all_of, rewrite_nests
from collage.toolchains.tvm.processor import Processor, Tile
from collage.toolchains.tvm.products import MOST_VECTORS, has_tiles, place_of, sums_of_tile
from collage.toolchains.tvm.tile_schedules import PARALLEL_WORK
from collage.toolchains.tvm.weight_layout import Packer

__all__ = ["MatrixLoops", "MatrixProduct", "Place", "load_of", "matrix_product_of", "use_matrix_products"]

_GROUPS = 8
"""Tiles below each other that one task computes. An encoder of 17 to 384 tokens takes as long, within 3 %, with 2 and with 32."""

_LEAST_LANES = 4
"""The fewest columns that make a vector."""

Place = Callable[[Any, Any, Any], Any]
"""Load an element of an operand by its row, its place in the sum, and its column."""


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """A product of matrices, maybe many of them.

    Attributes:
        lengths: Lengths of the result: of the axes that number the matrices, of rows and of columns.
        depth: Terms of a sum.
        tile: The tile that is computed at once.
    """

    lengths: Sequence[Length]
    depth: Length
    tile: Tile

    @property
    def is_parallel(self) -> bool:
        """Return True if there is enough work for threads, or an unknown amount of it."""
        lengths = [*self.lengths, self.depth]
        return not all(isinstance(n, int) for n in lengths) or math.prod(lengths) >= PARALLEL_WORK


def use_matrix_products(target: Any) -> Any:
    """Return a pass that rewrites products of computed matrices. It runs at TVM's highest optimisation level only."""
    return rewrite_nests(target, "matrices", _rewritten, of_weights=False)


def _rewritten(nest: Nest, function: Any, processor: Processor) -> tuple[Any, Mapping[int, Packer]]:
    """Return other loops; no operand needs another layout.

    Raises:
        Unlike: The loops stay.
    """
    product = matrix_product_of(nest, function, processor)
    *_, columns = product.lengths
    is_known = all(isinstance(n, int) for n in (*product.lengths, product.depth))
    if is_known and columns % product.tile.lanes == 0 and has_tiles(product.lengths[:-1]):
        raise Unlike  # A schedule can make tiles of it.
    return _write(product, function, nest), {}


def matrix_product_of(nest: Nest, function: Any, processor: Processor) -> MatrixProduct:
    """Return the product of a nest.

    Args:
        nest: The nest.
        function: Its function, whose first parameters are the operands.
        processor: The processor, which decides on the tile.

    Raises:
        Unlike: It is none, or has too few columns for a vector.
    """
    left, right, *_ = function.params
    store = nest.anchor.body
    *spatial, reduced = nest.anchor.iter_vars
    kinds = [int(each.iter_type) for each in nest.anchor.iter_vars]
    data, sum_ = int(tirx.IterVar.DataPar), int(tirx.IterVar.CommReduce)
    if nest.padding is not None or len(spatial) < 2 or kinds != [*[data] * len(spatial), sum_]:
        raise Unlike
    if any(str(x.dtype) != "float32" for x in (left, right, store.buffer)):
        raise Unlike
    row, column = spatial[-2].var, spatial[-1].var
    of_left, of_right = (load_of(store.value, operand) for operand in (left, right))
    total = store.buffer[*(each.var for each in spatial)]
    if not tvm_ffi.structural_equal(store.value, total + of_left * of_right):
        raise Unlike
    reads_column, reads_row = (
        any(variable.same_as(v) for place in load.indices for v in all_of(place, ir.Var))
        for load, variable in ((of_left, column), (of_right, row))
    )
    if reads_column or reads_row or not of_right.indices[-1].same_as(column):
        raise Unlike
    lengths = lengths_of(store.buffer)
    *_, columns = lengths
    (depth,) = numbers_of([reduced.dom.extent])
    tile = Tile.of(processor, 1)  # With two vectors, 17 columns of a free number take a tenth longer, and 384 as long.
    if isinstance(columns, int):
        if columns < _LEAST_LANES:
            raise Unlike
        # The 15 columns of a head are two vectors of 8 that share one.
        processor = replace(processor, lanes=min(processor.lanes, 1 << columns.bit_length() - 1))
        tiles = (Tile.of(processor, n) for n in range(1, min(MOST_VECTORS, columns // processor.lanes) + 1))
        tile = max(tiles, key=lambda tile: tile.speed / (ceil_div(columns, tile.panel) * tile.panel))
    if isinstance(lengths[-2], int):
        tile = replace(tile, rows=min(tile.rows, lengths[-2]))
    return MatrixProduct(lengths, depth, tile)


def load_of(value: Any, operand: Any) -> Any:
    """Return the one load of an operand in an expression.

    Raises:
        Unlike: There is none, or there are several.
    """
    loads = [load for load in all_of(value, ir.TensorLoad) if load.source.same_as(operand)]
    if len(loads) != 1:
        raise Unlike
    return loads[0]


def _write(product: MatrixProduct, function: Any, nest: Nest) -> Any:
    """Return a scheduled function of a product and the operators after it."""
    *inputs, output = function.params
    with IRBuilder() as builder, build.prim_func(s_tir=True, private=True):
        build.func_name("matrices")
        build.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        for i, each in enumerate(inputs):
            build.arg(f"input_{i}", each)
        build.arg("output", output)
        MatrixLoops(product, nest, function).write()
    return builder.get()


class MatrixLoops:
    """Writes the loops of one product into the function that is being built."""

    def __init__(self, product: MatrixProduct, nest: Nest, function: Any) -> None:
        self._product, self._nest, self._output = product, nest, function.params[-1]
        value = nest.anchor.body.value
        self._loads = tuple(load_of(value, operand) for operand in function.params[:2])

    def write(self) -> None:
        """Write all loops."""
        product = self._product
        *batch, rows, _ = product.lengths
        blocks = build.bind(ceil_div(i64(rows), _GROUPS * product.tile.rows))
        tasks = math.prod([i64(n) for n in batch], start=blocks)
        with (build.parallel if product.is_parallel else build.serial)(tasks) as task:
            matrix = place_of(task // blocks, batch) if batch else []
            self._write_block(matrix, build.bind(task % blocks * (_GROUPS * product.tile.rows)))

    def _write_block(self, matrix: Sequence[Any], first: Any) -> None:
        """Compute the rows of one task."""
        product = self._product
        *_, rows, columns = product.lengths
        left_over = build.bind(tirx.min(i64(_GROUPS * product.tile.rows), rows - first))

        def by_tiles() -> None:
            with build.serial(i64(ceil_div(columns, product.tile.panel))) as panel:
                column = build.bind(tirx.min(panel * product.tile.panel, columns - product.tile.panel))
                with build.serial(ceil_div(left_over, product.tile.rows)) as group:
                    row = build.bind(first + group * product.tile.rows)
                    self._finish(self.sums(matrix, row, column), matrix, row, column)

        if isinstance(columns, int):
            by_tiles()
            return
        with build.If(columns >= product.tile.panel):
            with build.Then():
                by_tiles()
            with build.Else(), build.serial(left_over) as i, build.serial(columns) as column:
                self._write_one(matrix, build.bind(first + i), column)

    def _write_one(self, matrix: Sequence[Any], row: Any, column: Any) -> None:
        """Compute one element."""
        total = build.alloc_buffer((i64(1),), "float32", layout=None)
        build.buffer_store(total, f32(0.0), [0])
        left, right = self._operands(matrix)
        with build.serial(i64(self._product.depth)) as k:
            build.buffer_store(total, total[0] + left(row, k, column) * right(row, k, column), [0])
        where = [*matrix, row, column]
        self._nest.finish(self._output, total[0], where)

    def _operands(self, matrix: Sequence[Any]) -> tuple[Place, Place]:
        """Return how the elements of both operands are loaded."""
        variables = [each.var for each in self._nest.anchor.iter_vars]

        def loader_of(load: Any) -> Place:
            def placed(row: Any, k: Any, column: Any) -> Any:
                values = (*matrix, row, column, k)

                def replaced(variable: Any) -> Any:
                    known = zip(variables, values, strict=True)
                    return next((value for own, value in known if own.same_as(variable)), variable)

                places = [tvm_ffi.structural_map(place, [(ir.Var, replaced)]) for place in load.indices]
                return load.source[*places]

            return placed

        left, right = map(loader_of, self._loads)
        return left, right

    def sums(self, matrix: Sequence[Any], row: Any, column: Any, rows_of: Place | None = None) -> Any:
        """Add up a tile in registers, and return a buffer with the sums of its rows.

        Args:
            matrix: The number of the matrix, on each axis that numbers them.
            row: The first row of the tile. Rows beyond the last are the last again.
            column: Its first column.
            rows_of: Loads an element of the left operand; by default as the nest does.
        """
        product = self._product
        rows = product.lengths[-2]
        left, right = self._operands(matrix)
        left = left if rows_of is None else rows_of
        # In a buffer, since of an expression for each row TVM makes one that tells how much of the input they read together.
        places = build.alloc_buffer((i64(product.tile.rows),), "int64", layout=None)
        for i in range(product.tile.rows):
            build.buffer_store(places, tirx.min(row + i, rows - 1), [i])
        with (
            sums_of_tile(product.tile) as (each, kept),
            build.serial(i64(product.depth)) as k,
        ):

            def add(i: int, total: Any, at: Any) -> None:
                value = left(places[i], k, column) * right(row, k, column + at)
                build.buffer_store(total, total[at] + value, [at])

            each(add)
        return kept

    def _finish(self, sums: Any, matrix: Sequence[Any], row: Any, column: Any) -> None:
        """Apply the epilogue to the rows of a tile that are there, and store the results."""
        product = self._product
        left_over = tirx.min(i64(product.tile.rows), product.lengths[-2] - row)
        vectors, lanes = i64(product.tile.vectors), i64(product.tile.lanes)
        with build.serial(left_over) as i, build.serial(vectors) as vector, build.vectorized(lanes) as lane:
            at = vector * product.tile.lanes + lane
            where = [*matrix, row + i, column + at]
            self._nest.finish(self._output, sums[i, at], where)
