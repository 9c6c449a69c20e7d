"""The finals: from plans to the one executable that is returned."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from collage._errors import NothingCanRun, ToolchainError
from collage.compiler.lab import Lab
from collage.compiler.plans import lower, on_the_host, predicted_s
from collage.compiler.problem import Problem
from collage.compiler.survey import Survey
from collage.cost.statistics import Interval, Summary
from collage.measure.figures import executable_arguments
from collage.measure.finalist import LATENCY, Figure, Finalist, FinalistResult
from collage.measure.race import race
from collage.measure.session import MeasureSession
from collage.measure.track import ComparisonPlan, why_wrong
from collage.plan import Plan, PlannedKernel
from collage.runtime import Recipe
from collage.status import Status

__all__ = [
    "BASELINE",
    "FinalComparison",
    "baseline_of",
    "built_plans",
    "choose",
    "compare_again",
    "compared",
    "finalist_of",
    "interrupted",
    "lowered_again",
    "unmeasured",
]

BASELINE = "baseline"
"""Name of the finalist that is the user's present set-up: the original model on ONNX Runtime."""

_RACE = "collage.measure._executable_worker:ExecutableWorker"
_NOISY = 1.5
"""Ratio of the ninetieth to the tenth percentile of latencies from which a machine is called noisy; a quiet one has 1.1."""


@dataclass(frozen=True, slots=True)
class FinalComparison:
    """The result of the final comparison.

    Attributes:
        recipe: The winner's, ready to run; None if nothing finished.
        plan: The winning plan.
        plans: All plans.
        standings: The result of every plan, by its name.
        time: The winner's end-to-end latency.
        speedup: Over the best single target, and its interval; None if no single target finished.
        additive_error: See ``collage.compiler.additive_error``; None until it is computed, or if it is not known.
        rivals: Plans that may be as fast as the winner, by name: the interval of their time over the winner's.
        is_interrupted: The user ended the comparison.
        overruled: Name of the plan that was chosen first, if the reported rounds contradicted the choice.
        objective: Section of the report on the objective and the limits; empty if the latency alone decides.
        warning: A sentence for the user, or None.
        shares: Share of the winner's run that each of its kernels takes, measured inside it; empty if that is not known.
    """

    recipe: Recipe | None
    plan: Plan | None
    plans: Sequence[Plan]
    standings: dict[str, FinalistResult]
    time: Summary | None
    speedup: tuple[float, Interval] | None
    additive_error: float | None = None
    rivals: Mapping[str, Interval] = field(default_factory=dict)
    is_interrupted: bool = False
    overruled: str | None = None
    objective: Mapping[str, Any] = field(default_factory=dict)
    warning: str | None = None
    shares: tuple[float, ...] = ()

    @classmethod
    def failed(cls, plans: Sequence[Plan], standings: dict[str, FinalistResult]) -> FinalComparison:
        """Return the comparison of plans of which none finished."""
        return cls(None, None, plans, standings, None, None)

    @classmethod
    def alone(cls, recipe: Recipe, plan: Plan, *, is_interrupted: bool = False) -> FinalComparison:
        """Return the comparison of a single plan, which nothing was compared with."""
        return cls(recipe, plan, [plan], {}, None, None, is_interrupted=is_interrupted)

    @property
    def is_noisy(self) -> bool:
        """True if the winner's runs took very different times."""
        return self.time is not None and self.time.p90_s > _NOISY * self.time.p10_s

    @property
    def is_in_doubt(self) -> bool:
        """True if a disturbed machine chose among plans that it could not tell apart."""
        return bool(self.rivals) and self.is_noisy

    @property
    def is_final(self) -> bool:
        """True if nothing is to be raced again: the choice is not in doubt, and no plan was left out by two samples alone."""
        return not self.is_in_doubt and not any(standing.slower for standing in self.standings.values())


