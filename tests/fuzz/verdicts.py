"""Verdicts: what became of one model on one target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

RIGHT, WRONG, REFUSED, FAILED, DIED, HUNG = "right", "wrong", "refused", "failed", "died", "hung"
SKIPPED = "skipped"
"""Nothing can be said: no reference runs the model, or those that do disagree."""
NAMED = "named"
"""An output differs, and the report of the compilation says that it may."""
DISPUTED = "disputed"
"""An output differs where the references differ too, or where the last digits of inputs decide."""
EDGE = "edge"
"""A vendor's kernel drops NaN, infinity or denormals that the inputs hold, and the prepared model does not."""
CAUGHT = "caught"
"""A kernel that was not checked is bad, and what ``collage.compile`` returns is not."""
BAD = (WRONG, FAILED, DIED, HUNG)
"""Verdicts that make the command fail."""
_FROM_BEST = (RIGHT, SKIPPED, REFUSED, DISPUTED, CAUGHT, EDGE, NAMED, FAILED, HUNG, DIED, WRONG)


@dataclass(frozen=True)
class Verdict:
    """What became of one model on one target.

    Attributes:
        how: One of the words above.
        reason: The difference, the error or the refusal, where it is not right.
        target: Target or toolchain; several by commas.
        taken: Operators that were part of kernels of the target.
        operators: All operators of the prepared model.
        cases: How many sets of inputs were compared.
    """

    how: str
    reason: str = ""
    target: str = ""
    taken: int = 0
    operators: int = 0
    cases: int = 0


@dataclass(frozen=True)
class Outcome:
    """All verdicts on one model.

    Attributes:
        kind: The kind of the model.
        number: Which of its kind.
        verdicts: One for each target, or one for all where there was nothing to compare.
        seconds: What it took.
    """

    kind: str
    number: int
    verdicts: Sequence[Verdict]
    seconds: float = 0.0

    @property
    def worst(self) -> Verdict:
        """The worst verdict."""
        return max(self.verdicts, key=lambda verdict: _FROM_BEST.index(verdict.how))
