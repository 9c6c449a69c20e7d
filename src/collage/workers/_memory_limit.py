"""Memory of a process and its descendants, and the order in which the system kills processes when memory runs out.

A limit of address space binds one process at a time, so a compiler that starts ten may take ten times as much; and it cannot
be set where address space is reserved long before anything is kept there. The memory really held by all of them
together is limited.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from collage.workers._process_tree import PROC, descendants

__all__ = ["OUT_OF_MEMORY_CODE", "end_before_others", "held_bytes"]

OUT_OF_MEMORY_CODE = 112
"""Exit code of a worker whose processes held too much."""
_SOONER = "500"
"""Thousandths of memory that a worker counts for on top of its own, when the system chooses a process to kill."""


def held_bytes(root: int, most: int) -> int:
    """Return the memory of a process and its descendants that no file gives back: private and shared memory.

    Args:
        root: Number of the process.
        most: Up to here, pages that forks share are counted for each of them, which is quick and too much; beyond it once.

    Returns:
        Bytes; 0 if the system does not tell.
    """
    processes = list(descendants(root))
    held = sum(_sum_of(PROC / str(pid) / "status", (b"RssAnon:", b"RssShmem:")) for pid in processes)
    if held <= most:
        return held
    return sum(_sum_of(PROC / str(pid) / "smaps_rollup", (b"Pss_Anon:", b"Pss_Shmem:")) for pid in processes)


def end_before_others() -> None:
    """Have the system kill this process and its children, rather than its parent, when memory runs out."""
    with contextlib.suppress(OSError, ValueError):
        score = PROC / "self" / "oom_score_adj"
        score.write_text(max(score.read_text(), _SOONER, key=int))


def _sum_of(table: Path, names: tuple[bytes, ...]) -> int:
    try:
        lines = table.read_bytes().splitlines()  # A process may have a name that is no text.
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(names))
