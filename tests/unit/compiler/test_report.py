"""What the report says of its own figures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from collage.compiler.final_comparison import FinalComparison
from collage.compiler.report import _saturates, _warnings
from collage.cost.statistics import Interval, Summary
from collage.measure.finalist import Finalist, FinalistResult
from collage.status import Status
from collage.system.machine import this_machine

UNLIMITED = replace(this_machine(), cores=4, physical_cores=4, quota=None)


def finals(p10_s: float, p90_s: float, low: float, high: float) -> FinalComparison:
    time = Summary(0.010, p10_s, p90_s, 50, 0.01)
    return FinalComparison(None, None, (), {}, time, (1.0, Interval(low, high)))


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ((0.0099, 0.0105, 0.98, 1.02), []),
        ((0.009, 0.018, 0.98, 1.02), ["noisy"]),
        ((0.0099, 0.0105, 0.8, 1.3), ["only known to within 62%"]),
        ((0.005, 0.018, 0.8, 1.3), ["3.6 times", "only known"]),
    ],
)
def test_noise_is_named(figures: Any, said: list[str]) -> None:
    warnings = _warnings(finals(*figures), 0, UNLIMITED)
    assert len(warnings) == len(said)
    assert all(words in warning for words, warning in zip(said, warnings, strict=True))


@pytest.mark.parametrize(
    ("threads", "quota", "said"),
    [
        (0, 1.5, "kernels use 2 of 4 cores"),
        (0, 0.5, "kernels use 1 of 4 cores"),
        (3, 2.0, "--threads 2 makes them alike"),
        (2, 1.5, None),
        (1, 0.5, None),
        (0, 4.0, None),
    ],
)
def test_a_quota_of_a_container_is_named_with_what_was_chosen(threads: int, quota: float, said: str | None) -> None:
    warnings = _warnings(finals(0.0099, 0.0105, 0.98, 1.02), threads, replace(UNLIMITED, quota=quota))
    assert [said in warning for warning in warnings if said] == ([] if said is None else [True])
    assert len(warnings) == (said is not None)


@pytest.mark.parametrize(
    ("tolerance", "error", "said"),
    [
        (0.2, 0.12, ["differ by 12.0% of the largest", "--accuracy-budget 0.05 "]),
        (0.2, 0.008, None),
        (0.2, None, None),
        # Products do not saturate here, or the user's budget says what is right.
        (0.05, 0.03, None),
    ],
)
def test_what_saturates_is_named(tolerance: float, error: float | None, said: list[str] | None) -> None:
    standing = FinalistResult(Finalist("a", "", {}, 1), Status.OK, max_rel=error)
    warnings = _saturates(tolerance, 0.05, standing)
    assert len(warnings) == (said is not None)
    assert all(words in warnings[0] for words in said or [])
    assert _saturates(tolerance, 0.05, None) == []
