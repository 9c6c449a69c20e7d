"""The report as a value, as JSON, and as a mapping."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from tests.unit.report.reports import REDUCED, instances, sample

from collage.report import Ratio, Report, report_schema

SCHEMA_FILE = Path(__file__).parents[3] / "docs" / "report.schema.json"


@settings(max_examples=60, deadline=None)
@given(instances(Report))
def test_json_holds_all_of_a_report(report: Report) -> None:
    text = json.dumps(report.as_json(), allow_nan=False)
    assert Report.from_json(json.loads(text)) == report


def test_unknown_keys_are_ignored_and_absent_ones_get_defaults() -> None:
    told = sample().as_json()
    told["of_a_later_version"] = {"a": [1]}
    told["rows"][0]["colour"] = "red"
    del told["rows"][0]["reason"], told["machine"]
    assert Report.from_json(told) == sample()


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("winner",), 3),
        (("menu",), "llvm"),
        (("rows",), {}),
        (("rows", 0), None),
        (("rows", 0, "ratio", "value"), "1"),
        (("rows", 0, "ratio", "low"), None),
        (("rows", 0, "ratio", "value"), 0.0),
        (("rows", 0, "ratio", "low"), 5e-324),
        (("rows", 0, "ratio", "high"), 1e308),
        (("rows", 0, "time_us"), -1.0),
        (("rows", 0, "measured_us", "p90"), 1e308),
        (("rows", 0, "rounds_us"), [-5.0, -3.0]),
        (("kernels", 0, "share"), -2.0),
        (("rows", 0, "kernels"), 1.5),
        (("rows", 0, "kernels"), True),
        (("rows", 0, "verdict"), "best"),
        (("rows", 0, "verdict"), ["returned"]),
        (("numerics", "ok"), 1),
        (("tried",), []),
        (("winner",), "x" * 100_000),
        (("estimate_us",), 10**400),
        (("estimate_us",), float("nan")),
        (("tried",), {"a": "x" * 60_000, **{str(i): "y" * 60_000 for i in range(80)}}),
    ],
)
def test_what_does_not_fit_is_refused(place: tuple[Any, ...], value: Any) -> None:
    told = sample().as_json()
    inner = told
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    with pytest.raises(ValueError, match=r"[Rr]eport"):
        Report.from_json(told)


def test_depth_and_number_of_values_are_bounded() -> None:
    deep: Any = 0
    for _ in range(5000):
        deep = [deep]
    for much in (deep, [0] * 1_100_000):
        with pytest.raises(ValueError, match="too many values"):
            Report.from_json({"schema": 1, "tried": {"a": much}})


def test_a_report_of_a_later_schema_is_not_guessed_at() -> None:
    report = Report.from_json({"schema": 3, "rows": "of another form"})
    assert not report.rows and "schema 3" in report.warnings[0]


def test_gains_are_ratios_of_rows() -> None:
    report = sample()
    assert [(gain.over, gain.row) for gain in report.gains] == [
        ("baseline", "baseline"),
        ("best_single", "llvm -compiler=openvino"),
        ("best_of_menu", REDUCED),
    ]
    for gain in report.gains:
        row = report.row(gain.row)
        assert row is not None and gain.ratio == row.ratio


def test_the_best_of_the_menu_is_told_once_if_it_is_of_the_models_own_precision() -> None:
    report = sample()
    rows = [row for row in report.rows if row.name != REDUCED]
    report = dataclasses.replace(report, rows=tuple(rows))
    assert [gain.over for gain in report.gains] == ["baseline", "best_single"]
    assert report.gain("best_of_menu") == report.gain("best_single")
    assert Report().gains == () and Report().gain("best_of_menu") is None


def test_a_report_is_read_as_a_mapping() -> None:
    report = sample()
    assert report["winner"] == "mix 1" and report["kernels"][0]["nodes"] == ["a", "b"]
    assert {**report} == report.as_json()


def test_an_empty_report_is_false() -> None:
    assert not Report() and sample()


def test_the_published_schema_is_current() -> None:
    assert json.loads(SCHEMA_FILE.read_text()) == report_schema(), "python -m collage.report > docs/report.schema.json"


def test_the_published_schema_describes_every_field() -> None:
    definitions = report_schema()["$defs"]
    assert {"Report", "Row", "Ratio", "KernelRow", "Gain"} <= set(definitions)
    for name, each in definitions.items():
        undescribed = [key for key, value in each["properties"].items() if "description" not in value]
        assert not undescribed, (name, undescribed)


def _check(data: Any, form: dict[str, Any], definitions: dict[str, Any]) -> None:
    """A validator for what the schema uses of JSON Schema."""
    if "$ref" in form:
        form = definitions[form["$ref"].rpartition("/")[2]]
    if "enum" in form:
        assert data in form["enum"]
    elif "anyOf" in form:
        assert data is None or _check(data, form["anyOf"][0], definitions) is None
    elif form["type"] == "object":
        assert isinstance(data, dict) and set(form.get("required", ())) <= set(data)
        for key, value in data.items():
            inner = form.get("properties", {}).get(key, form.get("additionalProperties", True))
            if inner is not True:
                _check(value, inner, definitions)
    elif form["type"] == "array":
        assert isinstance(data, list)
        for value in data:
            _check(value, form["items"], definitions)
    else:
        python = {"string": str, "integer": int, "boolean": bool, "number": (int, float)}[form["type"]]
        assert isinstance(data, python) and (form["type"] == "boolean" or not isinstance(data, bool))


@settings(max_examples=30, deadline=None)
@given(instances(Report))
def test_reports_are_valid_by_the_schema(report: Report) -> None:
    schema = report_schema()
    told = report.as_json()
    _check(told, schema, schema["$defs"])
    assert set(told) == set(schema["$defs"]["Report"]["properties"])
    with pytest.raises(AssertionError):
        _check({**told, "winner": 3}, schema, schema["$defs"])


def test_values_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        sample().winner = "other"  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        Ratio(1.0, 1.0, 1.0).low = 2.0  # type: ignore[misc]
