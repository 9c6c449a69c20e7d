"""Phase 3: the cheapest partitionings of a graph, and which of them are compared end to end.

Only candidates that may lie on a best path are measured. Then borders between kernels are moved, and neighbours are joined,
until no partitioning beside the best is better. A partitioning whose toolchains cannot share a process is left out.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from collage.compiler.candidates import joined_neighbors, may_have
from collage.compiler.concurrent_plans import concurrent_plans
from collage.compiler.cost_table import CostTable
from collage.compiler.plans import plan_of, predicted_s
from collage.compiler.problem import Problem
from collage.compiler.survey import Survey
from collage.cost.cost import Cost
from collage.fusion import CandidateKernel, CandidateKernelIndex, moved_borders
from collage.graph import SubGraph
from collage.measure.process_compat import ProcessCompatibility
from collage.options import DEFAULT_STRATEGY
from collage.plan import AnyKernel, Plan, identity_of, leaves_of
from collage.search import (
    Partitioning,
    SearchProblem,
    SearchResult,
    Transfer,
    k_best,
    measure_all,
    run_or_fall_back,
    strategies,
)
from collage.target import Target

__all__ = [
    "CostAccess",
    "SearchCosts",
    "best_plans",
    "in_one_process",
    "search_partition",
    "search_until_stable",
    "searched_again",
]

_PLAIN = 0.01
"""Charge for each kernel, as a share of the best mix, under which a finalist of fewer kernels is found. Mixes next to the best
are mostly its twins, with a view here or there; where going from toolchain to toolchain costs more than was measured, as
threads have to be woken, it is the plain one that wins.
"""


class SearchCosts(Protocol):
    """Costs of the kernels of one model, and the limits of their search."""

    say: Callable[[str], None]
    strategy_faults: tuple[str, ...]
    is_interrupted: bool

    @property
    def proves(self) -> bool:
        """True if the search goes on until no other cover can cost less."""
        ...

    @property
    def min_gain(self) -> float:
        """Share of the best cover's cost below which a hoped-for gain is not worth a measurement."""
        ...

    @property
    def batch_size(self) -> int | None:
        """So many kernels are measured at once; None for any number."""
        ...

    @property
    def kernels_left(self) -> int:
        """The number of kernels that may still be measured."""
        ...

    @property
    def search_s_left(self) -> float:
        """The seconds that the search may still take."""
        ...

    @property
    def transfers(self) -> list[Transfer]:
        """The values that operators hand to each other, if the search places them on devices."""
        ...

    def searching(self) -> AbstractContextManager[None]:
        """Return a context within which the time of the search counts."""
        ...

    def introduce(self, candidates: Sequence[CandidateKernel], /) -> None:
        """Note new candidates."""
        ...

    def known_cost(self, candidate: AnyKernel, /) -> Cost | None:
        """Return the cost of a candidate, or of one of equal key; None if it is not known."""
        ...

    def measured_cost(self, candidate: AnyKernel, /) -> Cost:
        """Return the same; INVALID if it is not known."""
        ...

    def expected_s(self, candidate: CandidateKernel, /) -> float:
        """Estimate an unknown cost."""
        ...

    def least_s(self, candidate: CandidateKernel, /) -> float:
        """Return a proved lower bound of a cost."""
        ...

    def launch_penalty_s(self, target: Target, /) -> float:
        """Return the cost of a kernel in a cover beyond its own."""
        ...

    def measure(self, candidates: Sequence[CandidateKernel], /) -> Sequence[Cost]:
        """Find out the costs of candidates."""
        ...


