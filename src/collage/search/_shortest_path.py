"""`shortest_path` and `k_best`: the best covers, all costs known."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from collage.search._dijkstra import DEFAULT_MAX_STATES, find_paths
from collage.search._problem import Problem
from collage.search._results import as_partitioning, no_cover, statistics_of, weigh
from collage.search._values import C, CostOf, NoCover, Partitioning

__all__ = ["k_best", "shortest_path"]


def shortest_path(
    n: int,
    candidates: Sequence[C],
    cost_of: CostOf[C],
    *,
    launch_penalty_of: Callable[[C], float] | None = None,
    priority_of: Callable[[C], int] | None = None,
    max_states: int = DEFAULT_MAX_STATES,
) -> Partitioning[C] | NoCover:
    """The cheapest cover of the nodes ``0 … n - 1`` by disjoint candidates.

    Exact where every candidate is admissible (``SubGraph.is_admissible``), so that every cover is acyclic; see
    `wide_shortest_path` for others. Between covers of equal cost the one with fewer kernels is chosen, then the one
    with the lower sum of priorities, then by the order of the candidates.

    Args:
        n: Number of nodes.
        candidates: The candidate kernels.
        cost_of: Cost of each. One of invalid cost is never taken; unknown ones are ranked by priority.
        launch_penalty_of: Seconds that each kernel costs beyond its own cost; None is none.
        priority_of: Priority of a candidate's target, 0 preferred most; None treats all alike.
        max_states: Cap on covered sets settled; where it is hit, a good cover comes back that is not proved optimal,
            and the statistics say so.
    """
    result = k_best(
        n,
        candidates,
        cost_of,
        1,
        launch_penalty_of=launch_penalty_of,
        priority_of=priority_of,
        max_states=max_states,
    )
    return result if isinstance(result, NoCover) else result[0]


def k_best(
    n: int,
    candidates: Sequence[C],
    cost_of: CostOf[C],
    k: int,
    *,
    launch_penalty_of: Callable[[C], float] | None = None,
    priority_of: Callable[[C], int] | None = None,
    max_states: int = DEFAULT_MAX_STATES,
) -> list[Partitioning[C]] | NoCover:
    """The ``k`` cheapest distinct covers, cheapest first; fewer where there are no more.

    Two covers are distinct if some sub-graph is in only one of them, or has another target there. The arguments are
    those of `shortest_path`.
    """
    began = time.perf_counter()
    problem = Problem(n, candidates, priority_of)
    weights = weigh(problem, [cost_of(c) for c in problem.candidates], launch_penalty_of)
    found = find_paths(problem, weights, k=k, max_states=max_states)
    statistics = statistics_of(problem, weights, found, began)
    if not found.paths:
        return no_cover(problem, weights, found, statistics)
    return [as_partitioning(problem, weights, found, path, statistics) for path in found.paths]
