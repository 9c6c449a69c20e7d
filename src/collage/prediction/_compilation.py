"""The outcomes of compilations, which predictions are fitted to and scored by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from collage.database import FactKind
from collage.measure.operator_work import WorkByOperator
from collage.system.codec import Count, Positive

__all__ = ["COMPILATION", "Compilation"]


@dataclass(frozen=True, slots=True)
class Compilation:
    """The outcome of a compilation for latency.

    Attributes:
        model: The path of the model, without folders of the machine.
        work: The work of the whole model, at the lengths that it was timed at.
        singles_s: Seconds of the whole model on each target alone, of those that take it.
        gain: The time of the fastest of them over that of the returned plan, and its 95 % interval.
        is_cut_short: True if a budget ended the search or the comparison early.
        measured: Number of kernels that were measured.
        recorded: Number of timings that were known before.
        wall_s: Seconds that it took.
    """

    model: str
    work: WorkByOperator
    singles_s: Mapping[str, Positive]
    gain: tuple[Positive, Positive, Positive]
    is_cut_short: bool
    measured: Count
    recorded: Count
    wall_s: Positive

    @property
    def is_whole(self) -> bool:
        """True if its seconds are those of a compilation that had no budget, and few timings to begin with."""
        return not self.is_cut_short and self.measured > self.recorded


COMPILATION: FactKind[Compilation] = FactKind("compilation", Compilation)
