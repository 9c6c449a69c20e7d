"""The vectors of the processor that loops are written for by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm

__all__ = ["WIDE", "Processor", "current_processor", "processor_of"]


@dataclass(frozen=True, slots=True)
class Processor:
    """The vectors of a processor.

    Attributes:
        lanes: Elements of single precision in a vector.
        registers: Number of vector registers.
        threads: Number of threads.
    """

    lanes: int
    registers: int
    threads: int

    @property
    def is_wide(self) -> bool:
        """Return True if the loops that are written by hand are for it."""
        return self.lanes >= _LEAST_LANES


_LEAST_LANES = 8
WIDE = Processor(lanes=16, registers=32, threads=2)
"""A processor with AVX-512, and two threads."""


def processor_of(target: Any) -> Processor | None:
    """Return the processor of a target of TVM's; None if it has no wide vectors."""
    threads = int(target.attrs.get("num-cores", 1))
    if tvm.target.codegen.target_has_features("avx512f", target):
        return Processor(16, 32, threads)
    if tvm.target.codegen.target_has_features(["avx2", "fma"], target):
        return Processor(8, 16, threads)
    return None


def current_processor() -> Processor | None:
    """Return the processor of the current target, of narrow vectors if it has no wide ones; None if it is another device."""
    target = tvm.target.Target.current(allow_none=True)
    if target is None or target.kind.name != "llvm":
        return None
    return processor_of(target) or Processor(4, 16, int(target.attrs.get("num-cores", 1)))
