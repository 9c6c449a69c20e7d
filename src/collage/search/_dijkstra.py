"""Dijkstra over covered sets.

A state is a covered set, the initial one empty, the goal full. A transition takes a candidate that holds the least
uncovered node and nothing that is covered: every cover has exactly one kernel that holds that node, so nothing is lost,
and each cover is exactly one path.

Distances are counted in slack (see ``_bounds``): the weight of the path so far plus the bound of the rest, less the
bound of the whole. The shortest path is the same, since this adds the same to all complete paths; but states off the
best paths are far away instead of near, and most are never reached.

A state is written as its least uncovered node, and the covered nodes above it, shifted down to that node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

import numpy as np

from collage.search._bounds import Bound, Heads, Tightener, first_prices
from collage.search._problem import Bools, Ints, Problem, trailing_ones
from collage.search._weights import INVALID_WEIGHT, Weights

__all__ = ["DEFAULT_MAX_STATES", "Edges", "Found", "Path", "find_paths", "sharpen"]

DEFAULT_MAX_STATES = 2_000_000
_FEW_PER_NODE = 4
_STEPS_AT_ONCE = 5
_FIRST_MARGIN_BITS = 10
_MARGIN_GROWTH = 4

Label = tuple[int, int, int, int, Any]
"""Distance, least uncovered node, covered nodes from it on, candidate that led here, label that it came from."""

Edge = tuple[int, int, int, int, int]
"""Slack, candidate, its bits, and the state that it leads to from one with nothing covered above."""


@dataclass(frozen=True, slots=True)
class Path:
    """A cover: indices of its candidates, by their least node, and the sum of their weights."""

    candidates: tuple[int, ...]
    weight: int


@dataclass(slots=True)
class Found:
    """Outcome of a search.

    Attributes:
        paths: The best covers, best first; fewer than ``k`` if there are no more, or if the cap was hit.
        lower_bound: Weight that no cover undercuts; None if there is no cover.
        prices: Prices to begin the next search of the same problem with.
        exact: True if ``paths`` are proved to be the best.
        farthest: The greatest node at which a covered set was left, for messages.
        considered: Candidates that were not dropped.
        states: Covered sets settled.
        transitions: Candidates applied.
        capped: True if the cap on states was hit.
    """

    paths: list[Path]
    lower_bound: int | None = None
    prices: Ints | None = None
    exact: bool = True
    farthest: int = 0
    considered: int = 0
    states: int = 0
    transitions: int = 0
    capped: bool = False


class Edges:
    """Edges from each least uncovered node, least slack first, made on demand."""

    def __init__(self, problem: Problem[Any], weights: Weights, bound: Bound, keep: np.ndarray) -> None:
        self._problem = problem
        self._weights = weights
        self._keep = keep
        self._shift = weights.coarse_shift
        self._less = weights.coarse - bound.slack
        self._made: list[list[Edge] | None] = [None] * problem.n
        self.skipped = [int(x) << self._shift for x in bound.skipped]

    def skips(self, start: int, stop: int) -> int:
        """Slack of skipping the nodes ``start`` to ``stop - 1``, which an earlier candidate covered."""
        return self.skipped[stop] - self.skipped[start]

    def __getitem__(self, node: int) -> list[Edge]:
        """Edges from states whose least uncovered node is ``node``, least slack first."""
        made = self._made[node]
        if made is None:
            at = self._problem.starting_at(node)
            at = at[self._keep[at]]
            made = []
            for candidate, less in zip(at.tolist(), self._less[at].tolist(), strict=True):
                slack = self._weights.exact(candidate) - (less << self._shift)
                made.append((slack, candidate, *self._problem.shapes[candidate]))
            made.sort()
            self._made[node] = made
        return made


def find_paths(
    problem: Problem[Any],
    weights: Weights,
    *,
    k: int = 1,
    prices: Ints | None = None,
    known: Sequence[int] = (),
    max_states: int = DEFAULT_MAX_STATES,
) -> Found:
    """The ``k`` covers of least weight.

    Args:
        problem: Nodes and candidates; every candidate satisfies the admission rule.
        weights: Their weights.
        k: Number of covers wanted.
        prices: ``prices`` that an earlier search of the same problem ended with.
        known: Indices of the candidates of some cover, such as the best one before weights changed.
        max_states: Cap on the states settled. If it is hit, the result holds the covers found until then, or
            else a good one.
    """
    if not problem.n:
        return Found([Path((), 0)], 0)
    missing = problem.first_uncoverable(weights.valid)
    if missing is not None:
        return Found([], farthest=missing)
    if prices is None:
        prices = first_prices(problem, weights.coarse)
    worth = weights.valid & (weights.coarse <= problem.cheapest_twin(weights.coarse))
    bound = Heads(problem, worth).relax(weights.coarse, prices)
    best = _Best(problem, weights, known)
    keep, limit = weights.valid, None
    if best.dive(bound, worth):
        bound, keep = sharpen(problem, weights, bound, best.upper, worth, best)
        limit = (best.upper - bound.value) << weights.coarse_shift
    if k > 1:
        return _find_several(problem, weights, bound.prices, best, k, max_states)
    found = Found([], bound.value << weights.coarse_shift, bound.prices, considered=int(keep.sum()))
    edges = Edges(problem, weights, bound, keep)
    ends = _settle(problem.n, edges, 1, limit, max_states, found)
    found.paths = [_path(weights, _candidates(end)) for end in ends] or _fallback(found, best)
    if found.exact:
        found.lower_bound = found.paths[0].weight if found.paths else None
    return found


def _find_several(problem: Problem[Any], weights: Weights, prices: Ints, best: _Best, k: int, max_states: int) -> Found:
    """The ``k`` best covers: all within a margin of the bound, which grows until there are enough of them.

    Covers above the best one count, so the bound is that of all candidates.
    """
    bound, shift = Heads(problem, weights.valid).relax(weights.coarse, prices), weights.coarse_shift
    found = Found([], bound.value << shift, bound.prices, considered=int(weights.valid.sum()))
    margin = best.upper - bound.value + (best.upper >> _FIRST_MARGIN_BITS) if best.cover else None
    while True:
        keep = weights.valid if margin is None else weights.valid & (bound.slack <= margin)
        limit = None if margin is None else margin << shift
        ends = _settle(problem.n, Edges(problem, weights, bound, keep), k, limit, max_states, found)
        if len(ends) == k or found.capped or limit is None:
            break
        margin = margin * _MARGIN_GROWTH if margin is not None and margin < bound.value else None
    found.paths = [_path(weights, _candidates(end)) for end in ends] or _fallback(found, best)
    if found.exact:
        found.lower_bound = found.paths[0].weight if found.paths else None
    return found


class _Best:
    """The best cover known so far.

    Attributes:
        cover: The cover; None until there is one.
    """

    def __init__(self, problem: Problem[Any], weights: Weights, known: Sequence[int]) -> None:
        self._problem = problem
        self._weights = weights
        is_cover = known and all(weights.valid[i] for i in known)
        self.cover = _path(weights, tuple(known)) if is_cover else None

    @property
    def upper(self) -> int:
        """The coarse weight that a better cover has at most."""
        assert self.cover is not None
        return (self.cover.weight >> self._weights.coarse_shift) + 1

    def dive(self, bound: Bound, keep: Bools) -> bool:
        """Look for a better cover, first among the candidates of least slack; False if there is none at all."""
        most = len(self._problem.candidates)
        slack = np.where(keep, bound.slack, INVALID_WEIGHT)
        for count, width in ((4 * self._problem.n, 4), (16 * self._problem.n, 4), (most, 4), (most, 64)):
            near = keep if count >= most else keep & (slack <= np.partition(slack, count)[count])
            taken = _dive(self._problem, bound, near, width)
            if taken is not None:
                path = _path(self._weights, taken)
                if self.cover is None or path.weight < self.cover.weight:
                    self.cover = path
                break
        return self.cover is not None


def _fallback(found: Found, best: _Best) -> list[Path]:
    """The best cover known, where the cap ended the search before there was any."""
    return [best.cover] if found.capped and best.cover is not None else []


def sharpen(
    problem: Problem[Any],
    weights: Weights,
    bound: Bound,
    upper: int,
    among: Bools | None = None,
    best: _Best | None = None,
) -> tuple[Bound, Bools]:
    """Improve a bound while many candidates may still be part of a cover of at most ``upper``; return these.

    The others are left out at once, so the bound that comes back bounds covers of at most ``upper`` only. If the
    best cover known is given, it is improved too, and ``upper`` with it.
    """
    tightener = Tightener(weights.coarse, bound)
    keep = weights.valid if among is None else among
    while True:
        keep = keep & (tightener.best.slack <= upper - tightener.best.value)
        if tightener.is_done or keep.sum() <= _FEW_PER_NODE * problem.n:
            return tightener.best, keep
        tightener.improve(Heads(problem, keep), upper, _STEPS_AT_ONCE)
        if best is not None and best.dive(tightener.best, keep):
            upper = best.upper


def _path(weights: Weights, candidates: tuple[int, ...]) -> Path:
    return Path(candidates, sum(weights.exact(i) for i in candidates))


def _candidates(label: Label) -> tuple[int, ...]:
    taken = []
    while label[4] is not None:
        taken.append(label[3])
        label = label[4]
    return tuple(reversed(taken))


def _dive(problem: Problem[Any], bound: Bound, keep: Bools, width: int) -> tuple[int, ...] | None:
    """A good cover, found by following only the nearest states of every least uncovered node; None if all end."""
    kept = np.flatnonzero(keep)
    kept = kept[np.lexsort((bound.slack[kept], problem.first[kept]))]
    begin = np.searchsorted(problem.first[kept], np.arange(problem.n + 1)).tolist()
    edges = list(zip(bound.slack[kept].tolist(), kept.tolist(), strict=True))
    skipped, shapes = bound.skipped.tolist(), problem.shapes
    layers: list[dict[int, Label]] = [{} for _ in range(problem.n + 1)]
    layers[0][0] = (0, 0, 0, -1, None)
    for node in range(problem.n):
        for label in sorted(layers[node].values())[:width]:
            distance, _, above, _, _ = label
            for slack, candidate in edges[begin[node] : begin[node + 1]]:
                bits, to, rest = shapes[candidate]
                if bits & above:
                    continue
                length = slack + distance
                if above:
                    covered = above | bits
                    ones = trailing_ones(covered)
                    length += skipped[node + ones] - skipped[to]
                    to, rest = node + ones, covered >> ones
                known = layers[to].get(rest)
                if known is None or length < known[0]:
                    layers[to][rest] = (length, to, rest, candidate, label)
        layers[node] = {}
    end = layers[problem.n].get(0)
    return None if end is None else _candidates(end)


def _settle(n: int, edges: Edges, k: int, limit: int | None, max_states: int, found: Found) -> list[Label]:
    """Settles states in the order of their distance until the goal was reached ``k`` times.

    Labels of equal distance leave the heap by least uncovered node, so that all that lead to a state come before it
    is settled, and the one of the least candidate wins: the result does not depend on the bounds.
    """
    skipped = edges.skipped
    heap: list[Label] = [(0, 0, 0, -1, None)]
    settled: list[dict[int, int]] = [{} for _ in range(n + 1)]
    ends: list[Label] = []
    states = 0
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
        found.farthest = max(found.farthest, node)
        states += 1
        if states > max_states:
            found.capped, found.exact = True, False
            break
        for slack, candidate, bits, to, rest in edges[node]:
            length = distance + slack
            if limit is not None and length > limit:
                break
            if bits & above:
                continue
            if above:
                covered = above | bits
                ones = trailing_ones(covered)
                length += skipped[node + ones] - skipped[to]
                to, rest = node + ones, covered >> ones
            found.transitions += 1
            if settled[to].get(rest, 0) < k:
                heappush(heap, (length, to, rest, candidate, label))
    found.states += states
    return ends
