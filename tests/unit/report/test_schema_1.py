"""Reports of schema 1, which artefacts of before hold."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage.report import Ratio, Report, gain_lines, table_rows

OLD: dict[str, Any] = {
    "schema": 1,
    "model": {"path": "m.onnx", "sha256": "ab", "nodes": 7},
    "menu": ["llvm", "llvm -compiler=openvino"],
    "dims": {"seq": 8},
    "winner": "mix 1",
    "kernels": [
        {
            "name": "k",
            "target": "llvm",
            "nodes": ["a"],
            "operators": "Conv",
            "rule": "whole",
            "estimate_us": 3.0,
            "device": "cpu:1",
        }
    ],
    "estimate_us": 80.0,
    "measured_us": {"median": 81.0, "p10": 80.0, "p90": 83.0},
    "singles": [
        {
            "target": "llvm",
            "status": "crash",
            "raced": False,
            "measured_us": None,
            "reason": "it crashed",
        },
        {
            "target": "llvm -compiler=openvino",
            "status": "ok",
            "raced": True,
            "measured_us": {"median": 99.0, "p10": 98.0, "p90": 101.0},
            "reason": None,
        },
    ],
    "finalists": [
        {
            "name": "llvm -compiler=openvino",
            "kernels": 1,
            "status": "ok",
            "estimate_us": 95.0,
            "measured_us": {"median": 99.0, "p10": 98.0, "p90": 101.0},
            "reason": None,
        },
        {
            "name": "mix 1",
            "kernels": 2,
            "status": "ok",
            "estimate_us": 80.0,
            "measured_us": {"median": 81.0, "p10": 80.0, "p90": 83.0},
            "reason": None,
        },
    ],
    "speedup_vs_best_single": 1.2,
    "speedup_interval": [1.1, 1.3],
    "additive_error": 0.02,
    "search": {"algorithm": "lazy", "candidates": 5, "wall_s": 2.5},
    "numerics": {"ok": True, "max_rel_error": 1e-6, "tolerance": 1e-4, "other_lengths": {"x": [2, 96]}},
    "warnings": ["this machine is noisy"],
}


def test_a_report_of_schema_1_explains_what_it_can() -> None:
    report = Report.from_json(OLD)
    assert report.schema == 2 and report.winner == "mix 1" and report.model.nodes == 7
    assert [(row.name, row.kind, row.verdict) for row in report.rows] == [
        ("mix 1", "mix", "returned"),
        ("llvm -compiler=openvino", "single", "slower"),
        ("llvm", "single", "crashed"),
    ]
    assert report.rows[1].ratio == Ratio(1.2, 1.1, 1.3) and report.rows[2].reason == "it crashed"
    assert report.kernels[0].device == "cpu:1" and report.kernels[0].nodes == ("a",)
    assert report.search.algorithm == "lazy" and report.numerics.other_lengths == ({"x": (2, 96)},)
    assert report.dims == {"seq": 8} and report.warnings == ("this machine is noisy",)
    assert "1.200 (1.100 to 1.300) times as fast as the best single toolchain (openvino)" in gain_lines(report)


def test_times_of_schema_1_are_not_told_as_ratios() -> None:
    """They mix the rounds that chose with the rounds that were reported."""
    report = Report.from_json({**OLD, "speedup_vs_best_single": None, "speedup_interval": None})
    assert [row.ratio for row in report.rows[1:]] == [None, None]
    assert all(row.time_us is None and row.measured_us is not None for row in report.rows[:2])


def test_what_was_read_is_written_as_schema_2() -> None:
    report = Report.from_json(OLD)
    assert Report.from_json(json.loads(json.dumps(report.as_json()))) == report


def test_the_old_keys_say_what_they_said() -> None:
    again = Report.from_json(OLD).as_json(with_old_keys=True)
    for key in ("winner", "menu", "estimate_us", "speedup_vs_best_single", "speedup_interval", "measured_us"):
        assert again[key] == OLD[key], key
    assert {row["target"]: row["status"] for row in again["singles"]} == {
        "llvm": "crash",
        "llvm -compiler=openvino": "ok",
    }


ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda leaves: st.lists(leaves, max_size=3) | st.dictionaries(st.text(max_size=9), leaves, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(OLD)), ANY)
def test_whatever_a_part_of_it_holds_the_rest_is_read(key: str, value: Any) -> None:
    report = Report.from_json({**OLD, key: value, "schema": 1})
    assert key == "kernels" or report.kernels[0].name == "k"
    gain_lines(report)
    list(table_rows(report))
    Report.from_json(report.as_json())


@pytest.mark.parametrize("data", [None, 3, [], "x"])
def test_what_is_not_an_object_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match="JSON object"):
        Report.from_json(data)


def test_an_artefact_without_a_report_has_an_empty_one() -> None:
    assert not Report.from_json({})
