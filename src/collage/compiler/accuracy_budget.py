"""Plans within an accuracy budget: which kernels may compute in a coarser type than the model says.

Errors do not add as costs do: they grow, shrink and cancel on their way through a model. So a plan's error is measured end
to end, and the search is only led: it pays a price for each kernel's own error. At price zero it finds the fastest plan,
whatever its error; the price is raised until the plan keeps the budget, and then lowered as far as it still does (a
Lagrangian relaxation of the shortest path under a second, additive constraint).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence

from collage._errors import ToolchainError
from collage.compiler.cost_table import CostTable
from collage.compiler.final_comparison import finalist_of
from collage.compiler.lab import Lab
from collage.compiler.plans import lower, predicted_s
from collage.compiler.precision_session import Precision, Verdict
from collage.compiler.problem import Problem
from collage.compiler.survey import far_s
from collage.measure.session import MeasureSession
from collage.measure.track import checked
from collage.plan import Identity, Plan, identity_of
from collage.workers.worker import Worker

__all__ = ["is_reduced", "judge_key", "judge_plan", "judged", "keeps_limits", "plan_key", "within_budget"]

_STEPS = 8
"""Prices to try. Each costs a search over candidates that are mostly measured, and one run of the plan that it finds."""
_RAISE = 8.0
_LOOKED_AT = 2
"""Plans of one search whose error is measured. Those beside the best are mostly its twins."""
_CHECK_S = 300.0
# A reduced plan of several kernels is not judged if it is expected to take this many times as long as another one.
_SLOWER = 1.15


def within_budget(
    lab: Lab,
    plans: Sequence[Plan],
    search_again: Callable[[], Sequence[Plan]],
    by_cuts: Callable[[Callable[[Plan], bool]], Sequence[Plan]] = lambda _: (),
) -> list[Plan]:
    """The fastest plans found whose end-to-end error keeps the budget.

    Args:
        lab: Builds kernels, and holds the choosing samples, on which plans are looked at. ``error_price_s`` of its costs is
            the price of errors in the search. It is 0 when this returns.
        plans: The plans that the search found at price 0, the best first.
        search_again: The best plans at the present price.
        by_cuts: Plans that keep the budget and that no price leads to, see ``collage.compiler.precision_cuts``.

    Returns:
        The fastest first, by prediction. None may be left.
    """
    problem, costs, precision = lab.problem, lab.costs, lab.survey.precision

    def keeps(plan: Plan) -> bool:
        return keeps_limits(problem, lab.session, precision, plan)

    kept = [plan for plan in plans[:_LOOKED_AT] if keeps(plan)]
    is_kept = not plans or plans[0] in kept
    # A plan near the limit may be refused when it is judged. Borders that are known stand in for it.
    has_borders = precision is not None and bool(precision.borders)
    if not is_kept or has_borders:
        kept += by_cuts(keeps)
    if not is_kept:
        kept += _at_a_price(problem, costs, keeps, search_again, predicted_s(problem, costs, plans[0]))
    best: dict[Hashable, Plan] = {}
    for plan in sorted(kept, key=lambda plan: predicted_s(problem, costs, plan) or float("inf")):
        best.setdefault(plan_key(plan), plan)
    return list(best.values())


def _at_a_price(
    problem: Problem,
    costs: CostTable,
    keeps: Callable[[Plan], bool],
    search_again: Callable[[], Sequence[Plan]],
    fastest_s: float | None,
) -> list[Plan]:
    kept: list[Plan] = []
    # At this price, an error as large as the whole budget costs as much as the whole model takes.
    whole_s = costs.best_single_s if math.isfinite(costs.best_single_s) else fastest_s or 1.0
    too_low, price, enough = 0.0, whole_s / max(problem.tolerance, 1e-9), float("inf")
    try:
        for step in range(_STEPS):
            if problem.options.time_budget_s is not None and costs.search_s_left <= 0:
                break
            costs.error_price_s = price
            costs.say(f"searching within the accuracy budget, {step + 1} of {_STEPS}")
            good = [plan for plan in search_again()[:_LOOKED_AT] if keeps(plan)]
            kept += good
            too_low, enough = (too_low, price) if good else (price, enough)
            price = _RAISE * too_low if enough == float("inf") else (too_low + enough) / 2
    finally:
        costs.error_price_s = 0.0
    return kept


def judged(
    problem: Problem,
    session: MeasureSession,
    precision: Precision | None,
    plans: Sequence[Plan],
    seconds: Callable[[Plan], float | None] = lambda _: None,
) -> list[Plan]:
    """Return the plans that keep every limit on judging samples; those of the model's own precision always do.

    If time decides, reduced plans that are clearly slower than one that is returned are left out. A single target is left out
    only for another one: what a plan of several kernels is predicted to take may be wrong. Refused targets that take the whole
    model are noted in ``precision``, with the reason.

    Args:
        problem: The model.
        session: Builds kernels.
        precision: Holds the judging samples.
        plans: The plans, in the order in which they are returned.
        seconds: The time that a plan is expected to take, if it is known.
    """
    expected_s = {plan.name: seconds(plan) or 0.0 for plan in plans}
    exact_s = [expected_s[plan.name] for plan in plans if not is_reduced(plan) and expected_s[plan.name]]
    best_single_s = best_s = min(exact_s, default=math.inf)
    kept = set[str]()
    for plan in sorted(plans, key=lambda plan: expected_s[plan.name]):
        if precision is None or not is_reduced(plan):
            kept.add(plan.name)
            continue
        limit_s = _SLOWER * best_s if plan.single is None else far_s(best_single_s)
        if problem.options.time_decides and expected_s[plan.name] > limit_s:
            continue
        reason = judge_plan(problem, session, precision, plan).reason
        if reason is None:
            kept.add(plan.name)
            best_s = min(best_s, expected_s[plan.name] or best_s)
            best_single_s = (
                best_single_s if plan.single is None else min(best_single_s, expected_s[plan.name] or best_single_s)
            )
            continue
        session.say(f"{plan.name} is refused: {reason}")
        if plan.single is not None:
            precision.refusals[str(plan.single)] = reason
    return [plan for plan in plans if plan.name in kept]


def judge_plan(problem: Problem, session: MeasureSession, precision: Precision, plan: Plan) -> Verdict:
    """Return how a plan does on judging samples: plans that differ in threads alone are looked at once."""
    key = judge_key(plan)
    if key not in precision.verdicts:
        session.say(f"judging {plan.name}")
        try:
            finalist = finalist_of(problem, session, plan, lower(problem, session, plan))
            with Worker(finalist.service, dict(finalist.arguments)) as worker:
                precision.verdicts[key] = precision.verdict_of(worker)
        except ToolchainError as error:
            precision.verdicts[key] = Verdict(reason=str(error))
    return precision.verdicts[key]


def judge_key(plan: Plan) -> Hashable:
    """Return a key that plans share if they run the same nodes in the same kernels, on any number of threads."""
    return frozenset((part, target.without_option("threads"), bodies) for part, target, bodies in plan_key(plan))


def plan_key(plan: Plan) -> frozenset[Identity]:
    """Return a key that plans share if they run the same nodes in the same kernels."""
    return frozenset(map(identity_of, plan.kernels))


def is_reduced(plan: Plan) -> bool:
    """Return True if a kernel of a plan computes in a coarser type than the model says."""
    return any(place.target.is_reduced for place in plan.kernels)


def keeps_limits(problem: Problem, session: MeasureSession, precision: Precision | None, plan: Plan) -> bool:
    """Return True if a plan is right on the checking sets within the budget, and keeps every limit on choosing samples.

    A plan is looked at once.
    """
    if not is_reduced(plan):
        return True
    known: dict[Hashable, bool] = {} if precision is None else precision.kept
    key = plan_key(plan)
    if key not in known:
        known[key] = _keeps_limits(problem, session, precision, plan)
    return known[key]


def _keeps_limits(problem: Problem, session: MeasureSession, precision: Precision | None, plan: Plan) -> bool:
    try:
        finalist = finalist_of(problem, session, plan, lower(problem, session, plan))
        with Worker(finalist.service, dict(finalist.arguments)) as worker:
            is_right = checked(finalist, worker, problem.tolerance, _CHECK_S, session.arbiter)["wrong"] is None
            return is_right and (precision is None or precision.verdict_of(worker, chooses=True).reason is None)
    except ToolchainError:
        return False
