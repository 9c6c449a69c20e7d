"""Phase 3: the cheapest covers of a graph, and which of them go to the finals.

Only candidates that may lie on a best path are measured. What is found is not the end: borders between its kernels are
moved, neighbours are joined, and the search goes on with these; and a cover whose toolchains cannot share a process is no
cover. Specification 003, "Phase 3"; design section 6.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence

from collage.compiler.autotune import known_autotuned
from collage.compiler.concurrent_plans import concurrent_plans
from collage.compiler.copy_costs import transfers_of
from collage.compiler.plans import Plan, predicted_s
from collage.compiler.session import CompileSession
from collage.cost.cost import Cost
from collage.fusion import CandidateKernel, CandidateKernelIndex, max_coalesce, moved_borders
from collage.graph import IndexSet, SubGraph, is_view
from collage.search import (
    LazyResult,
    Partitioning,
    SearchProblem,
    SearchResult,
    k_best,
    measure_all,
    run_strategy,
    strategies,
)
from collage.target import HOST_TARGET, Target

__all__ = ["best_plans", "in_one_process", "search_partition", "search_until_stable", "searched_again"]

_PLAIN = 0.01
"""Charge for each kernel, as a share of the best mix, under which a finalist of fewer kernels is found. Mixes next to the best
are mostly its twins, with a view here or there; where going from toolchain to toolchain costs more than was measured, as
threads have to be woken, it is the plain one that wins.
"""

_LOOKS = 3
"""So many covers at most are measured again."""


def search_until_stable(
    session: CompileSession, index: CandidateKernelIndex
) -> tuple[CandidateKernelIndex, LazyResult[CandidateKernel]]:
    """Phase 3, until its result bears a second look.

    The cheapest of many noisy sums is partly cheap by luck. So the kernels of the best cover are measured again, and the
    search goes on with what that says, until it ends with what was seen twice.

    Returns:
        All candidates there are now, and the result of the last search.
    """
    index, result = _settled(session, _recalled(session, index))
    for _ in range(_LOOKS):
        if result.partitioning is None or result.stopped_by in ("should_stop", "deadline"):
            break
        if not session.remeasure(result.partitioning.candidates):
            break
        index, result = _settled(session, index)
    _remember(session, index, result.stopped_by)
    return index, result


def _recalled(session: CompileSession, index: CandidateKernelIndex) -> CandidateKernelIndex:
    """Candidates, and those that the last search of this model found beside its covers; what it knew is known again.

    This search knows it from the beginning. If it asked for one cost after the other it would settle elsewhere: what was
    looked at twice costs something else now than when the last search first saw it.
    """
    told = None if session.options.remeasure else session.database.local_fact(**session.fact_of_menu("search-2"))
    if told is None:
        return index
    proposed = {(str(c.target), c.bits): c for c in index if not c.sub_graph.nested}
    like = {str(candidate.target): candidate for candidate in index}
    known, beside = [], []
    for target, nodes, rules in told["candidates"]:
        inside = IndexSet.of(*nodes)
        if (target, inside.bits) in proposed:
            known.append(proposed[target, inside.bits])
        elif target in like and max(nodes) < len(session.graph) and not _is_placed_by_search(session):
            sub_graph = SubGraph(session.graph, inside)
            if sub_graph.has_border and sub_graph.is_admissible:
                beside.append(CandidateKernel(sub_graph, like[target].target, like[target].spec, tuple(rules)))
    beside = session.within_devices(beside)
    session.introduce(beside)
    session.recall([*known, *beside])
    has_budget = session.options.measure_budget is not None or session.options.time_budget_s is not None
    if not has_budget and None not in map(session.known_cost, [*known, *beside]):
        session.budget.asked = max(session.budget.asked, int(told["asked"]))  # The budget is for all searches together.
    return CandidateKernelIndex([*index, *beside])


def _remember(session: CompileSession, index: CandidateKernelIndex, stopped_by: str) -> None:
    """Notes for the next search of this model which costs this one knew, and how much of the budget was used."""
    is_spent = stopped_by == "deadline" and session.options.time_budget_s is None
    asked = session.budget.asked + (session.kernels_left if is_spent else 0)
    known = [c for c in index if session.known_cost(c) is not None and not c.sub_graph.nested]
    told = [[str(c.target), list(c.sub_graph.inside), list(c.rules)] for c in known]
    session.database.keep_local_fact({"candidates": told, "asked": asked}, **session.fact_of_menu("search-2"))


def _settled(
    session: CompileSession, index: CandidateKernelIndex
) -> tuple[CandidateKernelIndex, LazyResult[CandidateKernel]]:
    """Phase 3, and again with candidates beside those of the best cover, until none of them makes a better one.

    Where candidates end was decided before anything was measured; now that something is, borders between kernels are
    moved, and neighbours of one target are joined.
    """
    result = search_partition(session, index)
    while (best := result.partitioning) is not None and result.stopped_by in ("finished", "min_gain"):
        known = {(candidate.sub_graph, candidate.target) for candidate in index}
        fresh = [c for c in _neighbor_candidates(session, best.candidates) if (c.sub_graph, c.target) not in known]
        if not fresh:
            break
        session.introduce(fresh)
        index = CandidateKernelIndex([*index, *fresh, *known_autotuned(session, fresh)])
        result = search_partition(session, index)
        if result.partitioning is None or result.partitioning.cost.seconds >= best.cost.seconds:
            break
    return index, result


def _neighbor_candidates(session: CompileSession, cover: Sequence[CandidateKernel]) -> list[CandidateKernel]:
    """Kernels that differ from those of a cover in where one border is, or are two of them joined."""
    if _is_placed_by_search(session):
        return []

    def accepts(sub_graph: SubGraph, target: Target) -> bool:
        if target != HOST_TARGET and target not in session.baselines:
            return False  # Tuned kernels are what they are.
        covers = is_view if target == HOST_TARGET else lambda node: session.coverage_of(target)(node).ok
        return sub_graph.has_border and all(covers(node) for node in sub_graph.nodes)

    joined = max_coalesce(session.graph, cover, lambda candidate: accepts(candidate.sub_graph, candidate.target))
    moved = moved_borders(session.graph, cover, accepts)
    return session.within_devices([*(c for c in joined if c.sub_graph.is_admissible), *moved])


def search_partition(session: CompileSession, index: CandidateKernelIndex) -> SearchResult[CandidateKernel]:
    """Phase 3: the cheapest cover that the strategy finds, which decides what is measured; or all is, if that is wanted.

    An interrupt ends the search with the best cover so far.
    """
    with session.budget.searching():
        transfers = tuple(transfers_of(session)) if _is_placed_by_search(session) else None
        problem = SearchProblem(len(session.graph), tuple(index), session.graph, transfers)
        access = _SessionAccess(session)
        if session.options.search == "exhaustive":
            measure_all(problem, access, access, session.say)
        return run_strategy(strategies().get(session.options.strategy), problem, access, access)


class _SessionAccess:
    """The costs and the limits of one search, as strategies see them (`CostSource` and `SearchLimits`)."""

    def __init__(self, session: CompileSession) -> None:
        self._session = session
        self._deadline = time.monotonic() + session.search_s_left
        self._is_interrupted = False
        self.known_cost = session.known_cost
        self.expected_s = session.expected_s
        self.least_s = session.least_s
        self.proves = session.options.proves
        self.min_gain = 0.0 if self.proves else session.options.min_gain
        self.batch_size = session.batch_size

    def launch_penalty_s(self, candidate: CandidateKernel) -> float:
        return self._session.launch_penalty_s(candidate.target)

    def priority(self, candidate: CandidateKernel) -> int:
        return self._session.priority(candidate.target)

    def key_of(self, candidate: CandidateKernel) -> Hashable:
        return self._session.key_of(candidate.sub_graph, candidate.target)

    def measure(self, candidates: Sequence[CandidateKernel]) -> Sequence[Cost]:
        """Measure candidates; after an interrupt, those that were not measured count as invalid."""
        try:
            return self._session.measure(candidates)
        except KeyboardInterrupt:
            self._is_interrupted = True
            self._session.say("interrupted: going on with the best so far")
            return [self._session.measured_cost(candidate) for candidate in candidates]

    @property
    def kernels_left(self) -> int:
        return self._session.kernels_left

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def should_stop(self) -> bool:
        return self._is_interrupted


def _is_placed_by_search(session: CompileSession) -> bool:
    return session.placement is not None and session.placement.is_free


def best_plans(session: CompileSession, index: CandidateKernelIndex, result: LazyResult[CandidateKernel]) -> list[Plan]:
    """The best few covers that were measured through: the best, the best of fewer kernels, and then what follows the best."""
    if result.partitioning is None:
        return []
    if _is_placed_by_search(session):
        return concurrent_plans(session, index, result.partitioning)
    covers = _measured_through(session, index)
    mix = next((cover for cover in covers if len(cover.candidates) > 1), None)
    if mix is not None:
        charged = _measured_through(session, index, _PLAIN * mix.cost.seconds)
        plain = next((cover for cover in charged if 1 < len(cover.candidates) < len(mix.candidates)), None)
        if plain is not None:
            covers.insert(covers.index(mix) + 1, plain)
    plans = [Plan.of(cover, f"mix {i}") for i, cover in enumerate(covers, 1)]
    return [plan for i, plan in enumerate(plans) if not any(plan.same_kernels(earlier) for earlier in plans[:i])]


def _measured_through(
    session: CompileSession, index: CandidateKernelIndex, charge_s: float = 0.0
) -> list[Partitioning[CandidateKernel]]:
    """The cheapest covers, if each kernel of a chain cost this much more."""
    found = k_best(
        len(session.graph),
        tuple(index),
        session.measured_cost,
        2 * session.options.finalists,
        launch_penalty_of=lambda candidate: session.launch_penalty_s(candidate.target) + charge_s,
        priority_of=lambda candidate: session.priority(candidate.target),
    )
    return found if isinstance(found, list) else []


def searched_again(session: CompileSession, index: CandidateKernelIndex) -> list[Plan]:
    """The best few covers of these candidates, as plans."""
    return best_plans(session, index, search_partition(session, index))


def in_one_process(session: CompileSession, index: CandidateKernelIndex, covers: list[Plan]) -> list[Plan]:
    """Covers whose toolchains can share a process; where the best one's cannot, the search is held within those that can."""
    if not covers or session.shares_process(covers[0].targets):
        return [plan for plan in covers if session.shares_process(plan.targets)]
    found = []
    for group in session.process_compat.compatible_sets(tuple(dict.fromkeys(candidate.target for candidate in index))):
        inside = CandidateKernelIndex([candidate for candidate in index if candidate.target in group])
        found += searched_again(session, inside)
    return sorted(found, key=lambda plan: predicted_s(session, plan) or float("inf"))
