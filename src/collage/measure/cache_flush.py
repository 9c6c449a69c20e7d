"""Memory that every processor reads through, so that its caches hold the same share of foreign data as inside a model.

Accesses of one processor leave the caches of the others unchanged, with half of the kernel's weights and code
in them. This also wakes them up, as an earlier kernel would. On a virtual machine, waking a processor takes as long as
a small kernel.
"""

from __future__ import annotations

import functools
import threading

import numpy as np

from collage.toolchains import HelperThreads

__all__ = ["CacheFlusher", "cache_flusher_for"]


class CacheFlusher:
    """Memory for each of several processors, and a thread for each but the caller's.

    Args:
        cores: Number of processors, 1 or more.
    """

    def __init__(self, cores: int) -> None:
        self._size = 0
        self._memory = [np.zeros(0, np.uint8)] * cores
        self._start, self._end = threading.Barrier(cores), threading.Barrier(cores)
        threads = [threading.Thread(target=self._serve, args=(place,), daemon=True) for place in range(1, cores)]
        for thread in threads:
            thread.start()
        self._helpers = HelperThreads(thread.native_id for thread in threads if thread.native_id is not None)

    def flush(self, size: int) -> None:
        """Have every processor write to this many bytes of its own; return when all are done."""
        if size > len(self._memory[0]):
            self._memory = [np.ones(size, np.uint8) for _ in self._memory]
        self._size = size
        self._helpers.move_off()
        self._start.wait()
        self._write(0)
        self._end.wait()

    def close(self) -> None:
        """End the threads."""
        self._start.abort()

    def _serve(self, place: int) -> None:
        try:
            while True:
                self._start.wait()
                self._write(place)
                self._end.wait()
        except threading.BrokenBarrierError:
            return

    def _write(self, place: int) -> None:
        self._memory[place][: self._size] += 1  # NumPy lets go of the interpreter's lock meanwhile.


@functools.cache
def cache_flusher_for(cores: int) -> CacheFlusher:
    """The memory with which this process fills the caches of the given number of processors."""
    return CacheFlusher(cores)
