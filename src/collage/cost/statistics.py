"""Statistics of latencies: medians, their intervals, and when to stop measuring.

Latencies on a shared machine are skewed and drift, so everything here is by rank: medians rather than means, intervals
from order statistics, comparisons between neighbours in time rather than between averages.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Interval", "Summary", "median_interval", "ratio_of_medians", "summarise", "weighted_mean"]

_ERROR = 0.05
_Z95 = 1.96
_MANY = 100
"""Number of samples from which the binomial distribution is approximated by a normal one."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A 95 % confidence interval."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def as_list(self) -> list[float]:
        """``[low, high]``, for JSON."""
        return [self.low, self.high]


@dataclass(frozen=True, slots=True)
class Summary:
    """Latency of one thing, in seconds.

    Attributes:
        median_s: The median.
        p10_s: Tenth percentile.
        p90_s: Ninetieth percentile.
        count: Number of samples.
        spread: Half the width of the median's 95 % interval, relative to the median.
    """

    median_s: float
    p10_s: float
    p90_s: float
    count: int
    spread: float

    def at(self, percentile: int) -> float:
        """Seconds at a percentile: 10, 50 or 90, which are the ones that are kept."""
        return {10: self.p10_s, 50: self.median_s, 90: self.p90_s}[percentile]


def median_interval(samples: Sequence[float]) -> Interval:
    """The 95 % interval of the median, from order statistics: exact, whatever the distribution.

    Below six samples no interval is that sure, and the range of the samples is returned.
    """
    ordered = sorted(samples)
    rank = _rank(len(ordered))
    return Interval(ordered[rank], ordered[-1 - rank])


@functools.cache
def _rank(count: int) -> int:
    """Return the number of samples that may be cut off at either end: the sign test's critical value at 5 %."""
    if count > _MANY:
        return math.floor(count / 2 - _Z95 * math.sqrt(count) / 2)
    below, rank = 0.0, -1
    while rank < count // 2:
        below += math.comb(count, rank + 1) / 2.0**count
        if 2 * below > _ERROR:
            break
        rank += 1
    return max(rank, 0)


def summarise(samples: Sequence[float]) -> Summary:
    """Summary of at least one sample, in seconds."""
    p10, median, p90 = (float(q) for q in np.percentile(np.asarray(samples), [10, 50, 90]))
    interval = median_interval(samples)
    return Summary(median, p10, p90, len(samples), (interval.high - interval.low) / 2 / median if median else 0.0)


def weighted_mean(parts: Sequence[tuple[Summary, float]]) -> Summary:
    """The mean of latencies on several occasions, by the weight of each; weights add up to 1.

    Percentiles are averaged as if all occasions had their slow runs together, so that the interval is not too narrow.
    """
    if len(parts) == 1:
        return parts[0][0]
    median, p10, p90, half = (
        math.fsum(weight * figure for figure, weight in zip(figures, (weight for _, weight in parts), strict=True))
        for figures in zip(*((s.median_s, s.p10_s, s.p90_s, s.spread * s.median_s) for s, _ in parts), strict=True)
    )
    return Summary(median, p10, p90, min(s.count for s, _ in parts), half / median if median else 0.0)


def ratio_of_medians(
    numerator: Sequence[Sequence[float]], denominator: Sequence[Sequence[float]]
) -> tuple[float, Interval]:
    """Return how many times as long the first takes as the second, from interleaved rounds.

    Rounds are compared with their neighbours in time, so that slow drifts of the machine cancel.

    Args:
        numerator: Samples per round, in seconds.
        denominator: The same number of rounds of the other one.

    Returns:
        The median of the rounds' ratios, and its 95 % interval.
    """
    ratios = np.array([np.median(a) / np.median(b) for a, b in zip(numerator, denominator, strict=True)])
    return float(np.median(ratios)), median_interval(ratios.tolist())
