"""The search by costs from a user's own estimator, in any unit: its answers are a source of costs like the timings of kernels.

The estimator is asked about equal kernels once. The kernels of greedy partitioning are candidates, so the result is never
worse than that.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property

from collage._errors import NothingCanRun, ToolchainError, WrongAnswer
from collage.compiler.body_search import body_candidate, body_options, moved_plan
from collage.compiler.candidates import collect, gather_specs
from collage.compiler.final_comparison import FinalComparison, finalist_of
from collage.compiler.partition_search import search_until_stable
from collage.compiler.plans import lower, plan_of
from collage.compiler.problem import Problem
from collage.compiler.result_store import CompileResult, search_facts
from collage.compiler.survey import Survey, supported_baselines
from collage.cost.cost import Cost
from collage.fusion import CandidateKernel, CandidateKernelIndex, FusionReport
from collage.graph import DataflowGraph, bodies, is_view
from collage.measure.body_problem import body_model, is_searchable, stated_runs
from collage.measure.estimator import CostEstimator, MeasuringCostEstimator
from collage.measure.jobs import weight_bytes
from collage.measure.session import MeasureSession
from collage.measure.track import why_wrong
from collage.plan import AnyKernel, Identity, Plan, identity_of
from collage.search import Partitioning, SearchResult, Transfer
from collage.target import HOST_TARGET, Target
from collage.toolchains import Availability

__all__ = ["EstimatedCosts", "estimated_cover", "estimated_plan", "plan_by_estimator", "unrun_bodies"]


class EstimatedCosts:
    """Costs of kernels by an estimator's word (`partition_search.SearchCosts`). Nothing limits the search.

    Args:
        problem: The model and the menu.
        estimator: Returns the cost of a kernel.
        known: Candidates whose costs are known.
        say: Called with each line of progress.

    Attributes:
        asked: Number of kernels that the estimator was asked about.
    """

    proves = True
    min_gain = 0.0
    batch_size = None
    kernels_left = sys.maxsize
    search_s_left = math.inf

    def __init__(
        self,
        problem: Problem,
        estimator: CostEstimator,
        known: Sequence[tuple[CandidateKernel, Cost]] = (),
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.asked = 0
        self.say = say
        self.strategy_faults: tuple[str, ...] = ()
        self.is_interrupted = False
        self._problem = problem
        self._estimator = estimator
        self._known: dict[Hashable, Cost] = {problem.key_of(each): cost for each, cost in known}
        self._rejected: set[Identity] = set()

    def searching(self) -> AbstractContextManager[None]:
        """Do nothing: the time of the search is not limited."""
        return nullcontext()

    def introduce(self, candidates: Sequence[CandidateKernel]) -> None:
        """Do nothing: the estimator knows every kernel."""

    @cached_property
    def transfers(self) -> list[Transfer]:
        """Return the values that operators hand to each other, with the costs of copies that the plan of devices states."""
        assert self._problem.placement is not None
        return list(self._problem.placement.transfers(self._problem.graph))

    def known_cost(self, candidate: AnyKernel) -> Cost | None:
        """Return the cost of a kernel, or of an equal one; None if the estimator was not asked yet."""
        problem = self._problem
        if identity_of(candidate) in self._rejected:
            return Cost.INVALID
        if candidate.target == HOST_TARGET:
            # The host serves views for nothing, kernels made earlier stay, and the rest is its only where nothing else can.
            is_free = candidate.sub_graph.inside.bits & problem.graph.kernel_call_bits or all(
                map(is_view, candidate.sub_graph.nodes)
            )
            return Cost.ZERO if is_free else Cost.unknown(len(problem.menu) + 1)
        return self._known.get(problem.key_of(candidate))

    def measured_cost(self, candidate: AnyKernel) -> Cost:
        """Return the known cost of a kernel; INVALID for all others."""
        return self.known_cost(candidate) or Cost.INVALID

    def measure(self, candidates: Sequence[CandidateKernel]) -> list[Cost]:
        """Ask the estimator about kernels."""
        for candidate in candidates:
            if self.known_cost(candidate) is None:
                self._known[self._problem.key_of(candidate)] = self._ask(candidate)
        return [self.measured_cost(candidate) for candidate in candidates]

    def _ask(self, candidate: CandidateKernel) -> Cost:
        self.asked += 1
        kernel, target = self._problem.kernel_of(candidate)
        cost = Cost.of(self._estimator.estimate(kernel, target))
        return Cost.unknown(self._problem.priority(candidate.target) + 1) if cost.is_unknown else cost

    def reject(self, kernel: AnyKernel) -> None:
        """Leave a kernel out of every further search."""
        self._rejected.add(identity_of(kernel))

    def expected_s(self, candidate: CandidateKernel) -> float:
        """Return 0: nothing is known about the estimator's unit."""
        return 0.0

    least_s = expected_s

    def launch_penalty_s(self, target: Target) -> float:
        """Return the penalty that the user states for each kernel of a toolchain."""
        return self._problem.options.launch_penalties_s.get(target.toolchain, 0.0)


