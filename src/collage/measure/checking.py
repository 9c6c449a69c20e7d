"""The check of outputs on one set of inputs: kernels, finalists, artefacts and vendors share it. Runs in workers.

The tolerance decides almost always. What is further off is a *doubt*: the outputs are stored, and the parent process has them
judged with evidence (``collage.measure.arbiter``).
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collage.numerics.judge import Difference, judge
from collage.numerics.value_store import ValueStore, is_beyond_ranges, is_only_told, probe_of
from collage.target import Target

__all__ = ["Findings", "Rule", "doubt_folders"]

_NUMBERS = itertools.count()


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule by which outputs are right.

    Attributes:
        tolerance: See ``collage.numerics.judge``.
        by_norm: Judge by the norm.
        is_reduced: A coarser type is used than the model says. Then outputs on probing inputs need only be finite, since a
            budget is stated for the user's data.
        is_calibrated: Quantised by ranges. Then outputs on inputs beyond these need only be finite.
    """

    tolerance: float
    by_norm: bool = False
    is_reduced: bool = False
    is_calibrated: bool = False

    @classmethod
    def of(cls, tolerance: float, targets: list[Target], *, by_norm: bool) -> Rule:
        """Return the rule for a computation on some targets; ``by_norm`` counts if one of them is reduced."""
        is_reduced = any(target.is_reduced for target in targets)
        return cls(tolerance, by_norm and is_reduced, is_reduced, any(target.is_calibrated for target in targets))

    def is_met(self, store: ValueStore) -> bool:
        """Return True if the tolerance counts on a set of inputs."""
        return not (self.is_reduced and probe_of(store.folder)) and not (
            self.is_calibrated and is_beyond_ranges(store.folder)
        )


@dataclass(slots=True)
class Findings:
    """The findings on all sets of inputs.

    Attributes:
        rule: The rule by which outputs are right.
        usual: Values on ordinary inputs.
        other: Values on other inputs; None if there are none.
        worst: The worst difference where the tolerance counts, without doubts.
        doubts: Outputs that only evidence can show to be right.
        wrong: The reason if no evidence can.
        drops_nan: A sentence on NaN that goes lost, where that is only told.
    """

    rule: Rule
    usual: ValueStore
    other: ValueStore | None = None
    worst: Difference = field(default_factory=lambda: Difference(0.0, 0.0, 0.0))
    doubts: list[dict[str, Any]] = field(default_factory=list)
    wrong: str | None = None
    drops_nan: str | None = None

    def look(self, outputs: Mapping[str, Any], store: ValueStore, where: str = "", *, is_original: bool) -> None:
        """Judge the outputs on one set of inputs.

        Args:
            outputs: Outputs by name; those that the store lacks, or marks as random, are not judged.
            store: The values that are right.
            where: Words in front of a reason.
            is_original: The original model's outputs are right, rather than the prepared model's.
        """
        is_met = self.rule.is_met(store)
        tolerance = self.rule.tolerance if is_met else math.inf
        by_norm = self.rule.by_norm or not is_met
        is_usual = store.folder == self.usual.folder
        doubtful: dict[str, str] = {}
        for name, value in outputs.items():
            if name not in store or not store.is_repeatable(name):
                continue
            right = store.right(name) if is_original else store.get(name)
            usual = self.usual.get(name) if not is_usual and name in self.usual else None
            beside = self.other.get(name) if is_usual and self.other is not None and name in self.other else None
            found = judge(value, right, tolerance, usual=usual, beside=beside, by_norm=by_norm)
            if not found.ok and is_only_told(store.folder):
                self.drops_nan = f"output {name!r} is not as in the original where inputs are NaN: {found.reason}"
                return
            if found.ok:
                if is_met and found.max_rel >= self.worst.max_rel:
                    self.worst = found
                continue
            prefix = where or probe_of(store.folder)
            if not found.is_open:
                self.wrong = self.wrong or f"{prefix}output {name!r}: {found.reason}"
                return
            doubtful[name] = str(found.reason)
        if not doubtful:
            return
        place = ValueStore(store.folder.with_name(f"doubt_{os.getpid()}_{next(_NUMBERS)}"))
        for name in doubtful:
            place.put(name, outputs[name])
        place.flush()
        self.doubts.append(
            {
                "values": str(store.folder),
                "usual": str(self.usual.folder),
                "other": str(self.other.folder if self.other is not None else self.usual.folder),
                "outputs": str(place.folder),
                "where": where or probe_of(store.folder),
                "reasons": doubtful,
                "tolerance": tolerance,
                "by_norm": by_norm,
                "is_original": is_original,
            }
        )

    def as_json(self) -> dict[str, Any]:
        """Return the findings as they go to the parent process."""
        return {
            "max_abs": self.worst.max_abs,
            "max_rel": self.worst.max_rel,
            "wrong": self.wrong,
            "doubts": self.doubts,
            "drops_nan": self.drops_nan,
        }


def doubt_folders(findings: Mapping[str, Any]) -> list[Path]:
    """Return the folders of outputs that are in doubt."""
    return [Path(doubt["outputs"]) for doubt in findings["doubts"]]
