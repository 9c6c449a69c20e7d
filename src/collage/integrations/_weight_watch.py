"""Changes of weights that PyTorch does not count: through ``tensor.data``, NumPy, or another library."""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Mapping

import torch

__all__ = ["WeightWatch"]

_HEAD_BYTES = 512
_PIECE_BYTES = 64 << 10


class WeightWatch:
    """Watches the contents of tensors for changes.

    Each look compares how every tensor begins, and one piece of one tensor. So a change of a whole tensor, or of a
    small one, is seen at once. Any other is seen after one look per piece.

    Args:
        tensors: Tensors by numbers that the caller chose.

    Attributes:
        pieces: Looks after which every byte was compared.
    """

    def __init__(self, tensors: Mapping[int, torch.Tensor]) -> None:
        spans = [(number, tensor.data_ptr(), _span_bytes(tensor)) for number, tensor in tensors.items()]
        heads = [(number, place, min(size, _HEAD_BYTES)) for number, place, size in spans if size]
        self._heads = [(number, place, size, ctypes.string_at(place, size)) for number, place, size in heads]
        pieces = [
            (number, place + begin, min(_PIECE_BYTES, size - begin))
            for number, place, size in spans
            if size > _HEAD_BYTES
            for begin in range(0, size, _PIECE_BYTES)
        ]
        self._pieces = [(number, place, size, _checksum(place, size)) for number, place, size in pieces]
        self._next = 0
        self.pieces = len(pieces)

    def changed_now(self) -> list[int]:
        """Return the indices of the tensors whose first bytes have changed. All tensors must be where they were."""
        return [number for number, place, size, was in self._heads if ctypes.string_at(place, size) != was]

    def changed_before(self) -> list[int]:
        """Return the number of the tensor whose next piece differs, if one does. The change may be some looks old."""
        if not self._pieces:
            return []
        number, place, size, was = self._pieces[self._next]
        self._next = (self._next + 1) % len(self._pieces)
        return [] if _checksum(place, size) == was else [number]


def _span_bytes(tensor: torch.Tensor) -> int:
    """Return the size of the memory from the first to the last element of a tensor."""
    if not tensor.numel():
        return 0
    last = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int((last + 1) * tensor.element_size())


def _checksum(place: int, size: int) -> int:
    found: int = zlib.crc32((ctypes.c_char * size).from_address(place))
    return found
