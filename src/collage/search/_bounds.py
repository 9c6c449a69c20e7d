"""Bounds: what the rest of a cover costs at least.

The relaxation: walk along the nodes in order; at each node either take a candidate that begins there and go on after its
head (the nodes it covers without a gap), or skip the node because an earlier candidate's rest has covered it. Nothing checks
that it has, but skipping has a price per node, and whoever covers the node by its rest is paid that price. For any prices the
least cost of such a walk is a bound of the least cost of a cover, for a cover pays and is paid alike.

The best prices make the bound as sharp as the linear programme over the candidates, which here is nearly always the optimum
itself. They are found by subgradient steps: a node that is skipped more often than it is covered gets dearer.

From this the search has, for every candidate, its **slack**: by how much taking it raises the bound. Where the slack exceeds
what the best known cover leaves, the candidate lies on no best path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from collage.search._problem import Ints, Problem

__all__ = ["Bound", "Tightener", "first_prices", "relax"]

_STEPS = 80
_PATIENCE = 4
_CLOSE = 2.0**-20


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound of every cover and of every way on.

    Attributes:
        prices: What skipping each node costs, [nodes].
        to_go: Bound of the way on from each node, nothing above it being covered, [nodes + 1]. A covered node above
            lowers it by its price.
        skipped: Sum over all earlier nodes of the slack of skipping them, [nodes + 1].
        slack: Slack of each candidate, never negative, [candidates].
        imbalance: How often each node is skipped beyond how often it is covered on the cheapest walk, [nodes].
    """

    prices: Ints
    to_go: Ints
    skipped: Ints
    slack: Ints
    imbalance: Ints

    @property
    def value(self) -> int:
        """Bound of every cover, as a coarse weight."""
        return int(self.to_go[0])


def first_prices(problem: Problem[Any], weights: Ints) -> Ints:
    """Prices to begin with: each node in turn takes what the candidates that hold it can still bear."""
    prices = np.zeros(problem.n, dtype=np.int64)
    left = weights.copy()
    for node in range(problem.n):
        holders = problem.holders(node)
        share = left[holders].min()
        prices[node] = share
        left[holders] -= share
    return prices


def relax(problem: Problem[Any], weights: Ints, prices: Ints) -> Bound:
    """The bound for given prices, with the cheapest walk from the last node to the first."""
    costs = weights - problem.rest_totals(prices)
    by_head = costs[problem.by_head]
    group_costs = np.minimum.reduceat(by_head, problem.group_starts).tolist()
    to_go = [0] * (problem.n + 1)
    taken = [-1] * problem.n
    price = prices.tolist()
    for node in range(problem.n - 1, -1, -1):
        best, choice = price[node] + to_go[node + 1], -1
        for group, stop in problem.groups_from[node]:
            cost = group_costs[group] + to_go[stop]
            if cost < best:
                best, choice = cost, group
        to_go[node], taken[node] = best, choice
    ahead = np.array(to_go, dtype=np.int64)
    skips = np.concatenate([[0], np.cumsum(prices + ahead[1:] - ahead[:-1])])
    slack = costs + ahead[problem.head_stop] - ahead[problem.first]
    return Bound(prices, ahead, skips, slack, _imbalance(problem, by_head, taken))


def _imbalance(problem: Problem[Any], by_head: Ints, taken: list[int]) -> Ints:
    result = np.zeros(problem.n, dtype=np.int64)
    node = 0
    while node < problem.n:
        group = taken[node]
        if group < 0:
            result[node] += 1
            node += 1
            continue
        start, stop = problem.group_starts[group], problem.group_stops[group]
        candidate = int(problem.by_head[start + by_head[start:stop].argmin()])
        node = problem.shapes[candidate][1]
        nodes = problem.nodes(candidate)
        result[nodes[nodes >= node]] -= 1
    return result


class Tightener:
    """Improves the prices of a bound, a few steps at a time.

    Attributes:
        best: The sharpest bound so far.
        is_done: True if more steps would hardly help.
    """

    def __init__(self, problem: Problem[Any], weights: Ints, bound: Bound) -> None:
        self._problem = problem
        self._weights = weights
        self._last = bound
        self._step = 1.0
        self._failures = 0
        self._left = _STEPS
        self.best = bound
        self.is_done = False

    def improve(self, upper: int, steps: int) -> None:
        """Takes some steps towards ``upper``, the coarse weight of a known cover."""
        for _ in range(steps):
            norm = float(np.square(self._last.imbalance, dtype=np.float64).sum())
            if norm == 0 or self._left == 0 or upper - self.best.value <= _CLOSE * upper:
                self.is_done = True
                return
            self._left -= 1
            change = self._last.imbalance * (self._step * (upper - self._last.value) / norm)
            self._last = relax(self._problem, self._weights, self._last.prices + np.rint(change).astype(np.int64))
            if self._last.value > self.best.value:
                self.best, self._failures = self._last, 0
                continue
            self._failures += 1
            if self._failures == _PATIENCE:
                self._step, self._failures = self._step / 2, 0
