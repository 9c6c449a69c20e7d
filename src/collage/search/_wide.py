"""The search for candidates that break the admission rule, such as branches joined horizontally.

The rule is ``SubGraph.is_admissible``: every consumer outside comes, in index order, after the last exit.

Two kernels may each be convex and still feed each other, and a covered set does not remember whether its cover did.
So the memory of a label here is its **detours**: the pairs of uncovered nodes between which the data flows through a
covered node. A candidate that holds such a pair would wait for its own result. Of two labels of equal covered set, the
one that costs no less and detours no less is dropped; nothing else is, so the search stays exact.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from collage.cost.cost import Cost
from collage.graph import iterate_bits
from collage.search._dijkstra import DEFAULT_MAX_STATES, find_paths
from collage.search._labels import Found, Path
from collage.search._problem import Bools, Ints, Problem
from collage.search._quotient import find_cycle, kernel_successors
from collage.search._results import as_partitioning, no_cover, statistics_of, weigh
from collage.search._values import C, CostOf, DependencyGraph, NoCover, Partitioning
from collage.search._weights import Weights

__all__ = ["Flow", "find_wide", "wide_shortest_path"]

Detours = tuple[int, ...]
"""Uncovered nodes that each uncovered node reaches through covered ones, as bits; 0 for covered nodes. Empty for none."""


def wide_shortest_path(
    n: int,
    candidates: Sequence[C],
    cost_of: CostOf[C],
    graph: DependencyGraph,
    *,
    launch_penalty_of: Callable[[C], float] | None = None,
    priority_of: Callable[[C], int] | None = None,
    max_states: int = DEFAULT_MAX_STATES,
) -> Partitioning[C] | NoCover:
    """The cheapest acyclic cover by any candidates; the arguments are those of `shortest_path`, and the data flow.

    The plain search comes first. Only where its result cannot be run are labels needed.
    """
    began = time.perf_counter()
    problem = Problem(n, candidates, priority_of)
    flow = Flow(problem, graph)
    costs = [Cost.of(cost_of(c)) for c in problem.candidates]
    costs = [
        cost if flow.is_convex(c.bits) else Cost.INVALID for c, cost in zip(problem.candidates, costs, strict=True)
    ]
    weights = weigh(problem, costs, launch_penalty_of)
    found = find_wide(problem, weights, flow, max_states=max_states)
    statistics = statistics_of(problem, weights, found, began)
    if not found.paths:
        return no_cover(problem, weights, found, statistics)
    return as_partitioning(problem, weights, found, found.paths[0], statistics)


def find_wide(
    problem: Problem[Any],
    weights: Weights,
    flow: Flow,
    *,
    prices: Ints | None = None,
    known: Sequence[int] = (),
    max_states: int = DEFAULT_MAX_STATES,
) -> Found:
    """The acyclic cover of least weight by convex candidates; the arguments are those of ``find_paths``, and the data flow."""
    plain = find_paths(problem, weights, prices=prices, known=known, max_states=max_states)
    if not plain.paths or not flow.has_ring(plain.paths[0]):
        return plain
    # Covers by admitted candidates alone are always acyclic.
    admitted = find_paths(problem, weights.without(~flow.admitted), max_states=max_states)
    known = admitted.paths[0].candidates if admitted.paths else ()
    found = find_paths(problem, weights, algebra=flow, prices=plain.prices, known=known, max_states=max_states)
    if not found.exact and found.lower_bound is not None and plain.lower_bound is not None:
        found.lower_bound = max(found.lower_bound, plain.lower_bound)
    found.states += plain.states
    found.transitions += plain.transitions
    return found


class Flow:
    """The data flow between nodes, as candidates change it: an algebra of labels whose memory is their detours."""

    first_weight = 0

    def __init__(self, problem: Problem[Any], graph: DependencyGraph) -> None:
        self._problem = problem
        self._graph = graph
        self._successors = [sum({1 << after for after in graph.consumers(node)}) for node in range(problem.n)]
        self._reach = [0] * problem.n
        for node in range(problem.n - 1, -1, -1):
            for after in iterate_bits(self._successors[node]):
                self._reach[node] |= self._reach[after] | 1 << after
        together = [0] * problem.n
        for candidate in problem.candidates:
            for node in iterate_bits(candidate.bits):
                together[node] |= candidate.bits
        self._telling = [together[node] | ~self._reach[node] for node in range(problem.n)]

    def is_convex(self, bits: int) -> bool:
        """Return True if no path leads out of these nodes and back."""
        outside = 0
        for node in iterate_bits(bits):
            outside |= self._successors[node] & ~bits
        return not any(self._reach[node] & bits for node in iterate_bits(outside))

    @cached_property
    def admitted(self) -> Bools:
        """Return an array that is True for each candidate that satisfies the admission rule, [candidates]."""
        return np.array([self.is_admitted(c.bits) for c in self._problem.candidates], dtype=bool)

    def is_admitted(self, bits: int) -> bool:
        """Return True if every consumer outside comes after the last exit. A node without consumers is an exit."""
        outside, last = 0, -1
        for node in iterate_bits(bits):
            after = self._successors[node] & ~bits
            outside |= after
            if after or not self._successors[node]:
                last = node
        first = (outside & -outside).bit_length() - 1
        return not outside or first > last

    def has_ring(self, path: Path) -> bool:
        """Return True if some kernels of a cover feed each other in a circle."""
        kernels = [self._problem.candidates[i].bits for i in path.candidates]
        return find_cycle(kernel_successors(self._graph, kernels)) is not None

    def extend(self, memory: Detours, candidate: int, bits: int, covered: int) -> tuple[int, Detours] | None:
        """Return the detours after one more kernel; None if that would wait for its own result.

        Pairs are left out that change nothing: between them data flows anyway, and no candidate holds both.
        """
        n, reach = self._problem.n, self._reach
        detours = memory or (0,) * n
        below = 0
        for node in iterate_bits(bits):
            if detours[node] & bits:
                return None
            below |= reach[node] | detours[node]
        open_nodes = ~covered & ((1 << n) - 1)
        below &= open_nodes
        result = [0] * n
        for node in iterate_bits(open_nodes):
            row = detours[node]
            if (reach[node] | row) & bits:
                row |= below
            result[node] = row & open_nodes & self._telling[node]
        return 0, tuple(result) if any(result) else ()

    def excess(self, mine: Detours, others: Detours) -> int | None:
        """Return 0 if one label detours no more than another, so that it can go on wherever the other can."""
        if not mine:
            return 0
        if not others:
            return None
        return None if any(a & ~b for a, b in zip(mine, others, strict=True)) else 0
