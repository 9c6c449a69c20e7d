"""The best rates of one core. Runs in a child, where the products of NumPy can be kept to one thread."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np

__all__ = ["PeakWorker"]

_SIDE = 256
_COPIED_BYTES = (64 << 10, 256 << 10, 1 << 20)
"""Sizes of copies, since the C library copies in several ways. One way was ten times slower than those for other sizes."""
_TRIES = 100


class PeakWorker:
    """Measures the best rates of one core in short bursts. Multiplied by the cores, they bound the machine's rates."""

    def flops_per_s(self) -> float:
        """Floating-point operations per second of a matrix product."""
        a = np.ones((_SIDE, _SIDE), np.float32)
        return 2.0 * _SIDE**3 / _least_s(lambda: np.dot(a, a))

    def bytes_per_s(self) -> float:
        """Bytes read and written per second by a copy inside the cache, of the size that is copied fastest."""
        return max(map(_copied_per_s, _COPIED_BYTES))


def _copied_per_s(size: int) -> float:
    source = np.ones(size, np.uint8)
    goal = np.empty_like(source)
    return 2.0 * size / _least_s(lambda: np.copyto(goal, source))


def _least_s(action: Callable[[], object]) -> float:
    least = math.inf
    for _ in range(_TRIES):
        before = time.perf_counter()
        action()
        least = min(least, time.perf_counter() - before)
    return least
