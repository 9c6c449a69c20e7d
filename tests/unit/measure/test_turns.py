"""Ratios of figures that were measured in turns."""

from __future__ import annotations

import math

from collage.cost.statistics import Interval
from collage.measure.turns import ratio_of


def test_ratios_of_rounds_in_common() -> None:
    found = ratio_of({0: 2.0, 1: 6.0, 2: 9.0}, {0: 1.0, 1: 2.0})
    assert found is not None and found[0] == 2.5
    assert ratio_of({0: 1.0}, {1: 1.0}) is None


def test_figures_of_zero_are_alike_and_less_than_others() -> None:
    assert ratio_of({0: 0.0}, {0: 0.0}) == (1.0, Interval(1.0, 1.0))
    found = ratio_of({0: 1.0, 1: 1.0}, {0: 0.0, 1: 0.0})
    assert found is not None and found[0] == math.inf and found[1].low == math.inf
    assert ratio_of({0: 0.0}, {0: 1.0}) == (0.0, Interval(0.0, 0.0))
