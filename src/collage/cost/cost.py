"""Cost of running a kernel, or a chain of kernels.

Costs add, and are totally ordered. Three things can be known about a kernel: its seconds; that it cannot run
(``Cost.INVALID``); or nothing (``Cost.UNKNOWN``), in which case fixed priorities decide. So a cost is the pair (sum
of the priority ranks of its unknown kernels, seconds of all others), compared in that order, with invalid above
everything. No NaN enters: arithmetic on costs never leaves the order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from collage._errors import UsageError

__all__ = ["LARGEST_S", "Cost", "CostLike"]

LARGEST_S = 1e100
"""Greatest number that an estimator may return beside infinity. Sums of such numbers, and of their multiples, stay finite."""


@dataclass(frozen=True, slots=True, order=True)
class Cost:
    """Cost of a kernel or of several kernels together.

    Attributes:
        unknown_rank: Sum of the priority ranks of kernels of unknown cost, each at least 1; 0 if all is known.
        seconds: Seconds of all kernels of known cost. Infinite in ``Cost.INVALID`` and nowhere else. A custom estimator
            may count something else, such as bytes or joules.
    """

    unknown_rank: float = 0
    seconds: float = 0.0

    ZERO: ClassVar[Cost]
    UNKNOWN: ClassVar[Cost]
    INVALID: ClassVar[Cost]

    def __post_init__(self) -> None:
        if math.isnan(self.seconds) or self.seconds < 0 or math.isnan(self.unknown_rank) or self.unknown_rank < 0:
            raise ValueError(
                f"a cost is a number from zero to infinity, not {self.seconds!r} (rank {self.unknown_rank!r})"
            )
        if math.isinf(self.seconds) or math.isinf(self.unknown_rank):
            object.__setattr__(self, "seconds", math.inf)
            object.__setattr__(self, "unknown_rank", math.inf)

    @classmethod
    def of(cls, value: CostLike) -> Cost:
        """Read the return value of an estimator: a cost, or seconds. NaN means unknown and infinity means invalid.

        Raises:
            UsageError: It is neither.
        """
        told = f"an estimator returns a cost, a number from zero to {LARGEST_S:g}, or infinity"
        if isinstance(value, Cost):
            number = value.seconds
        else:
            try:
                number = math.nan if math.isnan(value) else float(value)
            except (TypeError, OverflowError) as error:
                raise UsageError(f"{told}: {error}") from error
        if number < 0 or LARGEST_S < number < math.inf:
            raise UsageError(f"{told}, not {number!r}")
        if isinstance(value, Cost):
            return value
        return cls.UNKNOWN if math.isnan(number) else cls(seconds=number)

    @classmethod
    def unknown(cls, rank: int) -> Cost:
        """Unknown cost of a kernel of priority ``rank``; 1 is the rank that is preferred most."""
        if rank < 1:
            raise ValueError(f"priority ranks start at 1, not {rank}")
        return cls(unknown_rank=rank)

    @classmethod
    def sum(cls, costs: Iterable[Cost]) -> Cost:
        """Sum of many costs. The seconds are correctly rounded, so their order does not matter."""
        parts = tuple(costs)
        return cls(sum(c.unknown_rank for c in parts), math.fsum(c.seconds for c in parts))

    @property
    def is_invalid(self) -> bool:
        """True if a kernel cannot run at all."""
        return self.seconds == math.inf

    @property
    def is_unknown(self) -> bool:
        """True if the cost of at least one kernel is unknown and none is invalid."""
        return self.unknown_rank > 0 and not self.is_invalid

    @property
    def is_known(self) -> bool:
        """True if every kernel can run, and its seconds are known."""
        return self.unknown_rank == 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.unknown_rank + other.unknown_rank, self.seconds + other.seconds)

    def __str__(self) -> str:
        if self.is_invalid:
            return "invalid"
        known = f"{self.seconds * 1e6:.6g} µs"
        if self.is_known:
            return known
        return f"unknown (rank {self.unknown_rank:g})" + (f" + {known}" if self.seconds else "")


Cost.ZERO = Cost()
Cost.UNKNOWN = Cost(unknown_rank=1)
Cost.INVALID = Cost(seconds=math.inf)

CostLike = Cost | float
"""Results that estimators may return: a `Cost`, or seconds, with NaN for unknown and infinity for invalid."""
