"""Whereabouts: the devices of values while a cover is built, and the cost of copies to their readers.

A kernel may be chosen before the producer of its inputs. Such an input has no home yet, and its copy is paid for when
it gets one. The cost of a cover does not depend on the order in which its kernels are chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

from collage.graph import iterate_bits
from collage.search._problem import Problem
from collage.search._transfers import Transfer
from collage.search._weights import Weights

__all__ = ["CopyPlan", "TensorLocations", "Where"]

_NOWHERE = -1

Where = tuple[int, int]
"""The home of a value, and the devices that it is copied to, as bits."""

TensorLocations = tuple[tuple[int, Where], ...]
"""The location of each value that still matters, by its number."""


class CopyPlan:
    """The cost of bringing values to the places where kernels read them: an algebra of labels."""

    def __init__(self, problem: Problem[Any], weights: Weights, transfers: Sequence[Transfer]) -> None:
        self._devices = [candidate.device for candidate in problem.candidates]
        self._transfers = transfers
        self._homes = [_NOWHERE if t.home is None or t.producer is not None else t.home for t in transfers]
        self._delivered = [sum(1 << device for device in t.delivered) for t in transfers]
        self._prices = [[[weights.of_copy(s) for s in row] for row in t.copy_s] for t in transfers]
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

    @cached_property
    def first_weight(self) -> int:
        """Weight of copies that every placement needs: inputs that are outputs somewhere else."""
        owed = 0
        for number, home in enumerate(self._homes):
            if home != _NOWHERE:
                price = self._price_of(number, home, self._delivered[number])
                assert price is not None, "an output cannot be delivered"
                owed += price
        return owed

    def extend(
        self, memory: TensorLocations, candidate: int, bits: int, covered: int
    ) -> tuple[int, TensorLocations] | None:
        """Return the weight of the copies that a kernel causes, and the locations after it; None if one is impossible."""
        device = self._devices[candidate]
        made, read = self._border(bits)
        if not made and not read:
            return 0, memory
        places = dict(memory)
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

    def excess(self, mine: TensorLocations, others: TensorLocations) -> int | None:
        """The most by which one label may have to pay more than another from here on; None if there removes the limit."""
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
        """Weight of the copies of a value from its home to some devices; None if one is impossible."""
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
