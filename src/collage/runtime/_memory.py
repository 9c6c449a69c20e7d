"""Resident memory: letting go of mapped weights that kernels have packed for themselves."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["page_out"]

_MAPS = Path("/proc/self/maps")
_MADV_PAGEOUT = 21


def page_out(folder: Path) -> None:
    """Tells the system that mappings of a folder's files are not needed now.

    Toolchains map the weights, pack them into a layout of their own, and keep the mapping, which then counts twice. It is
    a hint: whoever does read a page gets it back from the file, and where the system does not know the hint, or the file
    belongs to another user, the pages stay until memory is short.
    """
    if not _MAPS.exists():
        return
    libc = ctypes.CDLL(None)
    for start, end in _mappings(folder.resolve()):
        libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_PAGEOUT)


def _mappings(folder: Path) -> Iterator[tuple[int, int]]:
    prefix = f"{os.fspath(folder)}/"
    for line in _MAPS.read_text(errors="replace").splitlines():
        fields = line.split(maxsplit=5)
        # Code is left where it is: it will be needed.
        if len(fields) == 6 and fields[5].startswith(prefix) and "x" not in fields[1] and not fields[5].endswith(".so"):
            start, _, end = fields[0].partition("-")
            yield int(start, 16), int(end, 16)
