"""A process and everything that it started, however indirectly, as the system knows them."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

__all__ = ["PAUSE", "PROC", "RESUME", "descendants", "pause", "resume"]

PAUSE, RESUME = b"p", b"r"
"""Commands of a tuner to a warden about all processes that it started."""

PROC = Path("/proc")


def descendants(root: int) -> Iterator[int]:
    """Give the numbers of a process and its descendants. Those whose parents have ended are missing."""
    left = [root]
    while left:
        yield (pid := left.pop())
        with contextlib.suppress(OSError):  # It has ended meanwhile.
            for thread in (PROC / str(pid) / "task").iterdir():
                with contextlib.suppress(OSError):
                    left += map(int, (thread / "children").read_text().split())


def pause(root: int) -> None:
    """Pause the descendants of a process; the process itself continues."""
    stopped: set[int] = set()
    while fresh := {pid for pid in descendants(root) if pid != root} - stopped:  # They may have started more meanwhile.
        _signal(fresh, signal.SIGSTOP)
        stopped |= fresh


def resume(root: int) -> None:
    """Resume the paused descendants, parents last: what a parent then checks does not find its children still paused."""
    _signal(reversed([pid for pid in descendants(root) if pid != root]), signal.SIGCONT)


def _signal(processes: Iterable[int], number: signal.Signals) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
