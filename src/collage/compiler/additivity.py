"""Calibration: what plans that run end to end say about the costs that they were predicted from (design section 7).

Costs add, so what a plan takes is known before it runs. Whether they do is seen by timing the kernels of the fastest chain of
the finals beside the chain itself, in turns. Where they do not, the costs of chains are corrected, and the search is held once
more with what was learned. Specification 003, "Robust candidate kernel latency measurement".
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Hashable
from dataclasses import astuple, replace

from collage._errors import ToolchainError
from collage.compiler.cost_table import CostTable
from collage.compiler.final_comparison import FinalComparison, finalist_of
from collage.compiler.plans import Plan, lower, predicted_s
from collage.compiler.problem import Problem
from collage.cost.cost import Correction
from collage.measure.additivity import AdditivityCheck, TimedPart, check_additivity
from collage.measure.jobs import weight_bytes
from collage.measure.sampling import kernel_slowdown
from collage.measure.session import MeasureSession
from collage.system.machine import free_memory_bytes

__all__ = [
    "PlanChecks",
    "additive_error",
    "correct_costs",
    "correction_of",
    "estimate_correction",
    "machine_drift",
    "mean_of_two_checks",
    "with_additive_error",
]

_CONTRADICTION = 0.05
"""Share of its time by which a chain's kernels may be off before costs are corrected; shares are known to some per cent."""
_SURPRISE = 0.1
"""As far as this a chain may do otherwise than predicted; races and costs that were measured apart are not more alike."""
_LEAST_PARTS = 0.6
_GLIMPSE = 3
"""So many runs, or fewer, only told that a plan is too slow to be raced."""
_COPIES = 8
"""How often a model's weights may be in memory: in the plan, in its kernels, and in what either packs them into."""


class PlanChecks:
    """Plans beside their kernels, in turns; each is timed once on each occasion.

    Args:
        problem: The model.
        costs: What its kernels cost.
        session: Builds and measures.
    """

    def __init__(self, problem: Problem, costs: CostTable, session: MeasureSession) -> None:
        self._problem = problem
        self._costs = costs
        self._session = session
        self._found: dict[Hashable, AdditivityCheck | None] = {}

    def predicted_s(self, plan: Plan) -> float | None:
        """Return the seconds that a plan is predicted to take, by the present costs."""
        return predicted_s(self._problem, self._costs, plan)

    def check(self, plan: Plan, occasion: int) -> AdditivityCheck | None:
        """Time a plan beside its kernels.

        Args:
            plan: A chain on the machine's processors.
            occasion: Which one: two teach a correction, others judge it. Each has a process of its own for the plan.

        Returns:
            None where that cannot be told: on several devices, where nothing is compared, or where time or memory are
            short.
        """
        name = frozenset((kernel.sub_graph, kernel.target) for kernel in plan.kernels), occasion
        if name not in self._found and self._can_be_checked(plan):
            try:
                self._found[name] = self._checked(plan)
            except ToolchainError as error:
                self._session.say(f"kernels cannot be timed beside {plan.name}: {error}")
            except KeyboardInterrupt:
                self._session.say("interrupted: going on with the best so far")
        return self._found.get(name)

    def _checked(self, plan: Plan) -> AdditivityCheck | None:
        problem, session = self._problem, self._session
        keys = [problem.key_of(kernel.sub_graph, kernel.target) for kernel in plan.kernels]
        distinct, counts = dict(zip(keys, plan.kernels, strict=True)), Counter(keys)
        whole = finalist_of(problem, session, plan, lower(problem, session, plan))
        parts = [TimedPart(session.alone(self._costs.job(kernel)), counts[key]) for key, kernel in distinct.items()]
        return check_additivity(whole, parts, session.say, wait=session.noise_monitor.wait)

    def _can_be_checked(self, plan: Plan) -> bool:
        problem = self._problem
        has_memory = _COPIES * weight_bytes(problem.model) < free_memory_bytes()
        if problem.placement is not None or not problem.options.finals or not has_memory:
            return False
        has_time = problem.options.time_budget_s is None or self._costs.search_s_left > 0
        return has_time and all(kernel.target.kind == "llvm" for kernel in plan.kernels)


def correct_costs(costs: CostTable, checks: PlanChecks, finals: FinalComparison) -> bool:
    """Corrects the costs of chains by what the fastest of the finals is made of; once in a compilation.

    What a chain takes beyond its kernels is divided among them, and is from then on part of each kernel's launch penalty.
    Where it takes less, kernels find caches in a better state than where they were measured: parts of a model then count as
    much less, and the whole model on one target, of which nothing has to be added up, as before. So they do where kernels add
    up by now, and the chain still did better than predicted: parts were measured while the machine was slower than for the
    whole.

    Nothing is timed where the chain did against the best single as predicted: then costs are right enough to choose by.

    Returns:
        True if costs changed, so that another plan may be the best one: worth one more search.
    """
    chain = _fastest_mixed_plan(finals) if costs.correction == Correction() else None
    if chain is None or abs((slower := _slower_than_predicted(checks, finals, chain)) - 1.0) <= _SURPRISE:
        return False
    correction, has_looked_again = estimate_correction(costs, checks, chain), False
    if correction.parts == 1.0 and slower < 1.0 - _SURPRISE:
        has_looked_again = costs.remeasure(chain.kernels)
        slower = _slower_than_predicted(checks, finals, chain)
        if slower < 1.0 - _SURPRISE:
            correction = Correction(parts=max(slower, _LEAST_PARTS))
    if correction == Correction():
        return has_looked_again
    if correction.chain_s:
        costs.say(
            f"chains cost {correction.chain_s * 1e6:.0f} us more for each kernel than was measured; searching again"
        )
    else:
        costs.say(f"chains take {1.0 - correction.parts:.0%} less than their kernels add up to; searching again")
    costs.correction = correction
    return True


