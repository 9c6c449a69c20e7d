"""The lazy shortest path: only kernels that can lie on the best path are measured.

Measuring is expensive, searching is cheap. Every candidate that was not measured yet has a bound. The best path under
these optimistic costs is searched, and its unmeasured candidates are measured. This repeats until all candidates of the
best path are measured. If the bounds are proofs, no other path can then be better: a path that was not measured has a
bound that is not better, and its true cost is at least its bound.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic

import numpy as np

from collage.cost.cost import Cost, CostLike
from collage.search._dijkstra import DEFAULT_MAX_STATES, find_paths
from collage.search._labels import Found, Path
from collage.search._problem import Floats, Ints, Problem
from collage.search._results import as_partitioning, no_cover, rank_of
from collage.search._values import C, DependencyGraph, NoCover, SearchResult, SearchStatistics
from collage.search._weights import Weights
from collage.search._wide import Flow, find_wide

__all__ = ["LazyOptions", "LazySearch", "lazy_shortest_path"]


@dataclass(frozen=True, slots=True)
class LazyOptions:
    """When a lazy search measures how much, and when it stops.

    Attributes:
        bounds_are_proofs: True if no candidate can cost less than its bound: only then is a result called optimal.
        batch_size: Most candidates per call of ``measure``; None is all that are not measured on the best path.
        paths_per_round: Most of the best paths that may contribute to a batch that is not full.
        max_measured: Most candidates to measure in all, None for no limit.
        deadline_s: Seconds after which no new batch begins, None for no limit.
        min_gain: The search stops when the best optimistic path is not better than the best path measured through by at
            least this fraction of it.
        max_states: Cap on covered sets settled in each round, after which the best cover known is followed.
        charges: Charges for each candidate that is not measured, as shares of the best path's cost. The search
            continues with the next charge when there is nothing to gain at one. Falling charges make it try paths of few new
            candidates first, which can be measured through; without them it wanders among many that are all hoped to be
            a little better, and ends in the middle of measuring one of them. Only for bounds that are not proofs.
    """

    bounds_are_proofs: bool = False
    batch_size: int | None = None
    paths_per_round: int = 1
    max_measured: int | None = None
    deadline_s: float | None = None
    min_gain: float = 0.0
    max_states: int = DEFAULT_MAX_STATES
    charges: tuple[float, ...] = (0.0,)


def lazy_shortest_path(
    n: int,
    candidates: Sequence[C],
    bound_of: Callable[[C], float],
    measure: Callable[[Sequence[C]], Sequence[CostLike]],
    *,
    options: LazyOptions | None = None,
    known_cost_of: Callable[[C], CostLike | None] | None = None,
    key_of: Callable[[C], Hashable] | None = None,
    proof_bound_of: Callable[[C], float] | None = None,
    launch_penalty_of: Callable[[C], float] | None = None,
    priority_of: Callable[[C], int] | None = None,
    should_stop: Callable[[], bool] | None = None,
    graph: DependencyGraph | None = None,
) -> SearchResult[C]:
    """The cheapest cover, measuring only candidates that may lie on it.

    Args:
        n: Number of nodes.
        candidates: The candidate kernels; each satisfies the admission rule, unless ``graph`` is given.
        bound_of: Seconds that a candidate not measured yet is hoped to cost, without its launch penalty. Asked again
            in every round, so that it may learn; but only once if bounds are proofs.
        measure: Costs of a batch of candidates, in order; may build them in parallel.
        options: When the search stops, and the number of candidates to measure at a time.
        known_cost_of: Cost that is known without measuring, or None; called once.
        key_of: Candidates with equal keys cost the same, so that one of them is measured for all; None if all differ.
        proof_bound_of: Seconds that a candidate cannot undercut, for the gap, if ``bound_of`` is not a proof.
        launch_penalty_of: Seconds that each kernel costs beyond its own cost.
        priority_of: Priority of a candidate's target, 0 preferred most.
        should_stop: Asked before each batch; True ends the search with the costs known by then.
        graph: The data flow between nodes, if candidates may break the admission rule. None trusts the rule.
    """
    problem = Problem(n, candidates, priority_of)
    search = LazySearch(problem, bound_of, measure, options or LazyOptions(), key_of, should_stop)
    search.flow = Flow(problem, graph) if graph is not None else None
    search.begin(launch_penalty_of, known_cost_of)
    return search.run(proof_bound_of)


class LazySearch(Generic[C]):
    """State of one lazy search: the measured costs, and the statistics. Another search of paths overrides ``find``.

    Attributes:
        flow: The data flow, if covers have to be checked against it.
        copies_s: The greatest seconds of each copy that a cover may need.
    """

    flow: Flow | None = None
    copies_s: Sequence[float] = ()

    def __init__(
        self,
        problem: Problem[C],
        bound_of: Callable[[C], float],
        measure: Callable[[Sequence[C]], Sequence[CostLike]],
        options: LazyOptions,
        key_of: Callable[[C], Hashable] | None,
        should_stop: Callable[[], bool] | None,
    ) -> None:
        size = len(problem.candidates)
        self.problem = problem
        self.bound_of = bound_of
        self.measure = measure
        self.options = options
        self.max_states = options.max_states
        self.should_stop = should_stop or (lambda: False)
        self.penalties = np.zeros(size)
        self.is_known = np.zeros(size, dtype=bool)
        self.seconds = np.zeros(size)
        self.ranks = np.zeros(size, dtype=np.int64)
        self.keys: list[Hashable] = [key_of(c) for c in problem.candidates] if key_of else list(range(size))
        self.of_key: dict[Hashable, list[int]] = {}
        for index, key in enumerate(self.keys):
            self.of_key.setdefault(key, []).append(index)
        self.prices: Ints | None = None
        self.hoped: Floats | None = None
        self.charge_s = 0.0
        self.known: tuple[int, ...] = ()
        self.violations = 0
        self.rounds = self.states = self.transitions = self.measured = self.measured_keys = 0
        self.replan_max_s = self.measuring_s = 0.0
        self.began = time.perf_counter()

    def begin(
        self, launch_penalty_of: Callable[[C], float] | None, known_cost_of: Callable[[C], CostLike | None] | None
    ) -> None:
        """Take over known costs before anything is measured."""
        for index, candidate in enumerate(self.problem.candidates):
            if launch_penalty_of is not None:
                self.penalties[index] = launch_penalty_of(candidate)
            if self.flow is not None and not self.flow.is_convex(candidate.bits):
                self.learn(index, Cost.INVALID)
                continue
            cost = known_cost_of(candidate) if known_cost_of else None
            if cost is not None:
                self.learn(index, Cost.of(cost))

    def learn(self, index: int, cost: Cost) -> None:
        """Note the cost of a candidate."""
        self.is_known[index] = True
        self.seconds[index] = cost.seconds
        self.ranks[index] = rank_of(cost, self.problem.priorities[index])

    def run(self, proof_bound_of: Callable[[C], float] | None) -> SearchResult[C]:
        """Search and measure in turns until the best path is completely measured, or a limit is reached."""
        if self.options.bounds_are_proofs:
            proof_bound_of = self.bound_of
        for charge in (0.0,) if self.options.bounds_are_proofs else self.options.charges:
            self.charge_s = charge * self._hoped_for_s() if charge else 0.0
            stopped_by, last = self._search()
            if stopped_by not in ("finished", "min_gain"):
                break
        return self._ended(stopped_by, proof_bound_of, last)

    def _search(self) -> tuple[str, tuple[Found, Weights]]:
        """Search and measure in turns at one charge. Return why it stopped, and the result of the last search."""
        while True:
            bounds = self._bounds()
            found, weights = self._plan(bounds, self.options.paths_per_round)
            batch = self._batch(found.paths, bounds) if found.paths else []
            if not batch:
                ended = "states" if found.capped and not found.paths else "finished"
                # What an interrupt left unmeasured counts as invalid: the search only looks complete.
                return "should_stop" if self.should_stop() else ended, (found, weights)
            if stopped_by := self._stop_reason(weights.cost_of_weight(found.paths[0].weight)):
                return stopped_by, (found, weights)
            self._measure(batch, bounds - self.charge_s)

    def _bounds(self) -> Floats:
        """Known seconds where there are any, else bounds and the charge."""
        if self.hoped is None or not self.options.bounds_are_proofs:
            self.hoped = self._ask(self.bound_of)
        return np.where(self.is_known, self.seconds, self.hoped + self.charge_s)

    def _hoped_for_s(self) -> float:
        """Seconds of the best path under optimistic costs."""
        self.charge_s = 0.0
        bounds = self._bounds()
        found, _ = self._plan(bounds)
        return float((bounds + self.penalties)[list(found.paths[0].candidates)].sum()) if found.paths else 0.0

    def _ask(self, bound_of: Callable[[C], float] | None) -> Floats:
        """Lower bounds of unknown costs."""
        seconds = np.zeros(len(self.keys))
        for index in np.flatnonzero(~self.is_known).tolist() if bound_of else ():
            bound = bound_of(self.problem.candidates[index]) if bound_of else 0.0
            if not bound >= 0:
                raise ValueError(f"the bound of {self.problem.candidates[index]} is {bound}; it must be zero or more")
            seconds[index] = bound
        return seconds

    def find(self, weights: Weights, k: int) -> Found:
        """The best paths, all costs known; only one if they have to be checked against the data flow."""
        prices, known, max_states = self.prices, self.known, self.max_states
        if self.flow is not None:
            return find_wide(self.problem, weights, self.flow, prices=prices, known=known, max_states=max_states)
        return find_paths(self.problem, weights, k=k, prices=prices, known=known, max_states=max_states)

    def _plan(self, seconds: Floats, k: int = 1) -> tuple[Found, Weights]:
        """The best paths, from the prices and the best path that the last plan ended with."""
        began = time.perf_counter()
        weights = Weights(self.problem, seconds + self.penalties, self.ranks, self.copies_s)
        found = self.find(weights, k)
        if found.prices is not None:
            self.prices = found.prices
        if found.paths:
            self.known = found.paths[0].candidates
        if self.rounds:
            self.replan_max_s = max(self.replan_max_s, time.perf_counter() - began)
        self.rounds += 1
        self.states += found.states
        self.transitions += found.transitions
        return found, weights

    def _plan_measured(self) -> tuple[Found, Weights]:
        """The best path on which everything is known."""
        return self._plan(np.where(self.is_known, self.seconds, np.inf))

    def _batch(self, paths: Sequence[Path], bounds: np.ndarray) -> list[int]:
        """Return the next batch to measure: from the best path first, the most expensive first, one candidate per key."""
        chosen: dict[Hashable, int] = {}
        for path in paths:
            missing = [i for i in path.candidates if not self.is_known[i]]
            if not missing and not chosen:
                return []
            for index in sorted(missing, key=lambda i: (-bounds[i], i)):
                chosen.setdefault(self.keys[index], index)
        room = [len(chosen)]
        if self.options.batch_size is not None:
            room.append(self.options.batch_size)
        if self.options.max_measured is not None:
            room.append(max(1, self.options.max_measured - self.measured_keys))
        return list(chosen.values())[: min(room)]

    def _stop_reason(self, best: Cost) -> str | None:
        options = self.options
        if self.should_stop():
            return "should_stop"
        if options.deadline_s is not None and time.perf_counter() - self.began >= options.deadline_s:
            return "deadline"
        if options.max_measured is not None and self.measured_keys >= options.max_measured:
            return "max_measured"
        if options.min_gain > 0:
            found, weights = self._plan_measured()
            if found.paths:
                # Ranks of unknown costs lie at other digits of these weights, and no share of a rank is a gain.
                through = weights.cost_of_weight(found.paths[0].weight)
                gains = best.seconds <= (1.0 - options.min_gain) * through.seconds and through.seconds > 0
                if best.unknown_rank == through.unknown_rank and not gains:
                    return "min_gain"
        return None

    def _measure(self, batch: Sequence[int], bounds: np.ndarray) -> None:
        began = time.perf_counter()
        costs = self.measure([self.problem.candidates[i] for i in batch])
        self.measuring_s += time.perf_counter() - began
        for index, value in zip(batch, costs, strict=True):
            cost = Cost.of(value)
            for same in self.of_key[self.keys[index]]:
                if not self.is_known[same]:
                    self.violations += cost.is_known and cost.seconds < bounds[same] * (1 - 1e-9)
                    self.learn(same, cost)
                    self.measured += 1
        self.measured_keys += len(batch)

    def _ended(
        self, stopped_by: str, proof_bound_of: Callable[[C], float] | None, last: tuple[Found, Weights]
    ) -> SearchResult[C]:
        """Report the best path that is measured through, and how much better another could be."""
        found, weights = last if stopped_by == "finished" else self._plan_measured()
        lower = last[0].lower_bound
        if not (self.options.bounds_are_proofs or self.is_known.all()):
            proofs = np.where(self.is_known, self.seconds, self._ask(proof_bound_of))
            # Loose bounds leave nothing out. The gap is not worth more states than the plan was.
            self.max_states = min(self.states, self.max_states)
            lower = self._plan(proofs)[0].lower_bound
        statistics = SearchStatistics(
            candidates=len(self.problem.candidates),
            valid=int(weights.valid.sum()),
            considered=found.considered,
            states=self.states,
            transitions=self.transitions,
            wall_s=time.perf_counter() - self.began - self.measuring_s,
            rounds=self.rounds,
            replan_max_s=self.replan_max_s,
            measured=self.measured,
            measured_keys=self.measured_keys,
            caps=(stopped_by,) if stopped_by != "finished" else (),
        )
        if not found.paths:
            reason = "nothing that covers all nodes was measured through before the search was stopped"
            missing = NoCover(None, reason, statistics)
            if stopped_by == "finished":
                missing = no_cover(self.problem, weights, found, statistics)
            return SearchResult(None, stopped_by, missing, self.violations, statistics)
        found.lower_bound = None if self.violations and self.options.bounds_are_proofs else lower
        found.exact = True
        best = as_partitioning(self.problem, weights, found, found.paths[0], statistics)
        return SearchResult(best, stopped_by, None, self.violations, statistics)
