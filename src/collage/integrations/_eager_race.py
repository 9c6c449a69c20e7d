"""The comparison of a compiled graph with PyTorch itself, in turns within this process.

Either side runs as the caller has it run: with conversions of tensors, with effects on arguments, and with PyTorch's
threads. So neither has a process of its own, as executables that ``measure.comparison`` compares have.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from collage.cost.statistics import Interval, median_interval

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
    from collage.workers.machine_lock import measurement_lock

    sides = (compiled, eager)
    counts = [0, 0]
    medians: tuple[list[float], list[float]] = ([], [])
    ratios: list[float] = []
    spent_s = 0.0
    while len(ratios) < _MOST_ROUNDS:
        order = (0, 1) if len(ratios) % 2 else (1, 0)
        with measurement_lock():
            for n in order:
                # The first run of a block meets the caches and the threads of the other side.
                once_s = _seconds(sides[n], arguments)
                counts[n] = counts[n] or min(max(round(_BLOCK_S / max(once_s, 1e-9)), 1), _MOST_RUNS)
                samples = [_seconds(sides[n], arguments) for _ in range(counts[n])]
                medians[n].append(statistics.median(samples))
                spent_s += once_s + sum(samples)
        ratios.append(medians[0][-1] / medians[1][-1])
        is_clear = len(ratios) >= _ROUNDS and 1.0 not in median_interval(ratios)
        if is_clear or (spent_s >= _RACE_S and len(ratios) >= _FEWEST_ROUNDS):
            break
    return EagerRace(
        statistics.median(medians[0]), statistics.median(medians[1]), statistics.median(ratios), median_interval(ratios)
    )


def _seconds(side: Call, arguments: Callable[[], Sequence[Any]]) -> float:
    given = arguments()
    began = time.perf_counter()
    side(given)
    return time.perf_counter() - began
