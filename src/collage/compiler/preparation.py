"""The preparation of a model on trial: passes that change the model's results are found and left out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from collage.database import FactKind
from collage.frontend import lengths_as_json
from collage.measure.original_model import Mismatch, OriginalModel
from collage.options import CompileOptions
from collage.transform import PassContext

__all__ = [
    "OPSET_CONVERSION",
    "PREPARED",
    "Preparation",
    "PreparationDiffers",
    "Verdict",
    "find_guilty",
    "preparation_fact",
]

OPSET_CONVERSION = "opset conversion"
"""The step of the front door that can be left out as a pass can."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The passes that are left out of a preparation.

    Attributes:
        left_out: Names of passes, or ``OPSET_CONVERSION``.
        reasons: For each of these, the value that it changed.
    """

    left_out: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.left_out) != len(self.reasons):
            raise ValueError(f"{len(self.reasons)} reasons to leave out {len(self.left_out)} passes")

    def without(self, names: Sequence[str], mismatch: Mismatch) -> Verdict:
        """Return the verdict with more left out."""
        return Verdict((*self.left_out, *names), (*self.reasons, *(str(mismatch) for _ in names)))


@dataclass(frozen=True, slots=True)
class Preparation:
    """A prepared model, with its reference.

    Attributes:
        original: The model as the user gave it; None if the prepared one is the user's own.
        verdict: The passes that were left out.
        is_compared: The prepared model was compared with the original value by value, in an earlier compilation.
        reprepare: Prepares the model once more, without the passes of these names.
    """

    original: OriginalModel | None = None
    verdict: Verdict = Verdict()
    is_compared: bool = False
    reprepare: Callable[[Sequence[str]], ir.Model] | None = None


PREPARED: FactKind[Verdict] = FactKind("preparation", Verdict)


class PreparationDiffers(Exception):
    """The prepared model computes something else than the original.

    Attributes:
        mismatch: The first value that differs.
        guilty: The passes to leave out; None if the values differ even without any pass.
    """

    def __init__(self, mismatch: Mismatch, guilty: tuple[str, ...] | None) -> None:
        super().__init__(str(mismatch))
        self.mismatch, self.guilty = mismatch, guilty


def find_guilty(
    agrees: Callable[[Sequence[str]], bool], already: Sequence[str], passes: Sequence[str]
) -> tuple[str, ...] | None:
    """Return the passes without which a prepared model computes what the original does.

    One pass if leaving it out is enough, else the shortest beginning of the sequence; None if it is none of them.

    Args:
        agrees: Tries the preparation without some passes.
        already: Passes that are left out in any case.
        passes: The passes of the preparation, in order.
    """
    names = [name for name in passes if name not in already]
    if not names or not agrees([*already, *names]):
        return None
    for name in names:
        if agrees([*already, name]):
            return (name,)
    low, high = 1, len(names)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if agrees([*already, *names[:middle]]) else (middle + 1, high)
    return tuple(names[:low])


def preparation_fact(sha256: str, options: CompileOptions, code: str) -> dict[str, Any]:
    """Return the name under which the verdict on a model's preparation is kept.

    Args:
        sha256: The digest of the model as it was read.
        options: The inputs on which it was compared follow from them.
        code: A digest of the code that prepares.
    """
    given = {
        name: hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]
        for name, array in sorted(options.inputs.items())
        if np.asarray(array).dtype != object
    }
    context = PassContext.current()
    return {
        "passes": [options.passes, context.opt_level, sorted(context.disabled_pass), sorted(context.required_pass)],
        "config": {key: repr(value) for key, value in sorted(context.config.items())},
        "model": sha256,
        "code": code,
        "lengths": lengths_as_json({**options.dims, **options.fixed}),
        "seed": options.seed,
        "given": given,
    }
