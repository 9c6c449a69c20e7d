"""The record of what was tried: every kernel that a compilation looked at, with its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from collage.explain._nodes import NodeRanges
from collage.status import Status
from collage.system.codec import LARGEST, RARE, Count, Us, Within

__all__ = ["TEXT", "Border", "Record", "TargetAnswer", "TriedKernel"]

# Characters of a text.
TEXT = 500

Text = Annotated[str, Within(0, TEXT)]
_Signed = Annotated[float, Within(-LARGEST, LARGEST)]


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
    target: Text
    status: Status
    time_us: Us | None = field(default=None, metadata=RARE)
    low_us: Us | None = field(default=None, metadata=RARE)
    high_us: Us | None = field(default=None, metadata=RARE)
    error: Us | None = field(default=None, metadata=RARE)
    reason: Text = field(default="", metadata=RARE)
    rule: Text = field(default="", metadata=RARE)
    build_s: Us | None = field(default=None, metadata=RARE)
    is_recorded: bool = field(default=False, metadata=RARE)
    limit_us: Us | None = field(default=None, metadata=RARE)
    limit_is_expected: bool = field(default=False, metadata=RARE)

    def __post_init__(self) -> None:
        if not self.nodes.ranges:
            raise ValueError("a kernel without operators")

    @property
    def is_measured(self) -> bool:
        """True if ``time_us`` is a measurement."""
        return self.status is Status.OK


@dataclass(frozen=True, slots=True)
class Border:
    """A border between two kernels of the returned plan: the second reads values of the first.

    Attributes:
        before: Operators of the kernel that makes the values.
        after: Operators of the kernel that reads them.
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

    before: NodeRanges
    after: NodeRanges
    values: tuple[Text, ...]
    count: Count
    nbytes: Count | None = None
    cost_us: Us | None = None
    joined_target: Text = ""
    joined_us: Us | None = None
    joined_is_measured: bool = False
    saves_us: _Signed | None = None


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

    target: Text
    is_available: bool
    reason: Text = ""
    build: Text = ""
    whole: Status | None = None
    whole_us: Us | None = None
    takes: NodeRanges = field(default_factory=NodeRanges)
    refuses: Mapping[str, NodeRanges] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Record:
    """Everything that a compilation looked at. The returned plan, and the plans that it was compared with, are in the report.

    Attributes:
        names: Names of the operators of the prepared model, by index; ``#`` and the index if they are not kept.
        op_types: Their types.
        tried: Candidate kernels: those of the returned plan, then the most interesting ones.
        borders: The borders between kernels of the returned plan.
        targets: The answers of the targets of the menu, in its order.
        dropped: Number of candidates that the record has no room for, by status.
        stopped_by: The reason why the search ended, see ``SearchResult``; ``not started`` if there was nothing to search.
        min_gain: The share that a plan had to promise to be worth measuring.
        notes: Sentences about candidates that were left out before the search.
    """

    names: tuple[str, ...]
    op_types: tuple[Text, ...]
    tried: tuple[TriedKernel, ...] = ()
    borders: tuple[Border, ...] = ()
    targets: tuple[TargetAnswer, ...] = ()
    dropped: Mapping[str, Count] = field(default_factory=dict)
    stopped_by: Text = "not started"
    min_gain: Us = 0.0
    notes: tuple[Text, ...] = ()

    def __post_init__(self) -> None:
        count = len(self.op_types)
        if not self.names:
            object.__setattr__(self, "names", tuple(f"#{i}" for i in range(count)))
        if len(self.names) != count:
            raise ValueError(f"{len(self.names)} names of {count} operators")
        sets = [nodes for answer in self.targets for nodes in (answer.takes, *answer.refuses.values())]
        sets += [row.nodes for row in self.tried]
        sets += [nodes for border in self.borders for nodes in (border.before, border.after)]
        if any(nodes.ranges and nodes.last >= count for nodes in sets):
            raise ValueError(f"an operator that is none of the model's {count}")

    def by_nodes(self) -> Mapping[NodeRanges, tuple[TriedKernel, ...]]:
        """Return the candidates of each set of operators."""
        rows: dict[NodeRanges, list[TriedKernel]] = {}
        for row in self.tried:
            rows.setdefault(row.nodes, []).append(row)
        return {nodes: tuple(of_these) for nodes, of_these in rows.items()}
