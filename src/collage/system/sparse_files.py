"""Sparse files: files that are larger than the data written to them."""

from __future__ import annotations

import os

__all__ = ["has_large_holes"]

_MOST_HOLE_BYTES = 2**28
"""Files with more bytes of holes are refused. Smaller holes come from tools that skip pages of zeros."""


def has_large_holes(descriptor: int) -> bool:
    """Return if an open file would take long to read though it takes next to no room. Its position is moved.

    False if the system or the file system does not tell.
    """
    if not hasattr(os, "SEEK_HOLE"):
        return False
    end = os.fstat(descriptor).st_size
    position = holes = 0
    while position < end and holes <= _MOST_HOLE_BYTES:
        hole = os.lseek(descriptor, position, os.SEEK_HOLE)
        try:
            position = os.lseek(descriptor, hole, os.SEEK_DATA)
        except OSError:  # Nothing but the hole is left.
            position = end
        holes += position - hole
    return holes > _MOST_HOLE_BYTES
