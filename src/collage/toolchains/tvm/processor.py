"""The vectors of the processor that loops are written for by hand, and the tiles of sums that its registers hold."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import tvm

__all__ = ["MOST_ROWS", "WIDE", "Processor", "Tile", "current_processor", "processor_of"]

MOST_ROWS = 7
"""With one vector of columns, tiles of 14 rows are as fast, and LLVM compiles them for longer."""

_LEAST_ROWS = 4
"""Of 49 rows, tiles of five compute one twice, tiles of six five."""


@dataclass(frozen=True, slots=True)
class Processor:
    """The vectors of a processor.

    Attributes:
        lanes: Elements of single precision in a vector.
        registers: Number of vector registers.
        threads: Number of threads.
        multiplies_bytes: True if it multiplies four bytes of each lane, and adds the products up, at once.
    """

    lanes: int
    registers: int
    threads: int
    multiplies_bytes: bool = False

    @property
    def is_wide(self) -> bool:
        """Return True if the loops that are written by hand are for it."""
        return self.lanes >= _LEAST_LANES


_LEAST_LANES = 8
"""Of AVX2."""
WIDE = Processor(lanes=16, registers=32, threads=2)
"""A processor with AVX-512, and two threads."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Sums that are kept in registers.

    Attributes:
        rows: Rows of the tile.
        vectors: Vectors of columns.
        lanes: Elements of a vector.
    """

    rows: int
    vectors: int
    lanes: int

    @classmethod
    def of(cls, processor: Processor, vectors: int) -> Tile:
        """Return the tile of so many vectors whose sums fill the registers, beside the vectors of a row of the matrix."""
        rows = (processor.registers - vectors - 1) // vectors
        return cls(min(rows, MOST_ROWS), vectors, processor.lanes)

    def for_rows(self, count: int) -> Tile:
        """Return the tile for so many rows: with fewer rows if fewer are then computed twice."""
        heights = range(self.rows, min(self.rows, _LEAST_ROWS) - 1, -1)
        return replace(self, rows=min(heights, key=lambda rows: math.ceil(count / rows) * rows))

    @property
    def panel(self) -> int:
        """Return the number of columns."""
        return self.vectors * self.lanes

    @property
    def registers(self) -> int:
        """Return the number of registers for the sums, the vectors of a row of the matrix, and what multiplies them."""
        return self.rows * self.vectors + self.vectors + 1

    @property
    def speed(self) -> float:
        """Return how many sums there are for each value that is loaded."""
        return self.rows * self.vectors / (self.rows + self.vectors)


def processor_of(target: Any) -> Processor | None:
    """Return the processor of a target of TVM's; None if it has no wide vectors."""
    threads = int(target.attrs.get("num-cores", 1))
    has = tvm.target.codegen.target_has_features
    if has("avx512f", target):
        return Processor(16, 32, threads, has("avx512vnni", target))
    if has(["avx2", "fma"], target):
        return Processor(8, 16, threads, has("avxvnni", target))
    return None


def current_processor() -> Processor | None:
    """Return the processor of the current target, of narrow vectors if it has no wide ones; None if it is another device."""
    target = tvm.target.Target.current(allow_none=True)
    if target is None or target.kind.name != "llvm":
        return None
    return processor_of(target) or Processor(4, 16, int(target.attrs.get("num-cores", 1)))
