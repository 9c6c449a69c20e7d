"""The exact cover as a constraint programme (extra ``exact``): an oracle, and for graphs too wide to search."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from collage._distribution import WHERE, install_command
from collage._errors import UsageError
from collage.cost.cost import Cost
from collage.graph import iterate_bits
from collage.search._dijkstra import Found, Path
from collage.search._problem import Problem
from collage.search._quotient import find_cycle, kernel_successors
from collage.search._results import as_partitioning, no_cover, weigh
from collage.search._values import C, CostOf, DependencyGraph, NoCover, Partitioning, SearchStatistics
from collage.search._weights import Weights

__all__ = ["exact_cover"]

_WEIGHT_BITS = 62


def exact_cover(
    n: int,
    candidates: Sequence[C],
    cost_of: CostOf[C],
    *,
    graph: DependencyGraph | None = None,
    launch_penalty_of: Callable[[C], float] | None = None,
    priority_of: Callable[[C], int] | None = None,
    time_limit_s: float | None = None,
) -> Partitioning[C] | NoCover:
    """The cheapest cover of the nodes ``0 … n - 1`` by disjoint candidates, by CP-SAT.

    Args:
        n: Number of nodes.
        candidates: The candidate kernels.
        cost_of: Cost of each; one of invalid cost is never taken.
        graph: The data flow between nodes, where candidates may break the admission rule: covers whose kernels feed
            each other in a ring are then excluded, one ring after the other. None trusts the rule.
        launch_penalty_of: Seconds that each kernel costs beyond its own cost.
        priority_of: Priority of a candidate's target, 0 preferred most.
        time_limit_s: Seconds after which the best cover so far is returned, not proved optimal.

    Raises:
        UsageError: OR-tools is not installed.
    """
    began = time.perf_counter()
    problem = Problem(n, candidates, priority_of)
    weights = weigh(problem, [Cost.of(cost_of(c)) for c in problem.candidates], launch_penalty_of)
    found = _solve(problem, weights, graph, time_limit_s)
    statistics = SearchStatistics(
        candidates=len(problem.candidates),
        valid=int(weights.valid.sum()),
        considered=int(weights.valid.sum()),
        wall_s=time.perf_counter() - began,
        caps=("time",) if found.capped else (),
    )
    if not found.paths:
        if not found.capped and problem.first_uncoverable(weights.valid) is None:
            return NoCover(None, "the valid candidates that hold each node do not fit together", statistics)
        return no_cover(problem, weights, found, statistics)
    return as_partitioning(problem, weights, found, found.paths[0], statistics)


def _solve(problem: Problem[Any], weights: Weights, graph: DependencyGraph | None, time_limit_s: float | None) -> Found:
    cp_model = _cp_model()
    missing = problem.first_uncoverable(weights.valid)
    if missing is not None:
        return Found([], farthest=missing)
    model = cp_model.CpModel()
    taken = {i: model.new_bool_var(f"take_{i}") for i in weights.valid.nonzero()[0].tolist()}
    holders: list[list[Any]] = [[] for _ in range(problem.n)]
    for i, variable in taken.items():
        for node in iterate_bits(problem.candidates[i].bits):
            holders[node].append(variable)
    for variables in holders:
        model.add_exactly_one(variables)
    exact = {i: weights.exact(i) for i in taken}
    shift = max(0, sum(exact.values()).bit_length() - _WEIGHT_BITS)
    model.minimize(sum((exact[i] >> shift) * variable for i, variable in taken.items()))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    deadline = None if time_limit_s is None else time.perf_counter() + time_limit_s
    while True:
        if deadline is not None:
            solver.parameters.max_time_in_seconds = max(0.01, deadline - time.perf_counter())
        status = solver.solve(model)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return Found([], capped=status != cp_model.INFEASIBLE)
        chosen = tuple(sorted((i for i in taken if solver.value(taken[i])), key=lambda i: problem.first[i]))
        ring = graph and find_cycle(kernel_successors(graph, [problem.candidates[i].bits for i in chosen]))
        if not ring:
            weight = sum(exact[i] for i in chosen)
            is_best = status == cp_model.OPTIMAL
            bound = weight if is_best else int(max(0.0, solver.best_objective_bound)) << shift
            return Found([Path(chosen, weight)], bound, exact=is_best, capped=not is_best)
        model.add(sum(taken[chosen[kernel]] for kernel in ring) <= len(ring) - 1)


def _cp_model() -> Any:
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise UsageError(
            "the exact search needs OR-tools; install it with: " + install_command("exact") + WHERE
        ) from None
    return cp_model
