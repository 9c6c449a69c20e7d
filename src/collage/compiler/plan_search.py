"""The mechanism of a compilation: candidate sources, the search, plan sources, the judge and the comparison.

Candidates come from the fusion rules, from tuned kernels and from the bodies of control flow. The search covers the model with
the cheapest ones. Its plans, those of single targets, and those that are derived from both are judged, and then compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial

from collage.compiler.accuracy_budget import judged, within_budget
from collage.compiler.additive_error import additive_error
from collage.compiler.autotune import autotune, known_autotuned
from collage.compiler.body_search import FindPlan, body_candidates
from collage.compiler.cost_table import CostTable
from collage.compiler.final_comparison import FinalComparison
from collage.compiler.lab import Lab
from collage.compiler.objective import choose_finals
from collage.compiler.partition_search import best_plans, in_one_process, search_until_stable, searched_again
from collage.compiler.plans import estimate_s, predicted_s, single_plans, with_costs
from collage.compiler.precision_cuts import plans_by_cuts
from collage.compiler.precision_front import find_front
from collage.compiler.problem import Problem
from collage.compiler.refinement import Refinement
from collage.compiler.refusals import with_named_targets
from collage.compiler.result_store import CompileResult, search_facts
from collage.compiler.side_by_side import side_by_side
from collage.compiler.survey import Survey
from collage.compiler.tried import record_of_trials
from collage.fusion import CandidateKernel, CandidateKernelIndex, FusionReport
from collage.measure.process_compat import ProcessCompatibility
from collage.measure.race import SHORT_S
from collage.measure.tuning_records import TuningRecords
from collage.plan import Plan
from collage.search import SearchResult
from collage.system.progress import Progress
from collage.target import HOST_TARGET

__all__ = ["decide", "search_plans"]


def search_plans(
    lab: Lab, index: CandidateKernelIndex, fusion: FusionReport, progress: Progress, find_plan: FindPlan
) -> CompileResult:
    """Search for the cheapest plans, and compare them end to end with every target alone.

    Args:
        lab: Measures kernels and plans.
        index: The candidates of the fusion rules.
        fusion: Their outcomes.
        progress: Is told of the phases.
        find_plan: Finds the plan of a body.
    """
    costs = lab.costs
    costs.learn()
    costs.introduce(index)
    keys = len({lab.problem.key_of(candidate) for candidate in index})
    progress.counts = lambda: (costs.budget.asked, min(keys, costs.budget.kernels(keys)))
    search = _PlanSearch(lab, progress)
    index, tuning = search.with_tuned_and_bodies(index, find_plan)
    if math.isfinite(costs.best_single_s):
        progress.best = f"best single {costs.best_single_s * 1e3:.3f} ms"
    search.singles = [plan for plan in single_plans(lab.problem, lab.survey, index) if _is_allowed(lab.problem, plan)]
    result = None
    if search.has_choice(index):
        result, finals = decide(index, search.cheapest, search.finalists, search.compare, costs)
    else:
        finals = search.compare(search.judged([]))
    if lab.survey.precision is not None and lab.problem.options.front:
        lab.survey.precision.front = find_front(lab, finals, partial(searched_again, lab.problem, costs, index))
    if lab.problem.options.objective != "throughput":  # There, a plan is not timed as its kernels are.
        finals = replace(finals, additive_error=additive_error(finals, partial(predicted_s, lab.problem, costs)))
    if costs.is_interrupted or finals.is_interrupted:
        result = replace(result or SearchResult(None), stopped_by="should_stop")
    summary = replace(search_facts(lab.problem, index, result, fusion), tuning=tuning)
    compiled = CompileResult.of(lab.problem, costs, finals, summary)
    if finals.recipe is None:
        return compiled
    return replace(compiled, tried=record_of_trials(lab, finals, has_costs=True, found=result, fusion=fusion))


class _PlanSearch:
    """The steps of one search.

    Attributes:
        singles: The plans of single targets, which are compared in any case.
    """

    def __init__(self, lab: Lab, progress: Progress) -> None:
        self.singles: list[Plan] = []
        self._lab = lab
        self._progress = progress
        self._records = TuningRecords(lab.session)
        self._refinement = Refinement(lab, self._may_share)

    @cached_property
    def _compatibility(self) -> ProcessCompatibility:
        lab = self._lab
        return ProcessCompatibility(
            lab.problem.toolchains,
            lab.database,
            lab.session.build_of,
            lab.say,
            remeasure=lab.problem.options.remeasure,
            menu=(HOST_TARGET, *lab.survey.takers),
        )

    def _may_share(self, plan: Plan) -> bool:
        return self._compatibility.can_share(plan.leaves)

    def with_tuned_and_bodies(
        self, index: CandidateKernelIndex, find_plan: FindPlan
    ) -> tuple[CandidateKernelIndex, str]:
        """Return the candidates with those of tuned kernels and of bodies, and a sentence about the tuning."""
        lab, problem, costs = self._lab, self._lab.problem, self._lab.costs
        inner = body_candidates(lab, find_plan)
        tuned = known_autotuned(problem, costs, self._records, index)
        index = CandidateKernelIndex([*index, *tuned, *inner])
        if not problem.options.tune_s:
            return index, ""
        return autotune(problem, costs, self._records, self.cheapest(index)[0])

    def has_choice(self, index: CandidateKernelIndex) -> bool:
        """Return True if plans of several kernels can differ from those of single targets."""
        survey, problem = self._lab.survey, self._lab.problem
        is_bound = bool(problem.choices) or any(problem.is_bound(target) for target in survey.takers)
        is_several = len(survey.takers) > 1 or any(candidate.bodies for candidate in index)
        is_tuned = bool(problem.options.tune_s) or self._lab.costs.has_variants
        return is_several or is_bound or problem.placement is not None or is_tuned

    def cheapest(self, index: CandidateKernelIndex) -> tuple[CandidateKernelIndex, SearchResult[CandidateKernel]]:
        """Return the candidates after the search, with those that it added, and its result."""
        variants_of = partial(known_autotuned, self._lab.problem, self._lab.costs, self._records)
        return search_until_stable(self._lab.survey, self._lab.costs, index, variants_of=variants_of)

    def finalists(self, index: CandidateKernelIndex, result: SearchResult[CandidateKernel]) -> list[Plan]:
        """Return the plans to compare: singles, the best of the search, and what is derived from these."""
        lab, problem, costs, singles = self._lab, self._lab.problem, self._lab.costs, self.singles
        plans = in_one_process(problem, costs, self._compatibility, index, best_plans(problem, costs, index, result))
        if any(target.is_reduced for target in problem.menu):
            again = partial(searched_again, problem, costs, index)
            plans = within_budget(lab, plans, again, partial(plans_by_cuts, lab, index, self._may_share))
        mixes = _mixes(problem, self._promising(_others(lab.survey, plans, singles)))
        refined = self._refinement.plans(index, [*mixes, *singles])
        mixes += [plan for plan in refined if not _is_among([*mixes, *singles], plan)]
        return self.judged(mixes)

    def _promising(self, plans: Sequence[Plan]) -> list[Plan]:
        """Return the plans that are predicted to be faster than every single target, or else the nearest one.

        It is not worth building either if the comparison would leave out a plan that takes as long as predicted. In compilations
        of 17 models that take longer than ``SHORT_S``, 30 mixes of 45 were predicted to be slower than the best single. None of
        them was returned: the best took 0.99 of its time. A model of 1.4 ms is faster by one that was predicted to be slower.
        """
        problem, costs = self._lab.problem, self._lab.costs
        # A single target of reduced precision may miss the limits, which are judged later.
        exact = [each for each in self.singles if each.single is not None and not each.single.is_reduced]
        alone = [predicted_s(problem, costs, each) for each in exact]
        least_s = min((seconds for seconds in alone if seconds is not None), default=math.inf)
        if not problem.options.time_decides or math.isinf(least_s):
            return list(plans)
        most_s = problem.comparison_plan.abandon_ratio * least_s
        near = [(seconds, plan) for plan in plans if (seconds := predicted_s(problem, costs, plan) or 0.0) <= most_s]
        # With many callers, a plan is not timed as its kernels are.
        if problem.options.objective == "throughput" or least_s < SHORT_S:
            return [plan for _, plan in near]
        faster = [plan for seconds, plan in near if seconds < least_s]
        return faster or [plan for _, plan in sorted(near, key=lambda each: each[0])[:1]]

    def judged(self, mixes: Sequence[Plan]) -> list[Plan]:
        """Return singles, mixes and branches side by side, as far as they keep the limits on judging samples, with costs."""
        lab, problem, costs = self._lab, self._lab.problem, self._lab.costs
        branched = side_by_side(problem, costs, [*mixes, *self.singles], self._may_share)
        plans = [*self.singles, *mixes, *branched]
        kept = judged(problem, lab.session, lab.survey.precision, plans, seconds=partial(predicted_s, problem, costs))
        return [
            with_costs(plan, [estimate_s(costs, kernel) for kernel in plan.kernels])
            for plan in with_named_targets(lab.survey, kept)
        ]

    def compare(self, plans: Sequence[Plan]) -> FinalComparison:
        """Compare plans end to end."""
        self._progress.enter("compare")
        return choose_finals(self._lab, plans)


def decide(
    index: CandidateKernelIndex,
    search: Callable[[CandidateKernelIndex], tuple[CandidateKernelIndex, SearchResult[CandidateKernel]]],
    finalists: Callable[[CandidateKernelIndex, SearchResult[CandidateKernel]], Sequence[Plan]],
    compare: Callable[[Sequence[Plan]], FinalComparison],
    costs: CostTable,
) -> tuple[SearchResult[CandidateKernel], FinalComparison]:
    """Phase 3, then the comparison; both once more if building the finalists showed that a kernel is wrong.

    Args:
        index: The candidates.
        search: Finds the cheapest partitioning.
        finalists: The plans to compare.
        compare: Runs them end to end.
        costs: Costs of kernels; kernels that turned out to be wrong are left out of further searches.
    """
    finals, compared = None, list[Plan]()
    while True:
        index, result = search(index)
        plans = finalists(index, result)
        if finals is not None and all(_is_among(compared, plan) for plan in plans):
            return result, finals
        rejected = costs.rejections
        finals, compared = compare(plans), list(plans)
        if costs.rejections == rejected:
            return result, finals


def _others(survey: Survey, plans: Sequence[Plan], singles: Sequence[Plan]) -> list[Plan]:
    """Return the plans other than singles."""
    return [plan for plan in plans if not _is_single_already(survey, plan) and not _is_among(singles, plan)]


def _mixes(problem: Problem, plans: Sequence[Plan]) -> list[Plan]:
    """Return the first plans, as many as are compared, by new names."""
    return [replace(plan, name=f"mix {i}") for i, plan in enumerate(plans[: problem.options.finalists], 1)]


def _is_allowed(problem: Problem, plan: Plan) -> bool:
    """Return True if the user's choices allow a plan, and it leaves kernels that the model has already alone."""
    made_earlier = problem.graph.kernel_call_bits
    if any(len(place.sub_graph) > 1 and place.sub_graph.inside.bits & made_earlier for place in plan.kernels):
        return False
    return all(problem.choices.allows(place.sub_graph, place.target) for place in plan.kernels)


def _is_among(plans: Sequence[Plan], plan: Plan) -> bool:
    return any(plan.same_kernels(one) for one in plans)


def _is_single_already(survey: Survey, plan: Plan) -> bool:
    """Return True if a plan is the whole model on one target as surveyed: not tuned, and without parts that the search chose."""
    first = plan.kernels[0]
    is_surveyed = first.target in survey.baselines and not survey.problem.is_bound(first.target)
    return len(plan.kernels) == 1 and is_surveyed and not first.sub_graph.nested
