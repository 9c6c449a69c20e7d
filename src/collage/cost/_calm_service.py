"""A small product of matrices on all cores, to see how fast they are just now. Runs in a child, asleep between probes."""

from __future__ import annotations

import statistics
import time

import numpy as np

__all__ = ["CalmService"]

_RUNS = 9


class CalmService:
    """Times a product of square matrices.

    Args:
        side: Their side.
    """

    def __init__(self, side: int) -> None:
        self._matrix = np.ones((side, side), np.float32)

    def probe(self) -> float:
        """Seconds of one product, median of a few: some milliseconds in all."""
        samples = []
        for _ in range(_RUNS):
            before = time.perf_counter()
            self._matrix @ self._matrix
            samples.append(time.perf_counter() - before)
        return statistics.median(samples)

    def drop(self) -> None:
        """Nothing is kept that could be dropped."""
