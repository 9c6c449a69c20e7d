"""The budget of one compilation's search: seconds, and kernels to measure."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from collage.compiler.problem import Part
from collage.cost.outcome import Outcome
from collage.measure.track import ComparisonPlan
from collage.options import CompileOptions

__all__ = ["SearchBudget"]

_SEARCH_S = 35.0
_MOST_KERNELS = 80
_LEAST_KERNELS = 14
_SHARE_OF_KERNELS = 1 / 9
"""Share of distinct kernels that a search may measure, between ``_LEAST_KERNELS`` and ``_MOST_KERNELS``. On a small model
further measurements resolve only noise. On a calm machine the search ends before this limit.
"""


class SearchBudget:
    """The limits on time and measurements of all searches of one compilation.

    Args:
        options: The options of the user.
        comparison_plan: Lengths of the final comparison, for which time has to be left.
        part: The part of a compilation that it is for.

    Attributes:
        asked: Number of kernels that the search has asked for so far.
    """

    def __init__(self, options: CompileOptions, comparison_plan: ComparisonPlan, part: Part | None = None) -> None:
        self.asked = 0
        self._options = options
        self._comparison_plan = comparison_plan
        self._part = part or Part()
        self._began = time.monotonic()
        self._searched_s = 0.0
        self._is_free = options.proves or options.strategy == "exhaustive"

    def kernels(self, keys: int) -> int:
        """Return the number of kernels that the search may ask for in all.

        The limit that the user gives, or else a share of the keys. Proofs and exhaustive searches have no limit.

        Args:
            keys: 0 if that is not known yet.
        """
        if self._options.measure_budget is not None:
            return int(self._part.budget * self._options.measure_budget)
        if self._is_free:
            return sys.maxsize
        most = min(_MOST_KERNELS, max(_LEAST_KERNELS, int(_SHARE_OF_KERNELS * keys))) if keys else _MOST_KERNELS
        return math.ceil(self._part.search * most)

    def seconds_left(self, singles: Sequence[Outcome]) -> float:
        """Return the seconds that the search may still take: the time budget less the time of the final comparison.

        The comparison gets at most half of the time that was left when the search began.

        Args:
            singles: The whole model on each target that takes it; loading and comparing plans takes twice as long again.
        """
        if self._options.time_budget_s is None:
            return math.inf if self._is_free else max(0.0, self._part.search * _SEARCH_S - self._searched_s)
        building_s = sum(whole.build_s for whole in singles)
        rounds = self._comparison_plan.rounds + self._comparison_plan.reporting_rounds
        running_s = rounds * sum(
            max(w.time.median_s, self._comparison_plan.block_s) for w in singles if w.time is not None
        )
        comparing_s = min(2 * (building_s + running_s), max(0.0, self._comparison_plan.ends_at - self._began) / 2)
        return max(0.0, self._comparison_plan.left_s - comparing_s)

    @contextmanager
    def searching(self) -> Iterator[None]:
        """Count the time within as time of searching, which is limited."""
        started = time.monotonic()
        try:
            yield
        finally:
            self._searched_s += time.monotonic() - started