def search_until_stable(
    survey: Survey,
    costs: SearchCosts,
    index: CandidateKernelIndex,
    variants_of: Callable[[Sequence[CandidateKernel]], Sequence[CandidateKernel]] = lambda _: (),
) -> tuple[CandidateKernelIndex, SearchResult[CandidateKernel]]:
    """Phase 3, and again with candidates beside those of the best partitioning, until none of them makes a better one.

    Candidates were proposed before anything was measured. After a search, borders between kernels are moved, and neighbours
    of one target are joined.

    Args:
        survey: The model, the menu, and the operators that each target takes.
        costs: The costs of kernels.
        index: The candidates.
        variants_of: Returns tuned variants of new candidates.

    Returns:
        All candidates that there are now, and the result of the last search.
    """
    problem = survey.problem
    result = search_partition(problem, costs, index)
    while (best := result.partitioning) is not None and result.stopped_by in ("finished", "min_gain"):
        fresh = _neighbor_candidates(survey, index, best.candidates)
        if not fresh:
            break
        costs.introduce(fresh)
        index = CandidateKernelIndex([*index, *fresh, *variants_of(fresh)])
        result = search_partition(problem, costs, index)
        if result.partitioning is None or result.partitioning.cost >= best.cost:
            break
    return index, result


def _neighbor_candidates(
    survey: Survey, index: CandidateKernelIndex, cover: Sequence[CandidateKernel]
) -> list[CandidateKernel]:
    """Return kernels that differ from those of a cover in where one border is, or are two of them joined, and are new."""
    problem = survey.problem
    if problem.is_placed_by_search:
        return []
    known = set(map(identity_of, index))

    def accepts(sub_graph: SubGraph, target: Target) -> bool:
        return (sub_graph, target, ()) in known or may_have(survey, sub_graph, target)

    moved = moved_borders(problem.graph, cover, accepts)
    beside = problem.within_devices([*joined_neighbors(survey, cover), *moved])
    return [candidate for candidate in beside if identity_of(candidate) not in known]


def search_partition(
    problem: Problem, costs: SearchCosts, index: CandidateKernelIndex
) -> SearchResult[CandidateKernel]:
    """Find the cheapest cover (phase 3) with the user's strategy, which decides what is measured.

    An interrupt ends the search with the best cover so far.
    """
    with costs.searching():
        transfers = tuple(costs.transfers) if problem.is_placed_by_search else None
        is_wide = any(not candidate.sub_graph.is_admissible for candidate in index)
        question = SearchProblem(len(problem.graph), tuple(index), problem.graph, transfers, is_wide)
        access = CostAccess(problem, costs)
        if problem.options.search == "exhaustive":
            measure_all(question, access, access, costs.say)
        name = DEFAULT_STRATEGY if costs.strategy_faults else problem.options.strategy
        strategy, unknown = strategies().get(name), len(index) + 1
        while True:
            result = run_or_fall_back(strategy, question, access, access)
            for fault in result.faults:
                costs.say(fault)
            costs.strategy_faults += result.faults
            # Kernels whose timing the database knows do not count against the budget.
            before, unknown = unknown, sum(costs.known_cost(candidate) is None for candidate in index)
            if result.stopped_by != "max_measured" or not costs.kernels_left or unknown == before or result.faults:
                return result


