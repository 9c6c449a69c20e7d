"""Memory for tensors that begin at a line of the cache."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collage.toolchains._contract import Layout, Tensor

__all__ = ["ALIGNMENT_BYTES", "aligned_bytes", "size_bytes"]

ALIGNMENT_BYTES = 64
"""Bytes of a cache line. Stores across its border cost up to 1 % of a model's time. Some toolchains copy other arrays."""


def size_bytes(layout: Layout) -> int:
    """Return the number of bytes of a tensor."""
    return math.prod(layout.shape) * np.dtype(layout.dtype).itemsize


def aligned_bytes(size: int, offset: int = 0) -> Tensor:
    """New memory that begins at a cache line, or ``offset`` bytes after one.

    Returns:
        A view of ``size`` bytes; its ``base`` owns the memory.
    """
    owner = np.empty(ALIGNMENT_BYTES + offset + size, np.uint8)
    start = -owner.ctypes.data % ALIGNMENT_BYTES + offset
    return owner[start : start + size]
