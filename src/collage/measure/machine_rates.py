"""The rates that this machine sustains with all its cores: the limit of a kernel that does its work in the usual way.

They are measured as a kernel runs: on all of its threads at once. `roofline` bounds the time of any kernel instead, with
all assumptions on the fast side.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

from collage.workers.machine_lock import measurement_lock
from collage.workers.worker import Worker

__all__ = ["PEAK_SERVICE", "SINGLE_THREADED", "MachineRates", "measure_rates"]

PEAK_SERVICE = "collage.measure._peak_worker:PeakWorker"
SINGLE_THREADED = dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "BLIS_NUM_THREADS"), "1")
"""Environment in which the products of NumPy have one thread."""
# From the second caches of few cores to four times the largest caches of today's desktops.
_WORKING_SETS = tuple(1 << power for power in range(18, 29, 2))
_PATIENCE_S = 60.0
# The processes wait for a common start, which the slowest hears of within this time.
_LEAD_S = 0.05


@dataclass(frozen=True, slots=True)
class MachineRates:
    """Rates of all cores together.

    Attributes:
        flops_per_s: Floating-point operations per second of products, float32.
        bytes_per_s: Bytes read and written per second, by the bytes that are read and written again and again.
    """

    flops_per_s: float
    bytes_per_s: Sequence[tuple[int, float]]

    def bandwidth(self, nbytes: float) -> float:
        """Bytes per second where so many bytes are in use: larger ones come from farther away."""
        within = [rate for size, rate in self.bytes_per_s if size >= nbytes]
        return max(within, default=self.bytes_per_s[-1][1])


def measure_rates(cores: int) -> MachineRates:
    """Measure the rates of so many cores, which takes a few seconds."""
    with ExitStack() as stack:
        stack.enter_context(measurement_lock())
        workers = [stack.enter_context(Worker(PEAK_SERVICE, environment=SINGLE_THREADED)) for _ in range(cores)]
        with ThreadPoolExecutor(cores) as threads:
            parts = [-(-size // cores) for size in _WORKING_SETS]
            list(threads.map(lambda worker: worker.call("prepare", _PATIENCE_S, sizes=parts), workers))
            begins_at = time.monotonic() + _LEAD_S
            found = list(
                threads.map(lambda worker: worker.call("sustained", _PATIENCE_S, begins_at=begins_at), workers)
            )
    sums = [sum(each) for each in zip(*found, strict=True)]
    return MachineRates(sums[0], tuple(zip(_WORKING_SETS, sums[1:], strict=True)))
