"""The report of a compilation: values, JSON, and its presentation."""

from __future__ import annotations

from collage.report._objective import by_runs, objective_lines, runs_per_s
from collage.report._report import Report, report_schema
from collage.report._types import (
    SCHEMA,
    BodyKernelRow,
    Gain,
    KernelRow,
    Machine,
    ModelFacts,
    Numerics,
    Occasion,
    Ratio,
    ReferenceFacts,
    Row,
    SearchFacts,
    SpecialisedRow,
    Times,
)
from collage.report._words import (
    columns_of,
    gain_lines,
    html_of,
    milliseconds,
    ratio_text,
    short_name,
    table_rows,
    title_of,
    verdict_of,
)

__all__ = [
    "SCHEMA",
    "BodyKernelRow",
    "Gain",
    "KernelRow",
    "Machine",
    "ModelFacts",
    "Numerics",
    "Occasion",
    "Ratio",
    "ReferenceFacts",
    "Report",
    "Row",
    "SearchFacts",
    "SpecialisedRow",
    "Times",
    "by_runs",
    "columns_of",
    "gain_lines",
    "html_of",
    "milliseconds",
    "objective_lines",
    "ratio_text",
    "report_schema",
    "runs_per_s",
    "short_name",
    "table_rows",
    "title_of",
    "verdict_of",
]