def choose(
    lab: Lab, plans: Sequence[Plan], *, baseline: Finalist | None = None, tolerance: float | None = None
) -> FinalComparison:
    """Compare the plans end to end, with each other and with the original model on ONNX Runtime, and return the winner.

    Args:
        lab: Builds plans, and has the inputs.
        plans: The plans.
        baseline: The original model, if it takes part.
        tolerance: Largest error of an output that counts as right; None is that of the problem.
    """
    problem, costs, session = lab.problem, lab.costs, lab.session
    problem = problem if tolerance is None else replace(problem, tolerance=tolerance)
    if not problem.options.finals:
        return _least_predicted(lab, plans)
    try:
        expected_s = partial(predicted_s, problem, costs)
        return _compared(problem, session, plans, costs.why_wrong, baseline, expected_s)
    except KeyboardInterrupt:
        return interrupted(lab, plans)


def interrupted(lab: Lab, plans: Sequence[Plan]) -> FinalComparison:
    """Return the single target that is predicted to be fastest, after an interrupt of the comparison."""
    lab.say("interrupted: returning the single target with the lowest predicted time")
    return _least_predicted(lab, [plan for plan in plans if plan.single] or plans, is_interrupted=True)


def _compared(
    problem: Problem,
    session: MeasureSession,
    plans: Sequence[Plan],
    why_wrong_kernel: Callable[[PlannedKernel], str | None] = lambda _: None,
    baseline: Finalist | None = None,
    expected_s: Callable[[Plan], float | None] = lambda _: None,
) -> FinalComparison:
    # The most promising come first, since the last are left out if time is short.
    ordered = sorted(plans, key=lambda plan: expected_s(plan) or math.inf)
    recipes, failures = built_plans(problem, session, ordered, why_wrong_kernel)
    finalists = [finalist_of(problem, session, plan, recipes[plan.name]) for plan in ordered if plan.name in recipes]
    found = compared(problem, session, plans, recipes, finalists, baseline)
    return replace(found, standings={**failures, **found.standings})


def compared(
    problem: Problem,
    session: MeasureSession,
    plans: Sequence[Plan],
    recipes: Mapping[str, Recipe],
    finalists: Sequence[Finalist],
    baseline: Finalist | None,
    *,
    plan: ComparisonPlan | None = None,
    winner: str | None = None,
    figure: Figure = LATENCY,
) -> FinalComparison:
    """Compare finalists end to end.

    Args:
        problem: The model.
        session: Holds the inputs.
        plans: All plans.
        recipes: The recipe of each plan among the finalists.
        finalists: The plans that are compared, by the names of plans.
        baseline: The baseline, if it takes part.
        plan: The length of the comparison; None is the problem's.
        winner: Name of the plan that counts as the winner, whatever its time.
        figure: The quantity that they are compared by.
    """
    finalists = [*([] if baseline is None else [baseline]), *finalists]
    length = plan or problem.comparison_plan
    result = race(
        finalists,
        problem.tolerance,
        length,
        session.say,
        figure=figure,
        winner=winner,
        has_profile=figure is LATENCY,
    )
    standings = {standing.finalist.name: standing for standing in result.standings}
    if result.winner is None:
        return FinalComparison.failed(plans, standings)
    name = result.winner.finalist.name
    chosen = next(plan for plan in plans if plan.name == name)
    return FinalComparison(
        recipes[name],
        chosen,
        plans,
        standings,
        result.winner.time,
        result.speedup,
        rivals=result.rivals,
        overruled=result.overruled,
        shares=result.shares,
    )


def lowered_again(problem: Problem, session: MeasureSession, finals: FinalComparison) -> FinalComparison | None:
    """Build the winner of an earlier comparison, and check its outputs.

    Returns:
        The comparison with the winner's recipe; None if the winner cannot be built any more, or is wrong.
    """
    assert finals.plan is not None
    session.say(f"checking {finals.plan.name}, which was chosen before")
    try:
        recipe = lower(problem, session, finals.plan)
        reason = why_wrong(finalist_of(problem, session, finals.plan, recipe), problem.tolerance)
    except ToolchainError as error:
        reason = str(error)
    if reason is not None:
        session.say(f"stored result rejected ({reason}); searching again")
        return None
    return replace(finals, recipe=recipe)


