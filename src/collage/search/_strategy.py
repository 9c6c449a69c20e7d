"""The contract between a search strategy and its caller, and the caller's checks of a result.

A strategy is given a problem, a source of costs, and limits. It decides which candidates are worth measuring, and returns the
best cover whose kernels are measured. Strategies are found by name, see ``_registry``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from collage._errors import CollageError
from collage.cost.cost import Cost, CostLike
from collage.search._quotient import find_cycle, kernel_successors
from collage.search._transfers import Transfer, copies_of, places_of
from collage.search._values import C, Candidate, DependencyGraph, Partitioning, SearchResult, SearchStatistics

__all__ = [
    "CostSource",
    "SearchLimits",
    "SearchProblem",
    "SearchStrategy",
    "StrategyFault",
    "measure_all",
    "result_of_cover",
    "run_strategy",
    "why_at_fault",
    "why_no_cover",
    "why_wrong",
]

D = TypeVar("D", bound=Candidate, contravariant=True)


@dataclass(frozen=True, slots=True)
class SearchProblem(Generic[C]):
    """A graph that is to be covered, and the kernels that may cover it.

    Attributes:
        n: Number of nodes. A cover holds each of the nodes 0 to ``n - 1`` exactly once.
        candidates: The candidate kernels. The order breaks ties.
        graph: The data flow between nodes. The kernels of a cover must not feed each other in a ring.
        transfers: The values that may have to be copied between devices, if the search chooses devices. Each candidate then
            has a ``device``, see `PlacedCandidate`. None if there is nothing to choose.
        is_wide: True if candidates may break the admission rule, so that kernels of a cover can feed each other in a ring.
    """

    n: int
    candidates: tuple[C, ...]
    graph: DependencyGraph
    transfers: tuple[Transfer, ...] | None = None
    is_wide: bool = False


class CostSource(Protocol[D]):
    """Known, expected, least and measured costs of candidates, in seconds."""

    def known_cost(self, candidate: D, /) -> CostLike | None:
        """Return the measured cost of a candidate, or of one of equal key; None if it was not measured."""
        ...

    def expected_s(self, candidate: D, /) -> float:
        """Estimate the cost of a candidate that was not measured; estimates may change after each measurement."""
        ...

    def least_s(self, candidate: D, /) -> float:
        """Return a proved lower bound of a candidate's cost."""
        ...

    def launch_penalty_s(self, candidate: D, /) -> float:
        """Return the seconds that this kernel costs in a cover beyond its own cost."""
        ...

    def priority(self, candidate: D, /) -> int:
        """Return the priority of the candidate's target: 0 is preferred, if costs are equal."""
        ...

    def key_of(self, candidate: D, /) -> Hashable:
        """Return the key of a candidate; candidates of equal key cost the same."""
        ...

    def measure(self, candidates: Sequence[D], /) -> Sequence[CostLike]:
        """Build and time candidates of different keys, and return their costs in order; ``known_cost`` knows them then."""
        ...


class SearchLimits(Protocol):
    """Limits of one search. The caller counts the use, and each property is the remaining amount at the moment."""

    @property
    def proves(self) -> bool:
        """True if the search has to continue until no other cover can cost less."""
        ...

    @property
    def min_gain(self) -> float:
        """Share of the best cover's cost below which a hoped-for gain is not worth a measurement; 0 if ``proves``."""
        ...

    @property
    def batch_size(self) -> int | None:
        """Most candidates in one call of ``measure``; None is any number."""
        ...

    @property
    def kernels_left(self) -> int:
        """Number of candidates that may still be measured."""
        ...

    @property
    def seconds_left(self) -> float:
        """Seconds that the search may still take; infinite if there removes the limit."""
        ...

    def should_stop(self) -> bool:
        """Return True if the user wants the best result so far, at once."""
        ...


class SearchStrategy(Protocol):
    """A way to find a cheap cover and to decide what is measured for that."""

    @property
    def name(self) -> str:
        """The name by which users choose the strategy; its entry point has the same name."""
        ...

    def run(self, problem: SearchProblem[C], costs: CostSource[C], limits: SearchLimits) -> SearchResult[C]:
        """Return the best cover whose kernels are all measured."""
        ...


class StrategyFault(CollageError):
    """A strategy returned something that is not what the contract asks for."""