class CostAccess:
    """The costs and the limits of one search, as strategies see them (`CostSource` and `SearchLimits`)."""

    def __init__(self, problem: Problem, costs: SearchCosts) -> None:
        self._problem = problem
        self._costs = costs
        self._deadline = time.monotonic() + costs.search_s_left
        self.known_cost = costs.known_cost
        self.expected_s = costs.expected_s
        self.least_s = costs.least_s
        self.proves = costs.proves
        self.min_gain = 0.0 if self.proves else costs.min_gain
        self.batch_size = costs.batch_size

    def launch_penalty_s(self, candidate: CandidateKernel) -> float:
        """Return the seconds that this kernel costs in a cover beyond its own cost."""
        return self._costs.launch_penalty_s(candidate.target)

    def priority(self, candidate: CandidateKernel) -> int:
        """Return the rank of the candidate's target on the menu."""
        return self._problem.priority(candidate.target)

    def key_of(self, candidate: CandidateKernel) -> Hashable:
        """Return the key of a candidate."""
        return self._problem.key_of(candidate)

    def measure(self, candidates: Sequence[CandidateKernel]) -> Sequence[Cost]:
        """Measure candidates; after an interrupt, those that were not measured count as invalid."""
        try:
            if not self._costs.is_interrupted:
                return self._costs.measure(candidates)
        except KeyboardInterrupt:
            self._costs.is_interrupted = True
            self._costs.say("interrupted: continuing with the best plan so far")
        return [self._costs.measured_cost(candidate) for candidate in candidates]

    @property
    def kernels_left(self) -> int:
        """The number of candidates that may still be measured."""
        return self._costs.kernels_left

    @property
    def seconds_left(self) -> float:
        """The seconds that the search may still take."""
        return max(0.0, self._deadline - time.monotonic())

    def should_stop(self) -> bool:
        """Return True after an interrupt, of this search or an earlier one of the same compilation."""
        return self._costs.is_interrupted


def best_plans(
    problem: Problem, costs: CostTable, index: CandidateKernelIndex, result: SearchResult[CandidateKernel]
) -> list[Plan]:
    """The best few covers of measured kernels: the best, the best of fewer kernels, and then the next best ones."""
    if result.partitioning is None:
        return []
    if problem.is_placed_by_search:
        return concurrent_plans(problem, costs, index, result.partitioning)
    covers = _measured_through(problem, costs, index)
    if not all(candidate.sub_graph.is_admissible for candidate in index):
        covers.insert(0, result.partitioning)
    mix = next((cover for cover in covers if len(cover.candidates) > 1), None)
    if mix is not None:
        charged = _measured_through(problem, costs, index, _PLAIN * mix.cost.seconds)
        plain = next((cover for cover in charged if 1 < len(cover.candidates) < len(mix.candidates)), None)
        if plain is not None:
            covers.insert(covers.index(mix) + 1, plain)
    plans = [plan_of(cover.candidates, f"mix {i}") for i, cover in enumerate(covers, 1)]
    return [plan for i, plan in enumerate(plans) if not any(plan.same_kernels(earlier) for earlier in plans[:i])]


def _measured_through(
    problem: Problem, costs: CostTable, index: CandidateKernelIndex, charge_s: float = 0.0
) -> list[Partitioning[CandidateKernel]]:
    """The cheapest covers by admissible candidates, if each kernel of a chain cost this much more."""
    found = k_best(
        len(problem.graph),
        tuple(candidate for candidate in index if candidate.sub_graph.is_admissible),
        costs.measured_cost,
        2 * problem.options.finalists,
        launch_penalty_of=lambda candidate: costs.launch_penalty_s(candidate.target) + charge_s,
        priority_of=lambda candidate: problem.priority(candidate.target),
    )
    return found if isinstance(found, list) else []


def searched_again(problem: Problem, costs: CostTable, index: CandidateKernelIndex) -> list[Plan]:
    """The best few covers of these candidates, as plans."""
    return best_plans(problem, costs, index, search_partition(problem, costs, index))


def in_one_process(
    problem: Problem, costs: CostTable, compat: ProcessCompatibility, index: CandidateKernelIndex, covers: list[Plan]
) -> list[Plan]:
    """Covers whose toolchains can share a process; where the best one's cannot, the search is held within those that can."""
    if not covers or compat.can_share(covers[0].leaves):
        return [plan for plan in covers if compat.can_share(plan.leaves)]
    found = []
    leaves = {candidate: leaves_of(candidate) for candidate in index}
    for group in compat.compatible_sets(tuple(dict.fromkeys(itertools.chain(*leaves.values())))):
        inside = CandidateKernelIndex([candidate for candidate in index if group.issuperset(leaves[candidate])])
        found += searched_again(problem, costs, inside)
    return sorted(found, key=lambda plan: predicted_s(problem, costs, plan) or float("inf"))
