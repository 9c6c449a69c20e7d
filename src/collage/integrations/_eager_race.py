"""The comparison of a compiled graph with PyTorch itself, in turns within this process.

Either side runs as the caller has it run: with conversions of tensors, with effects on arguments, and with PyTorch's
threads. So neither has a process of its own, as executables that ``measure.race`` compares have.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from collage.cost.statistics import Interval

__all__ = ["EagerRace", "lengths_alike", "race_with_eager"]

Call = Callable[[Sequence[Any]], Any]

_BLOCK_S = 0.02
_MOST_RUNS = 50
_ROUNDS = 7
_FEWEST_ROUNDS = 3
"""Rounds of a graph that takes so long that more of them would take longer than a race may."""
_MOST_ROUNDS = 31
_RACE_S = 1.0


@dataclass(frozen=True, slots=True)
class EagerRace:
    """The result of a race.

    Attributes:
        compiled_s: Median latency of the compiled graph.
        eager_s: Median latency of PyTorch.
        ratio: Time of the compiled graph over PyTorch's, paired by rounds.
        interval: Its interval.
    """

    compiled_s: float
    eager_s: float
    ratio: float
    interval: Interval

    @property
    def eager_wins(self) -> bool:
        """PyTorch is faster. If that stayed in doubt until the end of the race, the median decides."""
        return self.ratio > 1.0


def lengths_alike(lengths: Sequence[int]) -> tuple[int, ...]:
    """Return a name for all lengths that share one race: those between the same powers of two."""
    return tuple(length.bit_length() for length in lengths)


def race_with_eager(compiled: Call, eager: Call, arguments: Callable[[], Sequence[Any]]) -> EagerRace:
    """Run both in turns until one is faster beyond doubt, or for about a second.

    Args:
        compiled: Runs the compiled graph.
        eager: Runs the same graph in PyTorch.
        arguments: Makes arguments for one run, which may write to them.
    """
    # Late: the lock is of Linux and macOS, and a graph from the cache needs no race.
    from collage.measure.turns import ratio_of, take_turns

    ours, theirs = _Side(compiled, arguments), _Side(eager, arguments)
    ratio, interval = 1.0, Interval(0.0, math.inf)
    for number in range(_MOST_ROUNDS):
        take_turns((ours, theirs), number, partial(_Side.take_turn, number=number))
        ratio, interval = ratio_of(ours.medians_s, theirs.medians_s) or (ratio, interval)
        is_clear = number + 1 >= _ROUNDS and 1.0 not in interval
        if is_clear or (ours.spent_s + theirs.spent_s >= _RACE_S and number + 1 >= _FEWEST_ROUNDS):
            break
    return EagerRace(ours.median_s, theirs.median_s, ratio, interval)


@dataclass(slots=True)
class _Side:
    """One side, with its median latency in each round."""

    call: Call
    arguments: Callable[[], Sequence[Any]]
    runs: int = 0
    spent_s: float = 0.0
    medians_s: dict[int, float] = field(default_factory=dict)

    @property
    def median_s(self) -> float:
        return statistics.median(self.medians_s.values())

    def take_turn(self, number: int) -> None:
        # The first run of a turn meets the caches and the threads of the other side.
        once_s = self._seconds()
        self.runs = self.runs or min(max(round(_BLOCK_S / max(once_s, 1e-9)), 1), _MOST_RUNS)
        samples = [self._seconds() for _ in range(self.runs)]
        self.medians_s[number] = statistics.median(samples)
        self.spent_s += once_s + sum(samples)

    def _seconds(self) -> float:
        given = self.arguments()
        began = time.perf_counter()
        self.call(given)
        return time.perf_counter() - began
