"""A plan that is given: it is checked, built and run, and nothing is searched; or its kernels are where a search begins."""

from __future__ import annotations

from dataclasses import replace

from collage._errors import UsageError, WrongAnswer
from collage.compiler.accuracy_budget import is_reduced, judge_plan
from collage.compiler.lab import Lab
from collage.compiler.objective import choose_finals
from collage.compiler.planned import plan_of_file
from collage.compiler.result_store import CompileResult, search_facts
from collage.compiler.survey import Survey
from collage.compiler.tried import record_of_trials
from collage.frontend import model_digest
from collage.fusion import CandidateKernel, CandidateKernelIndex, FusionReport, FusionSpec, UnionFusionRule
from collage.plan import Plan
from collage.plan_file import PlanFile
from collage.runtime import BODIES_TARGET
from collage.target import HOST_TARGET

__all__ = ["earlier_candidates", "given_plan"]

_GIVEN = FusionSpec("plan file", UnionFusionRule(()), ())


def given_plan(lab: Lab) -> CompileResult:
    """Build the plan of the options, measure its kernels and check its outputs.

    Raises:
        UsageError: The plan does not fit the model, the menu or the devices.
        WrongAnswer: It computes in a coarser type, and misses a limit on judging samples.
    """
    problem, precision, session, costs = lab.problem, lab.survey.precision, lab.session, lab.costs
    assert isinstance(problem.options.plan, PlanFile)
    plan = plan_of_file(problem, problem.options.plan, model_digest(problem.model))
    costs.learn()
    kernels = _candidates_of(plan)
    if any(place.bodies for place in plan.kernels):
        costs.introduce_variant(BODIES_TARGET, HOST_TARGET)
    costs.introduce(kernels)
    costs.measure(kernels)
    if precision is not None and is_reduced(plan):
        session.say("measuring the accuracy of the plan")
        if (reason := judge_plan(problem, session, precision, plan).reason) is not None:
            raise WrongAnswer(f"the given plan exceeds the accuracy budget: {reason}")
    finals = choose_finals(lab, [plan], told=False)
    result = CompileResult.of(problem, costs, finals, search_facts(problem, kernels, None, FusionReport()))
    if finals.recipe is None:
        return result
    return replace(result, tried=record_of_trials(lab, finals, has_costs=True))


def earlier_candidates(survey: Survey) -> CandidateKernelIndex | None:
    """Return the kernels of the plan that an earlier part of this compilation has; None if there is none, or it does not fit."""
    problem = survey.problem
    if problem.part.plan is None:
        return None
    try:
        plan = plan_of_file(problem, problem.part.plan, "")
    except UsageError:
        return None
    # Variants, such as tuned kernels, have to be found again.
    is_usual = {kernel.target for kernel in plan.kernels} <= {*survey.usable, HOST_TARGET}
    return CandidateKernelIndex(_candidates_of(plan)) if is_usual else None


def _candidates_of(plan: Plan) -> list[CandidateKernel]:
    return [
        CandidateKernel(place.sub_graph, place.target, _GIVEN, (place.rule,), bodies=place.bodies)
        for place in plan.kernels
    ]
