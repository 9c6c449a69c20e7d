"""Outcomes of building and measuring a kernel: data, never an exception."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from collage._errors import CompileError, ToolchainError, Unsupported, WorkerDied, WorkerOutOfMemory, WorkerTimeout
from collage.cost.cost import Cost
from collage.cost.statistics import Summary

__all__ = ["Outcome", "Status", "failed", "merge_measurements"]

_DISTURBED = 1.15
"""Two looks at a kernel that differ by more than this factor cannot both have been at a calm machine."""


class Status(StrEnum):
    """How an attempt to build and measure a kernel ended."""

    OK = "ok"
    UNSUPPORTED = "unsupported"
    COMPILE_ERROR = "compile error"
    CRASH = "crash"
    TIMEOUT = "time-out"
    OUT_OF_MEMORY = "out of memory"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one attempt.

    Attributes:
        status: How it ended.
        reason: One sentence, where it did not end well.
        time: Latency; present only if the kernel ran.
        error: Largest difference from the reference, relative to the largest reference value; None if unknown.
        build_s: Seconds that compiling took.
        recorded: True if it comes from the database rather than from a measurement of this session.
    """

    status: Status
    reason: str | None = None
    time: Summary | None = None
    error: float | None = None
    build_s: float = 0.0
    recorded: bool = False

    @property
    def ok(self) -> bool:
        """Whether the kernel may be chosen."""
        return self.status is Status.OK and self.time is not None

    @property
    def cost(self) -> Cost:
        """The median latency, or INVALID."""
        return Cost(seconds=self.time.median_s) if self.ok and self.time is not None else Cost.INVALID


def merge_measurements(first: Outcome, second: Outcome) -> Outcome:
    """What to believe of a kernel that was measured, found promising, and measured again.

    What was chosen for being cheap is partly cheap by luck, so of two like figures the second counts. Of two that differ
    widely the lower does: the machine was slow at the other.
    """
    if first.time is None or second.time is None:
        return second
    low, high = sorted([first, second], key=lambda outcome: outcome.time.median_s if outcome.time is not None else 0.0)
    assert low.time is not None and high.time is not None
    return low if high.time.median_s > _DISTURBED * low.time.median_s else second


def failed(error: ToolchainError, build_s: float) -> Outcome:
    """The outcome of a kernel that could not be built or run."""
    kinds: list[tuple[type[ToolchainError], Status]] = [
        (WorkerTimeout, Status.TIMEOUT),
        (WorkerOutOfMemory, Status.OUT_OF_MEMORY),
        (WorkerDied, Status.CRASH),
        (Unsupported, Status.UNSUPPORTED),
        (CompileError, Status.COMPILE_ERROR),
    ]
    status = next((status for kind, status in kinds if isinstance(error, kind)), Status.COMPILE_ERROR)
    return Outcome(status, str(error)[:2000], build_s=build_s)
