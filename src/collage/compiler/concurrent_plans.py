"""Plans if the search places operators on devices: several ways to share the work, for the final comparison.

The cheapest cover has the least work. The cover that ends first keeps more devices busy, and may be another one.
Kernels of different devices slow each other when they run at once (a memory shared, a clock turned down). That is not
predicted.
So both are compared end to end, and the cheapest cover of each device alone as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from collage.compiler.cost_table import CostTable
from collage.compiler.device_placement import DeviceCandidate
from collage.compiler.plans import plan_of, predicted_s
from collage.compiler.problem import Problem
from collage.cost.cost import Cost
from collage.fusion import CandidateKernel
from collage.plan import Plan
from collage.search import NoCover, Partitioning, overlapping_covers, placed_shortest_path

__all__ = ["concurrent_plans"]

_ROUNDS = 12
"""Rounds of looking for the cover that is expected to end first, and measuring its missing kernels."""

_CHARGE = 0.01
"""Charge for each kernel that is not measured, as a share of the cheapest cover, so that covers with few of them come first."""


def concurrent_plans(
    problem: Problem, costs: CostTable, index: Iterable[CandidateKernel], cheapest: Partitioning[CandidateKernel]
) -> list[Plan]:
    """Plans for the finals, the one that is predicted to end first at the head; all of their kernels are measured.

    Args:
        problem: The model.
        costs: Costs of kernels.
        index: The candidates, each once for every device that may run it.
        cheapest: The cover of least work.
    """
    candidates = [candidate for candidate in index if isinstance(candidate, DeviceCandidate)]
    has_overlap = problem.placement is not None and problem.placement.has_overlap
    covers: list[Partitioning[Any]] = [
        *(_overlapping(problem, costs, candidates, cheapest) if has_overlap else ()),
        cheapest,
        *_alone(problem, costs, candidates),
    ]
    plans: list[Plan] = []
    for cover in covers:
        plan = plan_of(cover.candidates, f"mix {len(plans) + 1}")
        if not any(plan.same_kernels(other) for other in plans):
            plans.append(plan)
    return sorted(plans, key=lambda plan: predicted_s(problem, costs, plan) or float("inf"))


def _overlapping(
    problem: Problem,
    costs: CostTable,
    candidates: Sequence[DeviceCandidate],
    cheapest: Partitioning[CandidateKernel],
) -> list[Partitioning[DeviceCandidate]]:
    """The covers that end first. Their unmeasured kernels are measured as long as enough gain is expected."""
    find: Callable[..., list[Partitioning[DeviceCandidate]]] = partial(
        overlapping_covers,
        len(problem.graph),
        candidates,
        transfers=costs.transfers,
        launch_penalty_of=lambda candidate: costs.launch_penalty_s(candidate.target),
    )

    def hoped_for(candidate: DeviceCandidate) -> Cost | float:
        return costs.known_cost(candidate) or costs.expected_s(candidate) + _CHARGE * cheapest.cost.seconds

    for _ in range(_ROUNDS):
        promising = next(iter(find(hoped_for)), None)
        if promising is None or promising.cost.seconds >= (1.0 - problem.options.min_gain) * cheapest.cost.seconds:
            break
        unknown = [candidate for candidate in promising.candidates if costs.known_cost(candidate) is None]
        if not unknown:
            break
        batch = list({problem.key_of(c): c for c in unknown}.values())
        room = min(len(batch), costs.kernels_left)
        if room <= 0 or costs.search_s_left <= 0:
            break
        costs.say(f"measuring {room} kernels that may run beside others")
        try:
            costs.measure(batch[:room])
        except KeyboardInterrupt:
            costs.is_interrupted = True
            costs.say("interrupted: continuing with the best plan so far")
            break
    return find(costs.measured_cost, problem.options.finalists)


def _alone(
    problem: Problem, costs: CostTable, candidates: Sequence[DeviceCandidate]
) -> list[Partitioning[DeviceCandidate]]:
    """The cheapest cover of each device alone, where one device may run everything."""
    found: list[Partitioning[DeviceCandidate]] = []
    for device in sorted({candidate.device for candidate in candidates}):
        cover: Partitioning[DeviceCandidate] | NoCover = placed_shortest_path(
            len(problem.graph),
            [candidate for candidate in candidates if candidate.device == device],
            costs.measured_cost,
            transfers=costs.transfers,
            launch_penalty_of=lambda candidate: costs.launch_penalty_s(candidate.target),
            priority_of=lambda candidate: problem.priority(candidate.target),
        )
        if isinstance(cover, Partitioning):
            found.append(cover)
    return found