def compare_again(
    problem: Problem,
    session: MeasureSession,
    finals: FinalComparison,
    baseline: Finalist | None = None,
    more: Collection[str] = (),
) -> FinalComparison:
    """Compare an earlier winner with its rivals, the best single target and further plans once more.

    Returns:
        The comparison with the new results; unchanged if the user ends this one or nothing finishes.
    """
    assert finals.plan is not None
    names = {finals.plan.name, *finals.rivals, *_best_single(finals), *more}
    session.say(f"comparing {len(names)} plans again: the earlier choice may have been another one")
    try:
        found = _compared(problem, session, [plan for plan in finals.plans if plan.name in names], baseline=baseline)
    except KeyboardInterrupt:
        session.say("interrupted: returning the plan that was chosen before")
        return finals
    if found.plan is None:
        return finals
    additive_error = finals.additive_error if found.plan.name == finals.plan.name else None
    if len(found.plan.kernels) == 1:
        additive_error = 0.0
    # Figures of another comparison may not stand beside these.
    earlier = {name: replace(standing, **_NO_FIGURES) for name, standing in finals.standings.items()}
    standings = {**earlier, **found.standings}
    return replace(found, plans=finals.plans, standings=standings, additive_error=additive_error)


_NO_FIGURES: dict[str, Any] = {"time": None, "paired_s": None, "ratio": None, "rounds_s": (), "lost": True}


def _best_single(finals: FinalComparison) -> list[str]:
    """Return the name of the fastest plan that is one target alone, if any finished."""
    timed = [
        (standing.ratio[0], plan.name)
        for plan in finals.plans
        if plan.single is not None
        and (standing := finals.standings.get(plan.name)) is not None
        and standing.ratio is not None
    ]
    return [min(timed)[1]] if timed else []


def built_plans(
    problem: Problem,
    session: MeasureSession,
    plans: Sequence[Plan],
    why_wrong_kernel: Callable[[PlannedKernel], str | None],
) -> tuple[dict[str, Recipe], dict[str, FinalistResult]]:
    """Return the plans that can be compared, and how the others failed: a kernel could not be built, or is wrong where it is.

    Building takes at most half of the time that is left, but one single is built in any case, or one plan if there is none.
    """
    recipes: dict[str, Recipe] = {}
    failures: dict[str, FinalistResult] = {}
    needed = [plan for plan in plans if plan.single is not None] or plans
    reserve_s = problem.comparison_plan.left_s / 2
    for plan in plans:
        is_late = problem.comparison_plan.left_s < reserve_s
        if is_late and (plan not in needed or any(one.name in recipes for one in needed)):
            continue
        session.say(f"building finalist {plan.name}")
        entry = finalist_of(problem, session, plan, None)
        try:
            recipe, wrong = lower(problem, session, plan), _wrong_kernel(problem, plan, why_wrong_kernel)
        except ToolchainError as error:
            failures[plan.name] = FinalistResult(entry, Status.FAILED, reason=str(error))
            continue
        if wrong is None:
            recipes[plan.name] = recipe
        else:
            failures[plan.name] = FinalistResult(entry, Status.WRONG, reason=wrong)
    return recipes, failures


def _wrong_kernel(problem: Problem, plan: Plan, why_wrong_kernel: Callable[[PlannedKernel], str | None]) -> str | None:
    """Return which kernel of a mix is wrong, and why; one that runs the model alone is checked by its outputs."""
    for kernel in plan.kernels if len(plan.kernels) > 1 else ():
        reason = why_wrong_kernel(kernel)
        if reason is not None:
            return f"kernel {problem.kernels.of(kernel).graph.name}: {reason}"
    return None


