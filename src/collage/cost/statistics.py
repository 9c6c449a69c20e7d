"""Statistics of latencies: medians, their intervals, and when to stop measuring.

Latencies on a shared machine are skewed and drift, so everything here is by rank: medians rather than means, intervals
from order statistics or by resampling, comparisons between neighbours in time rather than between averages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Interval", "Summary", "median_interval", "ratio_of_medians", "summarise"]

_Z95 = 1.96
_RESAMPLES = 2000


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


def median_interval(samples: Sequence[float]) -> Interval:
    """The 95 % interval of the median, from order statistics (no distribution is assumed)."""
    ordered = sorted(samples)
    half = _Z95 * math.sqrt(len(ordered)) / 2
    low = max(0, math.floor(len(ordered) / 2 - half))
    high = min(len(ordered) - 1, math.ceil(len(ordered) / 2 + half) - 1)
    return Interval(ordered[low], ordered[max(high, low)])


def summarise(samples: Sequence[float]) -> Summary:
    """Summary of at least one sample, in seconds."""
    p10, median, p90 = (float(q) for q in np.percentile(np.asarray(samples), [10, 50, 90]))
    interval = median_interval(samples)
    return Summary(median, p10, p90, len(samples), (interval.high - interval.low) / 2 / median if median else 0.0)


def ratio_of_medians(
    numerator: Sequence[Sequence[float]], denominator: Sequence[Sequence[float]]
) -> tuple[float, Interval]:
    """How many times longer the first takes than the second, from interleaved rounds.

    Rounds are compared with their neighbours in time, so that slow drifts of the machine cancel; the interval comes
    from resampling whole rounds.

    Args:
        numerator: Samples per round, in seconds.
        denominator: As many rounds of the other one.

    Returns:
        The median of the rounds' ratios, and its 95 % interval.
    """
    ratios = np.array([np.median(a) / np.median(b) for a, b in zip(numerator, denominator, strict=True)])
    picks = np.random.default_rng(0).integers(0, len(ratios), (_RESAMPLES, len(ratios)))
    low, high = np.percentile(np.median(ratios[picks], axis=1), [2.5, 97.5])
    return float(np.median(ratios)), Interval(float(low), float(high))
