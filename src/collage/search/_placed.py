"""The search where kernels may run on several devices: which kernels, and where.

A candidate comes once for each device that may run it. A value that is read on another device than it lies on has to be
copied there, once for each destination. So a label here is a covered set together with the
**whereabouts** of the values that still matter: for each, where it lies, and where it is, or will have to be, copied to.

Of two labels of equal covered set, the dearer one is dropped if paying for every copy that only it has would still leave
the other one no dearer, whatever comes; nothing else is, so the search stays exact. If copies cost nothing, one label
is left of each covered set, and this is the plain search.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from typing import Any

from collage.cost.cost import Cost, CostLike
from collage.search._bounds import Heads, first_prices
from collage.search._dijkstra import DEFAULT_MAX_STATES, Edges, Found, Path, sharpen
from collage.search._lazy import LazyOptions, LazySearch
from collage.search._problem import Ints, Problem, trailing_ones
from collage.search._results import as_partitioning, no_cover, statistics_of, weigh
from collage.search._tensor_locations import CopyPlan, TensorLocations
from collage.search._transfers import P, Transfer, copies_of, places_of
from collage.search._values import CostOf, NoCover, Partitioning, SearchResult, SearchStatistics
from collage.search._weights import Weights

__all__ = ["lazy_placed_path", "placed_shortest_path"]

_BEAM_WIDTHS = (4, 64)
Label = tuple[int, int, int, int, TensorLocations, int, Any]
"""Distance, least uncovered node, covered nodes from it on, serial number, whereabouts, candidate, label it came from."""


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
    weights = weigh(problem, [Cost.of(cost_of(c)) for c in problem.candidates], launch_penalty_of)
    found = _find_placed(problem, weights, transfers, max_states=max_states)
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
    search.transfers = transfers
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
        return _find_placed(self.problem, weights, self.transfers, self.prices, self.options.max_states)

    def _ended(
        self, stopped_by: str, proof_bound_of: Callable[[P], float] | None, last: tuple[Found, Weights]
    ) -> SearchResult[P]:
        result = super()._ended(stopped_by, proof_bound_of, last)
        if result.partitioning is None:
            return result
        return replace(result, partitioning=_with_copies(result.partitioning, self.transfers))


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


def _find_placed(
    problem: Problem[Any],
    weights: Weights,
    transfers: Sequence[Transfer],
    prices: Ints | None = None,
    max_states: int = DEFAULT_MAX_STATES,
) -> Found:
    """The placed cover of least weight. Bounds are those of the plain problem: copies never make a cover cheaper."""
    if not problem.n:
        return Found([Path((), 0)], 0)
    missing = problem.first_uncoverable(weights.valid)
    if missing is not None:
        return Found([], farthest=missing)
    if prices is None:
        prices = first_prices(problem, weights.coarse)
    movements = CopyPlan(weights, transfers)
    bound = Heads(problem, weights.valid).relax(weights.coarse, prices)
    good = _dive(problem, Edges(problem, weights, bound, weights.valid), movements)
    keep, limit = weights.valid, None
    if good is not None:
        upper = ((good[0] + (bound.value << weights.coarse_shift)) >> weights.coarse_shift) + 1
        bound, keep = sharpen(problem, weights, bound, upper)
        limit = (upper - bound.value) << weights.coarse_shift
    least = bound.value << weights.coarse_shift
    found = Found([], least + movements.at_first(), bound.prices, considered=int(keep.sum()))
    best = _settle(problem, Edges(problem, weights, bound, keep), movements, limit, max_states, found)
    end = best or (good if found.capped else None)
    if end is not None:
        chosen = _candidates(end)
        copies = [
            t.copy_s[src][dst]
            for t, src, dst in copies_of(places_of([problem.candidates[i] for i in chosen]), transfers)
        ]
        weight = sum(weights.exact(i) for i in chosen) + sum(weights.of_copy(seconds) or 0 for seconds in copies)
        found.paths = [Path(chosen, weight)]
    if found.exact:
        found.lower_bound = found.paths[0].weight if found.paths else None
    return found


def _candidates(label: Label) -> tuple[int, ...]:
    taken = []
    while label[6] is not None:
        taken.append(label[5])
        label = label[6]
    return tuple(reversed(taken))


def _dive(problem: Problem[Any], edges: Edges, movements: CopyPlan) -> Label | None:
    """A good placed cover, by following only the few nearest labels of every least uncovered node; None if all end."""
    for width in _BEAM_WIDTHS:
        layers: list[dict[tuple[int, TensorLocations], Label]] = [{} for _ in range(problem.n + 1)]
        layers[0][0, ()] = (0, 0, 0, 0, (), -1, None)
        for node in range(problem.n):
            for label in sorted(layers[node].values(), key=lambda label: label[:3])[:width]:
                for after in _ways_on(problem, edges, movements, label, None):
                    known = layers[after[1]].get((after[2], after[4]))
                    if known is None or after[0] < known[0]:
                        layers[after[1]][after[2], after[4]] = after
            layers[node] = {}
        if layers[problem.n]:
            return min(layers[problem.n].values(), key=lambda label: label[0])
    return None


def _settle(
    problem: Problem[Any], edges: Edges, movements: CopyPlan, limit: int | None, max_states: int, found: Found
) -> Label | None:
    """Settles labels in the order of their distance until the goal is reached."""
    serial = 0
    heap: list[Label] = [(0, 0, 0, 0, (), -1, None)]
    settled: dict[tuple[int, int], list[tuple[int, TensorLocations]]] = {}
    while heap:
        label = heappop(heap)
        distance, node, above, _, whereabouts, _, _ = label
        if node == problem.n:
            return label
        known = settled.setdefault((node, above), [])
        for length, other in known:
            excess = movements.excess(other, whereabouts)
            if excess is not None and length + excess <= distance:
                break
        else:
            known.append((distance, whereabouts))
            found.states += 1
            found.farthest = max(found.farthest, node)
            if found.states > max_states:
                found.capped, found.exact = True, False
                return None
            for after in _ways_on(problem, edges, movements, label, limit):
                serial += 1
                found.transitions += 1
                heappush(heap, (*after[:3], serial, *after[4:]))
    return None


def _ways_on(problem: Problem[Any], edges: Edges, movements: CopyPlan, label: Label, limit: int | None) -> list[Label]:
    """The labels that one more kernel leads to."""
    distance, node, above, _, whereabouts, _, _ = label
    ways: list[Label] = []
    for slack, candidate, bits, _, _ in edges[node]:
        if limit is not None and distance + slack > limit:
            break
        if bits & above:
            continue
        rest = above | bits
        covered = (1 << node) - 1 | rest << node
        moved = movements.place(whereabouts, bits << node, problem.candidates[candidate].device, covered)
        if moved is None:
            continue
        ones = trailing_ones(rest)
        length = distance + slack + edges.skips(problem.shapes[candidate][1], node + ones) + moved[0]
        if limit is None or length <= limit:
            ways.append((length, node + ones, rest >> ones, 0, moved[1], candidate, label))
    return ways
