"""Sets of dataflow nodes as bit vectors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

__all__ = ["IndexSet", "bits_of", "first_bit", "hash_bits", "iterate_bits", "last_bit"]


def bits_of(indices: Iterable[int]) -> int:
    """The bit vector with the given bits set."""
    bits = 0
    for index in indices:
        bits |= 1 << index
    return bits


def iterate_bits(bits: int) -> Iterator[int]:
    """Indices of the bits that are set, ascending."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def first_bit(bits: int) -> int:
    """Index of the lowest bit that is set; -1 if there is none."""
    return (bits & -bits).bit_length() - 1


def last_bit(bits: int) -> int:
    """Index of the highest bit that is set; -1 if there is none."""
    return bits.bit_length() - 1


def hash_bits(bits: int) -> int:
    """A hash for bit vectors. Python's own for integers is that of ``bits`` modulo 2**61 - 1.

    With it, sets that are shifted by 61 collide: whatever a model repeats layer by layer.
    """
    return hash((bits, bits.bit_length(), first_bit(bits)))


@dataclass(frozen=True, slots=True)
class IndexSet:
    """An immutable set of post-dfs indices, held as the bits of one integer.

    Sets are ordered for tie-breaking: at the lowest index where two sets differ, the set that has it comes first.
    The order says nothing about inclusion; for that there are :meth:`is_subset_of` and :meth:`is_disjoint_from`.

    Attributes:
        bits: Bit ``i`` is set iff index ``i`` is in the set.
    """

    bits: int = 0

    @classmethod
    def of(cls, *indices: int) -> IndexSet:
        """The set of the given indices."""
        return cls(bits_of(indices))

    @classmethod
    def from_indices(cls, indices: Iterable[int]) -> IndexSet:
        """The set of the given indices."""
        return cls(bits_of(indices))

    @classmethod
    def range(cls, start: int, stop: int) -> IndexSet:
        """The set of all indices from ``start`` up to, not including, ``stop``."""
        return cls((1 << stop) - (1 << start)) if stop > start else cls()

    @property
    def first(self) -> int:
        """The smallest index; -1 if the set is empty."""
        return first_bit(self.bits)

    @property
    def last(self) -> int:
        """The largest index; -1 if the set is empty."""
        return last_bit(self.bits)

    def is_subset_of(self, other: IndexSet) -> bool:
        """Return True if every index of this set is in the other."""
        return not self.bits & ~other.bits

    def is_disjoint_from(self, other: IndexSet) -> bool:
        """Return True if the two sets have no index in common."""
        return not self.bits & other.bits

    def __or__(self, other: IndexSet) -> IndexSet:
        return IndexSet(self.bits | other.bits)

    def __and__(self, other: IndexSet) -> IndexSet:
        return IndexSet(self.bits & other.bits)

    def __sub__(self, other: IndexSet) -> IndexSet:
        return IndexSet(self.bits & ~other.bits)

    def __lt__(self, other: IndexSet) -> bool:
        difference = self.bits ^ other.bits
        return bool(self.bits & difference & -difference)

    def __hash__(self) -> int:
        return hash_bits(self.bits)

    def __iter__(self) -> Iterator[int]:
        return iterate_bits(self.bits)

    def __contains__(self, index: int) -> bool:
        return bool(self.bits >> index & 1)

    def __len__(self) -> int:
        return self.bits.bit_count()

    def __bool__(self) -> bool:
        return self.bits != 0

    def __str__(self) -> str:
        return "{" + ",".join(_runs(self.bits)) + "}"

    __repr__ = __str__


def _runs(bits: int) -> Iterator[str]:
    """The printed parts of a set: runs of three or more indices are written as ``first..last``."""
    while bits:
        start = first_bit(bits)
        beyond = first_bit(~(bits >> start)) + start
        if beyond - start >= 3:
            yield f"{start}..{beyond - 1}"
        else:
            yield from map(str, range(start, beyond))
        bits = bits >> beyond << beyond
