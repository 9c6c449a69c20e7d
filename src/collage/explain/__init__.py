"""Explanations: the record of what a compilation tried, and the answers to questions about it.

A loaded artefact is explained without the compiler, and without the library that reads models.
"""

from collage.explain._json import TRIED, as_json, from_json, read_record, trimmed, write_record
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

__all__ = [
    "TRIED",
    "Border",
    "ChosenKernel",
    "KernelStatus",
    "NodeRanges",
    "TargetAnswer",
    "TriedKernel",
    "TriedPlan",
    "TriedRecord",
    "as_json",
    "from_json",
    "read_record",
    "trimmed",
    "write_record",
]
