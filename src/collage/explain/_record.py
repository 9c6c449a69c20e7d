"""The record of what was tried: every kernel that a compilation looked at, with its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from collage.explain._nodes import NodeRanges

__all__ = ["Border", "ChosenKernel", "KernelStatus", "TargetAnswer", "TriedKernel", "TriedPlan", "TriedRecord"]


class KernelStatus(StrEnum):
    """The end of one candidate kernel."""

    MEASURED = "measured"
    """Built, right, and timed."""
    PREDICTED = "predicted only"
    """Neither built nor timed: its expected time promised no gain, or the search ended before."""
    REFUSED = "refused"
    """The toolchain refuses it without building it."""
    FAILED = "failed"
    """The toolchain took it, and did not build it, crashed, or was stopped."""
    WRONG = "wrong"
    """Built and run, and its outputs are not right."""
    NOT_MEASURED = "not measured"
    """Never considered: left out before the search, with the reason."""


@dataclass(frozen=True, slots=True)
class TriedKernel:
    """One candidate kernel.

    Attributes:
        nodes: Its operators.
        target: The target.
        status: Its status.
        time_us: Its median latency; the expected one if it was not measured; None if neither is known.
        low_us: Lower end of the 95 % interval of the median; None if it was not measured.
        high_us: Upper end.
        error: Largest difference from the reference, relative to the largest reference value; None if unknown.
        reason: One sentence, if it was not measured or is not right.
        rule: The fusion rules that proposed it, innermost first.
        build_s: Seconds that building took.
        is_recorded: True if the timing comes from the database.
        limit_us: The time below which the cheapest plan with it would be predicted to beat the returned plan. For a kernel
            of the returned plan: the time up to which no plan of measured kernels without it is predicted to be cheaper.
            None if not known.
        limit_is_expected: True if no other plan was measured through, so that expected times count.
    """

    nodes: NodeRanges
    target: str
    status: KernelStatus
    time_us: float | None = None
    low_us: float | None = None
    high_us: float | None = None
    error: float | None = None
    reason: str = ""
    rule: str = ""
    build_s: float | None = None
    is_recorded: bool = False
    limit_us: float | None = None
    limit_is_expected: bool = False

    @property
    def is_measured(self) -> bool:
        """True if ``time_us`` is a measurement."""
        return self.status is KernelStatus.MEASURED


@dataclass(frozen=True, slots=True)
class ChosenKernel:
    """One kernel of the returned plan.

    Attributes:
        name: Its name in the executable.
        kernel: The candidate that it is.
        launch_us: Cost in µs of the kernel beyond its own time in a chain of kernels; 0 if it runs alone.
        device: The device that it runs on, if devices were planned.
        branch: The branch that it belongs to, from 1. Kernels of different branches run at the same time. None if it is
            in none.
    """

    name: str
    kernel: TriedKernel
    launch_us: float = 0.0
    device: str | None = None
    branch: int | None = None


@dataclass(frozen=True, slots=True)
class Border:
    """A border between two kernels of the returned plan: the second reads values of the first.

    Attributes:
        before: Name of the kernel that makes the values.
        after: Name of the kernel that reads them.
        values: Names of the values, the first few.
        count: The number of values.
        nbytes: Their size; None if it is not known.
        cost_us: Predicted cost of the border: the launch of the second kernel, and copies between devices.
        joined_target: The target on which both kernels together, as one, are cheapest; empty if no target takes that.
        joined_us: The time of that kernel.
        joined_is_measured: True if that time is a measurement.
        saves_us: Gain from the border, in µs: joined time less both kernels and the border's cost. Negative if the plan
            would be predicted to be faster without the border.
    """

    before: str
    after: str
    values: tuple[str, ...]
    count: int
    nbytes: int | None
    cost_us: float | None
    joined_target: str = ""
    joined_us: float | None = None
    joined_is_measured: bool = False
    saves_us: float | None = None


@dataclass(frozen=True, slots=True)
class TriedPlan:
    """One plan that took part in the final comparison, or would have.

    Attributes:
        name: Its name in the report.
        targets: Its targets, each once.
        kernels: The number of its kernels.
        status: ``ok``, or how it failed.
        predicted_us: Predicted time.
        measured_us: Measured time, end to end.
        reason: One sentence, if it has no time.
        is_returned: True for the plan of the executable.
        is_single: True if it is one target alone.
        differs: Operators that it gives to other kernels than the returned plan does.
    """

    name: str
    targets: tuple[str, ...]
    kernels: int
    status: str
    predicted_us: float | None = None
    measured_us: float | None = None
    reason: str = ""
    is_returned: bool = False
    is_single: bool = False
    differs: NodeRanges = field(default_factory=NodeRanges)


@dataclass(frozen=True, slots=True)
class TargetAnswer:
    """The answer of one target of the menu about the whole model.

    Attributes:
        target: The target.
        is_available: True if its toolchain can be used here.
        reason: The reason why it is not available, or does not take or rightly compute the whole model.
        build: Build of the toolchain, as timings are filed.
        whole: The status of the whole model on it; None if it was not tried.
        whole_us: Time of the whole model on this target alone.
        takes: Operators that it takes, as far as this was tested.
        refuses: Operators that it refuses, by reason.
    """

    target: str
    is_available: bool
    reason: str = ""
    build: str = ""
    whole: KernelStatus | None = None
    whole_us: float | None = None
    takes: NodeRanges = field(default_factory=NodeRanges)
    refuses: Mapping[str, NodeRanges] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TriedRecord:
    """Everything that a compilation looked at.

    Attributes:
        names: Names of the operators of the prepared model, by index.
        op_types: Their types.
        plan: Name of the returned plan.
        predicted_us: Its predicted time; None if not all its kernels were measured.
        kernels: Its kernels, in the order in which they run.
        borders: The borders between them.
        plans: All plans that were built for the final comparison.
        targets: The answers of the targets of the menu, in its order.
        tried: Candidate kernels, the most interesting ones first.
        dropped: Number of candidates that the record has no room for, by status.
        stopped_by: The reason why the search ended, see ``SearchResult``; ``not started`` if there was nothing to search.
        min_gain: The share that a plan had to promise to be worth measuring.
        notes: Sentences about candidates that were left out before the search.
    """

    names: tuple[str, ...]
    op_types: tuple[str, ...]
    plan: str
    predicted_us: float | None = None
    kernels: tuple[ChosenKernel, ...] = ()
    borders: tuple[Border, ...] = ()
    plans: tuple[TriedPlan, ...] = ()
    targets: tuple[TargetAnswer, ...] = ()
    tried: tuple[TriedKernel, ...] = ()
    dropped: Mapping[str, int] = field(default_factory=dict)
    stopped_by: str = "not started"
    min_gain: float = 0.0
    notes: tuple[str, ...] = ()
