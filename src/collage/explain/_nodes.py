"""Sets of operators as ranges: compact in JSON, and without the library that reads models."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

__all__ = ["NodeRanges"]

_RANGE = re.compile(r"(\d{1,8})(?:-(\d{1,8}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class NodeRanges:
    """A set of operators of the prepared model, by their index.

    Attributes:
        ranges: First and last index of each range, ascending, with a gap between ranges.
    """

    ranges: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, indices: Iterable[int]) -> NodeRanges:
        """Return the set of some indices."""
        ranges: list[tuple[int, int]] = []
        for index in sorted(set(indices)):
            if ranges and ranges[-1][1] == index - 1:
                ranges[-1] = (ranges[-1][0], index)
            else:
                ranges.append((index, index))
        return cls(tuple(ranges))

    @classmethod
    def from_bits(cls, bits: int) -> NodeRanges:
        """Return the set of the indices whose bits are set, in time that grows with the number of ranges only."""
        ranges: list[tuple[int, int]] = []
        begin = 0
        while bits:
            skipped = (bits & -bits).bit_length() - 1
            bits >>= skipped
            length = (~bits & (bits + 1)).bit_length() - 1
            ranges.append((begin + skipped, begin + skipped + length - 1))
            begin, bits = begin + skipped + length, bits >> length
        return cls(tuple(ranges))

    @classmethod
    def parse(cls, text: str) -> NodeRanges:
        """Parse the printed form, such as ``0-26,30``.

        Raises:
            ValueError: The text is malformed, or not ascending.
        """
        ranges: list[tuple[int, int]] = []
        for part in text.split(",") if text else ():
            match = _RANGE.fullmatch(part)
            if match is None:
                raise ValueError(f"{part[:40]!r} is not a range of operators")
            first, last = int(match[1]), int(match[2] or match[1])
            if last < first or (ranges and first <= ranges[-1][1] + 1):
                raise ValueError(f"{part!r} is not in ascending order")
            ranges.append((first, last))
        return cls(tuple(ranges))

    def __contains__(self, index: int) -> bool:
        return any(first <= index <= last for first, last in self.ranges)

    def __iter__(self) -> Iterator[int]:
        for first, last in self.ranges:
            yield from range(first, last + 1)

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self.ranges)

    @property
    def first(self) -> int:
        """The least index."""
        return self.ranges[0][0]

    @property
    def last(self) -> int:
        """The greatest index."""
        return self.ranges[-1][1]

    def __str__(self) -> str:
        return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in self.ranges)
