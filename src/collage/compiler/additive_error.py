"""The additive error: the difference between a plan's time and the sum of its kernels' times.

Kernels are measured minutes before plans are compared, and the machine may be faster or slower by then. So the best single
target serves as the measure: it was measured with the kernels, and compared with the plan.
"""

from __future__ import annotations

from collections.abc import Callable

from collage.compiler.final_comparison import FinalComparison
from collage.plan import Plan

__all__ = ["additive_error"]


def additive_error(finals: FinalComparison, predicted_s: Callable[[Plan], float | None]) -> float | None:
    """Return the winner's additive error as a share of its time; positive if it takes longer than its kernels add up to.

    Args:
        finals: The end-to-end comparison of the plans.
        predicted_s: The seconds that a plan is predicted to take, by its measured kernels.

    Returns:
        0 for a plan of one kernel; None if no single target finished, or a kernel was not measured.
    """
    plan = finals.plan
    if plan is None or len(plan.kernels) <= 1:
        return None if plan is None else 0.0
    winner = _slowness(finals, plan, predicted_s)
    singles = [
        (seconds, slowness)
        for single in finals.plans
        if single.single is not None
        and (seconds := predicted_s(single)) is not None
        and (slowness := _slowness(finals, single, predicted_s)) is not None
    ]
    return None if winner is None or not singles else 1.0 - min(singles)[1] / winner


def _slowness(finals: FinalComparison, plan: Plan, predicted_s: Callable[[Plan], float | None]) -> float | None:
    """Return how many times as long as predicted a plan took in the comparison."""
    standing, predicted = finals.standings.get(plan.name), predicted_s(plan)
    if standing is None or standing.paired_s is None or not predicted:
        return None
    return standing.paired_s / predicted
