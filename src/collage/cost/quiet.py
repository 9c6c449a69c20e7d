"""Waiting until a process is quiet: its threads sleep, and leave the cores to whoever is timed next.

Thread pools spin for a while after a run, in case there is another: ONNX Runtime's, as its vendor has it, for some 50 ms.
Whatever another process runs meanwhile takes up to twice as long. A race in blocks of a tenth of a second would mostly
tell who came after whom.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

__all__ = ["until_quiet"]

_LOOK_S = 0.001
_LOOKS = 2
"""So many looks in a row must find all threads asleep: what spins may yield now and then."""


def until_quiet(longest_s: float) -> bool:
    """Returns when all other threads of this process sleep, or time is up; whether they sleep."""
    deadline = time.monotonic() + longest_s
    asleep = 0
    while asleep < _LOOKS:
        asleep = 0 if _any_runs() else asleep + 1
        if time.monotonic() > deadline:
            return asleep > 0
        time.sleep(_LOOK_S)
    return True


def _any_runs() -> bool:
    """Whether a thread other than the one that asks runs, or could."""
    own = str(threading.get_native_id())
    try:
        return any(_state(thread) == "R" for thread in Path("/proc/self/task").iterdir() if thread.name != own)
    except OSError:  # No such figures on this system.
        return False


def _state(thread: Path) -> str:
    try:
        # The name before it, in parentheses, may hold anything.
        return (thread / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):  # It has just ended.
        return ""