def estimated_cover(
    survey: Survey, costs: EstimatedCosts, fusion: FusionReport, inner: Sequence[CandidateKernel] = ()
) -> tuple[CandidateKernelIndex, SearchResult[CandidateKernel], Partitioning[CandidateKernel]]:
    """Return all candidates, the result of the search, and the cheapest partitioning.

    Args:
        survey: The model, the menu, and which operators each target takes.
        costs: The costs by the estimator's word.
        fusion: Takes notes of candidates that were left out.
        inner: Candidates for operators with bodies.

    Raises:
        NothingCanRun: Nothing that the estimator gives a cost covers all operators.
    """
    problem = survey.problem
    collected = collect(problem, gather_specs(survey), fusion, host_takes_all=True)
    index = CandidateKernelIndex([*collected, *inner])
    # No bound of an estimator's costs is known, so a search could leave out hardly any kernel.
    costs.measure(list({problem.key_of(each): each for each in index}.values()))
    index, result = search_until_stable(survey, costs, index)
    if result.partitioning is None:
        reason = (
            "nothing that the estimator gives a cost covers all operators"
            if result.missing is None
            else result.missing.reason
        )
        raise NothingCanRun(reason)
    return index, result, result.partitioning


def estimated_plan(problem: Problem, costs: EstimatedCosts, cover: Sequence[CandidateKernel]) -> Plan:
    """Return a cover as a plan, with the costs of its kernels."""
    plan = plan_of(cover, "estimated")
    stated = [costs.measured_cost(kernel) for kernel in plan.kernels]
    texts = [f"{cost.seconds:.6g}" if cost.is_known else None for cost in stated]
    kernels = [replace(kernel, cost=text) for kernel, text in zip(plan.kernels, texts, strict=True)]
    return replace(plan, kernels=tuple(kernels))


def unrun_bodies(survey: Survey, estimator: CostEstimator) -> list[tuple[CandidateKernel, Cost]]:
    """Return the operators whose bodies are kernels of their own as candidates, with their costs; nothing is run.

    A body counts as often as the model states that it runs, or else once.

    Args:
        survey: The model, the menu, and which operators each target takes.
        estimator: Returns the cost of a kernel.
    """
    problem = survey.problem
    nodes = enumerate(problem.graph.nodes) if problem.placement is None else ()
    found = []
    for index, node in ((i, node) for i, node in nodes if is_searchable(node)):
        plans: list[Plan] = []
        cost, runs = Cost.ZERO, stated_runs(node)
        for number, graph in enumerate(DataflowGraph(body, model=problem.model) for body in bodies(node)):
            if not len(graph):
                plans.append(Plan("", ()))
                continue
            model = body_model(graph, node, f"body_{number}_of_{index}")
            inner = Problem.of(model, problem.menu, problem.toolchains, body_options(problem, graph))
            inside = replace(survey, problem=inner, baselines=supported_baselines(inner, lambda _: Availability(True)))
            known = unrun_bodies(inside, estimator)
            source = EstimatedCosts(inner, estimator, known)
            _, _, cover = estimated_cover(inside, source, FusionReport(), [each for each, _ in known])
            plan = estimated_plan(inner, source, cover.candidates)
            plans.append(moved_plan(inner, graph, plan))
            if runs:
                cost += Cost(runs * cover.cost.unknown_rank, runs * cover.cost.seconds)
        found.append((body_candidate(problem, index, tuple(plans)), cost))
    return [(each, cost) for each, cost in found if problem.choices.allows(each.sub_graph, each.target)]


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
        estimator: Returns the cost of a kernel.
        known: Further candidates, with their costs.

    Raises:
        NothingCanRun: Nothing covers all operators.
        WrongAnswer: The plan is wrong, and none of its kernels is.
    """
    problem = survey.problem
    session.say("searching by the estimator's costs")
    costs = EstimatedCosts(problem, estimator, known, session.say)
    checks = MeasuringCostEstimator(session, weight_bytes(problem.model))
    while True:
        fusion = FusionReport()
        index, result, cover = estimated_cover(survey, costs, fusion, [each for each, _ in known])
        failed = [kernel for kernel in cover.candidates if _fails(survey, kernel, checks)]
        for kernel in failed:
            costs.reject(kernel)
        if not failed:
            break
    plan = estimated_plan(problem, costs, cover.candidates)
    recipe = lower(problem, session, plan)
    reason = why_wrong(finalist_of(problem, session, plan, recipe), problem.tolerance)
    if reason is not None:
        raise WrongAnswer(f"the plan of the least estimated cost gives wrong outputs: {reason}")
    summary = search_facts(problem, index, result, fusion)
    return CompileResult(
        FinalComparison(recipe, plan, [plan], {}, None, None),
        replace(summary, keys=costs.asked, optimal=summary.optimal and not fusion.capped, algorithm="estimator"),
        {plan.name: tuple(None if kernel.cost is None else float(kernel.cost) for kernel in plan.kernels)},
        {plan.name: cover.cost.seconds if cover.cost.is_known else None},
        kernels_ok=True,
        strategy_faults=costs.strategy_faults,
    )


def _fails(survey: Survey, kernel: CandidateKernel, checks: MeasuringCostEstimator) -> bool:
    """Return True if a kernel cannot be built or run, or is wrong."""
    if kernel.target == HOST_TARGET:
        return False
    try:
        return checks.why_wrong(*survey.problem.kernel_of(kernel)) is not None
    except ToolchainError:
        return True
