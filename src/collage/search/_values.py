"""Inputs and results of a search."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from collage.cost.cost import Cost, CostLike

__all__ = [
    "Candidate",
    "CostOf",
    "DependencyGraph",
    "NoCover",
    "Partitioning",
    "SearchResult",
    "SearchStatistics",
]


class Candidate(Protocol):
    """A candidate kernel, as far as the search needs to know it."""

    @property
    def bits(self) -> int:
        """Covered nodes: bit i stands for the node of index i."""
        ...

    @property
    def first(self) -> int:
        """The least covered node."""
        ...

    @property
    def target(self) -> Hashable:
        """The target that runs it. The search compares targets, and prints them with ``str()``."""
        ...


class DependencyGraph(Protocol):
    """The data flow between nodes."""

    def consumers(self, index: int) -> Iterable[int]:
        """Nodes that consume a result of node ``index``."""
        ...


C = TypeVar("C", bound=Candidate)

CostOf = Callable[[C], CostLike]
"""Cost of a candidate: a `Cost`, or seconds, where NaN is unknown and infinity is invalid."""


@dataclass(frozen=True, slots=True)
class SearchStatistics:
    """Figures of a search.

    Attributes:
        candidates: Candidates given.
        valid: Candidates whose cost is not invalid. The others are ignored.
        considered: Candidates that are left after removing those that are provably on no best path.
        states: Covered sets settled, over all rounds.
        transitions: Candidates applied to a settled covered set, over all rounds.
        wall_s: Seconds from call to return, without those that the caller's own functions took to measure.
        rounds: Times the best path was searched again; 1 unless the search is lazy.
        replan_max_s: Longest of those rounds.
        measured: Candidates whose cost became known by measuring in this search.
        measured_keys: Distinct keys among them: the kernels that were really built and timed.
        caps: Names of the limits that were hit, such as ``states``; empty if none was.
    """

    candidates: int
    valid: int = 0
    considered: int = 0
    states: int = 0
    transitions: int = 0
    wall_s: float = 0.0
    rounds: int = 1
    replan_max_s: float = 0.0
    measured: int = 0
    measured_keys: int = 0
    caps: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Partitioning(Generic[C]):
    """A cover of all nodes by disjoint kernels that can be run one after the other.

    Attributes:
        candidates: The kernels, by their least node.
        cost: Their costs and launch penalties together.
        optimal: True if it is proved that no cover by the given candidates costs less.
        lower_bound: The greatest known cost that no cover by the given candidates can undercut.
        statistics: Figures of the search.
    """

    candidates: tuple[C, ...]
    cost: Cost
    optimal: bool
    lower_bound: Cost
    statistics: SearchStatistics = field(compare=False)

    @property
    def gap(self) -> float:
        """Fraction of this cost that a better cover could save at most; 0 if it is optimal."""
        if self.optimal or self.cost <= self.lower_bound:
            return 0.0
        if not self.cost.is_known or self.cost.seconds == 0:
            return 1.0
        return 1.0 - self.lower_bound.seconds / self.cost.seconds


@dataclass(frozen=True, slots=True)
class NoCover:
    """The reason why there is no partitioning.

    Attributes:
        node: The first node that cannot be covered: the least one without a valid candidate. If each node has one, the
            node at which every attempt to cover its predecessors ends. None if it is unknown if a cover exists.
        reason: One sentence for people.
        statistics: Figures of the search.
    """

    node: int | None
    reason: str
    statistics: SearchStatistics = field(compare=False)


@dataclass(frozen=True, slots=True)
class SearchResult(Generic[C]):
    """The best cover that a search found, and why it stopped.

    Attributes:
        partitioning: The best cover whose kernels are all measured; None if there was none when the search stopped.
        stopped_by: ``finished`` if the search came to its own end, else the limit that ended it: ``min_gain``,
            ``max_measured``, ``deadline``, ``should_stop`` or ``states``.
        missing: The reason why there is no partitioning.
        bound_violations: Measurements that came out below a bound. Under proof bounds any one withdraws the claim.
        statistics: Figures of the search.
        strategy: Name of the strategy, filled in by `run_strategy`.
        faults: The reasons why another strategy did not find it, a sentence each.
    """

    partitioning: Partitioning[C] | None
    stopped_by: str = "finished"
    missing: NoCover | None = None
    bound_violations: int = 0
    statistics: SearchStatistics = field(default_factory=lambda: SearchStatistics(0))
    strategy: str = ""
    faults: tuple[str, ...] = ()
