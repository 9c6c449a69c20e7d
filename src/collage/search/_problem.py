"""The search problem, prepared once: candidates as runs of nodes, their weights, and what they overlap.

A **weight** is a candidate's cost as one whole number, so that sums are exact, do not depend on their order, and compare in
one step. From high to low digits: priority rank of an unknown cost, cost in units of 2^-50 s (about a femtosecond), one
for the kernel itself, priority of its target. The weight of a path is the sum: least cost first, then fewer kernels, then
preferred targets.

**Coarse** weights are the same without the lowest digits, in 64 bits, never above the exact ones, for bounds computed on
all candidates at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic

import numpy as np

from collage.cost.cost import Cost
from collage.search._values import C

__all__ = ["Problem", "Weights", "trailing_ones"]

Ints = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]

_UNITS_PER_SECOND = 2.0**50
_COARSE_BITS = 60


def trailing_ones(bits: int) -> int:
    """How many of the lowest bits are set without a gap."""
    return (~bits & (bits + 1)).bit_length() - 1


def _runs(bits: int, first: int) -> Iterator[tuple[int, int]]:
    """Maximal ranges [start, stop) of set bits."""
    start = first
    bits >>= first
    while bits:
        length = trailing_ones(bits)
        yield start, start + length
        bits >>= length
        if bits:
            gap = (bits & -bits).bit_length() - 1
            bits >>= gap
            start += length + gap


class Problem(Generic[C]):
    """Nodes and candidates of one search; costs come separately, since they change while a search learns.

    Attributes:
        n: Number of nodes.
        candidates: The candidates in the order given, which is the last tie-break.
        first: Least node of each candidate, [candidates].
        priorities: Priority of each candidate's target, 0 preferred most, [candidates].
    """

    def __init__(self, n: int, candidates: Sequence[C], priority_of: Callable[[C], int] | None = None) -> None:
        self.n = n
        self.candidates = tuple(candidates)
        self.first: Ints = np.array([c.first for c in self.candidates], dtype=np.int64)
        self.priorities = [priority_of(c) for c in self.candidates] if priority_of else [0] * len(self.candidates)
        starts: list[int] = []
        stops: list[int] = []
        offsets: list[int] = []
        for candidate in self.candidates:
            offsets.append(len(starts))
            for start, stop in _runs(candidate.bits, candidate.first):
                starts.append(start)
                stops.append(stop)
            if len(starts) == offsets[-1] or starts[offsets[-1]] != candidate.first or stops[-1] > n:
                raise ValueError(f"candidate {candidate} does not cover nodes of 0..{n - 1} from {candidate.first} on")
        self._starts: Ints = np.array(starts, dtype=np.int64)
        self._stops: Ints = np.array(stops, dtype=np.int64)
        self._offsets: Ints = np.array(offsets, dtype=np.int64)
        self._index_nodes()

    def _index_nodes(self) -> None:
        """Lists each candidate's nodes, and for each node the candidates that hold it."""
        lengths = self._stops - self._starts
        total = int(lengths.sum())
        before = np.cumsum(lengths) - lengths
        self._nodes: Ints = np.arange(total, dtype=np.int64) + np.repeat(self._starts - before, lengths)
        self.sizes: Ints = self._per_candidate(lengths)
        self._node_offsets: Ints = np.concatenate([[0], np.cumsum(self.sizes)])
        owners = np.repeat(np.arange(len(self.candidates), dtype=np.int64), self.sizes)
        by_node = np.argsort(self._nodes, kind="stable")
        self._holders: Ints = owners[by_node]
        self._holder_offsets: Ints = np.searchsorted(self._nodes[by_node], np.arange(self.n + 1))

    def _per_candidate(self, per_run: Ints) -> Ints:
        if not len(self.candidates):
            return np.zeros(0, dtype=np.int64)
        return np.add.reduceat(per_run, self._offsets)

    def nodes(self, candidate: int) -> Ints:
        """Nodes of one candidate."""
        return self._nodes[self._node_offsets[candidate] : self._node_offsets[candidate + 1]]

    def holders(self, node: int) -> Ints:
        """Candidates that hold one node."""
        return self._holders[self._holder_offsets[node] : self._holder_offsets[node + 1]]

    def totals(self, per_node: Ints) -> Ints:
        """For each candidate the sum of a per-node number over its nodes."""
        prefix = np.concatenate([[0], np.cumsum(per_node)])
        return self._per_candidate(prefix[self._stops] - prefix[self._starts])

    def least(self, per_candidate: Ints, default: int) -> Ints:
        """For each node the least of a per-candidate number over the candidates that hold it."""
        result = np.full(self.n, default, dtype=np.int64)
        np.minimum.at(result, self._nodes, np.repeat(per_candidate, self.sizes))
        return result

    def first_uncoverable(self, valid: Bools) -> int | None:
        """The least node that no valid candidate holds."""
        held = np.zeros(self.n, dtype=bool)
        held[self._nodes[np.repeat(valid, self.sizes)]] = True
        missing = np.flatnonzero(~held)
        return int(missing[0]) if len(missing) else None


