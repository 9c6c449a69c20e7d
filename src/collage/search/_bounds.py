"""Lower bounds of the cost of the rest of a cover.

The relaxation: walk along the nodes in order; at each node either take a candidate that begins there and go on after
its head (the nodes it covers without a gap), or skip the node because an earlier candidate's rest has covered it.
Nothing checks that it has. But skipping has a price per node, and a candidate whose rest covers the node is paid that
price. For any prices the least cost of such a walk is a bound of the least cost of a cover, for a cover pays and is
paid alike.

The best prices make the bound as sharp as the linear programme over the candidates, which here is nearly always the
optimum itself. They are found by subgradient steps: a node that is skipped more often than it is covered gets dearer.

From this the search has, for every candidate, its **slack**: by how much taking it raises the bound. If the slack
exceeds what the best known cover leaves, the candidate lies on no best path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from collage.graph import iterate_bits
from collage.search._problem import Bools, Ints, Problem
from collage.search._weights import INVALID_WEIGHT

__all__ = ["Bound", "Heads", "Tightener", "first_prices"]

_STEPS = 80
_PATIENCE = 4
_CLOSE = 2.0**-20
_STALL = 0.25
_SMALL = 16


@dataclass(frozen=True, slots=True)
class Bound:
    """A lower bound of every cover, and of the rest of every partial cover.

    Attributes:
        prices: Price of skipping each node, [nodes].
        to_go: Bound of the rest from each node on, if nothing above it is covered, [nodes + 1]. A covered node above
            lowers it by its price.
        skipped: Sum over all earlier nodes of the slack of skipping them, [nodes + 1].
        slack: Slack of each candidate, never negative, [candidates].
        imbalance: For each node, the times that the cheapest walk skips it less the times that it covers it, [nodes].
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
    """Initial prices: each node in turn takes the rest of the weight of the small sets that hold it."""
    prices = np.zeros(problem.n, dtype=np.int64)
    if not len(problem.candidates):
        return prices
    left = problem.least_of_sets(weights)
    for node, holders in enumerate(problem.small_holders(_SMALL, left < INVALID_WEIGHT)):
        if len(holders):
            prices[node] = share = left[holders].min()
            left[holders] -= share
    return prices


class Heads:
    """Some of the candidates, grouped by their heads: of those with equal head only the cheapest matters.

    Args:
        problem: The problem.
        among: Selected candidates, [candidates]. A bound for them bounds covers by them only.
    """

    def __init__(self, problem: Problem[Any], among: Bools) -> None:
        self._problem = problem
        self._members: Ints = problem.by_head[among[problem.by_head]]
        first, stop = problem.first[self._members], problem.head_stop[self._members]
        is_new = np.ones(len(first), dtype=bool)
        is_new[1:] = (first[1:] != first[:-1]) | (stop[1:] != stop[:-1])
        self._starts: Ints = np.flatnonzero(is_new)
        self._group_stops: list[int] = stop[self._starts].tolist()
        self._groups_from: list[int] = np.searchsorted(first[self._starts], np.arange(problem.n + 1)).tolist()

    def relax(self, weights: Ints, prices: Ints) -> Bound:
        """The bound for given prices, with the cheapest walk from the last node to the first."""
        problem = self._problem
        costs = weights - problem.rest_totals(prices)
        member_costs = costs[self._members]
        group_costs = np.minimum.reduceat(member_costs, self._starts).tolist()
        to_go = [0] * (problem.n + 1)
        taken = [-1] * problem.n
        price, stops = prices.tolist(), self._group_stops
        for node in range(problem.n - 1, -1, -1):
            best, choice = price[node] + to_go[node + 1], -1
            for group in range(self._groups_from[node], self._groups_from[node + 1]):
                cost = group_costs[group] + to_go[stops[group]]
                if cost < best:
                    best, choice = cost, group
            to_go[node], taken[node] = best, choice
        ahead = np.array(to_go, dtype=np.int64)
        skips = np.concatenate([[0], np.cumsum(prices + ahead[1:] - ahead[:-1])])
        slack = costs + ahead[problem.head_stop] - ahead[problem.first]
        return Bound(prices, ahead, skips, slack, self._imbalance(member_costs, taken))

    def _imbalance(self, member_costs: Ints, taken: list[int]) -> Ints:
        """Follows the cheapest walk: a skipped node counts up, a node covered by a rest counts down."""
        problem = self._problem
        result = np.zeros(problem.n, dtype=np.int64)
        starts = [*self._starts.tolist(), len(self._members)]
        node = 0
        while node < problem.n:
            group = taken[node]
            if group < 0:
                result[node] += 1
                node += 1
                continue
            start, stop = starts[group], starts[group + 1]
            candidate = int(self._members[start + int(member_costs[start:stop].argmin())])
            _, node, rest = problem.shapes[candidate]
            for covered in iterate_bits(rest):
                result[node + covered] -= 1
        return result


class Tightener:
    """Improves the prices of a bound, a few steps at a time.

    Attributes:
        best: The sharpest bound so far.
        is_done: True if more steps would hardly help.
    """

    def __init__(self, weights: Ints, bound: Bound) -> None:
        self._weights = weights
        self._last = bound
        self._step = 1.0
        self._failures = 0
        self._left = _STEPS
        self.best = bound
        self.is_done = False

    def improve(self, heads: Heads, upper: int, steps: int) -> None:
        """Take some steps towards ``upper``, the coarse weight of a known cover, with candidates that may beat it."""
        before = self.best.value
        for _ in range(steps):
            norm = float(np.square(self._last.imbalance, dtype=np.float64).sum())
            if norm == 0 or self._left == 0 or upper - self.best.value <= _CLOSE * upper:
                self.is_done = True
                return
            self._left -= 1
            change = self._last.imbalance * (self._step * (upper - self._last.value) / norm)
            self._last = heads.relax(self._weights, self._last.prices + np.rint(change).astype(np.int64))
            if self._last.value > self.best.value:
                self.best, self._failures = self._last, 0
                continue
            self._failures += 1
            if self._failures == _PATIENCE:
                self._step, self._failures = self._step / 2, 0
        self.is_done = self.best.value - before < _STALL * (upper - before)
