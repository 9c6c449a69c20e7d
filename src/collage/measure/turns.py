"""Turns: what is compared runs for a moment, again and again, in another order each round.

A shared machine drifts, and slows everything down alike for seconds. So figures of two sides are compared only if they are
of the same round. A ratio is the median of the rounds' ratios, with its interval.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from collage.cost.statistics import Interval, median_interval
from collage.workers.machine_lock import measurement_lock

__all__ = ["Rounds", "ratio_of", "take_turns"]

Side = TypeVar("Side")
Rounds = Mapping[int, float]
"""The figure of one side in each round that it took part in, by the number of the round."""


def take_turns(sides: Sequence[Side], number: int, turn: Callable[[Side], None]) -> None:
    """Run one round: every side has its turn, while nothing else is measured or built on this machine.

    Args:
        sides: The sides.
        number: Number of the round, which decides their order.
        turn: Runs one side for a moment.
    """
    order = list(sides)
    random.Random(number).shuffle(order)
    with measurement_lock():
        for side in order:
            turn(side)


def ratio_of(one: Rounds, other: Rounds) -> tuple[float, Interval] | None:
    """Return how many times the other's figure one has, with the interval; None if they had no round in common."""
    ratios = [_quotient(one[number], other[number]) for number in sorted(one.keys() & other.keys())]
    return (statistics.median(ratios), median_interval(ratios)) if ratios else None


def _quotient(one: float, other: float) -> float:
    """Return how many times the other figure one is. Figures of 0 are alike, and all others are infinitely larger."""
    if other:
        return one / other
    return math.inf if one else 1.0
