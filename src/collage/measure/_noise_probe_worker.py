"""A small product of matrices on all cores, to see how fast they are just now. Runs in a child, asleep between probes."""

from __future__ import annotations

import statistics
import threading
import time

import numpy as np

from collage.toolchains import HelperThreads, own_threads

__all__ = ["NoiseProbeWorker"]

_RUNS = 15
_WARM_UP = 3
"""The first ones find cold caches, and processors that were asleep."""


class NoiseProbeWorker:
    """Times a product of square matrices.

    Args:
        side: Their side.
    """

    def __init__(self, side: int) -> None:
        self._matrix = np.ones((side, side), np.float32)
        # Woken on the processor of the thread that calls, they would make any machine look twenty times too slow.
        self._helpers = HelperThreads(own_threads() - {threading.get_native_id()})

    def probe(self) -> list[float]:
        """Seconds of one product, the median of a few and the least: some milliseconds in all."""
        samples = []
        for _ in range(_WARM_UP + _RUNS):
            self._helpers.move_off()
            before = time.perf_counter()
            self._matrix @ self._matrix
            samples.append(time.perf_counter() - before)
        return [statistics.median(samples[_WARM_UP:]), min(samples)]

    def drop(self) -> None:
        """Nothing is kept that could be dropped."""
