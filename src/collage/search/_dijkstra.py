"""Dijkstra over covered sets (specification 003, phase 3).

A state is a covered set, the initial one empty, the goal full. A transition takes a candidate that holds the least
uncovered node and nothing that is covered: every cover has exactly one kernel that holds that node, so nothing is lost,
and each cover is exactly one path.

Distances are counted in slack (see ``_bounds``): the weight of the path so far without the shares of what it covers. The
shares of a full cover are the same for every path, so the shortest path is the same; but states off the best paths
are far away instead of near, and most are never reached.

A state is written as its least uncovered node and the covered nodes above it, shifted down to that node.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

import numpy as np

from collage.search._bounds import potential, slacks
from collage.search._problem import Ints, Problem, Weights, trailing_ones

__all__ = ["Found", "Path", "find_paths"]

DEFAULT_MAX_STATES = 2_000_000
_DIVE_WIDTHS = (4, 64)

Label = tuple[int, int, int, int, Any]
"""Distance, least uncovered node, covered nodes above it, candidate that led here, label that it came from."""


@dataclass(frozen=True, slots=True)
class Path:
    """A cover: indices of its candidates, by their least node, and the sum of their weights."""

    candidates: tuple[int, ...]
    weight: int


@dataclass(slots=True)
class Found:
    """Outcome of a search.

    Attributes:
        paths: The best covers, best first; fewer than asked for where there are no more, or a cap was hit.
        lower_bound: Weight that no cover undercuts; None where nothing is coverable.
        shares: The potential that was used; a start for the next search.
        exact: Whether ``paths`` are proved to be the best.
        farthest: The greatest node at which a covered set was left, for messages.
        considered: Candidates that were not dropped.
        states: Covered sets settled.
        transitions: Candidates applied.
        capped: Whether the cap on states was hit.
    """

    paths: list[Path]
    lower_bound: int | None = None
    shares: Ints | None = None
    exact: bool = True
    farthest: int = 0
    considered: int = 0
    states: int = 0
    transitions: int = 0
    capped: bool = False


class _Edges:
    """Candidates by their least node, least slack first, ready to be applied to a state."""

    def __init__(self, problem: Problem[Any], weights: Weights, shares: Ints, keep: Ints) -> None:
        self._by_first: list[list[tuple[int, int, int, int, int]]] = [[] for _ in range(problem.n + 1)]
        shift = weights.coarse_shift
        totals = problem.totals(shares)[keep].tolist()
        for candidate, total in zip(keep.tolist(), totals, strict=True):
            first = problem.candidates[candidate].first
            bits = problem.candidates[candidate].bits >> first
            length = trailing_ones(bits)
            edge = (weights.exact(candidate) - (total << shift), candidate, bits, first + length, bits >> length)
            self._by_first[first].append(edge)
        for edges in self._by_first:
            edges.sort()

    def __getitem__(self, node: int) -> list[tuple[int, int, int, int, int]]:
        """Edges from a least uncovered node: slack, candidate, bits, and the state it leads to from nothing above."""
        return self._by_first[node]


def find_paths(
    problem: Problem[Any],
    weights: Weights,
    *,
    k: int = 1,
    start: Ints | None = None,
    max_states: int = DEFAULT_MAX_STATES,
) -> Found:
    """The ``k`` covers of least weight.

    Args:
        problem: Nodes and candidates; every candidate satisfies the admission rule.
        weights: Their weights.
        k: How many covers are wanted.
        start: ``shares`` of an earlier search of the same problem.
        max_states: Cap on the states settled. Where it is hit, the result holds the covers found until then.
    """
    if not problem.n:
        return Found([Path((), 0)], 0)
    missing = problem.first_uncoverable(weights.valid)
    if missing is not None:
        return Found([], farthest=missing)
    shares = potential(problem, weights.coarse, start)
    slack = slacks(problem, weights.coarse, shares)
    base = int(shares.sum()) << weights.coarse_shift
    edges = _Edges(problem, weights, shares, np.flatnonzero(weights.valid))
    dive = _dive(problem.n, edges)
    limit = None
    if dive is not None and k == 1:
        limit = dive[0]
        keep = np.flatnonzero(weights.valid & (slack <= (limit >> weights.coarse_shift) + 1))
        edges = _Edges(problem, weights, shares, keep)
    else:
        keep = np.flatnonzero(weights.valid)
    found = Found([], base, shares, considered=len(keep))
    ends = _settle(problem.n, edges, k, limit, max_states, found)
    if found.capped and not ends and dive is not None:
        ends = [dive]
    found.paths = [Path(_candidates(label), label[0] + base) for label in ends]
    if found.exact and found.paths:
        found.lower_bound = found.paths[0].weight
    return found


def _candidates(label: Label) -> tuple[int, ...]:
    taken = []
    while label[4] is not None:
        taken.append(label[3])
        label = label[4]
    return tuple(reversed(taken))


def _dive(n: int, edges: _Edges) -> Label | None:
    """A good cover, found by following the few nearest states of every least uncovered node; None if all ended."""
    for width in _DIVE_WIDTHS:
        layers: list[dict[int, Label]] = [{} for _ in range(n + 1)]
        layers[0][0] = (0, 0, 0, -1, None)
        for node in range(n):
            nearest = sorted(layers[node].values())[:width] if len(layers[node]) > width else layers[node].values()
            for label in nearest:
                distance, _, above, _, _ = label
                for slack, candidate, bits, to, rest in edges[node]:
                    if bits & above:
                        continue
                    if above:
                        rest = above | bits
                        length = trailing_ones(rest)
                        to, rest = node + length, rest >> length
                    known = layers[to].get(rest)
                    if known is None or distance + slack < known[0]:
                        layers[to][rest] = (distance + slack, to, rest, candidate, label)
            layers[node] = {}
        if layers[n]:
            return layers[n][0]
    return None


def _settle(n: int, edges: _Edges, k: int, limit: int | None, max_states: int, found: Found) -> list[Label]:
    """Settles states in the order of their distance until the goal was reached ``k`` times."""
    heap: list[Label] = [(0, 0, 0, -1, None)]
    settled: list[dict[int, int]] = [{} for _ in range(n + 1)]
    ends: list[Label] = []
    while heap:
        label = heappop(heap)
        distance, node, above, _, _ = label
        times = settled[node].get(above, 0)
        if times >= k:
            continue
        settled[node][above] = times + 1
        if node == n:
            ends.append(label)
            if len(ends) == k:
                break
            continue
        found.states += 1
        found.farthest = max(found.farthest, node)
        if found.states >= max_states:
            found.capped, found.exact = True, False
            break
        for slack, candidate, bits, to, rest in edges[node]:
            if limit is not None and distance + slack > limit:
                break
            if bits & above:
                continue
            if above:
                rest = above | bits
                length = trailing_ones(rest)
                to, rest = node + length, rest >> length
            found.transitions += 1
            if settled[to].get(rest, 0) < k:
                heappush(heap, (distance + slack, to, rest, candidate, label))
    return ends
