"""Waiting until a process is quiet: its threads sleep, and leave the cores to the process that is timed next.

Thread pools spin for a while after a run, in case there is another: ONNX Runtime's, as its vendor has it, for some 50 ms.
A run of another process meanwhile takes up to twice as long. A race in blocks of a tenth of a second would then mostly
measure the order of the contestants.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from collage.workers._process_tree import PROC, descendants

__all__ = ["until_quiet"]

_LOOK_S = 0.001
_LOOKS = 2
"""This many checks in a row must find all threads asleep, since a spinning thread may yield now and then."""


def until_quiet(longest_s: float, root: int | None = None) -> bool:
    """Return when all other threads sleep, or time is up: True if they sleep.

    Args:
        longest_s: Longest wait in seconds.
        root: Number of a process, all of whose descendants are waited for; None is this process alone.
    """
    deadline = time.monotonic() + longest_s
    asleep = 0
    while asleep < _LOOKS:
        asleep = 0 if _any_runs(root) else asleep + 1
        if time.monotonic() > deadline:
            return asleep > 0
        time.sleep(_LOOK_S)
    return True


def _any_runs(root: int | None) -> bool:
    """Return True if a thread other than the caller is running or ready to run."""
    own = str(threading.get_native_id())
    family = [os.getpid()] if root is None else (pid for pid in descendants(root) if pid != root)
    return any(_state(thread) == "R" for pid in family for thread in _threads(pid) if thread.name != own)


def _threads(pid: int) -> list[Path]:
    try:
        return list((PROC / str(pid) / "task").iterdir())
    except OSError:  # It has ended, or this system tells no such figures.
        return []


def _state(thread: Path) -> str:
    try:
        # The name before it, in parentheses, may hold anything.
        return (thread / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):  # It has just ended.
        return ""
