"""A process beside a race: it computes without end, as another program on the machine may."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

__all__ = ["neighbour"]

# It ends by itself if its parent does.
_PROGRAM = """
import os, sys
parent, is_idle = int(sys.argv[1]), sys.argv[2] == "idle"
if is_idle:
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
print("computing", flush=True)
while os.getppid() == parent:
    for _ in range(100_000):
        pass
"""


@contextlib.contextmanager
def neighbour(kind: str) -> Iterator[None]:
    """Run a neighbour while the context lasts.

    Args:
        kind: One of ``collage.cost.objective.NEIGHBOURS``.
    """
    if kind == "none":
        yield
        return
    command = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(os.getpid()), kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield
        finally:
            process.kill()
