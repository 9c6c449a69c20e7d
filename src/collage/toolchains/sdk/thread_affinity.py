"""Threads that compute beside the one that calls a runtime, kept off its processor.

Linux often wakes a sleeping helper on the processor of the thread that called it, above all in virtual machines, and moves
it away only milliseconds later. Kernels that take less than that then run on one processor, slower than without helpers.
A model that one runtime runs alone settles after a while. If kernels of several runtimes take turns it does not: with
two processors, convolutions of half a millisecond took 1.2 to 1.6 times as long, and up to four times just after another
runtime's. So helpers are kept off the processor that their caller is on. The caller itself may run where it could before.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

__all__ = ["HelperThreads", "computed_meanwhile", "own_threads", "started_meanwhile"]

_REST_S = 0.001
"""Least time between two moves of a helper. A move takes some microseconds: so that it stays under a percent,
also where several callers share helpers."""
_THREADS = Path("/proc/self/task")
_OWN_NAME = Path("/proc/thread-self/comm")
_marks = itertools.count()


class HelperThreads:
    """Threads that help the caller of a runtime, one call at a time.

    Args:
        threads: The system's numbers of threads in this process. Ended threads are dropped.
    """

    def __init__(self, threads: Iterable[int] = ()) -> None:
        self._threads = frozenset(threads)
        self._processor = -1
        self._moved_s = 0.0

    def add(self, threads: Iterable[int]) -> None:
        """Take more threads for helpers."""
        self._threads |= frozenset(threads)
        self._processor = -1

    def move_off(self) -> None:
        """Keep them off the calling thread's processor, where it may use enough others.

        Called before each run: it costs next to nothing while the caller stays where it is.
        """
        processor = _current_processor()()
        if processor != self._processor and self._threads:
            self._keep_off(processor)

    def _keep_off(self, processor: int) -> None:
        now_s = time.monotonic()
        if now_s - self._moved_s < _REST_S * len(self._threads):
            return
        self._processor, self._moved_s = processor, now_s
        # Numbers of threads that have ended may be other processes' by now.
        self._threads &= own_threads()
        others = os.sched_getaffinity(0) - {processor}
        if len(others) >= len(self._threads):
            for thread in self._threads:
                # It may have ended since, and cores may have been taken from the process.
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(thread, others)


@contextlib.contextmanager
def started_meanwhile() -> Iterator[set[int]]:
    """Collect the threads that the calling thread starts inside this context, and their threads; complete on leaving.

    Threads of other callers are left out: a new thread bears the name of the one that starts it, so that this one bears
    a name of its own meanwhile. None are found on systems that do not report this.
    """
    found: set[int] = set()
    try:
        name = _OWN_NAME.read_bytes()
        _OWN_NAME.write_text(mark := f"collage-{next(_marks) % 10**7}")
    except OSError:
        yield found
        return
    try:
        yield found
    finally:
        _OWN_NAME.write_bytes(name)
        found |= {thread for thread in own_threads() if _read(thread, "comm") == mark}


@contextlib.contextmanager
def computed_meanwhile(threads: Iterable[int], share: float = 0.0) -> Iterator[set[int]]:
    """Collect the threads, of those given, that compute inside this context; complete on leaving.

    Args:
        threads: The system's numbers of threads in this process.
        share: Share of the time. A thread that computes for less does not count.
    """
    found: set[int] = set()
    before = {thread: _computed_ns(thread) for thread in threads}
    began_ns = time.monotonic_ns()
    yield found
    enough_ns = share * (time.monotonic_ns() - began_ns)
    found |= {thread for thread, then_ns in before.items() if _computed_ns(thread) - then_ns > enough_ns}


def own_threads() -> set[int]:
    """The system's numbers of this process's threads; none on systems without such."""
    try:
        return {int(entry.name) for entry in _THREADS.iterdir()}
    except OSError:
        return set()


def _computed_ns(thread: int) -> int:
    """Processor time of a thread; 0 if the system does not report it."""
    told = _read(thread, "schedstat").split()
    return int(told[0]) if told and told[0].isdecimal() else 0


def _read(thread: int, what: str) -> str:
    """Return the system's facts about a thread, nothing for one that has ended."""
    try:
        return (_THREADS / str(thread) / what).read_text(errors="replace").strip()
    except OSError:
        return ""


@functools.cache
def _current_processor() -> Callable[[], int]:
    """The C library's function that tells the processor of the calling thread; one that tells nothing if there is none."""
    try:
        found: Callable[[], int] = ctypes.PyDLL(None).sched_getcpu
    except (OSError, AttributeError, TypeError):  # Windows has no library without a name.
        return lambda: -1
    return found
