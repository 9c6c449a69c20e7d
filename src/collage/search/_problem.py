"""The search problem, prepared once: the nodes that each candidate covers, and the candidates that a state has to try.

Nodes and candidates stay the same while a lazy search learns costs, so everything that depends on them alone is
computed here, as arrays. Costs are in ``_weights``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from collage.search._values import C

__all__ = ["Bools", "Floats", "Ints", "Problem", "trailing_ones"]

Ints = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]
Array = TypeVar("Array", Ints, Floats)

Form = tuple[int, int, tuple[tuple[int, int], ...]]
"""Length of a head, the rest after it as bits, and the runs of the rest, counted from the least node."""


def trailing_ones(bits: int) -> int:
    """Return the number of the lowest bits that are set without a gap."""
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

    Candidates for several targets share a set of nodes. The **head** of such a set is the range of nodes that it
    covers without a gap from its least node on; the nodes beyond that are its **rest**.

    Attributes:
        n: Number of nodes.
        candidates: The candidates in the order given, which is the last tie-break.
        priorities: Priority of each candidate's target, 0 preferred most.
        set_of: Number of each candidate's set of nodes, [candidates].
        first: Least node of each candidate, [candidates].
        head_stop: First node after the head of each candidate, [candidates].
        by_head: Indices of the candidates by ``first``, then ``head_stop``, [candidates].
        shapes: Form of each candidate: its bits from its least node on, ``head_stop``, and its rest from there on.
    """

    def __init__(self, n: int, candidates: Sequence[C], priority_of: Callable[[C], int] | None = None) -> None:
        self.n = n
        self.candidates = tuple(candidates)
        self.priorities = [priority_of(c) for c in self.candidates] if priority_of else [0] * len(self.candidates)
        self._number_sets()
        self.first: Ints = self._set_first[self.set_of]
        self.head_stop: Ints = self._set_head_stop[self.set_of]
        self.by_head: Ints = np.lexsort((self.head_stop, self.first))
        self._first_offsets: list[int] = np.searchsorted(self.first[self.by_head], np.arange(n + 1)).tolist()
        self._by_set: Ints = np.argsort(self.set_of, kind="stable")
        self._set_offsets: Ints = np.searchsorted(self.set_of[self._by_set], np.arange(len(self._set_first)))

    def _number_sets(self) -> None:
        """Find the distinct sets of nodes, and the runs of their rests."""
        # Python's hash of an integer repeats every 61 bits, as layers do; the length tells them apart.
        numbers: dict[tuple[int, int], int] = {}
        forms: dict[int, Form] = {}
        shapes: list[tuple[int, int, int]] = []
        set_of, firsts, rests = [], [], list[tuple[int, int, int]]()
        for candidate in self.candidates:
            bits = candidate.bits
            number = numbers.setdefault((bits, bits.bit_length()), len(shapes))
            set_of.append(number)
            if number < len(shapes):
                continue
            if bits <= 0 or bits >> self.n:
                raise ValueError(f"{candidate} does not cover nodes of 0 to {self.n - 1}")
            first = (bits & -bits).bit_length() - 1
            form = forms.get(bits >> first)
            if form is None:
                (_, length), *runs = _runs(bits >> first, 0)
                form = forms[bits >> first] = length, bits >> first + length, tuple(runs)
            length, rest, runs_of_rest = form
            firsts.append(first)
            shapes.append((bits >> first, first + length, rest))
            rests += [(number, first + start, first + stop) for start, stop in runs_of_rest]
        self.set_of: Ints = np.array(set_of, dtype=np.int64)
        self.shapes = [shapes[number] for number in set_of]
        self._set_first: Ints = np.array(firsts, dtype=np.int64)
        self._set_head_stop: Ints = np.array([stop for _, stop, _ in shapes], dtype=np.int64)
        self._rest_owners, self._rest_starts, self._rest_stops = np.array(rests, dtype=np.int64).reshape(-1, 3).T
        self._with_rest, self._rest_offsets = np.unique(self._rest_owners, return_index=True)

    def starting_at(self, node: int) -> Ints:
        """Candidates whose least node is ``node``."""
        return self.by_head[self._first_offsets[node] : self._first_offsets[node + 1]]

    def rest_totals(self, per_node: Ints) -> Ints:
        """Sum of a per-node number over the rest of each candidate, [candidates]."""
        totals = np.zeros(len(self._set_first), dtype=np.int64)
        if len(self._with_rest):
            prefix = np.concatenate([[0], np.cumsum(per_node)])
            totals[self._with_rest] = np.add.reduceat(
                prefix[self._rest_stops] - prefix[self._rest_starts], self._rest_offsets
            )
        return totals[self.set_of]

    def least_of_sets(self, costs: Array) -> Array:
        """Least cost of the candidates of each set of nodes, [sets]."""
        return np.minimum.reduceat(costs[self._by_set], self._set_offsets)

    def cheapest_twin(self, costs: Ints) -> Ints:
        """Least cost of all candidates with the same nodes, for each candidate, [candidates]."""
        return self.least_of_sets(costs)[self.set_of]

    def small_holders(self, most_nodes: int, among: Bools) -> list[Ints]:
        """For each node, the selected sets, [sets], that hold it and have at most the given number of nodes."""
        owners, starts, stops = self._runs_of_sets()
        sizes = np.zeros(len(self._set_first), dtype=np.int64)
        np.add.at(sizes, owners, stops - starts)
        is_small = (among & (sizes <= most_nodes))[owners]
        owners, starts, lengths = owners[is_small], starts[is_small], (stops - starts)[is_small]
        before = np.cumsum(lengths) - lengths
        nodes = np.arange(lengths.sum()) + np.repeat(starts - before, lengths)
        by_node = np.argsort(nodes, kind="stable")
        holders = np.repeat(owners, lengths)[by_node]
        return np.split(holders, np.searchsorted(nodes[by_node], np.arange(1, self.n)))

    def dearest(self, costs: Floats) -> Floats:
        """Largest cost of the candidates that begin at each node, 0 if there is none, [nodes]."""
        result = np.zeros(self.n)
        np.maximum.at(result, self.first, costs)
        return result

    def first_uncoverable(self, valid: Bools) -> int | None:
        """The least node that no valid candidate holds."""
        owners, starts, stops = self._runs_of_sets()
        is_valid = np.zeros(len(self._set_first), dtype=bool)
        is_valid[self.set_of[valid]] = True
        of_valid = is_valid[owners]
        begun = np.bincount(starts[of_valid], minlength=self.n + 1)
        ended = np.bincount(stops[of_valid], minlength=self.n + 1)
        missing = np.flatnonzero(np.cumsum(begun - ended)[: self.n] == 0)
        return int(missing[0]) if len(missing) else None

    def _runs_of_sets(self) -> tuple[Ints, Ints, Ints]:
        """Heads and runs of rests: owner, first node and the node after the last."""
        owners = np.concatenate([np.arange(len(self._set_first)), self._rest_owners])
        starts = np.concatenate([self._set_first, self._rest_starts])
        return owners, starts, np.concatenate([self._set_head_stop, self._rest_stops])
