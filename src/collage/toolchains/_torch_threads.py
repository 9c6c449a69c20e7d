"""Torch's threads: how many there are, how long they wait awake, and where they run.

Torch computes with OpenMP's threads: the calling thread and helpers of its own, which sleep between two calls. Linux
often wakes a helper on the processor of the thread that called it, above all in virtual machines, and moves it away
only milliseconds later. Operators that take less than that then run on one processor, slower than without helpers. So
helpers are kept off the processor that their caller is on. The caller itself may run where it could before.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collage.toolchains._model_files import load_threads, usable_cores

if TYPE_CHECKING:
    from collage.target import Target
    from collage.toolchains._contract import LoadOptions

__all__ = ["import_torch", "set_threads", "use_threads"]

_SPIN_COUNT = "2000"
"""Turns of a loop, some microseconds: enough for the next operator of a kernel, not for a neighbour to notice."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of ``mallopt``."""
_KEPT_BYTES = 1 << 30

_PARALLEL_BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def import_torch(exclusive: bool = False) -> Any:
    """Torch; where this is the first import, with threads that are quiet between two runs unless ``exclusive``.

    The library of its threads reads the environment when it is loaded, and only then.
    """
    if "torch" not in sys.modules and not exclusive:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPIN_COUNT)
    import torch

    return torch


def set_threads(target: Target, options: LoadOptions) -> int:
    """Sets torch's number of threads, of which there is one for the process, and returns it."""
    import_torch(options.exclusive)
    count = load_threads(target, options) or usable_cores()
    use_threads(count)
    _keep_freed_memory()
    return count


def use_threads(count: int) -> None:
    """Has torch, once imported, compute what this thread calls next with ``count`` threads, each on its own processor."""
    torch = sys.modules["torch"]
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)
    if count > 1:
        _team.keep_apart(count)


class _Team(threading.local):
    """The calling thread and its helpers: each thread that calls OpenMP has its own."""

    def __init__(self) -> None:
        self._size = 0
        self._processor = -1
        self._helpers: frozenset[int] = frozenset()

    def keep_apart(self, size: int) -> None:
        """Keeps the helpers off this thread's processor, where there are enough others; costs next to nothing again."""
        processor = _current_processor()()
        if (processor, size) == (self._processor, self._size):
            return
        if size != self._size:
            self._helpers = _helpers(size)
        others = os.sched_getaffinity(0) - {processor}
        if len(others) >= size - 1:
            for helper in self._helpers:
                _allow(helper, others)
        self._processor, self._size = processor, size


_team = _Team()


def _helpers(size: int) -> frozenset[int]:
    """The system's numbers of this thread's helpers; none where OpenMP is not GNU's."""
    found = {threading.get_native_id()}
    body = _PARALLEL_BODY(lambda _: found.add(threading.get_native_id()))
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libgomp.so.1").GOMP_parallel(body, None, size, 0)
    return frozenset(found - {threading.get_native_id()})


def _allow(thread: int, processors: set[int]) -> None:
    """Has a thread of this process run on these processors only; it may have ended since it was found."""
    if Path(f"/proc/self/task/{thread}").exists():
        with contextlib.suppress(OSError):
            os.sched_setaffinity(thread, processors)


@functools.cache
def _current_processor() -> Callable[[], int]:
    """The C library's function that tells the processor of the calling thread; one that tells nothing where there is none."""
    try:
        found: Callable[[], int] = ctypes.PyDLL(None).sched_getcpu
    except (OSError, AttributeError):
        return lambda: -1
    return found


def _keep_freed_memory() -> None:
    """Has glibc keep what torch frees, which it will ask for again in the next run.

    Torch allocates every result anew. By default glibc hands larger ones back to the system, and page faults make a
    convolution of a millisecond take two.
    """
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL("libc.so.6")
        library.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        library.mallopt(_MMAP_THRESHOLD, _KEPT_BYTES)
