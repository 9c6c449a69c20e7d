"""Conversion for a search: the caller's costs become weights, and covers become partitionings."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import numpy as np

from collage.cost.cost import LARGEST_S, Cost, CostLike
from collage.search._labels import Found, Path
from collage.search._problem import Problem
from collage.search._values import C, NoCover, Partitioning, SearchStatistics
from collage.search._weights import Weights

__all__ = ["as_partitioning", "no_cover", "rank_of", "statistics_of", "weigh"]

_LARGEST_RANK = 1 << 53


def rank_of(cost: Cost, priority: int) -> int:
    """Return the rank of a candidate whose cost is unknown; 0 for others. Bodies that run often have ranks beyond 64 bits."""
    return min(int(cost.unknown_rank), _LARGEST_RANK) + priority if cost.is_unknown else 0


def weigh(
    problem: Problem[C],
    costs: Sequence[CostLike],
    launch_penalty_of: Callable[[C], float] | None,
    copies_s: Sequence[float] = (),
) -> Weights:
    """Weights of all candidates, each with its launch penalty; an unknown cost ranks by its target's priority."""
    seconds = np.array([cost if isinstance(cost, float) else math.nan for cost in costs], dtype=np.float64)
    ranks = np.zeros(len(costs), dtype=np.int64)
    for index in np.flatnonzero(~((seconds >= 0) & (seconds <= LARGEST_S))).tolist():
        cost = Cost.of(costs[index])
        seconds[index] = cost.seconds
        ranks[index] = rank_of(cost, problem.priorities[index])
    if launch_penalty_of is not None:
        seconds += [launch_penalty_of(c) for c in problem.candidates]
    return Weights(problem, seconds, ranks, copies_s)


def statistics_of(problem: Problem[C], weights: Weights, found: Found, began: float) -> SearchStatistics:
    """Return the statistics of a search that began at a time of ``perf_counter``."""
    return SearchStatistics(
        candidates=len(problem.candidates),
        valid=int(weights.valid.sum()),
        considered=found.considered,
        states=found.states,
        transitions=found.transitions,
        wall_s=time.perf_counter() - began,
        caps=("states",) if found.capped else (),
    )


def as_partitioning(
    problem: Problem[C], weights: Weights, found: Found, path: Path, statistics: SearchStatistics
) -> Partitioning[C]:
    """A found path in the caller's terms."""
    # Where the cap on states ended a search early, all that is known may be a bound by prices of other costs, below nothing.
    bound = max(0, found.lower_bound or 0)
    return Partitioning(
        candidates=tuple(problem.candidates[i] for i in path.candidates),
        cost=weights.cost_of(path.candidates),
        optimal=found.exact and path.weight == bound,
        lower_bound=weights.cost_of_weight(bound),
        statistics=statistics,
    )


def no_cover(problem: Problem[C], weights: Weights, found: Found, statistics: SearchStatistics) -> NoCover:
    """Names the first node that cannot be covered."""
    if found.capped:
        return NoCover(None, f"no cover was found among the first {found.states} covered sets", statistics)
    node = found.farthest
    if problem.first_uncoverable(weights.valid) == node:
        return NoCover(node, f"no valid candidate holds node {node}", statistics)
    return NoCover(node, f"no valid candidate that holds node {node} fits any cover of the nodes before it", statistics)
