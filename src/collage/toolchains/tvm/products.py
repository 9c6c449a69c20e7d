"""Products with a constant matrix whose number of rows is free: pointwise convolutions, channels last, and layers of networks.

A pass over fused loops that are not scheduled yet. A tile of sums in registers needs several rows, and a schedule of TVM's splits
rows only into parts of equal size. Here the last tile of all begins with rows that are there, and repeats the last one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as build

from collage.toolchains.tvm.nests import Length, Nest, Unlike, lengths_of, margins_of, read_nest, stored
from collage.toolchains.tvm.processor import Processor, processor_of
from collage.toolchains.tvm.weight_layout import Calls, Packer, call_sites, is_weight

__all__ = ["use_products"]

_OPT_LEVEL = 3
_MOST_VECTORS = 4
_MOST_ROWS = 14
_BLOCK_BYTES = 1 << 17
"""Rows of this size stay in a second-level cache while all columns are computed."""


@dataclass(frozen=True, slots=True)
class _Product:
    """A product of rows and a matrix.

    Attributes:
        lengths: The lengths of the rows' axes.
        depth: Elements of a row.
        columns: Columns of the matrix.
        vectors: Vectors of columns in a tile.
        rows: Rows of a tile.
        lanes: Elements of a vector.
    """

    lengths: Sequence[Length]
    depth: int
    columns: int
    vectors: int
    rows: int
    lanes: int

    @property
    def panel(self) -> int:
        """Return the number of columns of a tile."""
        return self.vectors * self.lanes

    @property
    def groups(self) -> int:
        """Return the number of tiles below each other that one task computes."""
        return max(1, _BLOCK_BYTES // (4 * self.depth * self.rows))


def use_products(target: Any) -> Any:
    """Return a pass that rewrites products of a free number of rows. It runs at TVM's highest optimisation level only."""

    def rewrite(module: Any, _: Any) -> Any:
        processor = processor_of(target)
        if processor is None:
            return module
        sites = call_sites(module)
        calls = Calls(module)
        for variable, function in module.functions_items():
            if isinstance(function, tirx.PrimFunc) and variable in sites:
                is_open = not (function.attrs and function.attrs.get("tirx.is_scheduled"))
                calls.note(variable, "rows", _rewritten(function, sites[variable], processor) if is_open else None)
        return calls.rewritten(module)

    return tvm.transform.module_pass(rewrite, opt_level=_OPT_LEVEL, name="use_products")


def _rewritten(function: Any, sites: Sequence[Any], processor: Processor) -> tuple[Any, Mapping[int, Packer]] | None:
    """Return other loops, and the function that converts each weight for them, by position; None if the loops stay."""
    if not all(len(call.args[1]) > 1 and is_weight(call.args[1][1]) for call in sites):
        return None
    try:
        nest = read_nest(function)
        product = _product_of(nest, function.params[0], function.params[1], processor)
    except Unlike:
        return None
    return _write(product, function, nest), {1: functools.partial(_packed, product=product)}


