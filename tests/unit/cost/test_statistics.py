from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collage.cost.statistics import Summary, median_interval, ratio_of_medians, summarise, weighted_mean

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


def test_the_mean_of_one_occasion_is_itself() -> None:
    summary = summarise([0.5, 0.6, 0.7])
    assert weighted_mean([(summary, 1.0)]) is summary


def test_occasions_count_by_their_weight_and_so_does_what_is_unknown_of_them() -> None:
    short, long = Summary(1.0, 0.9, 1.2, 50, 0.02), Summary(10.0, 8.0, 14.0, 7, 0.10)
    mean = weighted_mean([(short, 0.75), (long, 0.25)])
    assert (mean.median_s, mean.p10_s, mean.p90_s) == pytest.approx((3.25, 2.675, 4.4))
    assert (mean.count, mean.spread) == (7, pytest.approx((0.75 * 0.02 + 0.25 * 1.0) / 3.25))
