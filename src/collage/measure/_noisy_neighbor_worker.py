"""Computes until it is killed. Runs in the child."""

from __future__ import annotations

import hashlib
import threading

from collage.system.machine import this_machine

__all__ = ["NoisyNeighborWorker"]

_MESSAGE = bytes(1 << 16)
"""Long enough to be hashed without holding the interpreter, and short enough for a cache that is nobody else's."""


class NoisyNeighborWorker:
    """Keeps half of the processors busy, one at least."""

    def work(self) -> int:
        """Begins to; the number of threads that do."""
        machine = this_machine()
        count = max(1, int(min(machine.cores, machine.quota or machine.cores)) // 2)
        for _ in range(count):
            threading.Thread(target=_work, daemon=True).start()
        return count


def _work() -> None:
    while True:
        hashlib.sha256(_MESSAGE)
