"""The front: time against error, for several accuracy budgets."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from collage.compiler.accuracy_budget import judge_plan, plan_key
from collage.compiler.final_comparison import FinalComparison, choose
from collage.compiler.lab import Lab
from collage.compiler.plans import predicted_s
from collage.compiler.precision_session import MAX_ERROR, Precision
from collage.compiler.survey import Survey
from collage.graph import IndexSet, SubGraph
from collage.numerics.judge import REDUCED_TOLERANCE
from collage.plan import Plan, PlannedKernel
from collage.status import Status

__all__ = ["BUDGETS", "find_front", "points"]

BUDGETS = (0.0, 1e-3, 3e-3, 1e-2, 2e-2, 5e-2)
"""Accuracy budgets of a front, in addition to the user's own; 0 stands for the model's own precision."""

_MOST_RACED = 8
_CLEARLY = 0.8


def find_front(lab: Lab, finals: FinalComparison, search_again: Callable[[], Sequence[Plan]]) -> list[dict[str, Any]]:
    """Return the fastest plan for each of several budgets, by errors on judging samples and times end to end.

    Args:
        lab: Its costs have a price on errors, which is raised and lowered here.
        finals: The final comparison. Its winner takes part in any case.
        search_again: The best plans at the present price.
    """
    survey, problem, costs, precision = lab.survey, lab.problem, lab.costs, lab.survey.precision
    if precision is None or finals.plan is None:
        return []
    budgets = sorted({*BUDGETS, *([problem.options.accuracy_budget] if problem.options.accuracy_budget else [])})
    plans = [*finals.plans, *_wholes(survey)]
    whole_s = costs.best_single_s if math.isfinite(costs.best_single_s) else predicted_s(problem, costs, finals.plan)
    try:
        for budget in budgets[1:]:
            costs.say(f"searching for the front, budget {budget:g}")
            costs.error_price_s = (whole_s or 1.0) / budget
            plans += search_again()[:1]
    finally:
        costs.error_price_s = 0.0
    distinct = list({plan_key(plan): plan for plan in plans}.values())
    judged = [(plan, _error(lab, precision, plan)) for plan in distinct]
    raced = _hopeful(
        [
            (plan, error, predicted_s(problem, costs, plan) or float("inf"))
            for plan, error in judged
            if error is not None
        ]
    )
    named = [replace(plan, name=f"front {i}") for i, (plan, _) in enumerate(raced)]
    races = choose(lab, named, tolerance=max(problem.tolerance, REDUCED_TOLERANCE))
    found = []
    for plan, (_, error) in zip(named, raced, strict=True):
        standing = races.standings.get(plan.name)
        if standing is not None and standing.status is Status.OK and standing.paired_s is not None:
            found.append((plan, error, standing.paired_s))
    return points(budgets, found)


def _wholes(survey: Survey) -> list[Plan]:
    """Return every target that takes the whole model, however far off it is."""
    graph = survey.problem.graph
    everything = SubGraph(graph, IndexSet((1 << len(graph)) - 1))
    return [
        Plan(str(target), (PlannedKernel(everything, target, "whole"),), target)
        for target, found in survey.baselines.items()
        if found.whole.time is not None
    ]


def _error(lab: Lab, precision: Precision, plan: Plan) -> tuple[float, float, float] | None:
    """Return a plan's error with its interval; None if it does not run."""
    if not any(kernel.target.is_reduced for kernel in plan.kernels):
        return 0.0, 0.0, 0.0
    found = judge_plan(lab.problem, lab.session, precision, plan).estimates.get(MAX_ERROR)
    return None if found is None else (found.value, found.low, found.high)


def _hopeful(
    plans: Sequence[tuple[Plan, tuple[float, float, float], float]],
) -> list[tuple[Plan, tuple[float, float, float]]]:
    """Return the plans that are not dominated: no other plan has less error in clearly less predicted time. Fastest first."""
    kept = [
        (seconds, plan, error)
        for plan, error, seconds in plans
        if not any(e[2] <= error[2] and s < _CLEARLY * seconds for _, e, s in plans)
    ]
    kept.sort(key=lambda each: each[0])
    exact = [each for each in kept if not each[2][2]][:1]
    chosen = [*exact, *(each for each in kept if each not in exact)][:_MOST_RACED]
    return [(plan, error) for _, plan, error in chosen]


def points(
    budgets: Sequence[float], plans: Sequence[tuple[Plan, tuple[float, float, float], float]]
) -> list[dict[str, Any]]:
    """Return, for each budget, the fastest plan whose error's worse end keeps it; none where no plan does.

    Args:
        budgets: Largest errors, ascending.
        plans: Each with its error, the ends of the error's interval, and its seconds.
    """
    found = []
    for budget in budgets:
        keeping = [each for each in plans if each[1][2] <= budget]
        if not keeping:
            continue
        plan, (error, low, high), seconds = min(keeping, key=lambda each: each[2])
        counts = Counter(kernel.target.short for kernel in plan.kernels)
        found.append(
            {
                "budget": budget,
                "error": error,
                "error_interval": [low, high],
                "time_ms": seconds * 1e3,
                "plan": ", ".join(name if n == 1 else f"{n} x {name}" for name, n in counts.items()),
            }
        )
    return found
