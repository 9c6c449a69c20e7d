"""The search by costs from a user's own estimator, in any unit.

An estimator may be slow: a simulator, or a board. So it is asked about a kernel only if a cheapest partitioning may need it,
and about equal kernels once. The greedy partitioning for each target is a contestant, so the result is never worse.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from collage._errors import NothingCanRun, ToolchainError, WrongAnswer
from collage.byoc import greedy_kernels
from collage.compiler.candidates import collect, gather_specs, host_spec, joined_neighbors
from collage.compiler.final_comparison import FinalComparison, finalist_of
from collage.compiler.plans import lower, plan_of
from collage.compiler.result_store import CompileResult, SearchSummary
from collage.compiler.survey import Survey
from collage.cost.cost import Cost
from collage.fusion import CandidateKernel, CandidateKernelIndex, FusionReport, FusionSpec, UnionFusionRule
from collage.graph import is_view
from collage.measure.comparison import why_wrong
from collage.measure.estimator import CostEstimator, MeasuringCostEstimator
from collage.measure.jobs import weight_bytes
from collage.measure.session import MeasureSession
from collage.plan import Identity, Plan, identity_of
from collage.search import (
    NoCover,
    Partitioning,
    find_cycle,
    kernel_successors,
    placed_shortest_path,
    wide_shortest_path,
)
from collage.target import HOST_TARGET

__all__ = ["EstimatedSearch", "plan_by_estimator"]

_MAX_STATES = 20_000
"""Most covered sets of a search that calls the estimator on demand.

