"""Dijkstra over covered sets: the best covers, all costs known.

A good cover is found first, by diving. The bound is sharpened until few candidates can be part of a better one. What is
left is settled label by label (``_labels``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from collage.search._bounds import Bound, Heads, Tightener, first_prices
from collage.search._labels import Edges, Found, LabelAlgebra, Path, candidates_of, dive, extra_weight, settle
from collage.search._problem import Bools, Ints, Problem
from collage.search._weights import INVALID_WEIGHT, Weights

__all__ = ["DEFAULT_MAX_STATES", "find_paths"]

DEFAULT_MAX_STATES = 2_000_000
_FEW_PER_NODE = 4
_STEPS_AT_ONCE = 5
_FIRST_MARGIN_BITS = 10
_MARGIN_GROWTH = 4


def find_paths(
    problem: Problem[Any],
    weights: Weights,
    *,
    algebra: LabelAlgebra[Any] | None = None,
    k: int = 1,
    prices: Ints | None = None,
    known: Sequence[int] = (),
    max_states: int = DEFAULT_MAX_STATES,
) -> Found:
    """The ``k`` covers of least weight.

    Args:
        problem: Nodes and candidates.
        weights: Their weights.
        algebra: The memory of partial covers; None if every candidate satisfies the admission rule, and costs add up.
        k: Number of covers wanted.
        prices: ``prices`` that an earlier search of the same problem ended with.
        known: Indices of the candidates of some cover, such as the best one before weights changed.
        max_states: Cap on the states settled. If it is hit, the result holds the covers found until then, or
            else a good one.
    """
    first = 0 if algebra is None else algebra.first_weight
    if not problem.n:
        return Found([Path((), first)], first)
    missing = problem.first_uncoverable(weights.valid)
    if missing is not None:
        return Found([], farthest=missing)
    if prices is None:
        prices = first_prices(problem, weights.coarse)
    worth = weights.valid
    if (
        algebra is None
    ):  # Of candidates with equal nodes only the cheapest matters, unless something else tells them apart.
        worth = worth & (weights.coarse <= problem.cheapest_twin(weights.coarse))
    bound = Heads(problem, worth).relax(weights.coarse, prices)
    best = _Best(problem, weights, algebra, known)
    keep, margin = weights.valid, None
    if best.dive(bound, worth):
        if k == 1:
            bound, keep = _sharpen(problem, weights, bound, best, worth)
        else:  # Covers above the best one count, so the bound is that of all candidates.
            bound = _sharpen(problem, weights, bound, best, worth)[0]
            bound = Heads(problem, weights.valid).relax(weights.coarse, bound.prices)
        margin = best.upper - bound.value
        margin += best.upper >> _FIRST_MARGIN_BITS if k > 1 else 0
    shift = weights.coarse_shift
    found = Found([], (bound.value << shift) + first, bound.prices)
    while True:
        if k > 1:  # All covers within a margin of the bound, which grows until there are enough of them.
            keep = weights.valid if margin is None else weights.valid & (bound.slack <= margin)
        found.considered = int(keep.sum())
        limit = None if margin is None else margin << shift
        ends = settle(problem.n, Edges(problem, weights, bound, keep), algebra, k, limit, max_states, found)
        if k == 1 or len(ends) == k or found.capped or margin is None:
            break
        margin = margin * _MARGIN_GROWTH if margin < bound.value else None
    found.paths = [best.path_of(candidates_of(end)) for end in ends]
    if found.capped and not ends and best.cover is not None:
        found.paths = [best.cover]
    if found.exact:
        found.lower_bound = found.paths[0].weight if found.paths else None
    return found


class _Best:
    """The best cover known so far.

    Attributes:
        cover: The cover; None until there is one.
    """

    def __init__(
        self, problem: Problem[Any], weights: Weights, algebra: LabelAlgebra[Any] | None, known: Sequence[int]
    ) -> None:
        self._problem = problem
        self._weights = weights
        self._algebra = algebra
        self._first = 0 if algebra is None else algebra.first_weight
        self.cover: Path | None = None
        if known and all(weights.valid[i] for i in known) and self._extra(known) is not None:
            self.cover = self.path_of(known)

    def _extra(self, candidates: Sequence[int]) -> int | None:
        return 0 if self._algebra is None else extra_weight(self._problem, self._algebra, candidates)

    def path_of(self, candidates: Sequence[int]) -> Path:
        """Return a cover that can be run with its weight."""
        return Path(tuple(candidates), sum(map(self._weights.exact, candidates)) + (self._extra(candidates) or 0))

    @property
    def upper(self) -> int:
        """The coarse weight that a better cover has at most, without the weight that all covers share."""
        assert self.cover is not None
        return (self.cover.weight - self._first >> self._weights.coarse_shift) + 1

    def dive(self, bound: Bound, keep: Bools) -> bool:
        """Look for a better cover, first among the candidates of least slack; False if there is none at all."""
        most = len(self._problem.candidates)
        slack = np.where(keep, bound.slack, INVALID_WEIGHT)
        for count, width in ((4 * self._problem.n, 4), (16 * self._problem.n, 4), (most, 4), (most, 64)):
            near = keep if count >= most else keep & (slack <= np.partition(slack, count)[count])
            taken = dive(self._problem.n, Edges(self._problem, self._weights, bound, near), self._algebra, width)
            if taken is not None:
                path = self.path_of(taken)
                if self.cover is None or path.weight < self.cover.weight:
                    self.cover = path
                break
        return self.cover is not None


def _sharpen(problem: Problem[Any], weights: Weights, bound: Bound, best: _Best, among: Bools) -> tuple[Bound, Bools]:
    """Improve a bound while many candidates may still be part of a cover as good as the best; return these.

    The others are left out at once, so the bound that comes back bounds such covers only. The best cover is improved too.
    """
    tightener = Tightener(weights.coarse, bound)
    keep = among
    while True:
        keep = keep & (tightener.best.slack <= best.upper - tightener.best.value)
        if tightener.is_done or keep.sum() <= _FEW_PER_NODE * problem.n:
            return tightener.best, keep
        tightener.improve(Heads(problem, keep), best.upper, _STEPS_AT_ONCE)
        best.dive(tightener.best, keep)
