"""The near graph: all covers that are hardly dearer than the best one, kept so that replanning is a walk over them.

While a lazy search measures, costs only rise: a measurement is never below a proof bound. A cover that is cheap enough
now was cheap enough before. So it is enough to find, once, every covered set that lies on some cover up to a
**ceiling** a little above the best; as long as the best cover of that small graph stays below the ceiling, it is
the best of all.
"""

from __future__ import annotations

from typing import Any

from collage.search._bounds import Heads
from collage.search._dijkstra import Edges, Found, Path
from collage.search._problem import Problem, trailing_ones
from collage.search._weights import Weights

__all__ = ["NearGraph"]

Arc = tuple[int, int]
"""A candidate, and the position of the state that it leads to."""


class NearGraph:
    """Every covered set on a cover that weighs at most ``ceiling``.

    Attributes:
        ceiling: Largest weight of the covers it holds.
    """

    def __init__(self, states: list[list[Arc]], ceiling: int) -> None:
        """A graph of states in the order of their least uncovered node, the last one full, with the arcs of each."""
        self._states = states
        self._candidates = {candidate for arcs in states for candidate, _ in arcs}
        self.ceiling = ceiling

    def __len__(self) -> int:
        return len(self._states)

    @property
    def candidates(self) -> int:
        """Number of candidates on its covers."""
        return len(self._candidates)

    @classmethod
    def around(
        cls, problem: Problem[Any], weights: Weights, found: Found, margin: int, max_arcs: int
    ) -> NearGraph | None:
        """The covers up to ``margin`` above the best cover found; None where they take more than ``max_arcs``."""
        if found.prices is None or not found.paths or not found.exact:
            return None
        bound = Heads(problem, weights.valid).relax(weights.coarse, found.prices)
        lowest, ceiling = bound.value << weights.coarse_shift, found.paths[0].weight + margin
        limit = ceiling - lowest
        keep = weights.valid & (bound.slack <= (limit >> weights.coarse_shift) + 1)
        return _explore(problem.n, Edges(problem, weights, bound, keep), limit, ceiling, max_arcs)

    def best(self, weights: Weights) -> Path | None:
        """The cover of least weight; None where it would be above the ceiling."""
        last = len(self._states) - 1
        weight = {c: weights.exact(c) if weights.valid[c] else self.ceiling + 1 for c in self._candidates}
        distance: list[int | None] = [None] * len(self._states)
        came_by: list[tuple[int, int]] = [(-1, -1)] * len(self._states)
        distance[0] = 0
        for state, arcs in enumerate(self._states):
            here = distance[state]
            if here is None:
                continue
            for candidate, to in arcs:
                there = distance[to]
                length = here + weight[candidate]
                if there is None or (length, candidate) < (there, came_by[to][0]):
                    distance[to], came_by[to] = length, (candidate, state)
        total = distance[last]
        if total is None or total > self.ceiling:
            return None
        taken, state = [], last
        while state:
            candidate, state = came_by[state]
            taken.append(candidate)
        return Path(tuple(reversed(taken)), total)


def _explore(n: int, edges: Edges, limit: int, ceiling: int, max_arcs: int) -> NearGraph | None:
    """All states within ``limit`` of slack, node by node; then those only from which the goal is within it too."""
    layers: list[dict[int, tuple[int, list[tuple[int, int, int, int]]]]] = [{} for _ in range(n + 1)]
    layers[0][0] = (0, [])
    nearest: list[dict[int, int]] = [{} for _ in range(n + 1)]
    nearest[0][0] = 0
    skipped, count = edges.skipped, 0
    for node in range(n):
        for above, distance in nearest[node].items():
            arcs = []
            for slack, candidate, bits, to, rest in edges[node]:
                length = distance + slack
                if length > limit:
                    break
                if bits & above:
                    continue
                if above:
                    covered = above | bits
                    ones = trailing_ones(covered)
                    length += skipped[node + ones] - skipped[to]
                    to, rest = node + ones, covered >> ones
                if length <= limit:
                    arcs.append((candidate, length - distance, to, rest))
                    nearest[to][rest] = min(length, nearest[to].get(rest, length))
            layers[node][above] = (distance, arcs)
            count += len(arcs)
            if count > max_arcs:
                return None
    return NearGraph(_useful(n, layers, limit), ceiling)


def _useful(n: int, layers: list[Any], limit: int) -> list[list[Arc]]:
    """The states on a way to the goal within ``limit``, numbered, with the arcs between them."""
    to_go: list[dict[int, int]] = [{} for _ in range(n + 1)]
    to_go[n][0] = 0
    kept: list[tuple[int, int, list[tuple[int, int, int, int]]]] = [(n, 0, [])]
    for node in range(n - 1, -1, -1):
        for above, (distance, arcs) in layers[node].items():
            good = [a for a in arcs if a[3] in to_go[a[2]] and distance + a[1] + to_go[a[2]][a[3]] <= limit]
            if good:
                to_go[node][above] = min(a[1] + to_go[a[2]][a[3]] for a in good)
                kept.append((node, above, good))
    kept.reverse()
    number = {(node, above): position for position, (node, above, _) in enumerate(kept)}
    return [[(candidate, number[to, rest]) for candidate, _, to, rest in arcs] for _, _, arcs in kept]
