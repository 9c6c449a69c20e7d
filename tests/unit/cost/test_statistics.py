from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collage.cost.statistics import median_interval, ratio_of_medians, summarise

times = st.lists(st.floats(1e-6, 10.0), min_size=1, max_size=60)


@given(times)
def test_the_interval_holds_the_median(samples: list[float]) -> None:
    interval = median_interval(samples)
    assert interval.low <= np.median(samples) <= interval.high


def test_the_median_interval_covers_the_true_median_nine_times_in_ten() -> None:
    random = np.random.default_rng(1)
    truth = np.log(2)  # Median of the exponential distribution: skewed, as latencies are.
    hits = sum(truth in median_interval(random.exponential(size=25).tolist()) for _ in range(1000))
    assert hits >= 930


def test_two_equal_contestants_are_seldom_told_apart() -> None:
    """The A/A test: at most 5 % of comparisons of a thing with itself may claim a difference."""
    random = np.random.default_rng(2)
    claims = 0
    for _ in range(400):
        drift = 1 + 0.1 * np.sin(np.linspace(0, 5, 11))
        a, b = ([list(d * random.lognormal(sigma=0.05, size=4)) for d in drift] for _ in range(2))
        claims += 1.0 not in ratio_of_medians(a, b)[1]
    assert claims <= 0.075 * 400


def test_a_real_difference_is_seen_through_drift() -> None:
    random = np.random.default_rng(3)
    drift = np.linspace(1.0, 2.0, 11)
    slow, fast = ([list(d * factor * random.lognormal(sigma=0.02, size=4)) for d in drift] for factor in (1.1, 1.0))
    ratio, interval = ratio_of_medians(slow, fast)
    assert ratio == pytest.approx(1.1, rel=0.02)
    assert interval.low > 1.0


def test_summary_of_one_sample() -> None:
    summary = summarise([0.5])
    assert (summary.median_s, summary.p10_s, summary.p90_s, summary.count) == (0.5, 0.5, 0.5, 1)
