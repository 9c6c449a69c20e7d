"""Forks of this process: objects that a fork cannot use are kept there, and not closed.

A fork has no other threads, but what they had locked stays locked. Threads of libraries hold locks of their own for moments
after a run, as they go to sleep. TBB's do, and a fork of such a moment waits for ever. So a fork waits until they sleep.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["around_forks", "in_forks", "keep_for_ever", "wait_for_sleep"]

_THREADS = Path("/proc/self/task")
_LOOK_S = 0.001


def in_forks(work: Callable[[], None]) -> None:
    """Have a function called in every fork, before anything else runs there. Systems without forks never call it."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=work)


def around_forks(before: Callable[[], None], after: Callable[[], None]) -> None:
    """Have functions called in the process that forks, before and after it does."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=before, after_in_parent=after)


def wait_for_sleep(limit_s: float) -> bool:
    """Wait until two checks in a row find no other running thread in this process, or until time is up.

    Threads of Python wait for its lock while this looks. So threads that still run are those of libraries.

    Returns:
        True if all sleep, or if this system does not tell.
    """
    end, looks = time.monotonic() + limit_s, 0
    while looks < 2:
        looks = 0 if _is_any_running() else looks + 1
        if time.monotonic() > end:
            return False
        time.sleep(_LOOK_S)
    return True


def _is_any_running() -> bool:
    own = str(threading.get_native_id())
    try:
        threads = list(_THREADS.iterdir())
    except OSError:
        return False
    return any(_is_running(thread) for thread in threads if thread.name != own)


def _is_running(thread: Path) -> bool:
    try:
        told = (thread / "stat").read_text(errors="replace")  # A thread may have a name that is no text.
    except OSError:  # It has ended.
        return False
    return told.rpartition(")")[2].split()[0] == "R"


def keep_for_ever(thing: object) -> None:
    """Never end an object: its end would wait for threads that this process does not have."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
