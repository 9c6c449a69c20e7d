"""Loops of products of rows with weights of 4 or 8 bits, which stay as narrow as they are until they are in registers.

Weights of a column are in words of 32 bits, in chunks of 32 weights: word ``i`` of a chunk holds the weights ``i``, ``i + b``,
``i + 2 b`` and so on for ``b`` bits, from its lowest bits on. All are stored without a sign, plus half of their range.

* ``FloatLoops``: a weight, shifted to the highest digits of a float between 1 and 2, is that float without a conversion. What
  this adds to each weight is the same for all, so that a multiple of the sum of the row's block takes it away again.
* ``ByteLoops``: processors that multiply bytes do so four at a time. A chunk of a row becomes integers of 16 bits with a scale,
  in two bytes: the error of a product is that of its weights.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.tirx.script.builder import ir as build

from collage.toolchains.tvm.lengths import ceil_div, f32, i64
from collage.toolchains.tvm.nests import Epilogue
from collage.toolchains.tvm.processor import Processor, Tile
from collage.toolchains.tvm.products import ProductLoops, RowProduct, sums_of_tile
from collage.toolchains.tvm.stored_weights import CHUNK

__all__ = ["ByteLoops", "FloatLoops", "Narrow", "NarrowLoops", "as_float", "scale_in"]

_VECTORS = 4
"""Vectors of columns of a tile, and cycles that an addition takes."""
_ROWS = 4
"""Rows that share the conversion of a weight to a float."""
_DIGITS = 23
"""Binary digits of a float in single precision after the first, which is 1."""
_ONE = 0x3F800000
_MIDDLE = 1.5
"""The float that stands for a weight of 0."""
_MOST = 127 * 256
"""The largest integer of a row: its upper byte has a sign."""
_LEAST = 1e-30
"""The largest number of a chunk that counts. What divides by less may be infinite."""
_ROUNDER = 12582912.0
"""A float that has no digits after the point: the lowest bits of a sum with it are an integer."""
_ROUNDER_BITS = 0x4B400000
_NOT_SIGN = 0x7FFFFFFF
_PARTS = 4
"""Weights that the processor multiplies and adds up at once."""
_WIDE_BYTES = 22
"""The version of LLVM from which on products of bytes take vectors of bytes, and not of words."""


@dataclass(frozen=True, slots=True)
class Narrow:
    """Weights of few bits.

    Attributes:
        bits: Bits of a weight.
        block: Weights, along a column, that share a scale: a multiple of ``CHUNK``.
        has_zeros: True if each block has a zero point, too.
    """

    bits: int
    block: int
    has_zeros: bool = False

    @property
    def offset(self) -> int:
        """Return what is added to a weight."""
        return 1 << (self.bits - 1)

    def packed(self, integers: np.ndarray) -> np.ndarray:
        """Return integers [panels, K, columns] as words [panels, K / weights in a word, columns]."""
        panels, depth, columns = integers.shape
        shifted = (integers.astype(np.int32) + self.offset).astype(np.uint32)
        parts = shifted.reshape(panels, depth // CHUNK, CHUNK // self.bits, self.bits, columns)
        shifts = (np.arange(CHUNK // self.bits, dtype=np.uint32) * self.bits)[:, None, None]
        words: np.ndarray = np.bitwise_or.reduce(parts << shifts, axis=2)
        return words.reshape(panels, -1, columns).view(np.int32)


class NarrowLoops(ProductLoops, abc.ABC):
    """Writes the loops of one product into the function that is being built.

    Args:
        product: The product.
        narrow: Its weights.
        data: The buffer of rows.
        words: The buffer of words [panels, K / weights in a word, columns of a panel].
        units: The buffers of scales [panels, blocks, columns of a panel], floats or the upper halves of floats, and of zero
            points, if there are any.
        output: The buffer of results.
        epilogue: See ``Epilogue``.
    """

    def __init__(
        self,
        product: RowProduct,
        narrow: Narrow,
        data: Any,
        words: Any,
        units: tuple[Any, Any | None],
        output: Any,
        epilogue: Epilogue,
    ) -> None:
        super().__init__(product, data, words, output, epilogue)
        self._narrow = narrow
        self._scales, self._zeros = units

    @staticmethod
    def factor_of(narrow: Narrow) -> float:
        """Return the factor of all scales."""
        return 1.0

    @staticmethod
    @abc.abstractmethod
    def most_rows(processor: Processor, vectors: int) -> int:
        """Return the rows of a tile of so many vectors."""

    @classmethod
    def tile(cls, count: Any, columns: int, processor: Processor) -> Tile:
        """Return the tile for so many rows, if that is known, and columns."""
        panels = ceil_div(columns, processor.lanes)
        # Of vectors that have no columns nothing may be stored. And all threads have a part.
        fit = (n for n in range(_VECTORS, 1, -1) if panels % n == 0 and panels // n >= processor.threads)
        vectors = next(fit, 1)
        most = cls.most_rows(processor, vectors)
        return Tile(min(count, most) if isinstance(count, int) else most, vectors, processor.lanes)

    def write(self) -> None:
        """Write all loops: of single rows if there are few, and of tiles of rows."""
        # TVM allocates memory before it binds lengths.
        free = i64(math.prod(self._product.lengths))
        product = self._begin()
        self._rows = math.prod(product.lengths)
        self._prepare(free)
        with build.parallel(i64(product.panels)) as panel:
            if isinstance(self._rows, int) or product.tile.rows == 1:
                self._write_tiles(panel)
                return
            with build.If(self._count < product.tile.rows):
                with build.Then():
                    self._product = replace(product, tile=replace(product.tile, rows=1))
                    self._write_tiles(panel)
                with build.Else():
                    self._product = product
                    self._write_tiles(panel)

    @abc.abstractmethod
    def _prepare(self, rows: Any) -> None:
        """Write what is computed of all rows before the loops, in buffers for so many rows."""

    @abc.abstractmethod
    def _add_block(self, places: Any, panel: Any, block: Any) -> Callable[[int, Any], Any]:
        """Write the product of a block, and return the float of each row of the tile and each of its columns."""

    def _write_tiles(self, panel: Any) -> None:
        rows = self._product.tile.rows
        with build.serial(ceil_div(i64(self._rows), rows)) as group:
            row = build.bind(group * rows)
            self._finish(self._sums(row, panel), row, panel)

    def _sums(self, row: Any, panel: Any) -> Any:
        """Add up a tile in registers, and return a buffer with the sums of its rows."""
        product, tile = self._product, self._product.tile
        places = build.alloc_buffer((i64(tile.rows),), "int64", layout=None)
        for i in range(tile.rows):
            build.buffer_store(places, tirx.min(row + i, self._count - 1), [i])
        with sums_of_tile(tile) as (each, kept), build.serial(i64(product.depth // self._narrow.block)) as block:
            part = self._add_block(places, panel, block)

            def scaled(i: int, total: Any, at: Any) -> None:
                build.buffer_store(total, total[at] + part(i, at) * scale_in(self._scales, panel, block, at), [at])

            each(scaled)
        return kept

    def _vectors(self) -> Sequence[Any]:
        """Return the columns of each vector of a tile."""
        tile = self._product.tile
        return [tirx.Ramp(i64(vector * tile.lanes), i64(1), tile.lanes) for vector in range(tile.vectors)]


class FloatLoops(NarrowLoops):
    """Loops that multiply floats."""

    @staticmethod
    def factor_of(narrow: Narrow) -> float:
        """Return the factor of all scales: the values that a weight may have."""
        return 1 << narrow.bits

    @staticmethod
    def most_rows(processor: Processor, vectors: int) -> int:
        """Return the rows of a tile of so many vectors."""
        return _ROWS

    def _prepare(self, rows: Any) -> None:
        """Write what is to be taken from each block of each row's product."""
        narrow, depth = self._narrow, self._product.depth
        blocks = depth // narrow.block
        self._taken = build.alloc_buffer((rows * blocks,), "float32", layout=None)
        with build.serial(i64(self._rows)) as row, build.serial(i64(blocks)) as block:
            first = build.bind(row * depth + block * narrow.block)
            total = build.alloc_buffer((i64(1),), "float32", layout=None)
            build.buffer_store(total, f32(0.0), [0])
            with build.serial(i64(narrow.block // CHUNK)) as chunk:
                values = [self._source[first + chunk * CHUNK + i] for i in range(CHUNK)]
                while len(values) > 1:  # In pairs, so that no addition waits for all before it.
                    values = [a + b for a, b in zip(values[::2], values[1::2], strict=True)]
                build.buffer_store(total, total[0] + values[0], [0])
            build.buffer_store(self._taken, total[0] * _MIDDLE, [row * blocks + block])

    def _add_block(self, places: Any, panel: Any, block: Any) -> Callable[[int, Any], Any]:
        narrow, tile = self._narrow, self._product.tile
        blocks = self._product.depth // narrow.block
        # As many sums are added to at a time as an addition takes cycles.
        chains = max(1, _VECTORS // (tile.rows * tile.vectors))
        with (
            sums_of_tile(replace(tile, rows=tile.rows * chains)) as (each, parts),
            build.serial(i64(narrow.block // CHUNK)) as chunk,
            build.serial(i64(narrow.bits)) as word,
        ):
            place = build.bind(block * (narrow.block // CHUNK) + chunk)
            self._multiply(each, places, panel, place, word, chains)

        def part(i: int, at: Any) -> Any:
            whole = sum((parts[i * chains + chain, at] for chain in range(1, chains)), parts[i * chains, at])
            taken = self._taken[places[i] * blocks + block]
            if self._zeros is None:
                return whole - taken
            # The float of a zero point, in place of the one of 0.
            share = f32(1 / (_MIDDLE * (1 << narrow.bits)))
            return whole - taken * (self._zeros[panel, block, at].astype("float32") * share + f32(1.0))

        return part

    def _multiply(self, each: Any, places: Any, panel: Any, chunk: Any, word: Any, chains: int) -> None:
        """Add the products of the weights of a word of each column to the sums of a block, of which a row has several."""
        narrow, tile = self._narrow, self._product.tile
        size = i64(tile.panel)
        read = build.alloc_buffer((size,), "int32", layout=None)
        value = build.alloc_buffer((size,), "float32", layout=None)
        for at in self._vectors():
            build.buffer_store(read, self._weight[panel, chunk * narrow.bits + word, at], [at])
        mask = ((1 << narrow.bits) - 1) << (_DIGITS - narrow.bits)
        for number, first in enumerate(range(0, CHUNK, narrow.bits)):
            by = _DIGITS - narrow.bits - first
            for at in self._vectors():
                moved = read[at] << by if by >= 0 else read[at] >> -by
                build.buffer_store(value, tirx.reinterpret(f"float32x{tile.lanes}", moved & mask | _ONE), [at])

            def add(i: int, total: Any, at: Any, number: int = number, first: int = first) -> None:
                if i % chains == number % chains:
                    x = self._source[places[i // chains] * self._product.depth + chunk * CHUNK + word + first]
                    build.buffer_store(total, total[at] + x * value[at], [at])

            each(add)


class ByteLoops(NarrowLoops):
    """Loops that multiply bytes."""

    @staticmethod
    def most_rows(processor: Processor, vectors: int) -> int:
        """Return the rows of a tile of so many vectors: the products of their two bytes fill half of the registers."""
        return max(1, processor.registers // (4 * vectors))

    def _prepare(self, rows: Any) -> None:
        """Write the integers of each chunk of each row: words of their upper and then of their lower bytes."""
        depth, words = self._product.depth, CHUNK // _PARTS
        chunks = depth // CHUNK
        self._bytes = build.alloc_buffer((rows * chunks * (2 * words),), "int32", layout=None)
        self._units = build.alloc_buffer((rows * chunks,), "float32", layout=None)
        self._taken = build.alloc_buffer((rows * chunks,), "int32", layout=None)
        ints = f"int32x{words}"
        with build.serial(i64(self._rows)) as row, build.serial(i64(chunks)) as chunk:
            place = build.bind(row * chunks + chunk)
            values = [self._source[tirx.Ramp(place * CHUNK + i * words, i64(1), words)] for i in range(_PARTS)]
            sizes = [tirx.reinterpret(ints, value) & _NOT_SIGN for value in values]
            # As integers, the largest is NaN if there is any.
            greatest = tirx.max(tirx.max(sizes[0], sizes[1]), tirx.max(sizes[2], sizes[3]))
            found = tirx.call_llvm_pure_intrin("int32", "llvm.vector.reduce.smax", greatest)
            size = build.bind(tirx.reinterpret("float32", build.bind(found)))
            is_usual = tirx.all(size >= f32(_LEAST), size < f32(math.inf))
            factor = build.bind(tirx.Select(is_usual, f32(_MOST) / size, f32(0.0)))
            build.buffer_store(self._units, size * f32(1 / _MOST), [place])
            whole = build.alloc_buffer((i64(CHUNK),), "int32", layout=None)
            at = [tirx.Ramp(i64(i * words), i64(1), words) for i in range(_PARTS)]
            for i, value in enumerate(values):
                moved = value * tirx.Broadcast(factor, words) + tirx.Broadcast(f32(_ROUNDER), words)
                build.buffer_store(whole, tirx.reinterpret(ints, moved) - _ROUNDER_BITS, [at[i]])
            total = (whole[at[0]] + whole[at[1]]) + (whole[at[2]] + whole[at[3]])
            added = tirx.call_llvm_pure_intrin("int32", "llvm.vector.reduce.add", total)
            build.buffer_store(self._taken, added * self._narrow.offset, [place])
            upper = [(whole[each] + 128) >> 8 for each in at]
            lower = [whole[each] - (high << 8) for each, high in zip(at, upper, strict=True)]
            for number, parts in enumerate((upper, lower)):
                word = parts[0] & 255 | (parts[1] & 255) << 8 | (parts[2] & 255) << 16 | parts[3] << 24
                first = place * (2 * words) + number * words
                build.buffer_store(self._bytes, word, [tirx.Ramp(first, i64(1), words)])

    def _add_block(self, places: Any, panel: Any, block: Any) -> Callable[[int, Any], Any]:
        narrow, tile = self._narrow, self._product.tile
        in_block, chunks = narrow.block // CHUNK, self._product.depth // CHUNK
        with sums_of_tile(tile) as (each, parts), build.serial(i64(in_block)) as number:
            chunk = build.bind(block * in_block + number)
            upper, lower = self._products(places, panel, chunk)

            def add(i: int, total: Any, at: Any) -> None:
                place = places[i] * chunks + chunk
                whole = (upper[i][at] << 8) + lower[i][at] - self._taken[place]
                if self._zeros is not None:
                    sums = self._taken[place] >> (narrow.bits - 1)
                    whole = whole - sums * self._zeros[panel, block, at].astype("int32")
                build.buffer_store(total, total[at] + whole.astype("float32") * self._units[place], [at])

            each(add)
        return lambda i, at: parts[i, at]

    def _products(self, places: Any, panel: Any, chunk: Any) -> tuple[Sequence[Any], Sequence[Any]]:
        """Write the products of a chunk, and return the buffers of those of the upper and of the lower bytes of each row."""
        narrow, tile = self._narrow, self._product.tile
        words, chunks = CHUNK // _PARTS, self._product.depth // CHUNK
        size, columns = (i64(tile.panel),), self._vectors()
        upper, lower = ([build.alloc_buffer(size, "int32", layout=None) for _ in range(tile.rows)] for _ in range(2))
        value = build.alloc_buffer(size, "int32", layout=None)
        for total in (*upper, *lower):
            for at in columns:
                build.buffer_store(total, tirx.Broadcast(tirx.IntImm("int32", 0), tile.lanes), [at])
        for word in range(narrow.bits):
            for first in range(0, words, narrow.bits):
                for at in columns:
                    read = self._weight[panel, chunk * narrow.bits + word, at]
                    build.buffer_store(value, _bytes_of(read, first, narrow.bits), [at])
                for i in range(tile.rows):
                    start = (places[i] * chunks + chunk) * (2 * words) + word + first
                    for total, x in ((upper[i], self._bytes[start]), (lower[i], self._bytes[start + words])):
                        for at in columns:
                            made = _dot(total[at], value[at], tirx.Broadcast(x, tile.lanes), tile.lanes)
                            build.buffer_store(total, made, [at])
        return upper, lower


def _bytes_of(word: Any, first: int, bits: int) -> Any:
    """Return the weights of a word that begin ``first`` bits after those of its bytes, in a byte each."""
    if bits == 8:
        return word
    mask = int.from_bytes(bytes([(1 << bits) - 1] * 4), "little")
    return (word >> first if first else word) & mask


def _dot(total: Any, unsigned: Any, signed: Any, lanes: int) -> Any:
    """Return a vector of integers plus the products of four bytes of each lane, of which the first have no sign."""
    name = f"llvm.x86.avx512.vpdpbusd.{32 * lanes}"
    if tvm.target.codegen.llvm_version_major() >= _WIDE_BYTES:
        unsigned, signed = (tirx.reinterpret(f"int8x{4 * lanes}", x) for x in (unsigned, signed))
    return tirx.call_llvm_pure_intrin(f"int32x{lanes}", name, total, unsigned, signed)


def scale_in(scales: Any, *place: Any) -> Any:
    """Return a scale, of which a buffer holds the float or the upper half of its bits."""
    return scales[*place] if str(scales.dtype) == "float32" else as_float(scales[*place])


def as_float(bits: Any) -> Any:
    """Return the float in single precision of which these are the upper half of the bits."""
    return tirx.reinterpret("float32", bits.astype("uint32") << tirx.const(16, "uint32"))
