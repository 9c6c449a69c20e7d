"""The best rates of one core, and of memory. Runs in a child, where the products of NumPy can be kept to one thread."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

__all__ = ["PeakWorker"]

_SIDE = 256
_COPIED_BYTES = (64 << 10, 256 << 10, 1 << 20)
"""Sizes of copies, since the C library copies in several ways. One way was ten times slower than those for other sizes."""
_TRIES = 100
_READ_BYTES = 128 << 20
"""Bytes that a core reads at a time: more than its share of any cache."""
_MOST_READ_BYTES = 2 << 30
_READS = 20


class PeakWorker:
    """Measures the best rates of one core in short bursts. Multiplied by the cores, they bound the machine's rates."""

    def flops_per_s(self) -> float:
        """Floating-point operations per second of a matrix product."""
        a = np.ones((_SIDE, _SIDE), np.float32)
        return 2.0 * _SIDE**3 / _least_s(lambda: np.dot(a, a))

    def bytes_per_s(self) -> float:
        """Bytes read and written per second by a copy inside the cache, of the size that is copied fastest."""
        return max(map(_copied_per_s, _COPIED_BYTES))

    def read_bytes_per_s(self, cores: int) -> float:
        """Return the bytes per second that so many cores together read from memory."""
        size = min(_READ_BYTES, _MOST_READ_BYTES // cores)
        arrays = [np.ones(size // 4, np.float32) for _ in range(cores)]
        with ThreadPoolExecutor(cores) as pool:  # Products of vectors leave the interpreter to the other threads.
            return cores * size / _least_s(lambda: list(pool.map(lambda x: x @ x, arrays)), _READS)


def _copied_per_s(size: int) -> float:
    source = np.ones(size, np.uint8)
    goal = np.empty_like(source)
    return 2.0 * size / _least_s(lambda: np.copyto(goal, source))


def _least_s(action: Callable[[], object], tries: int = _TRIES) -> float:
    least = math.inf
    for _ in range(tries):
        before = time.perf_counter()
        action()
        least = min(least, time.perf_counter() - before)
    return least
