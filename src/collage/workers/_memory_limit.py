"""What a process and everything that it started hold in memory; and whom the system shall take first when there is none left.

A limit of address space binds one process at a time, so a compiler that starts ten may take ten times as much; and it cannot
be set where address space is reserved long before anything is kept there. What is held in fact binds all of them together.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from collage.workers._process_tree import PROC, descendants

__all__ = ["OUT_OF_MEMORY_CODE", "end_before_others", "held_bytes"]

OUT_OF_MEMORY_CODE = 112
"""What a worker exits with whose processes held too much."""
_SOONER = "500"
"""So many thousandths of memory a worker counts for on top of what it holds, when the system chooses whom to kill."""


def held_bytes(root: int, most: int) -> int:
    """What a process and its descendants hold that no file gives back: private and shared memory.

    Args:
        root: Number of the process.
        most: Up to here, pages that forks share are counted for each of them, which is quick and too much; beyond it once.

    Returns:
        Bytes; 0 where the system does not tell.
    """
    processes = list(descendants(root))
    held = sum(_sum_of(PROC / str(pid) / "status", (b"RssAnon:", b"RssShmem:")) for pid in processes)
    if held <= most:
        return held
    return sum(_sum_of(PROC / str(pid) / "smaps_rollup", (b"Pss_Anon:", b"Pss_Shmem:")) for pid in processes)


def end_before_others() -> None:
    """Has the system kill this process, and what it starts, rather than who asked for it, when memory runs out."""
    with contextlib.suppress(OSError, ValueError):
        score = PROC / "self" / "oom_score_adj"
        score.write_text(max(score.read_text(), _SOONER, key=int))


def _sum_of(table: Path, names: tuple[bytes, ...]) -> int:
    try:
        lines = table.read_bytes().splitlines()  # A process may have a name that is no text.
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(names))
