"""Weights: costs as whole numbers, so that sums are exact, do not depend on their order, and compare in one step.

From high to low digits a weight holds the priority rank of an unknown cost, the cost in units of 2^-50 s (about a
femtosecond), a one for the kernel itself, and the priority of its target. The weight of a cover is the sum: least cost
first, then fewer kernels, then preferred targets.

**Coarse** weights are the same without the lowest digits, in 64 bits, for bounds that are computed on all candidates at
once. They are never above the exact ones, so a bound stays a bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from collage.cost.cost import Cost
from collage.search._problem import Bools, Floats, Ints, Problem

__all__ = ["INVALID_WEIGHT", "Weights"]

_UNITS_PER_SECOND = 2.0**50
_COARSE_BITS = 60
INVALID_WEIGHT = 1 << (_COARSE_BITS + 1)
"""Coarse weight of invalid candidates."""


class Weights:
    """Weights of all candidates of a problem, exact and coarse.

    Args:
        problem: The problem.
        seconds: Seconds of each candidate with its launch penalty, [candidates]; infinite if it is invalid.
        ranks: Priority rank of each candidate whose cost is unknown, else 0, [candidates].
        copies_s: The greatest seconds of each copy that a cover may need.

    Attributes:
        valid: For each candidate, True if it is not invalid, [candidates].
        coarse: Coarse weights, [candidates]; those of invalid candidates are above any sum.
        coarse_shift: Number of low binary digits that coarse weights lack.
    """

    def __init__(self, problem: Problem[Any], seconds: Floats, ranks: Ints, copies_s: Sequence[float] = ()) -> None:
        self._problem = problem
        self._seconds = seconds
        self._ranks = ranks
        self._copies_s = copies_s
        self._priorities = problem.priorities
        self.valid: Bools = np.isfinite(seconds)
        self._units: Floats = np.rint(np.where(self.valid, seconds, 0.0) * _UNITS_PER_SECOND)
        self._priority_bits = (problem.n * max(problem.priorities, default=0)).bit_length()
        self._kernel_bits = (problem.n + len(copies_s)).bit_length()
        # No digits stand for no ranks, so there is one where all known costs are 0.
        self._unit_bits = max(1, self._bits_for_any_cover(problem)) if ranks.any() else 0
        self.coarse_shift = 0
        self.coarse = self._coarse(problem)

    def without(self, dropped: Bools) -> Weights:
        """The same weights, some candidates being invalid."""
        return Weights(self._problem, np.where(dropped, np.inf, self._seconds), self._ranks, self._copies_s)

    def exact(self, candidate: int) -> int:
        """The exact weight of one valid candidate."""
        units = (int(self._ranks[candidate]) << self._unit_bits) + int(self._units[candidate])
        return (((units << self._kernel_bits) + 1) << self._priority_bits) + self._priorities[candidate]

    def of_copy(self, seconds: float) -> int | None:
        """The weight of a copy, None if it is impossible; it counts as one more kernel, so that fewer copies win."""
        if not math.isfinite(seconds):
            return None
        return ((round(seconds * _UNITS_PER_SECOND) << self._kernel_bits) + 1) << self._priority_bits

    def seconds_of(self, weight: int) -> float:
        """The seconds in a sum of weights of known costs."""
        return (weight >> (self._priority_bits + self._kernel_bits)) / _UNITS_PER_SECOND

    def cost_of(self, candidates: Sequence[int]) -> Cost:
        """The cost of some candidates together, without the rounding of weights."""
        return Cost.sum(Cost(int(self._ranks[i]), float(self._seconds[i])) for i in candidates)

    def cost_of_weight(self, weight: int) -> Cost:
        """The cost that a sum of weights represents."""
        units = weight >> (self._priority_bits + self._kernel_bits)
        rank = units >> self._unit_bits if self._unit_bits else 0
        return Cost(rank, (units - (rank << self._unit_bits)) / _UNITS_PER_SECOND)

    def _bits_for_any_cover(self, problem: Problem[Any]) -> int:
        """Digits that hold the seconds of any cover: the sum of the dearest candidates from each least node on, and copies."""
        copies = sum(round(s * _UNITS_PER_SECOND) for s in self._copies_s)
        return (sum(int(x) for x in problem.dearest(self._units)) + copies).bit_length()

    def _coarse(self, problem: Problem[Any]) -> Ints:
        """Drop digits until any cover fits: the dearest candidates from each least node on together."""
        ranked = self._ranks * 2.0**self._unit_bits + self._units
        approximate = np.where(self.valid, (ranked + 1) * 2.0**self._kernel_bits, 0.0)
        copies = math.fsum(self._copies_s) * _UNITS_PER_SECOND * 2.0**self._kernel_bits
        dropped = max(0, math.frexp(float(problem.dearest(approximate).sum()) + copies)[1] - _COARSE_BITS)
        self.coarse_shift = self._priority_bits + dropped
        if self._unit_bits:
            exact = (self.exact(i) >> self.coarse_shift if ok else INVALID_WEIGHT for i, ok in enumerate(self.valid))
            return np.array(list(exact), dtype=np.int64)
        if dropped <= self._kernel_bits:
            coarse = ((self._units.astype(np.int64) << self._kernel_bits) + 1) >> dropped
        else:  # Seconds in their thousands, of which not even the units fit.
            coarse = np.floor(self._units * 2.0 ** (self._kernel_bits - dropped)).astype(np.int64)
        return np.where(self.valid, coarse, INVALID_WEIGHT)
