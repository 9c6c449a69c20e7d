"""What the report says of its own figures."""

from __future__ import annotations

from typing import Any

import pytest

from collage.cost.statistics import Interval, Summary
from collage.finals import Finals
from collage.report import _warnings


def finals(p10_s: float, p90_s: float, low: float, high: float) -> Finals:
    time = Summary(0.010, p10_s, p90_s, 50, 0.01)
    return Finals(None, None, (), {}, time, (1.0, Interval(low, high)))


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
    warnings = _warnings(finals(*figures))
    assert len(warnings) == len(said)
    assert all(words in warning for words, warning in zip(said, warnings, strict=True))
