"""Costs that are given, as strategies see them, and a count of what was measured."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any


class FakeCosts:
    """A `CostSource` and `SearchLimits` that refuses to measure anything twice, or beyond its limits.

    Args:
        costs: Seconds of every candidate; infinite if it cannot run.
        expected: Seconds that are expected of each before it is measured; None expects the least.
        penalty_s: Launch penalty of every kernel.
        key_of: Candidates of equal key cost the same.
        kernels: How many may be measured.
        calls: After so many calls of ``measure`` the search is told to stop.
    """

    def __init__(
        self,
        costs: Mapping[Any, float],
        *,
        expected: Mapping[Any, float] | None = None,
        penalty_s: float = 0.0,
        key_of: Callable[[Any], Hashable] = lambda candidate: candidate,
        kernels: int = sys.maxsize,
        batch_size: int | None = None,
        proves: bool = False,
        min_gain: float = 0.0,
        seconds_left: float = math.inf,
        calls: int = sys.maxsize,
    ) -> None:
        self._costs, self._expected, self._penalty_s, self._key = costs, expected, penalty_s, key_of
        self._known: dict[Hashable, float] = {}
        self._kernels, self._calls = kernels, calls
        self.batch_size, self.proves, self.min_gain, self.seconds_left = batch_size, proves, min_gain, seconds_left
        self.batches: list[Sequence[Any]] = []

    @property
    def measured(self) -> int:
        return len(self._known)

    @property
    def kernels_left(self) -> int:
        return self._kernels - self.measured

    def should_stop(self) -> bool:
        return len(self.batches) >= self._calls

    def known_cost(self, candidate: Any) -> float | None:
        return self._known.get(self._key(candidate))

    def expected_s(self, candidate: Any) -> float:
        return self.least_s(candidate) if self._expected is None else self._expected[candidate]

    def least_s(self, candidate: Any) -> float:
        return 0.5 * min(self._costs[candidate], 2.0**-16)

    def launch_penalty_s(self, candidate: Any) -> float:
        return self._penalty_s

    def priority(self, candidate: Any) -> int:
        return 0

    def key_of(self, candidate: Any) -> Hashable:
        return self._key(candidate)

    def measure(self, candidates: Sequence[Any]) -> list[float]:
        keys = {self._key(candidate) for candidate in candidates}
        assert 0 < len(candidates) == len(keys) and not keys & set(self._known)
        assert len(candidates) <= self.kernels_left and not self.should_stop() and self.seconds_left > 0
        assert self.batch_size is None or len(candidates) <= self.batch_size
        self.batches.append(candidates)
        self._known.update({self._key(candidate): self._costs[candidate] for candidate in candidates})
        return [self._costs[candidate] for candidate in candidates]
