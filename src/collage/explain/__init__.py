"""Explanations: the record of what a compilation tried, and the answers to questions about it.

A loaded artefact is explained without the compiler, and without the library that reads models. Names are imported on first
use: every process that runs a model imports this package, and hardly one explains anything.
"""

from typing import TYPE_CHECKING

from collage._lazy import ImportedOnUse
from collage.explain._name import RECORD

if TYPE_CHECKING:
    from collage.explain._answers import ChosenKernel, KernelExplanation, NodeExplanation, RunnerUp, TargetExplanation
    from collage.explain._explanation import Explanation, as_plain, chosen_kernels
    from collage.explain._file import read_record, trimmed, write_record
    from collage.explain._nodes import NodeRanges
    from collage.explain._record import Border, Record, TargetAnswer, TriedKernel
else:
    __getattr__ = ImportedOnUse(
        __name__,
        {
            "collage.explain._answers": "ChosenKernel KernelExplanation NodeExplanation RunnerUp TargetExplanation",
            "collage.explain._explanation": "Explanation as_plain chosen_kernels",
            "collage.explain._file": "read_record trimmed write_record",
            "collage.explain._nodes": "NodeRanges",
            "collage.explain._record": "Border Record TargetAnswer TriedKernel",
        },
    )


__all__ = [
    "RECORD",
    "Border",
    "ChosenKernel",
    "Explanation",
    "KernelExplanation",
    "NodeExplanation",
    "NodeRanges",
    "Record",
    "RunnerUp",
    "TargetAnswer",
    "TargetExplanation",
    "TriedKernel",
    "as_plain",
    "chosen_kernels",
    "read_record",
    "trimmed",
    "write_record",
]