class Weights:
    """Weights of all candidates of a problem, exact and coarse.

    Args:
        problem: The problem.
        seconds: Seconds of each candidate with its launch penalty, [candidates]; infinite where it is invalid.
        ranks: Priority rank of each candidate whose cost is unknown, else 0, [candidates].

    Attributes:
        valid: Candidates that are not invalid, [candidates].
        coarse: Coarse weights, [candidates]; those of invalid candidates are above any sum.
    """

    def __init__(self, problem: Problem[Any], seconds: Floats, ranks: Ints) -> None:
        self._problem = problem
        self.valid: Bools = np.isfinite(seconds)
        self._seconds = seconds
        self._units: Floats = np.rint(np.where(self.valid, seconds, 0.0) * _UNITS_PER_SECOND)
        self._ranks = ranks
        self._priority_bits = (problem.n * max(problem.priorities, default=0)).bit_length()
        self._kernel_bits = problem.n.bit_length()
        self._unit_bits = 0
        if ranks.any():
            self._unit_bits = int(sum(self._greatest_per_first())).bit_length()
        self.coarse = self._coarse()

    def _greatest_per_first(self) -> Iterator[int]:
        """Addends of a sum that no cover's seconds exceed."""
        greatest = np.zeros(self._problem.n)
        np.maximum.at(greatest, self._problem.first, self._units)
        return (int(x) for x in greatest)

    def exact(self, candidate: int) -> int:
        """The exact weight of one valid candidate."""
        units = (int(self._ranks[candidate]) << self._unit_bits) + int(self._units[candidate])
        return (((units << self._kernel_bits) + 1) << self._priority_bits) + self._problem.priorities[candidate]

    @property
    def coarse_shift(self) -> int:
        """How many binary digits coarse weights lack at the low end."""
        return self._priority_bits + self._dropped_bits

    def cost_of(self, candidates: Sequence[int]) -> Cost:
        """The cost of some candidates together, without the rounding of weights."""
        return Cost.sum(Cost(int(self._ranks[i]), float(self._seconds[i])) for i in candidates)

    def cost_of_weight(self, weight: int) -> Cost:
        """The cost that a sum of weights stands for."""
        units = weight >> (self._priority_bits + self._kernel_bits)
        if not self._unit_bits:
            return Cost(0, units / _UNITS_PER_SECOND)
        return Cost(units >> self._unit_bits, (units & ((1 << self._unit_bits) - 1)) / _UNITS_PER_SECOND)

    def _coarse(self) -> Ints:
        """Scaled so that no sum over the nodes of the cheapest candidate of each overflows."""
        scale = 2.0**self._unit_bits
        approximate = np.where(self.valid, (self._ranks * scale + self._units + 1) * 2.0**self._kernel_bits, np.inf)
        cheapest = np.full(self._problem.n, np.inf)
        nodes, sizes = self._problem._nodes, self._problem.sizes
        np.minimum.at(cheapest, nodes, np.repeat(approximate, sizes))
        total = float(cheapest[np.isfinite(cheapest)].sum())
        self._dropped_bits = max(0, int(np.ceil(np.log2(total + 1))) - _COARSE_BITS + 1)
        limit = 1 << (_COARSE_BITS + 1)
        if self._unit_bits or self._dropped_bits > self._kernel_bits:
            exact = (min(limit, self.exact(i) >> self.coarse_shift) if ok else limit for i, ok in enumerate(self.valid))
            return np.fromiter(exact, dtype=np.int64, count=len(self.valid))
        fits = approximate < float(limit)
        units = np.where(fits, self._units, 0.0).astype(np.int64)
        shifted = ((units << self._kernel_bits) + 1) >> self._dropped_bits
        return np.where(fits, shifted, limit)
