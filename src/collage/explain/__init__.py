"""Explanations: the record of what a compilation tried, and the answers to questions about it.

A loaded artefact is explained without the compiler, and without the library that reads models. Names are imported on first
use: every process that runs a model imports this package, and hardly one explains anything.
"""

import importlib
from typing import TYPE_CHECKING, Any

from collage.explain._tried import TRIED

if TYPE_CHECKING:
    from collage.explain._answers import KernelExplanation, NodeExplanation, RunnerUp, TargetExplanation
    from collage.explain._explanation import Explanation, as_plain
    from collage.explain._json import as_json, from_json, read_record, trimmed, write_record
    from collage.explain._nodes import NodeRanges
    from collage.explain._record import (
        Border,
        ChosenKernel,
        KernelStatus,
        TargetAnswer,
        TriedKernel,
        TriedPlan,
        TriedRecord,
    )
    from collage.explain._text import short

_HOME = {
    "KernelExplanation": "collage.explain._answers",
    "NodeExplanation": "collage.explain._answers",
    "RunnerUp": "collage.explain._answers",
    "TargetExplanation": "collage.explain._answers",
    "Explanation": "collage.explain._explanation",
    "as_plain": "collage.explain._explanation",
    "as_json": "collage.explain._json",
    "from_json": "collage.explain._json",
    "read_record": "collage.explain._json",
    "trimmed": "collage.explain._json",
    "write_record": "collage.explain._json",
    "NodeRanges": "collage.explain._nodes",
    "Border": "collage.explain._record",
    "ChosenKernel": "collage.explain._record",
    "KernelStatus": "collage.explain._record",
    "TargetAnswer": "collage.explain._record",
    "TriedKernel": "collage.explain._record",
    "TriedPlan": "collage.explain._record",
    "TriedRecord": "collage.explain._record",
    "short": "collage.explain._text",
}

__all__ = [
    "TRIED",
    "Border",
    "ChosenKernel",
    "Explanation",
    "KernelExplanation",
    "KernelStatus",
    "NodeExplanation",
    "NodeRanges",
    "RunnerUp",
    "TargetAnswer",
    "TargetExplanation",
    "TriedKernel",
    "TriedPlan",
    "TriedRecord",
    "as_json",
    "as_plain",
    "from_json",
    "read_record",
    "short",
    "trimmed",
    "write_record",
]

if not TYPE_CHECKING:  # As in `collage`: it would turn every misspelt name into Any.

    def __getattr__(name: str) -> Any:
        if name in _HOME:
            return getattr(importlib.import_module(_HOME[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
