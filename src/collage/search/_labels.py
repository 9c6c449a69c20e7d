"""The search over labels: partial covers with what they have to remember.

A label is a covered set and a **memory**. A transition takes a candidate that holds the least uncovered node and nothing
that is covered. Every cover has exactly one kernel that holds that node, so nothing is lost, and each cover is exactly one path.

An algebra says what a memory is: nothing where costs just add up, detours where kernels could feed each other in a ring
(``_wide``), locations of values where kernels run on devices (``_placed``). It extends a memory by one kernel, and says
how much dearer one memory can still become than another. A label is dropped only if an earlier one of equal covered
set stays as cheap whatever comes, so the search is exact for every algebra.

Distances are counted in slack (see ``_bounds``): the weight of the path so far plus the bound of the rest, less the
bound of the whole. The shortest path is the same, since this adds the same to all complete paths; but labels off the
best paths are far away instead of near, and most are never reached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Protocol, TypeVar

from collage.search._bounds import Bound
from collage.search._problem import Bools, Ints, Problem, trailing_ones
from collage.search._weights import Weights

__all__ = ["Edges", "Found", "Label", "LabelAlgebra", "Path", "candidates_of", "dive", "extra_weight", "settle"]

M = TypeVar("M")

Edge = tuple[int, int, int, int, int]
"""Slack, candidate, its bits, and the state that it leads to from one with nothing covered above."""

Label = tuple[int, int, int, int, Any, Any]
"""Distance, least uncovered node, covered nodes from it on, last candidate, memory, label that it came from.

Labels of equal distance leave the heap by least uncovered node, so that all that lead to a state come before it is
settled, and the one of the least candidate wins: the result does not depend on the bounds.
"""

_START: Label = (0, 0, 0, -1, (), None)


class LabelAlgebra(Protocol[M]):
    """The memory of partial covers beside their covered sets. That of an empty cover is ``()``."""

    @property
    def first_weight(self) -> int:
        """Weight that every cover has beside its kernels and the extensions."""
        ...

    def extend(self, memory: M, candidate: int, bits: int, covered: int) -> tuple[int, M] | None:
        """Return the weight that one more kernel adds beside its own, and the memory after it; None if it cannot be.

        Args:
            memory: The memory before it.
            candidate: The candidate.
            bits: Its nodes.
            covered: All covered nodes, its own included.
        """
        ...

    def excess(self, mine: M, others: M) -> int | None:
        """Return the most by which one memory can still cost more than another of equal covered set; None for no limit."""
        ...


@dataclass(frozen=True, slots=True)
class Path:
    """A cover: indices of its candidates, by their least node, and the sum of all weights."""

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
        states: Labels settled.
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

    def __init__(self, problem: Problem[Any], weights: Weights, bound: Bound, keep: Bools) -> None:
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


def dive(n: int, edges: Edges, algebra: LabelAlgebra[Any] | None, width: int) -> tuple[int, ...] | None:
    """A good cover, found by following only the nearest labels of every least uncovered node; None if all end."""
    layers: list[dict[tuple[int, Any], Label]] = [{} for _ in range(n + 1)]
    layers[0][0, ()] = _START
    for node in range(n):
        for label in sorted(layers[node].values())[:width]:
            for after in _extended(edges, algebra, label, None):
                known = layers[after[1]].get((after[2], after[4]))
                if known is None or after[0] < known[0]:
                    layers[after[1]][after[2], after[4]] = after
        layers[node] = {}
    return candidates_of(min(layers[n].values())) if layers[n] else None


def settle(
    n: int,
    edges: Edges,
    algebra: LabelAlgebra[Any] | None,
    k: int,
    limit: int | None,
    max_states: int,
    found: Found,
) -> list[Label]:
    """Settle labels in the order of their distance until the goal was reached ``k`` times.

    Args:
        n: Number of nodes.
        edges: The transitions.
        algebra: The memory of labels; None if there is nothing to remember.
        k: Number of covers wanted.
        limit: Distance that no cover of interest exceeds.
        max_states: Cap on labels settled.
        found: Takes the statistics.
    """
    heap: list[Label] = [_START]
    settled: list[dict[int, list[Label]]] = [{} for _ in range(n + 1)]
    ends: list[Label] = []
    while heap:
        label = heappop(heap)
        node, above = label[1], label[2]
        earlier = settled[node].setdefault(above, [])
        if len(earlier) >= k and (algebra is None or _is_beaten(algebra, earlier, label, k)):
            continue
        earlier.append(label)
        if node == n:
            ends.append(label)
            if len(ends) == k:
                break
            continue
        found.farthest = max(found.farthest, node)
        found.states += 1
        if found.states > max_states:
            found.capped, found.exact = True, False
            break
        for after in _extended(edges, algebra, label, limit):
            found.transitions += 1
            if algebra is not None or len(settled[after[1]].get(after[2], ())) < k:
                heappush(heap, after)
    return ends


def _extended(edges: Edges, algebra: LabelAlgebra[Any] | None, label: Label, limit: int | None) -> list[Label]:
    """The labels that one more kernel leads to."""
    distance, node, above, _, memory, _ = label
    skipped, labels = edges.skipped, list[Label]()
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
        after = memory
        if algebra is not None:
            step = algebra.extend(memory, candidate, bits << node, (1 << to) - 1 | rest << to)
            if step is None:
                continue
            length, after = length + step[0], step[1]
            if limit is not None and length > limit:
                continue
        labels.append((length, to, rest, candidate, after, label))
    return labels


def _is_beaten(algebra: LabelAlgebra[Any], earlier: Sequence[Label], label: Label, k: int) -> bool:
    """Return True if ``k`` earlier labels of equal covered set stay at most as dear, whatever comes."""
    beaten = 0
    for other in earlier:
        excess = algebra.excess(other[4], label[4])
        beaten += excess is not None and other[0] + excess <= label[0]
        if beaten == k:
            return True
    return False


def candidates_of(label: Label) -> tuple[int, ...]:
    """Return the candidates that led to a label."""
    taken = []
    while label[5] is not None:
        taken.append(label[3])
        label = label[5]
    return tuple(reversed(taken))


def extra_weight(problem: Problem[Any], algebra: LabelAlgebra[Any], candidates: Sequence[int]) -> int | None:
    """Return the weight of a cover beside that of its kernels; None if it cannot be run."""
    memory: Any = ()
    covered, total = 0, algebra.first_weight
    for candidate in candidates:
        bits = problem.candidates[candidate].bits
        covered |= bits
        step = algebra.extend(memory, candidate, bits, covered)
        if step is None:
            return None
        total, memory = total + step[0], step[1]
    return total
