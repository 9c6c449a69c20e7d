"""The search for covers whose kernels overlap: which kernels, and on which device, so that the last one ends first.

`placed_shortest_path` adds kernels up, as if one ran after the other. If devices work at once, independent branches may
run at the same time. Then the end of the last kernel counts. This is not a sum, so no label can be
dropped for another of equal covered set. Covers are put together by a beam instead: of those that cover as far, the few go on
that promise to end first. The bound of a label is the later of two times: the end of its busiest device, and the end of
all devices if they shared the least remaining work. Finished covers are timed as the runtime would run them.

What a first, narrow beam finds says how much work a better cover may do in all, which leaves few candidates; where the
second beam then never has to leave out a label, its best cover is the best there is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import Any, Generic

import numpy as np

from collage.cost.cost import Cost
from collage.graph import iterate_bits
from collage.search._bounds import Heads, first_prices
from collage.search._labels import Edges
from collage.search._problem import Ints, Problem, trailing_ones
from collage.search._schedule import makespan_s
from collage.search._transfers import P, Transfer, places_of, read_on
from collage.search._values import CostOf, Partitioning, SearchStatistics
from collage.search._weights import Weights

__all__ = ["overlapping_covers"]

_NARROW = 8
_WIDEST = 4096
_MOST_EXPANSIONS = 30_000
"""Labels tried by each beam, roughly: about a second."""
_ROUNDING = 1e-9
_NEAR = 32
"""Most candidates for each node in large problems: those with the least sum of all work."""

Arrivals = dict[int, tuple[int, float]]
"""For each value that is made and still has readers, by its number: the device, and the time."""


@dataclass(slots=True, eq=False)
class _Label:
    """A cover as far as it goes.

    Attributes:
        slack: Weight of this cover, with the least weight of the rest, beyond the bound of all covers.
        above: Covered nodes from the least uncovered one on.
        free_s: When each device is free, [devices].
        loads_s: Seconds that each device works, [devices].
        made: Values that are still to be read.
        copies: Number of values that it copies.
        candidate: The candidate that was chosen last.
        before: The label that this candidate was added to.
    """

    slack: int
    above: int
    free_s: tuple[float, ...]
    loads_s: tuple[float, ...]
    made: Arrivals
    copies: int
    candidate: int
    before: _Label | None


def overlapping_covers(
    n: int,
    candidates: Sequence[P],
    cost_of: CostOf[P],
    k: int = 1,
    *,
    transfers: Sequence[Transfer],
    launch_penalty_of: Callable[[P], float] | None = None,
    most_expansions: int = _MOST_EXPANSIONS,
) -> list[Partitioning[P]]:
    """Good covers by candidates on devices, the one that ends first at the head; their cost is when they end.

    Covers that differ only in which of two equal devices does what are one. Of covers that end together, those with
    fewer kernels come first.

    Args:
        n: Number of nodes.
        candidates: The candidate kernels, once for each device that may run them; each satisfies the admission rule.
        cost_of: Cost of each there. One that is not known, or invalid, is never taken.
        k: Most covers to return.
        transfers: All that the nodes hand to each other.
        launch_penalty_of: Seconds that each kernel costs beyond its own cost.
        most_expansions: Approximate limit of the labels that each beam tries.

    Returns:
        None at all where candidates do not cover all nodes.
    """
    began = time.perf_counter()
    kept, seconds = _cheapest(candidates, cost_of, launch_penalty_of)
    problem = Problem(n, kept)
    if not n or problem.first_uncoverable(np.ones(len(kept), dtype=bool)) is not None:
        return []
    beam = _Beam(problem, seconds, transfers)
    found = beam.search(min(_NARROW, max(1, most_expansions // beam.width_of_all)))
    if found:
        beam.beat(min(found.values())[0])
        width = min(_WIDEST, max(1, most_expansions // max(1, beam.width_of_all)))
        found = {**found, **beam.search(width)}
    statistics = SearchStatistics(
        candidates=len(candidates),
        valid=len(kept),
        considered=beam.width_of_all,
        states=beam.states,
        transitions=beam.transitions,
        wall_s=time.perf_counter() - began,
        caps=("width",) if beam.is_cut else (),
    )
    best = nsmallest(k, found.values())
    return [
        Partitioning(
            tuple(kept[i] for i in chosen),
            Cost(seconds=end_s),
            optimal=not beam.is_cut and end_s == best[0][0],
            lower_bound=Cost(seconds=min(end_s, best[0][0] if not beam.is_cut else beam.least_s)),
            statistics=statistics,
        )
        for end_s, _, chosen in best
    ]


def _cheapest(
    candidates: Sequence[P], cost_of: CostOf[P], launch_penalty_of: Callable[[P], float] | None
) -> tuple[list[P], list[float]]:
    """The cheapest candidate for each set of nodes and device, with its seconds, since such candidates differ in nothing else."""
    best: dict[tuple[int, int], tuple[float, P]] = {}
    for candidate in candidates:
        cost = Cost.of(cost_of(candidate))
        if not cost.is_known:
            continue
        seconds = cost.seconds + (launch_penalty_of(candidate) if launch_penalty_of else 0.0)
        known = best.get((candidate.bits, candidate.device))
        if math.isfinite(seconds) and (known is None or seconds < known[0]):
            best[candidate.bits, candidate.device] = seconds, candidate
    return [candidate for _, candidate in best.values()], [seconds for seconds, _ in best.values()]


class _Beam(Generic[P]):
    """Covers put together from the least node on, a few of them at a time.

    Attributes:
        is_cut: True if the last search left out labels that may lead to a best cover.
        states: Labels that went on.
        transitions: Labels that were tried.
    """

    def __init__(self, problem: Problem[P], seconds: Sequence[float], transfers: Sequence[Transfer]) -> None:
        self._problem, self._seconds, self._transfers = problem, seconds, transfers
        self._devices = 1 + max(candidate.device for candidate in problem.candidates)
        self._weights = Weights(problem, np.array(seconds), np.zeros(len(seconds), dtype=np.int64))
        prices = first_prices(problem, self._weights.coarse)
        self._bound = Heads(problem, self._weights.valid).relax(self._weights.coarse, prices)
        self._least = self._bound.value << self._weights.coarse_shift
        self._slack: Ints = self._bound.slack
        self._keep = self._weights.valid
        most = _NEAR * problem.n
        self._is_thinned = len(self._slack) > most
        if self._is_thinned:
            self._keep = self._keep & (self._slack <= np.partition(self._slack, most)[most])
        self._upper_s = math.inf
        self._borders: dict[int, tuple[list[int], list[tuple[int, list[int]]]]] = {}
        self._made_by: dict[int, list[int]] = {}
        self._read_by: dict[int, list[int]] = {}
        self._touching = [0] * len(transfers)
        for number, transfer in enumerate(transfers):
            if transfer.producer is not None:
                self._made_by.setdefault(transfer.producer, []).append(number)
            for reader in transfer.readers:
                self._read_by.setdefault(reader, []).append(number)
                self._touching[number] |= 1 << reader
        self.is_cut = False
        self.states = self.transitions = 0

    @property
    def width_of_all(self) -> int:
        """Return the number of candidates that are left: a beam of one label would try them."""
        return int(self._keep.sum())

    @property
    def least_s(self) -> float:
        """Seconds that no cover can undercut: all the work, shared evenly."""
        return self._weights.seconds_of(self._least) / self._devices

    def beat(self, upper_s: float) -> None:
        """Look only for covers that end no later than this from now on."""
        self._upper_s = upper_s
        weights = self._weights
        slack_s = self._devices * upper_s - weights.seconds_of(self._least)
        slack = np.array([weights.seconds_of(int(s) << weights.coarse_shift) for s in self._slack])
        is_near = slack <= slack_s * (1 + _ROUNDING)
        self._keep = self._keep & is_near

    def search(self, width: int) -> dict[Any, tuple[float, int, tuple[int, ...]]]:
        """When good covers end, with their number of kernels and their candidates; each by what its devices do."""
        self.is_cut = self._is_thinned
        edges = Edges(self._problem, self._weights, self._bound, self._keep)
        nothing = (0.0,) * self._devices
        layers: list[list[_Label]] = [[] for _ in range(self._problem.n + 1)]
        layers[0].append(_Label(0, 0, nothing, nothing, {}, 0, -1, None))
        for node in range(self._problem.n):
            labels, layers[node] = layers[node], []
            if len(labels) > width:
                self.is_cut = True
                labels = nsmallest(width, labels, key=self._promise)
            self.states += len(labels)
            for label in labels:
                for slack, candidate, bits, stop, _ in edges[node]:
                    if bits & label.above:
                        continue
                    self.transitions += 1
                    covered = label.above | bits
                    ones = trailing_ones(covered)
                    slack += label.slack + edges.skips(stop, node + ones)
                    after = self._after(label, candidate, bits << node, slack, (1 << node) - 1 | covered << node)
                    if after is not None:
                        after.above = covered >> ones
                        layers[node + ones].append(after)
        return self._finished(layers[-1])

    def _promise(self, label: _Label) -> tuple[float, int, int]:
        shared_s = self._weights.seconds_of(self._least + label.slack) / self._devices
        return max(shared_s, *label.free_s), label.slack, label.copies

    def _after(self, label: _Label, candidate: int, bits: int, slack: int, covered: int) -> _Label | None:
        """The label that one more kernel leads to; None if it cannot run there, or cannot lead to a better cover."""
        device = self._problem.candidates[candidate].device
        loads_s = list(label.loads_s)
        loads_s[device] += self._seconds[candidate]
        shared_s = self._weights.seconds_of(self._least + slack) / self._devices
        if max(shared_s, loads_s[device]) > self._upper_s * (1 + _ROUNDING):
            return None
        made, read = self._border(bits)
        began_s, copies = label.free_s[device], label.copies
        for number, readers in read:
            transfer = self._transfers[number]
            home, done_s = label.made.get(number, (transfer.home, 0.0))
            if home is None:
                continue
            place = read_on(transfer, readers, device)
            way_s = transfer.copy_s[home][place]
            if way_s == math.inf:
                return None
            copies += home != place
            began_s = max(began_s, done_s + way_s)
        free_s = list(label.free_s)
        free_s[device] = done_s = began_s + self._seconds[candidate]
        arrivals = {number: at for number, at in label.made.items() if self._touching[number] & ~covered}
        arrivals.update({number: (device, done_s) for number in made if self._touching[number] & ~covered})
        return _Label(slack, 0, tuple(free_s), tuple(loads_s), arrivals, copies, candidate, label)

    def _border(self, bits: int) -> tuple[list[int], list[tuple[int, list[int]]]]:
        """The values that a kernel makes for others, and those that it reads of others, with the nodes that read."""
        known = self._borders.get(bits)
        if known is not None:
            return known
        made: list[int] = []
        read: dict[int, list[int]] = {}
        for node in iterate_bits(bits):
            made += self._made_by.get(node, ())
            for number in self._read_by.get(node, ()):
                producer = self._transfers[number].producer
                if producer is None or not bits >> producer & 1:
                    read.setdefault(number, []).append(node)
        self._borders[bits] = made, list(read.items())
        return self._borders[bits]

    def _finished(self, labels: Sequence[_Label]) -> dict[Any, tuple[float, int, tuple[int, ...]]]:
        best: dict[Any, tuple[float, int, tuple[int, ...]]] = {}
        for label in labels:
            chosen = _candidates(label)
            kernels = places_of([self._problem.candidates[i] for i in chosen])
            end_s = makespan_s(kernels, [self._seconds[i] for i in chosen], self._transfers)
            if end_s == math.inf:
                continue
            shares: dict[int, list[int]] = {}
            for bits, device in kernels:
                shares.setdefault(device, []).append(bits)
            which = frozenset(frozenset(share) for share in shares.values())
            entry = (end_s, len(chosen), chosen)
            best[which] = min(best.get(which, entry), entry)
        return best


def _candidates(label: _Label) -> tuple[int, ...]:
    taken = []
    while label.before is not None:
        taken.append(label.candidate)
        label = label.before
    return tuple(reversed(taken))
