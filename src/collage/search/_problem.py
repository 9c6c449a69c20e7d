"""The search problem, prepared once: what each candidate covers, and which candidates a state has to try.

Nodes and candidates stay the same while a lazy search learns costs, so everything that depends on them alone is
computed here, as arrays. Costs are in ``_weights``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic

import numpy as np

from collage.search._values import C

__all__ = ["Bools", "Floats", "Ints", "Problem", "trailing_ones"]

Ints = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]


def trailing_ones(bits: int) -> int:
    """How many of the lowest bits are set without a gap."""
    return (~bits & (bits + 1)).bit_length() - 1


def _runs(bits: int, start: int) -> Iterator[tuple[int, int]]:
    """Maximal ranges [start, stop) of set bits, from bit ``start``, which is set, upwards."""
    bits >>= start
    while bits:
        length = trailing_ones(bits)
        yield start, start + length
        bits >>= length
        gap = (bits & -bits).bit_length() - 1 if bits else 0
        bits >>= gap
        start += length + gap


class Problem(Generic[C]):
    """Nodes and candidates of one search.

    The **head** of a candidate is the range of nodes that it covers without a gap from its least node on; what it
    covers beyond that is its **rest**.

    Attributes:
        n: Number of nodes.
        candidates: The candidates in the order given, which is the last tie-break.
        priorities: Priority of each candidate's target, 0 preferred most.
        first: Least node of each candidate, [candidates].
        head_stop: First node after the head of each candidate, [candidates].
        sizes: Number of nodes of each candidate, [candidates].
        by_head: Indices of the candidates by ``first``, then ``head_stop``, [candidates].
        shapes: For each candidate its bits from its least node on, ``head_stop``, and its rest from there on.
    """

    def __init__(self, n: int, candidates: Sequence[C], priority_of: Callable[[C], int] | None = None) -> None:
        self.n = n
        self.candidates = tuple(candidates)
        self.priorities = [priority_of(c) for c in self.candidates] if priority_of else [0] * len(self.candidates)
        self.shapes: list[tuple[int, int, int]] = []
        runs: list[tuple[int, int]] = []
        offsets: list[int] = []
        known: dict[
            tuple[int, int], tuple[list[tuple[int, int]], tuple[int, int, int]]
        ] = {}  # Targets share sub-graphs.
        for candidate in self.candidates:
            first, bits = key = candidate.first, candidate.bits
            if key not in known:
                if bits <= 0 or bits & -bits != 1 << first or bits >> n:
                    raise ValueError(f"{candidate} does not cover nodes of 0 to {n - 1} from node {first} on")
                ranges = list(_runs(bits, first))
                stop = ranges[0][1]
                known[key] = ranges, (bits >> first, stop, bits >> stop)
            offsets.append(len(runs))
            runs += known[key][0]
            self.shapes.append(known[key][1])
        self._starts, self._stops = np.array(runs, dtype=np.int64).reshape(-1, 2).T
        self._offsets: Ints = np.array(offsets, dtype=np.int64)
        self.first: Ints = self._starts[self._offsets]
        self.head_stop: Ints = self._stops[self._offsets]
        self._index_nodes()
        self.by_head: Ints = np.lexsort((self.head_stop, self.first))
        self._first_offsets: list[int] = np.searchsorted(self.first[self.by_head], np.arange(n + 1)).tolist()

    def _index_nodes(self) -> None:
        """Lists each candidate's nodes, and for each node the candidates that hold it."""
        lengths = self._stops - self._starts
        before = np.cumsum(lengths) - lengths
        self._nodes: Ints = np.arange(lengths.sum(), dtype=np.int64) + np.repeat(self._starts - before, lengths)
        self.sizes: Ints = self._sum_runs(lengths)
        self._node_offsets: Ints = np.concatenate([[0], np.cumsum(self.sizes)])
        by_node = np.argsort(self._nodes, kind="stable")
        owners = np.repeat(np.arange(len(self.candidates), dtype=np.int64), self.sizes)
        self._holders: Ints = owners[by_node]
        self._holder_offsets: Ints = np.searchsorted(self._nodes[by_node], np.arange(self.n + 1))

    def _sum_runs(self, per_run: Ints) -> Ints:
        if not len(self._offsets):
            return per_run
        sums: Ints = np.add.reduceat(per_run, self._offsets)
        return sums

    def starting_at(self, node: int) -> Ints:
        """Candidates whose least node is ``node``."""
        return self.by_head[self._first_offsets[node] : self._first_offsets[node + 1]]

    def nodes(self, candidate: int) -> Ints:
        """Nodes of one candidate."""
        return self._nodes[self._node_offsets[candidate] : self._node_offsets[candidate + 1]]

    def holders(self, node: int) -> Ints:
        """Candidates that hold one node."""
        return self._holders[self._holder_offsets[node] : self._holder_offsets[node + 1]]

    def totals(self, per_node: Ints) -> Ints:
        """For each candidate the sum of a per-node number over its nodes, [candidates]."""
        prefix = np.concatenate([[0], np.cumsum(per_node)])
        return self._sum_runs(prefix[self._stops] - prefix[self._starts])

    def rest_totals(self, per_node: Ints) -> Ints:
        """For each candidate the sum of a per-node number over its rest, [candidates]."""
        prefix = np.concatenate([[0], np.cumsum(per_node)])
        heads: Ints = prefix[self.head_stop] - prefix[self.first]
        return self.totals(per_node) - heads

    def cheapest(self, costs: Floats) -> Floats:
        """For each node the least cost of the candidates that hold it, infinite where there is none, [nodes]."""
        result = np.full(self.n, np.inf)
        np.minimum.at(result, self._nodes, np.repeat(costs, self.sizes))
        return result

    def first_uncoverable(self, valid: Bools) -> int | None:
        """The least node that no valid candidate holds."""
        held = np.zeros(self.n, dtype=bool)
        held[self._nodes[np.repeat(valid, self.sizes)]] = True
        missing = np.flatnonzero(~held)
        return int(missing[0]) if len(missing) else None
