"""Resident memory: releasing mapped weights that kernels have packed, and freed memory."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
from collections.abc import Iterator
from pathlib import Path

from collage.toolchains.sdk.model_files import MAPPED_WEIGHTS

__all__ = ["page_out", "trim"]

_MAPS = Path("/proc/self/maps")
_MADV_PAGEOUT = 21
_READ_IN_PLACE = (".so", MAPPED_WEIGHTS)
"""Ends of the names of files that runs read: code, and weights that are in a kernel's own layout already."""


def page_out(folder: Path) -> None:
    """Tell the system that mappings of a folder's files are not needed now.

    Toolchains map the weights, copy them into a layout of their own, and keep the mapping. So the weights count twice. This
    is a hint. A page that is read again comes back from the file. If the system does not know the hint, or the file belongs
    to another user, the pages stay until memory is short.
    """
    if not _MAPS.exists():
        return
    libc = ctypes.CDLL(None)
    for start, end in _mappings(folder.resolve()):
        # Another thread may have unmapped it by now, and use its place for memory of its own. So the advice must keep what
        # was written there, as MADV_DONTNEED would not.
        libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_PAGEOUT)


def trim() -> None:
    """Return freed memory to the system, if the C library keeps it and has a call for that."""
    gc.collect()
    with contextlib.suppress(AttributeError, OSError, TypeError):  # Windows has no library without a name.
        ctypes.CDLL(None).malloc_trim(0)


def _mappings(folder: Path) -> Iterator[tuple[int, int]]:
    prefix = f"{os.fspath(folder)}/"
    for line in _MAPS.read_text(errors="replace").splitlines():
        fields = line.split(maxsplit=5)
        is_ours = len(fields) == 6 and fields[5].startswith(prefix)
        if is_ours and "x" not in fields[1] and not fields[5].endswith(_READ_IN_PLACE):
            start, _, end = fields[0].partition("-")
            yield int(start, 16), int(end, 16)
