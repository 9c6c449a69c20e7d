"""Plans where the search places operators on devices: several ways to share the work, for the finals to choose from.

The cheapest cover is that which takes least work; the one that ends first keeps more devices busy, and may well be another.
What kernels of different devices do to each other when they run at once (a memory shared, a clock turned down) nobody
predicts, so both are raced, and the cheapest cover of each device alone as well. Design sections 4.3 and 6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from collage.compiler.copy_costs import transfers_of
from collage.compiler.device_placement import DeviceCandidate
from collage.compiler.plans import Plan, predicted_s
from collage.compiler.session import CompileSession
from collage.cost.cost import Cost
from collage.fusion import CandidateKernel
from collage.search import NoCover, Partitioning, Transfer, overlapping_covers, placed_shortest_path

__all__ = ["concurrent_plans"]

_ROUNDS = 12
"""How often the cover that is expected to end first is looked for, and what it lacks is measured."""

_CHARGE = 0.01
"""What each kernel that is not measured is charged for that, as a share of the cheapest cover: few new ones come first."""


def concurrent_plans(
    session: CompileSession, index: Iterable[CandidateKernel], cheapest: Partitioning[CandidateKernel]
) -> list[Plan]:
    """Plans for the finals, the one that is predicted to end first at the head; all of their kernels are measured.

    Args:
        session: What is known of the model.
        index: The candidates, each once for every device that may run it.
        cheapest: The cover of least work.
    """
    candidates = [candidate for candidate in index if isinstance(candidate, DeviceCandidate)]
    transfers = transfers_of(session)
    has_overlap = session.placement is not None and session.placement.has_overlap
    covers: list[Partitioning[Any]] = [
        *(_overlapping(session, candidates, transfers, cheapest) if has_overlap else ()),
        cheapest,
        *_alone(session, candidates, transfers),
    ]
    plans: list[Plan] = []
    for cover in covers:
        plan = Plan.of(cover, f"mix {len(plans) + 1}")
        if not any(plan.same_kernels(other) for other in plans):
            plans.append(plan)
    return sorted(plans, key=lambda plan: predicted_s(session, plan) or float("inf"))


def _overlapping(
    session: CompileSession,
    candidates: Sequence[DeviceCandidate],
    transfers: Sequence[Transfer],
    cheapest: Partitioning[CandidateKernel],
) -> list[Partitioning[DeviceCandidate]]:
    """The covers that end first; what they hope for is measured, as long as they hope for enough."""
    find: Callable[..., list[Partitioning[DeviceCandidate]]] = partial(
        overlapping_covers,
        len(session.graph),
        candidates,
        transfers=transfers,
        launch_penalty_of=lambda candidate: session.launch_penalty_s(candidate.target),
    )

    def hoped_for(candidate: DeviceCandidate) -> Cost | float:
        return session.known_cost(candidate) or session.expected_s(candidate) + _CHARGE * cheapest.cost.seconds

    for _ in range(_ROUNDS):
        promising = next(iter(find(hoped_for)), None)
        if promising is None or promising.cost.seconds >= (1.0 - session.options.min_gain) * cheapest.cost.seconds:
            break
        unknown = [candidate for candidate in promising.candidates if session.known_cost(candidate) is None]
        if not unknown:
            break
        batch = list({session.key_of(c.sub_graph, c.target): c for c in unknown}.values())
        room = min(len(batch), session.kernels_left)
        if room <= 0 or session.search_s_left <= 0:
            break
        session.say(f"measuring {room} kernels that may run beside others")
        try:
            session.measure(batch[:room])
        except KeyboardInterrupt:
            session.say("interrupted: going on with the best so far")
            break
    return find(session.measured_cost, session.options.finalists)


def _alone(
    session: CompileSession, candidates: Sequence[DeviceCandidate], transfers: Sequence[Transfer]
) -> list[Partitioning[DeviceCandidate]]:
    """The cheapest cover of each device alone, where one device may run everything."""
    found: list[Partitioning[DeviceCandidate]] = []
    for device in sorted({candidate.device for candidate in candidates}):
        cover: Partitioning[DeviceCandidate] | NoCover = placed_shortest_path(
            len(session.graph),
            [candidate for candidate in candidates if candidate.device == device],
            session.measured_cost,
            transfers=transfers,
            launch_penalty_of=lambda candidate: session.launch_penalty_s(candidate.target),
            priority_of=lambda candidate: session.priority(candidate.target),
        )
        if isinstance(cover, Partitioning):
            found.append(cover)
    return found
