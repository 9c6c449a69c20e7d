"""A busy neighbour: somebody else who computes on this machine, to see who loses least by that.

Where models serve, a machine is seldom as idle as one that measures. Two plans that take the same time alone may differ by a
third then: threads that divide work in equal parts, and spin until all are done, wait for the one that lost its processor.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from collage._errors import ToolchainError
from collage.workers.worker import Worker

__all__ = ["under_load"]

_TIMEOUT_S = 30.0


@contextmanager
def under_load() -> Iterator[bool]:
    """Has a process keep half of the processors busy meanwhile; whether it does."""
    worker = Worker("collage.measure._noisy_neighbor_worker:NoisyNeighborWorker")
    try:
        try:
            is_there = bool(worker.call("work", _TIMEOUT_S))
        except ToolchainError:
            is_there = False
        yield is_there
    finally:
        worker.kill()