Beyond, all costs are computed first, and bounds guide the search.
"""


@dataclass(frozen=True, slots=True)
class EstimatedCover:
    """The best partitioning by an estimator's word.

    Attributes:
        plan: The kernels that cover the graph.
        kernels: The same as candidates.
        cost: The sum of their costs and launch penalties.
        candidates: Among how many it was searched.
    """

    plan: Plan
    kernels: tuple[CandidateKernel, ...]
    cost: Cost
    candidates: int


class EstimatedSearch:
    """Finds the cheapest partitioning of a model by an estimator's word.

    Args:
        survey: The model, the menu, and which operators each target takes.
        estimator: Tells what kernels cost.
        known: Further candidates, with their costs.

    Attributes:
        fusion: The outcomes of the candidates that the rules proposed.
        asked: Number of kernels that the estimator was asked about.
    """

    def __init__(
        self, survey: Survey, estimator: CostEstimator, known: Sequence[tuple[CandidateKernel, Cost]] = ()
    ) -> None:
        self.fusion = FusionReport()
        self.asked = 0
        self._survey = survey
        self._problem = survey.problem
        self._estimator = estimator
        self._known: dict[Hashable, Cost] = {survey.problem.key_of(each): cost for each, cost in known}
        self._rejected: set[Identity] = set()
        specs = gather_specs(survey)
        collected = collect(survey.problem, specs, self.fusion, host_takes_all=True)
        self._index = CandidateKernelIndex([*collected, *(each for each, _ in known)])
        self._greedy = list(self._greedy_covers())

    def best(self) -> EstimatedCover:
        """Return the cheapest partitioning, after neighbours of one target were joined as long as that pays.

        Raises:
            NothingCanRun: Nothing covers all operators.
        """
        cover = self._cheapest()
        while paying := self._paying_joins(cover):
            self._index = CandidateKernelIndex([*self._index, *paying])
            cover = self._cheapest()
        rivals = [cover, *self._greedy]
        best = min(rivals, key=lambda kernels: (self._cost_of(kernels), len(kernels)))
        if self._cost_of(best).is_invalid:
            raise NothingCanRun("nothing that the estimator gives a cost covers all operators")
        return EstimatedCover(self._plan_of(best), tuple(best), self._cost_of(best), len(self._index))

    def _plan_of(self, cover: Sequence[CandidateKernel]) -> Plan:
        costs = {identity_of(kernel): self.cost_of(kernel) for kernel in cover}
        plan = plan_of(cover, "estimated")
        told = [costs[identity_of(kernel)] for kernel in plan.kernels]
        texts = [f"{cost.seconds:.6g}" if cost.is_known else None for cost in told]
        kernels = [replace(kernel, cost=text) for kernel, text in zip(plan.kernels, texts, strict=True)]
        return replace(plan, kernels=tuple(kernels))

    def reject(self, kernel: CandidateKernel) -> None:
        """Leave a kernel out of every further search."""
        self._rejected.add(identity_of(kernel))

    def cost_of(self, kernel: CandidateKernel) -> Cost:
        """Return the cost of a kernel. Call the estimator if the cost of an equal kernel is not known."""
        problem = self._problem
        if kernel.target == HOST_TARGET:
            # The host serves views for nothing, and the rest only where nothing else can.
            return Cost.ZERO if all(map(is_view, kernel.sub_graph.nodes)) else Cost.unknown(len(problem.menu) + 1)
        if identity_of(kernel) in self._rejected:
            return Cost.INVALID
        key = problem.key_of(kernel)
        if key not in self._known:
            self.asked += 1
            told = Cost.of(self._estimator.estimate(*problem.kernel_of(kernel)))
            self._known[key] = Cost.unknown(problem.priority(kernel.target) + 1) if told.is_unknown else told
        return self._known[key]

    def _cost_of(self, kernels: Sequence[CandidateKernel]) -> Cost:
        return Cost.sum([*map(self.cost_of, kernels), *map(self._penalty, kernels)])

    def _penalty(self, kernel: CandidateKernel) -> Cost:
        return Cost(seconds=self._problem.options.launch_penalties_s.get(kernel.target.toolchain, 0.0))

    def _paying_joins(self, cover: Sequence[CandidateKernel]) -> list[CandidateKernel]:
        """Return neighbours of a cover joined, as far as that is new and costs no more than the parts."""
        if self._problem.is_placed_by_search:
            return []
        known = set(self._index)
        joined = self._problem.within_devices(joined_neighbors(self._survey, cover))
        return [kernel for kernel in joined if kernel not in known and self._pays(kernel, cover)]

    def _pays(self, joined: CandidateKernel, cover: Sequence[CandidateKernel]) -> bool:
        return self._cost_of([joined]) <= self._cost_of([kernel for kernel in cover if kernel.bits & joined.bits])

    def _cheapest(self) -> Sequence[CandidateKernel]:
        problem = self._problem
        if not problem.is_placed_by_search and (cover := self._lazy_cover()) is not None:
            bits = [kernel.bits for kernel in cover]
            if find_cycle(kernel_successors(problem.graph, bits)) is None:
                return cover
        arguments: dict[str, Any] = {
            "launch_penalty_of": lambda kernel: self._penalty(kernel).seconds,
            "priority_of": lambda kernel: problem.priority(kernel.target),
        }
        find: Callable[..., Partitioning[CandidateKernel] | NoCover] = partial(wide_shortest_path, graph=problem.graph)
        if problem.placement is not None and problem.is_placed_by_search:
            find = partial(placed_shortest_path, transfers=problem.placement.transfers(problem.graph))
        found = find(len(problem.graph), tuple(self._index), self.cost_of, **arguments)
        if isinstance(found, NoCover):
            raise NothingCanRun(found.reason)
        return found.candidates

    def _lazy_cover(self) -> Sequence[CandidateKernel] | None:
        """Search by Dijkstra's algorithm, asking what a candidate costs when the search stands before it.

        Returns:
            A cheapest cover; among equal ones, one of few kernels and of preferred targets. None if there are too many covered
            sets, or there is no cover.
        """
        everything = (1 << len(self._problem.graph)) - 1
        came_by: dict[int, tuple[int, CandidateKernel]] = {}
        best = {0: (Cost.ZERO, 0, 0)}
        waiting: list[tuple[Cost, int, int, int]] = [(Cost.ZERO, 0, 0, 0)]
        settled: set[int] = set()
        while waiting and len(settled) < _MAX_STATES:
            cost, kernels, ranks, covered = heapq.heappop(waiting)
            if covered in settled:
                continue
            if covered == everything:
                return list(_trace(came_by, covered))
            settled.add(covered)
            for kernel in self._index.starting_at((~covered & (covered + 1)).bit_length() - 1):
                after = covered | kernel.bits
                if kernel.bits & covered or after in settled or (own := self.cost_of(kernel)).is_invalid:
                    continue
                rank = ranks + self._problem.priority(kernel.target)
                reached = (cost + own + self._penalty(kernel), kernels + 1, rank)
                if after not in best or reached < best[after]:
                    best[after], came_by[after] = reached, (covered, kernel)
                    heapq.heappush(waiting, (*reached, after))
        return None

    def _greedy_covers(self) -> Iterator[list[CandidateKernel]]:
        """Yield the partition that ``partition_for`` returns, for each target that is not bound to a rule."""
        problem = self._problem
        for target in self._survey.usable if problem.placement is None else ():
            if problem.is_bound(target):
                continue
            spec = FusionSpec("partition_for", UnionFusionRule(()), (target,))
            places = greedy_kernels(problem.model, problem.graph, target, problem.toolchains)
            taken = [CandidateKernel(place, target, spec, ("partition_for",)) for place in places]
            covered = sum(kernel.bits for kernel in taken)
            left = host_spec().all_candidates(problem.graph)
            yield [*taken, *(kernel for kernel in left if not kernel.bits & covered)]


def _trace(came_by: dict[int, tuple[int, CandidateKernel]], covered: int) -> Iterator[CandidateKernel]:
    while covered:
        covered, kernel = came_by[covered]
        yield kernel


def plan_by_estimator(
    survey: Survey,
    session: MeasureSession,
    estimator: CostEstimator,
    known: Sequence[tuple[CandidateKernel, Cost]] = (),
) -> CompileResult:
    """Return the cheapest plan by an estimator's word, built and checked; kernels that fail are replaced.

    Args:
        survey: The model, the menu, and which operators each target takes.
        session: Builds and checks.
        estimator: Tells what kernels cost.
        known: Further candidates, with their costs.

    Raises:
        NothingCanRun: Nothing covers all operators.
        WrongAnswer: The plan is wrong, and none of its kernels is.
    """
    problem = survey.problem
    session.say("searching by the estimator's costs")
    search = EstimatedSearch(survey, estimator, known)
    checks = MeasuringCostEstimator(session, weight_bytes(problem.model))
    while True:
        found = search.best()
        failed = [kernel for kernel in found.kernels if kernel.target != HOST_TARGET and _fails(survey, kernel, checks)]
        for kernel in failed:
            search.reject(kernel)
        if not failed:
            break
    plan = found.plan
    recipe = lower(problem, session, plan)
    reason = why_wrong(finalist_of(problem, session, plan, recipe), problem.tolerance)
    if reason is not None:
        raise WrongAnswer(f"the plan of the least estimated cost gives wrong outputs: {reason}")
    return CompileResult(
        FinalComparison(recipe, plan, [plan], {}, None, None),
        SearchSummary(
            "finished",
            found.candidates,
            search.asked,
            caps=tuple(search.fusion.capped),
            notes=tuple(search.fusion.notes),
            optimal=not search.fusion.capped,
            strategy="estimator",
        ),
        {plan.name: tuple(None if kernel.cost is None else float(kernel.cost) for kernel in plan.kernels)},
        {plan.name: found.cost.seconds if found.cost.is_known else None},
        kernels_ok=True,
    )


def _fails(survey: Survey, kernel: CandidateKernel, checks: MeasuringCostEstimator) -> bool:
    """Return True if a kernel cannot be built or run, or is wrong."""
    try:
        return checks.why_wrong(*survey.problem.kernel_of(kernel)) is not None
    except ToolchainError:
        return True
