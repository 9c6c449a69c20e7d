"""The search where kernels may run on several devices: which kernels, and where (design section 4.3).

A candidate comes once for each device that may run it. A value that is read on another device than it lies on has to be
copied there, once for each destination, whoever reads it first. So a label here is a covered set together with the
**whereabouts** of the values that still matter: for each, where it lies, and where it is, or will have to be, copied to.
A kernel may be chosen before one that feeds it; what it reads then has no home yet, and the copy is paid for when it
gets one. What a cover costs does not depend on the order in which its kernels are chosen.

Of two labels of equal covered set, the dearer one is dropped if paying for every copy that only it has would still leave
the other one no dearer, whatever comes; nothing else is, so the search stays exact. Where copies cost nothing, one label
is left of each covered set, and this is the plain search.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from heapq import heappop, heappush
from typing import Any, Protocol, TypeVar

from collage.cost.cost import Cost, CostLike
from collage.graph import iterate_bits
from collage.search._bounds import Heads, first_prices
from collage.search._dijkstra import DEFAULT_MAX_STATES, Edges, Found, Path, _sharpen
from collage.search._lazy import LazyOptions, LazyResult, _LazySearch
from collage.search._problem import Floats, Ints, Problem, trailing_ones
from collage.search._shortest_path import as_partitioning, no_cover, weigh
from collage.search._values import Candidate, CostOf, NoCover, Partitioning, SearchStatistics
from collage.search._weights import _UNITS_PER_SECOND, Weights

__all__ = ["PlacedCandidate", "Transfer", "copies_of", "lazy_placed_path", "placed_shortest_path"]

_BEAM_WIDTHS = (4, 64)
_NOWHERE = -1

Where = tuple[int, int]
"""The home of a value, and the devices that it is copied to, as bits."""

Whereabouts = tuple[tuple[int, Where], ...]
"""Of every value that still matters, by its number."""

Label = tuple[int, int, int, int, Whereabouts, int, Any]
"""Distance, least uncovered node, covered nodes from it on, serial number, whereabouts, candidate, label it came from."""


class PlacedCandidate(Candidate, Protocol):
    """A candidate kernel on a device."""

    @property
    def device(self) -> int:
        """Where it would run. Devices are numbered from 0; of those that cost the same, the lowest number wins."""
        ...


P = TypeVar("P", bound=PlacedCandidate)


@dataclass(frozen=True, slots=True)
class Transfer:
    """A value that may have to be copied from one device to another.

    Attributes:
        producer: The node that makes it; None for an input of the model.
        readers: The nodes that read it. For each the device on which it reads, or None for that on which it runs; a kernel
            reads where it runs, unless all of its nodes that read the value do so elsewhere.
        copy_s: Seconds of a copy by source and destination; infinite where there is no way.
        home: Where an input of the model lies.
        delivered: Devices on which it has to be in the end.
    """

    producer: int | None
    readers: Mapping[int, int | None]
    copy_s: Sequence[Sequence[float]]
    home: int | None = None
    delivered: frozenset[int] = field(default_factory=frozenset)


def placed_shortest_path(
    n: int,
    candidates: Sequence[P],
    cost_of: CostOf[P],
    *,
    transfers: Sequence[Transfer],
    launch_penalty_of: Callable[[P], float] | None = None,
    priority_of: Callable[[P], int] | None = None,
    max_states: int = DEFAULT_MAX_STATES,
) -> Partitioning[P] | NoCover:
    """The cheapest cover by candidates on devices, copies between devices included.

    Exact where every candidate satisfies the admission rule. Between covers of equal cost that with fewer kernels and
    copies wins, then the one with the lower sum of priorities, then by the order of the candidates.

    Args:
        n: Number of nodes.
        candidates: The candidate kernels, once for each device that may run them.
        cost_of: Cost of each there.
        transfers: What the nodes hand to each other. Values that cost nothing to copy anywhere may be left out.
        launch_penalty_of: Seconds that each kernel costs beyond its own cost.
        priority_of: Priority of a candidate's target, 0 preferred most.
        max_states: Cap on labels settled; where it is hit, a good cover comes back that is not proved optimal.
    """
    began = time.perf_counter()
    problem = Problem(n, candidates, _with_devices(candidates, priority_of))
    weights = weigh(problem, [Cost.of(cost_of(c)) for c in problem.candidates], launch_penalty_of)
    found = _find_placed(problem, weights, transfers, max_states=max_states)
    statistics = SearchStatistics(
        candidates=len(problem.candidates),
        valid=int(weights.valid.sum()),
        considered=found.considered,
        states=found.states,
        transitions=found.transitions,
        wall_s=time.perf_counter() - began,
        caps=("states",) if found.capped else (),
    )
    if not found.paths:
        return _why_none(problem, weights, found, statistics)
    best = as_partitioning(problem, weights, found, found.paths[0], statistics)
    return _with_copies(best, transfers)


def lazy_placed_path(
    n: int,
    candidates: Sequence[P],
    bound_of: Callable[[P], float],
    measure: Callable[[Sequence[P]], Sequence[CostLike]],
    *,
    transfers: Sequence[Transfer],
    options: LazyOptions | None = None,
    known_cost_of: Callable[[P], CostLike | None] | None = None,
    key_of: Callable[[P], Hashable] | None = None,
    proof_bound_of: Callable[[P], float] | None = None,
    launch_penalty_of: Callable[[P], float] | None = None,
    priority_of: Callable[[P], int] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> LazyResult[P]:
    """The cheapest cover by candidates on devices, measuring only what may lie on it.

    The arguments are those of `lazy_shortest_path`, and the transfers of `placed_shortest_path`. Copies are not measured
    here: they cost what the transfers say.
    """
    problem = Problem(n, candidates, _with_devices(candidates, priority_of))
    search = _LazyPlacedSearch(problem, bound_of, measure, options or LazyOptions(), key_of, should_stop)
    search.transfers = transfers
    search.penalties += [launch_penalty_of(c) if launch_penalty_of else 0.0 for c in problem.candidates]
    for index, candidate in enumerate(problem.candidates if known_cost_of else ()):
        cost = known_cost_of(candidate) if known_cost_of else None
        if cost is not None:
            search.learn(index, Cost.of(cost))
    return search.run(proof_bound_of)


def _with_devices(candidates: Sequence[P], priority_of: Callable[[P], int] | None) -> Callable[[P], int]:
    """Priorities by target first, then by device."""
    devices = 1 + max((c.device for c in candidates), default=0)
    return lambda candidate: (priority_of(candidate) if priority_of else 0) * devices + candidate.device


class _LazyPlacedSearch(_LazySearch[P]):
    """A lazy search whose paths are placed."""

    transfers: Sequence[Transfer] = ()

    def _plan(self, seconds: Floats, k: int = 1) -> tuple[Found, Weights]:
        began = time.perf_counter()
        weights = Weights(self.problem, seconds + self.penalties, self.ranks)
        found = _find_placed(self.problem, weights, self.transfers, self.prices, self.options.max_states)
        self.prices = found.prices if found.prices is not None else self.prices
        self.rounds += 1
        self.states += found.states
        self.transitions += found.transitions
        self.replan_max_s = max(self.replan_max_s, time.perf_counter() - began)
        return found, weights

    def _ended(
        self, stopped_by: str, proof_bound_of: Callable[[P], float] | None, last: tuple[Found, Weights]
    ) -> LazyResult[P]:
        result = super()._ended(stopped_by, proof_bound_of, last)
        if result.partitioning is None:
            return result
        return replace(result, partitioning=_with_copies(result.partitioning, self.transfers))


def _with_copies(partitioning: Partitioning[P], transfers: Sequence[Transfer]) -> Partitioning[P]:
    """A partitioning whose cost has the copies in it."""
    copies_s = math.fsum(
        transfer.copy_s[src][dst] for transfer, src, dst in copies_of(_places(partitioning.candidates), transfers)
    )
    return replace(partitioning, cost=partitioning.cost + Cost(seconds=copies_s))


def copies_of(kernels: Sequence[tuple[int, int]], transfers: Sequence[Transfer]) -> list[tuple[Transfer, int, int]]:
    """The copies of a placed cover, with source and destination: each value once to each device that it is not on.

    Args:
        kernels: The nodes of each kernel, as bits, and its device.
        transfers: What the nodes hand to each other.
    """
    kernel_of = {node: i for i, (bits, _) in enumerate(kernels) for node in iterate_bits(bits)}
    device_of = {node: kernels[i][1] for node, i in kernel_of.items()}
    copies = []
    for transfer in transfers:
        home = transfer.home if transfer.producer is None else device_of[transfer.producer]
        wanted: dict[int, list[int]] = {}
        for reader in transfer.readers:
            wanted.setdefault(kernel_of[reader], []).append(reader)
        if transfer.producer is not None:
            wanted.pop(kernel_of[transfer.producer], None)
        places = {_read_on(transfer, readers, kernels[kernel][1]) for kernel, readers in wanted.items()}
        copies += [(transfer, home, place) for place in places | transfer.delivered if home not in (None, place)]
    return copies


def _places(candidates: Sequence[P]) -> list[tuple[int, int]]:
    return [(candidate.bits, candidate.device) for candidate in candidates]


def _read_on(transfer: Transfer, readers: Sequence[int], device: int) -> int:
    """Where a kernel on a device reads a value for some of its nodes."""
    fixed = [transfer.readers[reader] for reader in readers]
    return device if None in fixed else next(place for place in fixed if place is not None)


def _why_none(problem: Problem[P], weights: Weights, found: Found, statistics: SearchStatistics) -> NoCover:
    missing = no_cover(problem, weights, found, statistics)
    if found.capped or problem.first_uncoverable(weights.valid) is not None:
        return missing
    return replace(missing, reason=f"{missing.reason}, with what it reads in reach of its device")


class _Movements:
    """What it costs to bring values where kernels read them."""

    def __init__(self, problem: Problem[Any], weights: Weights, transfers: Sequence[Transfer]) -> None:
        self._n = problem.n
        self._transfers = transfers
        self._homes = [_NOWHERE if t.home is None or t.producer is not None else t.home for t in transfers]
        self._delivered = [sum(1 << device for device in t.delivered) for t in transfers]
        self._prices = [[[_price(weights, s) for s in row] for row in t.copy_s] for t in transfers]
        self._touching = [0] * len(transfers)
        self._made_by: dict[int, list[int]] = {}
        self._read_by: dict[int, list[int]] = {}
        for number, transfer in enumerate(transfers):
            if transfer.producer is not None:
                self._made_by.setdefault(transfer.producer, []).append(number)
                self._touching[number] |= 1 << transfer.producer
            for reader in transfer.readers:
                self._read_by.setdefault(reader, []).append(number)
                self._touching[number] |= 1 << reader
        self._borders: dict[int, tuple[list[int], list[tuple[int, int | None]]]] = {}
        self._excess = lru_cache(maxsize=1 << 16)(self._find_excess)

    def at_first(self) -> int:
        """Weight of what has to be copied however kernels are placed: inputs that are outputs somewhere else."""
        owed = 0
        for number, home in enumerate(self._homes):
            if home != _NOWHERE:
                price = self._price_of(number, home, self._delivered[number])
                assert price is not None, "an output cannot be delivered"
                owed += price
        return owed

    def place(self, whereabouts: Whereabouts, bits: int, device: int, covered: int) -> tuple[int, Whereabouts] | None:
        """Places a kernel.

        Args:
            whereabouts: Of values, before.
            bits: The kernel's nodes.
            device: Where it runs.
            covered: The covered set with it.

        Returns:
            The weight of the copies that it causes, and the whereabouts after; None where a copy is impossible.
        """
        made, read = self._border(bits)
        if not made and not read:
            return 0, whereabouts
        places = dict(whereabouts)
        owed = 0
        for number in made:
            _, wanted = places.get(number, (_NOWHERE, self._delivered[number]))
            price = self._price_of(number, device, wanted)
            if price is None:
                return None
            owed += price
            places[number] = (device, wanted)
        for number, elsewhere in read:
            at = device if elsewhere is None else elsewhere
            home, wanted = places.get(number, (self._homes[number], self._delivered[number]))
            if home != at and not wanted >> at & 1:
                price = 0 if home == _NOWHERE else self._prices[number][home][at]
                if price is None:
                    return None
                owed += price
                wanted |= 1 << at
            places[number] = (home, wanted)
        left = [(number, where) for number, where in places.items() if self._touching[number] & ~covered]
        left.sort()
        return owed, tuple(left)

    def excess(self, mine: Whereabouts, others: Whereabouts) -> int | None:
        """The most by which one label may have to pay more than another from here on; None where there is no limit."""
        if mine == others:
            return 0
        total, theirs = 0, dict(others)
        numbers = dict(mine)
        for number in {**numbers, **theirs}:
            at_first = (self._homes[number], self._delivered[number])
            one, other = numbers.get(number, at_first), theirs.get(number, at_first)
            if one != other:
                more = self._excess(number, one, other)
                if more is None:
                    return None
                total += more
        return total

    def _find_excess(self, number: int, mine: Where, others: Where) -> int | None:
        """The same of one value."""
        (home, wanted), (their_home, their_wanted) = mine, others
        everywhere = range(len(self._prices[number]))
        if home == _NOWHERE:
            prices = [self._price_of(number, place, wanted & ~their_wanted) for place in everywhere]
            return None if None in prices else max(price for price in prices if price is not None)
        total = 0
        for place in everywhere:
            here = 0 if place == home or wanted >> place & 1 else self._prices[number][home][place]
            there = 0 if place == their_home or their_wanted >> place & 1 else self._prices[number][their_home][place]
            if there is None:
                continue
            if here is None:
                return None
            total += max(0, here - there)
        return total

    def _price_of(self, number: int, home: int, wanted: int) -> int | None:
        """Weight of the copies of a value from its home to some devices; None where one is impossible."""
        prices = [self._prices[number][home][place] for place in iterate_bits(wanted) if place != home]
        return None if None in prices else sum(price for price in prices if price is not None)

    def _border(self, bits: int) -> tuple[list[int], list[tuple[int, int | None]]]:
        """The values that a kernel leaves to others, and those that it reads of others, with the device if that is fixed."""
        known = self._borders.get(bits)
        if known is not None:
            return known
        made, readers = [], dict[int, list[int]]()
        for node in iterate_bits(bits):
            made += [v for v in self._made_by.get(node, ()) if self._touching[v] & ~bits or self._delivered[v]]
            for number in self._read_by.get(node, ()):
                producer = self._transfers[number].producer
                if producer is None or not bits >> producer & 1:
                    readers.setdefault(number, []).append(node)
        read = []
        for number, nodes in readers.items():
            fixed = [self._transfers[number].readers[node] for node in nodes]
            read.append((number, None if None in fixed else fixed[0]))
        self._borders[bits] = made, read
        return made, read


def _price(weights: Weights, seconds: float) -> int | None:
    """Weight of a copy; it counts as one more kernel, so that of equal plans the one with fewer copies wins."""
    if not math.isfinite(seconds):
        return None
    return ((round(seconds * _UNITS_PER_SECOND) << weights._kernel_bits) + 1) << weights._priority_bits


def _find_placed(
    problem: Problem[Any],
    weights: Weights,
    transfers: Sequence[Transfer],
    prices: Ints | None = None,
    max_states: int = DEFAULT_MAX_STATES,
) -> Found:
    """The placed cover of least weight. Bounds are those of the plain problem: copies never make a cover cheaper."""
    if not problem.n:
        return Found([Path((), 0)], 0)
    missing = problem.first_uncoverable(weights.valid)
    if missing is not None:
        return Found([], farthest=missing)
    if prices is None:
        prices = first_prices(problem, weights.coarse)
    movements = _Movements(problem, weights, transfers)
    bound = Heads(problem, weights.valid).relax(weights.coarse, prices)
    good = _dive(problem, Edges(problem, weights, bound, weights.valid), movements)
    keep, limit = weights.valid, None
    if good is not None:
        upper = ((good[0] + (bound.value << weights.coarse_shift)) >> weights.coarse_shift) + 1
        bound, keep = _sharpen(problem, weights, bound, upper)
        limit = (upper - bound.value) << weights.coarse_shift
    least = bound.value << weights.coarse_shift
    found = Found([], least + movements.at_first(), bound.prices, considered=int(keep.sum()))
    best = _settle(problem, Edges(problem, weights, bound, keep), movements, limit, max_states, found)
    end = best or (good if found.capped else None)
    if end is not None:
        chosen = _candidates(end)
        copies = [
            t.copy_s[src][dst] for t, src, dst in copies_of(_places([problem.candidates[i] for i in chosen]), transfers)
        ]
        weight = sum(weights.exact(i) for i in chosen) + sum(_price(weights, seconds) or 0 for seconds in copies)
        found.paths = [Path(chosen, weight)]
    if found.exact:
        found.lower_bound = found.paths[0].weight if found.paths else None
    return found


def _candidates(label: Label) -> tuple[int, ...]:
    taken = []
    while label[6] is not None:
        taken.append(label[5])
        label = label[6]
    return tuple(reversed(taken))


def _dive(problem: Problem[Any], edges: Edges, movements: _Movements) -> Label | None:
    """A good placed cover, by following only the few nearest labels of every least uncovered node; None if all end."""
    for width in _BEAM_WIDTHS:
        layers: list[dict[tuple[int, Whereabouts], Label]] = [{} for _ in range(problem.n + 1)]
        layers[0][0, ()] = (0, 0, 0, 0, (), -1, None)
        for node in range(problem.n):
            for label in sorted(layers[node].values(), key=lambda label: label[:3])[:width]:
                for after in _ways_on(problem, edges, movements, label, None):
                    known = layers[after[1]].get((after[2], after[4]))
                    if known is None or after[0] < known[0]:
                        layers[after[1]][after[2], after[4]] = after
            layers[node] = {}
        if layers[problem.n]:
            return min(layers[problem.n].values(), key=lambda label: label[0])
    return None


def _settle(
    problem: Problem[Any], edges: Edges, movements: _Movements, limit: int | None, max_states: int, found: Found
) -> Label | None:
    """Settles labels in the order of their distance until the goal is reached."""
    serial = 0
    heap: list[Label] = [(0, 0, 0, 0, (), -1, None)]
    settled: dict[tuple[int, int], list[tuple[int, Whereabouts]]] = {}
    while heap:
        label = heappop(heap)
        distance, node, above, _, whereabouts, _, _ = label
        if node == problem.n:
            return label
        known = settled.setdefault((node, above), [])
        for length, other in known:
            excess = movements.excess(other, whereabouts)
            if excess is not None and length + excess <= distance:
                break
        else:
            known.append((distance, whereabouts))
            found.states += 1
            found.farthest = max(found.farthest, node)
            if found.states > max_states:
                found.capped, found.exact = True, False
                return None
            for after in _ways_on(problem, edges, movements, label, limit):
                serial += 1
                found.transitions += 1
                heappush(heap, (*after[:3], serial, *after[4:]))
    return None


def _ways_on(
    problem: Problem[Any], edges: Edges, movements: _Movements, label: Label, limit: int | None
) -> list[Label]:
    """The labels that one more kernel leads to."""
    distance, node, above, _, whereabouts, _, _ = label
    ways: list[Label] = []
    for slack, candidate, bits, _, _ in edges[node]:
        if limit is not None and distance + slack > limit:
            break
        if bits & above:
            continue
        rest = above | bits
        covered = (1 << node) - 1 | rest << node
        moved = movements.place(whereabouts, bits << node, problem.candidates[candidate].device, covered)
        if moved is None:
            continue
        ones = trailing_ones(rest)
        length = distance + slack + edges.skips(problem.shapes[candidate][1], node + ones) + moved[0]
        if limit is None or length <= limit:
            ways.append((length, node + ones, rest >> ones, 0, moved[1], candidate, label))
    return ways
