"""The rest of the cheapest plan around each candidate kernel, and the cost at which the kernel would be chosen.

Plans are paths over covered sets, as in the search: each step adds a kernel that holds the first operator not covered yet.
One pass forward and one pass backward give, for every candidate, the cheapest way to cover all other operators.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Priced", "Rest", "cheapest_rests"]

_MOST_STEPS = 300_000
"""Steps between covered sets after which the result is left unknown."""


@dataclass(frozen=True, slots=True)
class Priced:
    """A candidate kernel with its price.

    Attributes:
        bits: Its operators.
        seconds: Its cost, with the launch; infinite if it cannot be used.
        is_expected: True if the cost is not a measurement.
    """

    bits: int
    seconds: float
    is_expected: bool = False


@dataclass(frozen=True, slots=True)
class Rest:
    """The cheapest way to cover the operators that a candidate leaves.

    Attributes:
        seconds: Its cost; infinite if there is none.
        is_expected: True if it has kernels whose cost is not a measurement.
    """

    seconds: float = math.inf
    is_expected: bool = False

    def plus(self, other: Rest) -> Rest:
        """Return both together."""
        return Rest(self.seconds + other.seconds, self.is_expected or other.is_expected)


def cheapest_rests(n: int, candidates: Sequence[Priced], most_steps: int = _MOST_STEPS) -> list[Rest] | None:
    """Return the cheapest rest for each candidate, in order; None if there are too many covered sets.

    Args:
        n: The number of operators.
        candidates: Candidates; those of infinite cost are part of no rest, but have one.
        most_steps: Steps between covered sets after which None is returned.
    """
    everything = (1 << n) - 1
    starting: dict[int, list[int]] = {}
    for place, candidate in enumerate(candidates):
        starting.setdefault((candidate.bits & -candidate.bits).bit_length() - 1, []).append(place)
    steps: dict[int, list[int]] = {}
    by_size: list[set[int]] = [set() for _ in range(n + 1)]
    by_size[0].add(0)
    left = most_steps
    for size in range(n):
        for state in by_size[size]:
            free = ~state & everything
            first = (free & -free).bit_length() - 1
            fitting = [place for place in starting.get(first, ()) if not candidates[place].bits & state]
            steps[state] = fitting
            left -= len(fitting)
            if left < 0:
                return None
            for place in fitting:
                following = state | candidates[place].bits
                by_size[following.bit_count()].add(following)
    own = [Rest(candidate.seconds, candidate.is_expected) for candidate in candidates]
    to_state: dict[int, Rest] = {0: Rest(0.0)}
    for size in range(n):
        for state in by_size[size]:
            for place in steps[state]:
                _lower(to_state, state | candidates[place].bits, to_state.get(state, Rest()).plus(own[place]))
    from_state: dict[int, Rest] = {everything: Rest(0.0)}
    rests = [Rest()] * len(candidates)
    for size in reversed(range(n)):
        for state in by_size[size]:
            for place in steps[state]:
                after = from_state.get(state | candidates[place].bits, Rest())
                _lower(from_state, state, own[place].plus(after))
                around = to_state.get(state, Rest()).plus(after)
                if around.seconds < rests[place].seconds:
                    rests[place] = around
    return rests


def _lower(found: dict[int, Rest], state: int, rest: Rest) -> None:
    if rest.seconds < found.get(state, Rest()).seconds:
        found[state] = rest
