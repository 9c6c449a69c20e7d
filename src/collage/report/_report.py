"""``Report``: a compilation's report, as a value and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from collage.report._types import SCHEMA, Gain, ReportValues
from collage.report._words import html_of
from collage.system.codec import check_bounds, from_json, json_schema, to_json

__all__ = ["Report", "report_schema"]


@dataclass(frozen=True, slots=True)
class Report(ReportValues, Mapping[str, Any]):
    """The report of a compilation: the plan that was returned, its comparison with others, and how far to believe it.

    A report is also a mapping with the keys of its JSON.
    See ``ReportValues`` for its fields.
    """

    @classmethod
    def from_json(cls, data: Any) -> Report:
        """Read a report.

        A report of another schema becomes one warning. Unknown keys are ignored.

        Raises:
            ValueError: It is too large, or a value has a wrong type.
        """
        check_bounds(data, "a report")
        if not isinstance(data, Mapping):
            raise ValueError("a report is a JSON object")
        schema = data.get("schema", SCHEMA)
        if schema != SCHEMA:
            newer = f"its report has schema {str(schema)[:40]}, which this version does not read"
            return cls(warnings=(newer,))
        return from_json(cls, data)

    def as_json(self) -> dict[str, Any]:
        """Return JSON values, with the gains."""
        return {**to_json(self), "gains": to_json(self.gains)}

    def __getitem__(self, key: str) -> Any:
        return self.as_json()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.as_json())

    def __len__(self) -> int:
        return len(self.as_json())

    def __repr__(self) -> str:
        """Return the returned row and the gains as one line; ``as_json`` has all of it."""
        gains = [f"{gain.ratio.value:.3f}x {gain.over.replace('_', ' ')}" for gain in self.gains]
        return f"<collage.Report: {'; '.join([ascii(self.winner), *gains])}>"

    def _repr_html_(self) -> str:
        """Return the verdict, which notebooks show in place of ``repr``."""
        return html_of(self)

    def __bool__(self) -> bool:
        """Return False for the report of an artefact that has none."""
        return self != Report()


def report_schema() -> dict[str, Any]:
    """Return the JSON Schema of ``Report.as_json``."""
    schema = json_schema(Report)
    gains = json_schema(Gain)
    schema["$defs"].update(gains["$defs"])
    described = {"type": "array", "items": {"$ref": "#/$defs/Gain"}, "description": "Follows from the rows."}
    schema["$defs"]["Report"]["properties"]["gains"] = described
    return schema
