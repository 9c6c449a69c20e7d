"""Constants of a compiled graph: are they the tensors that they were, with the values that they had?"""

from __future__ import annotations

import ctypes
import operator
import weakref
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

__all__ = ["FrozenWeights", "WeightWatch", "span_bytes"]

# Bytes of each tensor that every look compares. A change of a whole tensor changes them.
_HEAD_BYTES = 64
# A look compares one piece. Small ones keep short calls short, and large ones the number of looks.
_LEAST_PIECE_BYTES, _MOST_PIECE_BYTES, _LOOKS = 4 << 10, 64 << 10, 2000

_version = operator.attrgetter("_version")
_place = torch.Tensor.data_ptr


class WeightWatch:
    """Watches tensors for changes, also for those that PyTorch does not count: by ``tensor.data``, NumPy or other libraries.

    Each look compares the identity, version and place of every tensor, and how each begins, and one piece of one tensor.
    So a change of a whole tensor, or of a small one, is seen at once. Any other is seen after one look per piece.

    Args:
        tensors: Tensors by their position among the arguments of a graph.

    Attributes:
        positions: These positions.
        pieces: Looks after which every byte was compared.
    """

    def __init__(self, tensors: Mapping[int, torch.Tensor]) -> None:
        self.positions = tuple(tensors)
        held = tuple(tensors.values())
        self._pick = _picker(self.positions)
        self._dead: list[Any] = []
        # An identity is that of another tensor only after the first one is gone.
        self._refs = [weakref.ref(tensor, self._dead.append) for tensor in held]
        self._ids, self._versions, self._places = _facts(held)
        sizes = [span_bytes(tensor) for tensor in held]
        self._heads = [_memory(place, min(size, _HEAD_BYTES)) for place, size in zip(self._places, sizes, strict=True)]
        self._beginnings = b"".join(self._heads)
        piece_bytes = min(max(sum(sizes) // _LOOKS, _LEAST_PIECE_BYTES), _MOST_PIECE_BYTES)
        self._pieces = [
            (position, piece := _memory(place + begin, min(piece_bytes, size - begin)), zlib.crc32(piece))
            for position, place, size in zip(self.positions, self._places, sizes, strict=True)
            if size > _HEAD_BYTES
            for begin in range(0, size, piece_bytes)
        ]
        self._next = 0
        self._late: int | None = None
        self.pieces = len(self._pieces)

    def are_same(self, arguments: Sequence[Any]) -> bool:
        """Return True if these arguments of a graph show no change. It takes microseconds, since each call asks."""
        held = self._pick(arguments)
        if self._dead or _facts(held) != (self._ids, self._versions, self._places):
            return False
        return b"".join(self._heads) == self._beginnings and self._is_next_piece_same()

    def changed(self, arguments: Sequence[Any]) -> tuple[list[int], bool]:
        """Return the positions of tensors with other values, after ``are_same`` said that there are some.

        Returns:
            Positions; and True if the change may be older than the last look.
        """
        found = []
        sizes = map(len, self._heads)
        begin = 0
        for n, (position, ref, size) in enumerate(zip(self.positions, self._refs, sizes, strict=True)):
            tensor, head = arguments[position], self._beginnings[begin : begin + size]
            begin += size
            if (
                ref() is not tensor
                or (_version(tensor), _place(tensor)) != (self._versions[n], self._places[n])
                or bytes(self._heads[n]) != head
            ):
                found.append(position)
        if found or self._late is None:
            return found, False
        return [self._late], True

    def gone(self) -> list[int]:
        """Return the positions of tensors that were deleted."""
        return [position for position, ref in zip(self.positions, self._refs, strict=True) if ref() is None]

    def _is_next_piece_same(self) -> bool:
        if not self._pieces:
            return True
        position, piece, was = self._pieces[self._next]
        self._next = (self._next + 1) % self.pieces
        if zlib.crc32(piece) != was:
            self._late = position
        return self._late is None


class FrozenWeights:
    """Constants that the user says never change. Only another tensor in the place of one is seen, as by PyTorch's freezing.

    Args:
        tensors: As of ``WeightWatch``. They stay in memory.

    Attributes:
        positions: As of ``WeightWatch``.
        pieces: Zero: no bytes are compared.
    """

    pieces = 0

    def __init__(self, tensors: Mapping[int, torch.Tensor]) -> None:
        self.positions = tuple(tensors)
        self._pick, self._held = _picker(self.positions), tuple(tensors.values())

    def are_same(self, arguments: Sequence[Any]) -> bool:
        """Return True if these are the same tensors."""
        try:
            # A tuple compares identities first. Another tensor of one element may be equal to the held one, and serves as well.
            return self._pick(arguments) == self._held
        except RuntimeError:  # Another tensor has no single truth value.
            return False

    def changed(self, arguments: Sequence[Any]) -> tuple[list[int], bool]:
        """Return the positions of other tensors, and False: a change is never older than the last look."""
        pairs = zip(self.positions, self._held, strict=True)
        return [position for position, tensor in pairs if arguments[position] is not tensor], False

    def gone(self) -> list[int]:
        """Return nothing: the tensors are kept."""
        return []


def _picker(positions: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    if len(positions) > 1:
        return operator.itemgetter(*positions)
    return lambda arguments: tuple(arguments[position] for position in positions)


def _facts(tensors: Sequence[torch.Tensor]) -> tuple[list[int], list[int], list[int]]:
    return list(map(id, tensors)), list(map(_version, tensors)), list(map(_place, tensors))


def span_bytes(tensor: torch.Tensor) -> int:
    """Return the size of the memory from the first to the last element of a tensor."""
    if not tensor.numel():
        return 0
    last = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int((last + 1) * tensor.element_size())


def _memory(place: int, size: int) -> memoryview:
    """Return memory as it is now and will be. It must be there when it is read."""
    return memoryview((ctypes.c_char * size).from_address(place)) if size else memoryview(b"")