def run_strategy(
    strategy: SearchStrategy, problem: SearchProblem[C], costs: CostSource[C], limits: SearchLimits
) -> SearchResult[C]:
    """Run a strategy, check that its result is a cover that can be run, and note the strategy's name in it.

    Raises:
        StrategyFault: The result is not a cover of measured candidates, or its kernels feed each other in a ring.
    """
    result = strategy.run(problem, costs, limits)
    if not isinstance(result, SearchResult) or not isinstance(result.statistics, SearchStatistics):
        raise StrategyFault(
            f"search strategy {strategy.name!r} returned a {type(result).__name__} that is not a SearchResult with statistics"
        )
    if result.partitioning is not None:
        fault = why_wrong(problem, costs, result.partitioning)
        if fault is not None:
            raise StrategyFault(f"search strategy {strategy.name!r} returned a partitioning that {fault}")
    return replace(result, strategy=strategy.name)


def why_at_fault(strategy: str, error: BaseException) -> str:
    """Return what a strategy did wrong."""
    if isinstance(error, StrategyFault):
        return str(error)
    return f"search strategy {strategy!r} raised {type(error).__name__}: {error}"


def why_no_cover(problem: SearchProblem[Any], cover: Sequence[Candidate]) -> str | None:
    """Return the reason why the data flow does not permit candidates as a cover; None if it does."""
    proposed, covered = set(problem.candidates), 0
    for candidate in cover:
        if candidate not in proposed:
            return f"holds a kernel that is not a candidate: {candidate}"
        if candidate.bits & covered:
            return f"covers nodes twice, by {candidate}"
        covered |= candidate.bits
    missing = ~covered & ((1 << problem.n) - 1)
    if missing:
        return f"leaves {missing.bit_count()} nodes uncovered"
    ring = find_cycle(kernel_successors(problem.graph, [candidate.bits for candidate in cover]))
    return None if ring is None else f"holds {len(ring)} kernels that feed each other in a ring"


def why_wrong(problem: SearchProblem[Any], costs: CostSource[Any], found: Partitioning[Any]) -> str | None:
    """Return the reason why a partitioning is not valid, or has another cost than it states; None if it is right."""
    if (reason := why_no_cover(problem, found.candidates)) is not None:
        return reason
    for candidate in found.candidates:
        cost = costs.known_cost(candidate)
        if cost is None or Cost.of(cost).is_invalid:
            return f"holds a kernel that {'was not measured' if cost is None else 'cannot run'}: {candidate}"
    added = result_of_cover(found.candidates, problem, costs).partitioning
    assert added is not None
    if found.cost.is_known and added.cost.is_known and not math.isclose(found.cost.seconds, added.cost.seconds):
        return f"is said to cost {found.cost}, and costs {added.cost}"
    return None


def result_of_cover(
    cover: Sequence[C], problem: SearchProblem[C], costs: CostSource[C], stopped_by: str = "finished"
) -> SearchResult[C]:
    """Return the result for a cover of measured candidates, without a proof of optimality.

    Its cost is the sum of the candidates' costs, their launch penalties, and the copies between devices, if there are any.
    """
    parts = [Cost.of(cost) for c in cover if (cost := costs.known_cost(c)) is not None]
    parts += [Cost(seconds=costs.launch_penalty_s(c)) for c in cover]
    if problem.transfers is not None:
        placed: Sequence[Any] = cover
        copies = copies_of(places_of(placed), problem.transfers)
        parts.append(Cost(seconds=math.fsum(transfer.copy_s[src][dst] for transfer, src, dst in copies)))
    statistics = SearchStatistics(len(problem.candidates))
    ordered = tuple(sorted(cover, key=lambda c: c.first))
    found = Partitioning(ordered, Cost.sum(parts), optimal=False, lower_bound=Cost.ZERO, statistics=statistics)
    return SearchResult(found, stopped_by, statistics=statistics)


def measure_all(
    problem: SearchProblem[C],
    costs: CostSource[C],
    limits: SearchLimits,
    say: Callable[[str], None] = lambda _: None,
) -> int:
    """Measure one candidate of each key that is not known, until a limit is reached; return how many were measured."""
    left = list({costs.key_of(c): c for c in problem.candidates if costs.known_cost(c) is None}.values())
    began_with = len(left)
    while left and not limits.should_stop() and limits.kernels_left > 0 and limits.seconds_left > 0:
        say(f"measuring everything: {len(left)} kernels to go")
        size = min(limits.batch_size or len(left), limits.kernels_left)
        costs.measure(left[:size])
        left = left[size:]
    return began_with - len(left)
