"""Explanations: the record of what a compilation tried, and the answers to questions about it.

A loaded artefact is explained without the compiler, and without the library that reads models.
"""

from collage.explain._answers import KernelExplanation, NodeExplanation, RunnerUp, TargetExplanation
from collage.explain._explanation import Explanation, as_plain
from collage.explain._from_report import record_of_report
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
from collage.explain._text import short

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
    "record_of_report",
    "short",
    "trimmed",
    "write_record",
]
