"""Buffers: memory that kernels write their outputs to.

Values that are used within a run only share one block, planned by lifetime. Outputs of a run belong to the caller. Their
memory is used again only when no reference to it is left. So large outputs are neither copied nor allocated for each run.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from collage.toolchains import ALIGNMENT_BYTES, Layout, aligned_bytes, size_bytes

__all__ = [
    "Lifetime",
    "OutputBuffer",
    "aligned_copy",
    "arrays_in_one_block",
    "fits",
    "pack",
    "same_bytes",
    "same_place",
]

Array = np.ndarray[Any, np.dtype[Any]]

_KEPT = 2
"""Buffers that are kept for each output. A loop usually holds one result while it computes the next."""


@dataclass(frozen=True, slots=True)
class Lifetime:
    """The steps during which a buffer is needed.

    Attributes:
        size_bytes: Size of the buffer.
        first: Position of the step that writes it.
        last: Position of the last step that reads it.
    """

    size_bytes: int
    first: int
    last: int


def pack(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Return an offset for each buffer, and the size of the whole block.

    Buffers that are needed at the same time do not overlap. The largest is placed first, each at the lowest offset that is
    free. The result is within a few per cent of the optimum on real models.
    """
    offsets = [0] * len(lifetimes)
    placed: list[tuple[int, int, Lifetime]] = []
    for i in sorted(range(len(lifetimes)), key=lambda i: -lifetimes[i].size_bytes):
        mine = lifetimes[i]
        size = -(-mine.size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        offset = 0
        alive = [(start, end) for start, end, other in placed if other.first <= mine.last and mine.first <= other.last]
        for start, end in sorted(alive):
            if offset + size <= start:
                break
            offset = max(offset, end)
        offsets[i] = offset
        placed.append((offset, offset + size, mine))
    return offsets, max((end for _, end, _ in placed), default=0)


def arrays_in_one_block(layouts: Sequence[Layout], lifetimes: Sequence[Lifetime]) -> list[Array]:
    """Return an array for each layout. Arrays that are not needed at the same time share memory."""
    offsets, total_bytes = pack(lifetimes)
    block = aligned_bytes(total_bytes)
    return [_array(block, offset, layout) for offset, layout in zip(offsets, layouts, strict=True)]


def aligned_copy(array: Array) -> Array:
    """Return a row-major copy with the alignment of buffers. Some toolchains use such memory without copying it."""
    if array.dtype.hasobject:
        return array.copy()
    copy = aligned_bytes(array.nbytes).view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def same_bytes(left: Any, right: Any) -> bool:
    """True if two row-major arrays of one shape and type hold the same bytes. Objects are compared by value."""
    if left.dtype.hasobject:
        return bool(np.array_equal(left, right))
    return bool(np.array_equal(left.reshape(-1).view(np.uint8), right.reshape(-1).view(np.uint8)))


def fits(array: Array, layout: Layout) -> bool:
    """True if a kernel that writes in place can write an output of this layout to the array."""
    flags = array.flags
    return (
        array.shape == layout.shape
        and array.dtype == np.dtype(layout.dtype)
        and flags.c_contiguous
        and flags.writeable
        and array.ctypes.data % ALIGNMENT_BYTES == 0
    )


def same_place(result: Any, target: Array) -> bool:
    """True if a result is the array that it should be written to, or a view of all of it."""
    return result is target or (
        isinstance(result, np.ndarray)
        and (result.ctypes.data, result.shape, result.strides) == (target.ctypes.data, target.shape, target.strides)
        and result.size > 0
    )


class OutputBuffer:
    """Memory for one output of a run.

    Args:
        layout: Layout of the output.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._kept: list[Array] = []
        self._idle = 0

    def take(self) -> Array:
        """Return an array whose memory has no other reference. Only views of it may leave the run, not the array itself."""
        for array in self._kept:
            if _references(array) == self._idle:
                return array
        array = _array(aligned_bytes(size_bytes(self._layout)), 0, self._layout)
        self._idle = _references(array)
        self._kept = [array, *self._kept[: _KEPT - 1]]
        return array


def _references(array: Array) -> int:
    # Views of an array refer to the array that owns the memory. So its references tell whether there are any besides this
    # one, however they were made: by slicing, through DLPack, or by another library.
    return sys.getrefcount(array.base)


def _array(block: Array, offset: int, layout: Layout) -> Array:
    return block[offset : offset + size_bytes(layout)].view(layout.dtype).reshape(layout.shape)
