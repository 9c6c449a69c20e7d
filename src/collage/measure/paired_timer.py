"""End-to-end times of many executables against one that stays loaded: each runs in turns with it, and is then gone.

A comparison of finalists decides. This timer only finds which of many covers are worth a comparison, so it is brief: a
much slower cover has a single turn. A time is the ratio to the one that stays, which the machine slows down alike.
"""

from __future__ import annotations

import math
import statistics
import time

from collage._errors import ToolchainError
from collage.measure.comparison import checked
from collage.measure.finalist import Finalist
from collage.workers.machine_lock import build_lock, measurement_lock
from collage.workers.worker import Worker

__all__ = ["PairedTimer"]

_BLOCK_S = 0.08
_MOST_RUNS = 500
_TURNS = 4
_MORE_TURNS = 6
"""Turns of one that is not slower so far: of many noisy times the least is too good to be true."""
_SLOW = 1.25
_TIMEOUT_S = 60.0


class PairedTimer:
    """Times executables against one of them, the anchor.

    Args:
        anchor: The one that stays loaded.
        tolerance: Largest difference of outputs from the reference.

    Attributes:
        spent_s: Seconds that it took so far.
    """

    def __init__(self, anchor: Finalist, tolerance: float) -> None:
        self.spent_s = 0.0
        self._anchor = Worker(anchor.service, dict(anchor.arguments))
        self._tolerance = tolerance

    def close(self) -> None:
        """End the anchor's process."""
        self._anchor.kill()

    def ratio(self, finalist: Finalist) -> float:
        """Return the time of an executable over the anchor's; infinite if either fails, or it is wrong."""
        began = time.monotonic()
        worker = Worker(finalist.service, dict(finalist.arguments))
        try:
            return self._ratio(finalist, worker)
        except ToolchainError:
            return math.inf
        finally:
            worker.kill()
            self.spent_s += time.monotonic() - began

    def _ratio(self, finalist: Finalist, worker: Worker) -> float:
        with build_lock():
            if checked(finalist, worker, self._tolerance, _TIMEOUT_S)["wrong"]:
                return math.inf
            first = min(each for _ in range(2) for each in worker.call("run", _TIMEOUT_S, runs=1, warm_up=1))
            anchor_s = min(self._anchor.call("run", _TIMEOUT_S, runs=1, warm_up=1))
        runs = [min(max(1, round(_BLOCK_S / max(seconds, 1e-6))), _MOST_RUNS) for seconds in (anchor_s, first)]
        ratios: list[float] = []
        for turns in (1, _TURNS - 1, _MORE_TURNS):
            for _ in range(turns):
                with measurement_lock():
                    sides = [
                        statistics.median(side.call("run", _TIMEOUT_S, runs=count, warm_up=1))
                        for side, count in zip((self._anchor, worker), runs, strict=True)
                    ]
                ratios.append(sides[1] / sides[0])
            if statistics.median(ratios) > (_SLOW if len(ratios) == 1 else 1.0):
                break
        return statistics.median(ratios)
