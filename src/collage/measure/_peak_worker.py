"""The rates of one core, and of memory. Runs in a child, where the products of NumPy can be kept to one thread."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

__all__ = ["PeakWorker"]

_SIDE = 256
_COPIED_BYTES = (64 << 10, 256 << 10, 1 << 20)
"""Sizes of copies, since the C library copies in several ways. One way was ten times slower than those for other sizes."""
_TRIES = 100
_SIDES = (256, 512, 1024)
"""Sides of products of which the fastest counts: larger ones are faster until they leave the cache."""
_SLOT_S = 0.04
"""Seconds for each rate: 20 runs of the largest product, or of a copy outside all caches."""
_READ_BYTES = 128 << 20
"""Bytes that a core reads at a time: more than its share of any cache."""
_MOST_READ_BYTES = 2 << 30
_READS = 20


class PeakWorker:
    """Measures the rates of one core.

    The best ones in short bursts, multiplied by the cores, bound the machine's rates. The sustained ones are those that a
    core has while others do the same at the same time.
    """

    def __init__(self) -> None:
        self._source = self._goal = np.empty(0, np.float32)
        self._sizes: Sequence[int] = ()

    def flops_per_s(self) -> float:
        """Floating-point operations per second of a matrix product."""
        a = np.ones((_SIDE, _SIDE), np.float32)
        return 2.0 * _SIDE**3 / _least_s(lambda: np.dot(a, a))

    def bytes_per_s(self) -> float:
        """Bytes read and written per second by a copy inside the cache, of the size that is copied fastest."""
        return max(map(_copied_per_s, _COPIED_BYTES))

    def prepare(self, sizes: Sequence[int]) -> None:
        """Make arrays of which so many bytes are used together, so that the sustained rates can be measured at once."""
        self._sizes = sizes
        self._source = np.ones(max(max(sizes) // 8, max(_SIDES) ** 2), np.float32)
        self._goal = np.ones_like(self._source)

    def sustained(self, begins_at: float) -> list[float]:
        """Return operations per second of products, and then bytes per second for each of the prepared sizes.

        A tenth of the runs have a higher rate. At its very best a core has the memory to itself. Each rate has
        its time, the same in all processes.

        Args:
            begins_at: A value of ``time.monotonic()``, which is the same for all processes.
        """
        flops, starts_at = [], begins_at
        for side in _SIDES:
            a, b = (array[: side * side].reshape(side, side) for array in (self._source, self._goal))
            flops.append(2.0 * side**3 / _usual_s(partial(np.dot, a, b), starts_at))
            starts_at += _SLOT_S
        rates = [max(flops)]
        for size in self._sizes:
            source, goal = (array[: max(1, size // 8)] for array in (self._source, self._goal))
            taken_s: list[float] = []
            for action in (partial(np.copyto, goal, source), partial(np.dot, source, goal)):
                taken_s.append(_usual_s(action, starts_at))
                starts_at += _SLOT_S
            rates.append(2.0 * source.nbytes / min(taken_s))
        return rates

    def read_bytes_per_s(self, cores: int) -> float:
        """Return the bytes per second that so many cores together read from memory."""
        size = min(_READ_BYTES, _MOST_READ_BYTES // cores)
        arrays = [np.ones(size // 4, np.float32) for _ in range(cores)]
        with ThreadPoolExecutor(cores) as pool:  # Products of vectors leave the interpreter to the other threads.
            return cores * size / _least_s(lambda: list(pool.map(lambda x: x @ x, arrays)), _READS)


def _usual_s(action: Callable[[], object], starts_at: float) -> float:
    while time.monotonic() < starts_at:
        pass
    taken_s: list[float] = []
    now = time.perf_counter()
    ends_at = now + _SLOT_S
    while now < ends_at or not taken_s:
        before = now
        action()
        now = time.perf_counter()
        taken_s.append(now - before)
    return sorted(taken_s)[len(taken_s) // 10]


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
