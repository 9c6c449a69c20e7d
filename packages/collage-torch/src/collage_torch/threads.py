"""Torch's threads: how many there are, how long they wait awake, and where they run.

Torch computes with OpenMP's threads: the calling thread and helpers of its own, which sleep between two calls and are kept
off the processor that their caller is on.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
from typing import TYPE_CHECKING, Any

from collage.toolchains.sdk.model_files import load_threads, usable_cores
from collage.toolchains.sdk.openmp import quiet_threads
from collage.toolchains.sdk.thread_affinity import HelperThreads

if TYPE_CHECKING:
    from collage.target import Target
    from collage.toolchains import LoadOptions

__all__ = ["import_torch", "set_threads", "use_threads"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of ``mallopt``."""
_KEPT_BYTES = 1 << 30

_PARALLEL_BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def import_torch(exclusive: bool = False) -> Any:
    """Torch; where this is the first import, with threads that are quiet between two runs unless ``exclusive``."""
    with contextlib.nullcontext() if exclusive else quiet_threads():
        import torch

    return torch


def set_threads(target: Target, options: LoadOptions) -> int:
    """Set torch's number of threads, of which there is one for the process, and return it."""
    import_torch(options.exclusive)
    count = load_threads(target, options) or usable_cores()
    use_threads(count)
    _keep_freed_memory()
    return count


def use_threads(count: int) -> None:
    """Let torch, once imported, run later calls of this thread with ``count`` threads, each on its own processor."""
    torch = sys.modules["torch"]
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)
    if count > 1:
        _team.of(count).move_off()


class _Team(threading.local):
    """The calling thread's helpers: each thread that calls OpenMP has its own."""

    def __init__(self) -> None:
        self._size = 0
        self._helpers = HelperThreads()

    def of(self, size: int) -> HelperThreads:
        """The helpers in a team of this size."""
        if size != self._size:
            self._size, self._helpers = size, HelperThreads(_helpers(size))
        return self._helpers


_team = _Team()


def _helpers(size: int) -> set[int]:
    """The system's numbers of this thread's helpers; none where OpenMP is not GNU's."""
    found = {threading.get_native_id()}
    body = _PARALLEL_BODY(lambda _: found.add(threading.get_native_id()))
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libgomp.so.1").GOMP_parallel(body, None, size, 0)
    return found - {threading.get_native_id()}


def _keep_freed_memory() -> None:
    """Let glibc keep memory that torch frees, since torch needs it again in the next run.

    Torch allocates every result again. By default glibc hands larger ones back to the system, and page faults make a
    convolution of a millisecond take two.
    """
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL("libc.so.6")
        library.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        library.mallopt(_MMAP_THRESHOLD, _KEPT_BYTES)
