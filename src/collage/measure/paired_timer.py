"""End-to-end times of many executables against one that stays loaded: each runs in turns with it, and is then gone.

A race of finalists decides. This timer only finds which of many covers are worth a race, so it is brief: a much slower
cover has a single turn.
"""

from __future__ import annotations

import math

from collage.measure.finalist import Finalist
from collage.measure.neighbour import neighbour
from collage.measure.track import ComparisonPlan, Runner, Track
from collage.status import Status

__all__ = ["PairedTimer"]

_PLAN = ComparisonPlan(block_s=0.08, timeout_s=60.0)
_LOOKS = {1: 1.25, 4: 1.0, 10: 1.0}
"""Numbers of turns, each with the ratio above which there is no further one. Of many noisy times the least is too good."""


class PairedTimer:
    """Times executables against one of them, the anchor.

    Args:
        anchor: The one that stays loaded.
        tolerance: Largest difference of outputs from the reference.
        beside: The process beside which both run, see ``NEIGHBOURS``.
    """

    def __init__(self, anchor: Finalist, tolerance: float, beside: str = "none") -> None:
        self._anchor = Runner.of(anchor)
        self._tolerance, self._beside = tolerance, beside

    def close(self) -> None:
        """End the anchor's process."""
        self._anchor.worker.kill()

    def ratio(self, finalist: Finalist) -> float:
        """Return the time of an executable over the anchor's; infinite if either fails, or it is wrong."""
        track = Track([finalist], self._tolerance, _PLAN)
        self._anchor.choosing, self._anchor.status = {}, Status.OK
        try:
            track.load()
            with neighbour(self._beside):
                return self._ratio(track)
        finally:
            track.close()

    def _ratio(self, track: Track) -> float:
        (other,), anchor = track.runners, self._anchor
        for turns, most in _LOOKS.items():
            if other.status is Status.OK and not other.choosing:
                track.first_runs([other, anchor])
            track.run_rounds([anchor, other], "choosing", turns - len(other.choosing), fewest=turns)
            if Status.OK is not other.status or Status.OK is not anchor.status:
                return math.inf
            if other.over(anchor)[0] > most:
                break
        return other.over(anchor)[0]