def estimate_correction(costs: CostTable, checks: PlanChecks, chain: Plan) -> Correction:
    """What a chain teaches that is timed beside its kernels: what it said twice, and of that the less."""
    corrections: list[Correction] = []
    for occasion in (1, 2):
        found = checks.check(chain, occasion)
        corrections.append(Correction() if found is None else correction_of(costs, chain, found))
        if corrections[-1] == Correction():
            return Correction()
    first, second = corrections
    return Correction(min(first.chain_s, second.chain_s), max(first.parts, second.parts))


def correction_of(costs: CostTable, chain: Plan, found: AdditivityCheck) -> Correction:
    """What one occasion says of a chain; nothing where its kernels add up to it, more or less."""
    launch = _launch_s(costs, chain) / found.whole_s
    missing = 1.0 - found.parts - launch
    if missing > _CONTRADICTION:
        return Correction(chain_s=missing * found.whole_s / len(chain.kernels))
    if missing < -_CONTRADICTION:
        return Correction(parts=min(max((1.0 - launch) / found.parts, _LEAST_PARTS), 1.0))
    return Correction()


def with_additive_error(costs: CostTable, checks: PlanChecks, finals: FinalComparison) -> FinalComparison:
    """The finals with the winner's additive error, as a share of its time: 0 for one kernel, None if it is not known.

    A correction was learned from one chain. It is judged by the winner, which may be another one, on other occasions. Where its
    kernels add up better without, costs are stated without.
    """
    plan = finals.plan
    if plan is None or len(plan.kernels) <= 1:
        return replace(finals, additive_error=None if plan is None else 0.0)
    found = mean_of_two_checks(costs, checks, plan, (1, 2) if costs.correction == Correction() else (3, 4))
    if found is None:
        return replace(finals, additive_error=_error_of_comparison(checks, finals, plan))
    error = additive_error(costs, plan, found)
    if costs.correction != Correction():
        learned, costs.correction = costs.correction, Correction()
        without = additive_error(costs, plan, found)
        if abs(error) <= abs(without):
            costs.correction = learned
        else:
            costs.say("the winner contradicts the correction: its kernels add up without")
            error = without
    return replace(finals, additive_error=error)


def additive_error(costs: CostTable, plan: Plan, found: AdditivityCheck) -> float:
    """Share of a plan's time by which its kernels and launch penalties do not add up to it; positive where it takes longer."""
    return 1.0 - costs.correction.parts * found.parts - _launch_s(costs, plan) / found.whole_s


def machine_drift(finals: FinalComparison) -> float:
    """Return how many times as long as on a calm machine kernels took in the race.

    The race's pace tells it (see ``collage.measure.noise_monitor``).
    """
    return kernel_slowdown(finals.slowdown)


def mean_of_two_checks(
    costs: CostTable, checks: PlanChecks, plan: Plan, occasions: tuple[int, int]
) -> AdditivityCheck | None:
    """What one occasion says; where that is a contradiction, the mean of two."""
    first = checks.check(plan, occasions[0])
    if first is None or abs(additive_error(costs, plan, first)) <= _CONTRADICTION:
        return first
    second = checks.check(plan, occasions[1])
    return (
        first
        if second is None
        else AdditivityCheck(*map(statistics.mean, zip(astuple(first), astuple(second), strict=True)))
    )


def _fastest_mixed_plan(finals: FinalComparison) -> Plan | None:
    """The fastest plan of several kernels of which more is known than that it seemed too slow to be raced."""
    raced = [
        (standing.paired_s or standing.time.median_s, plan)
        for plan in finals.plans
        if (standing := finals.standings.get(plan.name)) is not None
        and standing.time is not None
        and standing.time.count > _GLIMPSE
        and len(plan.kernels) > 1
    ]
    return min(raced, key=lambda found: found[0], default=(0.0, None))[1]


def _slower_than_predicted(checks: PlanChecks, finals: FinalComparison, chain: Plan) -> float:
    """How many times as long as predicted a chain took, against the best single; infinite where that cannot be compared."""

    def ratio(plan: Plan) -> float | None:
        standing, predicted = finals.standings.get(plan.name), checks.predicted_s(plan)
        if standing is None or standing.time is None or not predicted:
            return None
        return (standing.paired_s or standing.time.median_s) / predicted

    singles = [plan for plan in finals.plans if plan.single is not None and ratio(plan) is not None]
    best = min(singles, key=lambda plan: checks.predicted_s(plan) or math.inf, default=None)
    own, other = ratio(chain), None if best is None else ratio(best)
    return math.inf if own is None or other is None else own / other


def _launch_s(costs: CostTable, plan: Plan) -> float:
    return sum(costs.launch_penalty_s(place.target) for place in plan.kernels)


def _error_of_comparison(checks: PlanChecks, finals: FinalComparison, plan: Plan) -> float | None:
    """The same by what was predicted and what was raced, minutes apart; what the machine's pace explains is left out."""
    standing, predicted = finals.standings.get(plan.name), checks.predicted_s(plan)
    if standing is None or standing.time is None or predicted is None:
        return None
    return 1.0 - machine_drift(finals) * predicted / (standing.paired_s or standing.time.median_s)