def unmeasured(survey: Survey, session: MeasureSession) -> FinalComparison:
    """Return the host's plan, for a model that could not be run for reference. The host runs it as it is written.

    Raises:
        NothingCanRun: Not even the host can build it.
    """
    problem = survey.problem
    plan = on_the_host(problem, survey)
    try:
        return FinalComparison.alone(lower(problem, session, plan), plan)
    except ToolchainError as error:
        raise NothingCanRun(f"nothing can run the model: {error}; and {survey.reference.failure}") from error


def _least_predicted(lab: Lab, plans: Sequence[Plan], *, is_interrupted: bool = False) -> FinalComparison:
    """Without finals: the first plan, by predicted cost, that can be built and of which no kernel failed or is wrong."""
    problem, costs, session = lab.problem, lab.costs, lab.session
    failures: dict[str, FinalistResult] = {}
    for plan in sorted(plans, key=lambda plan: predicted_s(problem, costs, plan) or float("inf")):
        outcomes = [costs.outcome_of(kernel) for kernel in plan.kernels]
        if (bad := next((each for each in outcomes if each is not None and not each.ok), None)) is not None:
            entry = finalist_of(problem, session, plan, None)
            failures[plan.name] = FinalistResult(entry, bad.status, reason=bad.reason)
            continue
        try:
            recipe = lower(problem, session, plan)
            return FinalComparison.alone(recipe, plan, is_interrupted=is_interrupted)
        except ToolchainError as error:
            failures[plan.name] = FinalistResult(
                finalist_of(problem, session, plan, None), Status.FAILED, reason=str(error)
            )
    return FinalComparison.failed(plans, failures)


def finalist_of(problem: Problem, session: MeasureSession, plan: Plan, recipe: Recipe | None) -> Finalist:
    """A plan as an entry of the race; without a recipe only its name counts."""
    arguments = {} if recipe is None else executable_arguments(recipe, session, problem.toolchains)
    is_reduced = any(target.is_reduced for target in plan.targets)
    is_single = plan.single is not None
    model = None if session.reference_model is None else str(session.reference_model)
    return Finalist(plan.name, _RACE, arguments, len(plan.kernels), is_single, is_reduced, model=model)


def baseline_of(survey: Survey, session: MeasureSession) -> Finalist | None:
    """Return the baseline: the original file on ONNX Runtime with its defaults, or the whole model on a named target.

    If the plan has a rival to beat, that is the baseline.

    Raises:
        UsageError: The named target does not exist.
    """
    wanted, original, problem = survey.problem.options.baseline, survey.reference.original, survey.problem
    model = None if session.reference_model is None else str(session.reference_model)
    timed = {"values": session.value_folders, "weights": session.weights}
    if (rival := problem.part.rival) is not None:
        service = "collage.measure._executable_worker:ArtefactWorker"
        return Finalist(BASELINE, service, {"artefact": str(rival.artefact), **timed}, is_candidate=False, model=model)
    if wanted == "none" or original is None or not problem.options.finals:
        return None
    shared = {**timed, "threads": problem.options.threads}
    if wanted == "onnxruntime":
        service = "collage.measure._executable_worker:OriginalFileWorker"
        return Finalist(BASELINE, service, {"path": str(original.path), **shared}, is_candidate=False, model=model)
    (target,) = problem.toolchains.parse_targets([wanted])
    try:
        compiled = session.build(problem.kernels.model((1 << len(problem.graph)) - 1, target), target)
    except ToolchainError as error:
        session.say(f"the baseline cannot be built on {target.short}: {error}")
        return None
    factory, arguments = problem.toolchains.factory(target.toolchain)
    told = {
        "factory": factory,
        "arguments": arguments,
        "compiled": compiled.as_json(),
        "target": str(target),
        "workspace": str(session.workspace),
        **shared,
    }
    return Finalist(BASELINE, "collage.measure._executable_worker:VendorWorker", told, is_candidate=False, model=model)