def _product_of(nest: Nest, data: Any, weight: Any, processor: Processor) -> _Product:
    """Return the product of a nest.

    Raises:
        Unlike: It is none, or its rows are as many as a schedule can be made for.
    """
    store = nest.anchor.body
    *lengths, depth = lengths_of(data)
    *taps, _, columns = lengths_of(weight)
    spatial, reduced = (
        [each.var for each in nest.anchor.iter_vars if int(each.iter_type) == kind]
        for kind in (int(tirx.IterVar.DataPar), int(tirx.IterVar.CommReduce))
    )
    padded = _copied(nest, data)
    is_plain = isinstance(depth, int) and isinstance(columns, int) and set(taps) <= {1}
    are_floats = all(str(x.dtype) == "float32" for x in (data, weight, store.buffer))
    if not (is_plain and are_floats and len(reduced) == len(taps) + 1):
        raise Unlike
    *rows, column = spatial
    windows, place = reduced[:-1], list(rows)
    for axis, window in enumerate(windows, 1):
        place[axis] = place[axis] + window
    expected = store.buffer[*spatial] + padded[*place, reduced[-1]] * weight[*windows, reduced[-1], column]
    if len(rows) != len(lengths) or not tvm_ffi.structural_equal(store.value, expected):
        raise Unlike
    if all(isinstance(length, int) for length in lengths) or columns % processor.lanes:
        raise Unlike
    vectors = max(
        (n for n in range(1, _MOST_VECTORS + 1) if columns // processor.lanes % n == 0),
        key=lambda n: _rows(processor, n) * n / (_rows(processor, n) + n),
    )
    return _Product(lengths, depth, columns, vectors, _rows(processor, vectors), processor.lanes)


def _copied(nest: Nest, data: Any) -> Any:
    """Return the buffer that a sum reads: the input, or a copy of it, which TVM makes where it would pad it.

    Raises:
        Unlike: The input is padded.
    """
    if nest.padding is None:
        return data
    padded = stored(nest.padding).buffer
    if margins_of(nest.padding, data) != (0, 0) or not tvm_ffi.structural_equal(padded.shape, data.shape):
        raise Unlike
    return padded


def _rows(processor: Processor, vectors: int) -> int:
    """Return the rows of a tile whose sums fill the registers, beside the vectors of a row of the matrix."""
    return min((processor.registers - vectors - 1) // vectors, _MOST_ROWS)


def _packed(weight: np.ndarray, product: _Product) -> np.ndarray:
    """Return a weight [..., C, K] as [panels, C, columns of a panel]."""
    parts = weight.reshape(product.depth, product.columns // product.panel, product.panel)
    return np.ascontiguousarray(parts.transpose(1, 0, 2))


def _write(product: _Product, function: Any, nest: Nest) -> Any:
    """Return a scheduled function of a product and the operators after it."""
    data, _, *others, output = function.params
    panels = product.columns // product.panel
    with IRBuilder() as builder, build.prim_func(s_tir=True, private=True):
        build.func_name("rows")
        build.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        build.arg("data", data)
        shape = [_i64(n) for n in (panels, product.depth, product.panel)]
        weight = build.arg("weight", build.buffer(shape, "float32", layout=None))
        for i, other in enumerate(others):
            build.arg(f"other_{i}", other)
        build.arg("output", output)
        count = build.bind(math.prod(product.lengths))
        flat = build.decl_buffer((count * product.depth,), "float32", data=data.data, layout=None)
        size = product.groups * product.rows
        tasks = (count + (size - 1)) // size * panels
        with build.parallel(_i64(tasks)) as task:
            first, panel = build.bind(task // panels * size), build.bind(task % panels)
            left = build.bind(tirx.min(_i64(size), count - first))
            with build.serial((left + (product.rows - 1)) // product.rows) as group:
                row = build.bind(first + group * product.rows)
                sums = _multiply(product, flat, weight, row, panel, count)
                _finish(product, sums, row, panel, count, output, nest.epilogue)
    return builder.get()


def _multiply(product: _Product, data: Any, weight: Any, row: Any, panel: Any, count: Any) -> Any:
    """Add up a tile in registers, and return a buffer with the sums of its rows."""
    places = [build.bind(tirx.min(row + i, count - 1) * product.depth) for i in range(product.rows)]
    shape = (_i64(product.panel),)
    sums = [build.alloc_buffer(shape, "float32", scope="local", layout=None) for _ in places]
    kept = build.alloc_buffer((_i64(product.rows), _i64(product.panel)), "float32", layout=None)

    def each(do: Callable[[int, Any, Any], None]) -> None:
        for i, total in enumerate(sums):
            for vector in range(product.vectors):
                with build.vectorized(_i64(product.lanes)) as lane:
                    do(i, total, vector * product.lanes + lane)

    def add(i: int, total: Any, at: Any) -> None:
        build.buffer_store(total, total[at] + data[places[i] + k] * weight[panel, k, at], [at])

    each(lambda _, total, at: build.buffer_store(total, tirx.FloatImm("float32", 0.0), [at]))
    with build.serial(_i64(product.depth)) as k:
        each(add)
    each(lambda i, total, at: build.buffer_store(kept, total[at], [i, at]))
    return kept


def _finish(
    product: _Product, sums: Any, row: Any, panel: Any, count: Any, output: Any, epilogue: Callable[..., Any]
) -> None:
    """Apply the epilogue to the rows of a tile that are there, and store the results."""
    with build.serial(tirx.min(_i64(product.rows), count - row)) as i:
        place = _place(row + i, product.lengths)
        with build.serial(_i64(product.vectors)) as vector, build.vectorized(_i64(product.lanes)) as lane:
            at = vector * product.lanes + lane
            where = [*place, panel * product.panel + at]
            build.buffer_store(output, epilogue(sums[i, at], where), where)


def _place(row: Any, lengths: Sequence[Length]) -> list[Any]:
    """Return the indices of a row."""
    place: list[Any] = []
    for length in reversed(lengths[1:]):
        row = build.bind(row)
        place.insert(0, build.bind(row % length))
        row = row // length
    return [build.bind(row), *place]


def _i64(number: Length) -> Any:
    return tirx.IntImm("int64", number) if isinstance(number, int) else number
