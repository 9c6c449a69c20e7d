"""The search where kernels may run on several devices: which kernels, and where.

A candidate comes once for each device that may run it. A value that is read on another device than it lies on has to be
copied there, once for each destination. So the memory of a label is the **whereabouts** of the values
that still matter: for each, where it lies, and where it is, or will have to be, copied to.

Of two labels of equal covered set, the dearer one is dropped if paying for every copy that only it has would still leave
the other one no dearer, whatever comes; nothing else is, so the search stays exact. If copies cost nothing, one label
is left of each covered set, and this is the plain search.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

from collage.cost.cost import Cost, CostLike
from collage.search._dijkstra import DEFAULT_MAX_STATES, find_paths
from collage.search._labels import Found
from collage.search._lazy import LazyOptions, LazySearch
from collage.search._problem import Problem
from collage.search._results import as_partitioning, no_cover, statistics_of, weigh
from collage.search._tensor_locations import CopyPlan
from collage.search._transfers import P, Transfer, copies_of, places_of
from collage.search._values import CostOf, NoCover, Partitioning, SearchResult, SearchStatistics
from collage.search._weights import Weights

__all__ = ["lazy_placed_path", "placed_shortest_path"]


def placed_shortest_path(
    n: int,
    candidates: Sequence[P],
    cost_of: CostOf[P],
    *,
    transfers: Sequence[Transfer],
    launch_penalty_of: Callable[[P], float] | None = None,
    priority_of: Callable[[P], int] | None = None,
    max_states: int = DEFAULT_MAX_STATES,
) -> Partitioning[P] | NoCover:
    """The cheapest cover by candidates on devices, copies between devices included.

    Exact where every candidate satisfies the admission rule. Between covers of equal cost that with fewer kernels and
    copies wins, then the one with the lower sum of priorities, then by the order of the candidates.

    Args:
        n: Number of nodes.
        candidates: The candidate kernels, once for each device that may run them.
        cost_of: Cost of each there.
        transfers: Values that go from node to node. Values that cost nothing to copy anywhere may be left out.
        launch_penalty_of: Seconds that each kernel costs beyond its own cost.
        priority_of: Priority of a candidate's target, 0 preferred most.
        max_states: Cap on labels settled; where it is hit, a good cover comes back that is not proved optimal.
    """
    began = time.perf_counter()
    problem = Problem(n, candidates, _with_devices(candidates, priority_of))
    costs = [Cost.of(cost_of(c)) for c in problem.candidates]
    weights = weigh(problem, costs, launch_penalty_of, _copies_s(transfers))
    found = find_paths(problem, weights, algebra=CopyPlan(problem, weights, transfers), max_states=max_states)
    statistics = statistics_of(problem, weights, found, began)
    if not found.paths:
        return _why_none(problem, weights, found, statistics)
    best = as_partitioning(problem, weights, found, found.paths[0], statistics)
    return _with_copies(best, transfers)


def lazy_placed_path(
    n: int,
    candidates: Sequence[P],
    bound_of: Callable[[P], float],
    measure: Callable[[Sequence[P]], Sequence[CostLike]],
    *,
    transfers: Sequence[Transfer],
    options: LazyOptions | None = None,
    known_cost_of: Callable[[P], CostLike | None] | None = None,
    key_of: Callable[[P], Hashable] | None = None,
    proof_bound_of: Callable[[P], float] | None = None,
    launch_penalty_of: Callable[[P], float] | None = None,
    priority_of: Callable[[P], int] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> SearchResult[P]:
    """The cheapest cover by candidates on devices, measuring only candidates that may be part of it.

    The arguments are those of `lazy_shortest_path`, and the transfers of `placed_shortest_path`. Copies are not
    measured here: transfers state their cost.
    """
    problem = Problem(n, candidates, _with_devices(candidates, priority_of))
    search = _LazyPlacedSearch(problem, bound_of, measure, options or LazyOptions(), key_of, should_stop)
    search.transfers, search.copies_s = transfers, _copies_s(transfers)
    search.begin(launch_penalty_of, known_cost_of)
    return search.run(proof_bound_of)


def _with_devices(candidates: Sequence[P], priority_of: Callable[[P], int] | None) -> Callable[[P], int]:
    """Return the priorities of candidates: by target first, then by device."""
    devices = 1 + max((c.device for c in candidates), default=0)
    return lambda candidate: (priority_of(candidate) if priority_of else 0) * devices + candidate.device


class _LazyPlacedSearch(LazySearch[P]):
    """A lazy search whose paths are placed."""

    transfers: Sequence[Transfer] = ()

    def find(self, weights: Weights, k: int) -> Found:
        """The best placed path; others are not looked for."""
        copies = CopyPlan(self.problem, weights, self.transfers)
        prices, known, max_states = self.prices, self.known, self.max_states
        return find_paths(self.problem, weights, algebra=copies, prices=prices, known=known, max_states=max_states)

    def _ended(
        self, stopped_by: str, proof_bound_of: Callable[[P], float] | None, last: tuple[Found, Weights]
    ) -> SearchResult[P]:
        result = super()._ended(stopped_by, proof_bound_of, last)
        if result.partitioning is None:
            return result
        return replace(result, partitioning=_with_copies(result.partitioning, self.transfers))


def _copies_s(transfers: Sequence[Transfer]) -> list[float]:
    """Return the greatest seconds of each possible copy, from anywhere to one device."""
    columns = [column for transfer in transfers for column in zip(*transfer.copy_s, strict=True)]
    return [max(filter(math.isfinite, column), default=0.0) for column in columns]


def _with_copies(partitioning: Partitioning[P], transfers: Sequence[Transfer]) -> Partitioning[P]:
    """A partitioning whose cost has the copies in it."""
    copies_s = math.fsum(
        transfer.copy_s[src][dst] for transfer, src, dst in copies_of(places_of(partitioning.candidates), transfers)
    )
    return replace(partitioning, cost=partitioning.cost + Cost(seconds=copies_s))


def _why_none(problem: Problem[P], weights: Weights, found: Found, statistics: SearchStatistics) -> NoCover:
    missing = no_cover(problem, weights, found, statistics)
    if found.capped or problem.first_uncoverable(weights.valid) is not None:
        return missing
    return replace(missing, reason=f"{missing.reason} with inputs that its device can reach")
