"""Outcomes of building and measuring a kernel: data, never an exception."""

from __future__ import annotations

from dataclasses import dataclass

from collage._errors import CompileError, ToolchainError, Unsupported, WorkerDied, WorkerOutOfMemory, WorkerTimeout
from collage.cost.cost import Cost
from collage.cost.statistics import Summary
from collage.status import Status

__all__ = ["Outcome", "failed"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one attempt.

    Attributes:
        status: The status at the end.
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
        """True if the kernel may be chosen."""
        return self.status is Status.OK and self.time is not None

    @property
    def cost(self) -> Cost:
        """The median latency, or INVALID."""
        return Cost(seconds=self.time.median_s) if self.ok and self.time is not None else Cost.INVALID


def failed(error: ToolchainError, build_s: float) -> Outcome:
    """The outcome of a kernel that could not be built or run."""
    kinds: list[tuple[type[ToolchainError], Status]] = [
        (WorkerTimeout, Status.TIMEOUT),
        (WorkerOutOfMemory, Status.OUT_OF_MEMORY),
        (WorkerDied, Status.CRASHED),
        (Unsupported, Status.REFUSED),
        (CompileError, Status.FAILED),
    ]
    status = next((status for kind, status in kinds if isinstance(error, kind)), Status.FAILED)
    return Outcome(status, str(error)[:2000], build_s=build_s)
