"""Reports that were recorded on a machine with a load that came and went, and what the benchmark says of false ones."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.restless import contradictions

RECORDED = sorted((Path(__file__).parents[2] / "data" / "reports").glob("*.json"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_recorded_reports_do_not_contradict_themselves(path: Path) -> None:
    assert contradictions(json.loads(path.read_text())) == []


def first_of(report: dict[str, Any], *verdicts: str) -> dict[str, Any]:
    return next(row for row in report["rows"] if row["verdict"] in verdicts)


def test_each_kind_of_contradiction_is_told() -> None:
    honest = json.loads(RECORDED[0].read_text())
    forged = copy.deepcopy(honest)
    first_of(forged, "slower")["ratio"]["value"] *= 1.01
    assert any("does not follow from the rounds" in each for each in contradictions(forged))

    forged = copy.deepcopy(honest)
    first_of(forged, "slower")["verdict"] = "tie"
    assert any("its interval says slower" in each for each in contradictions(forged))

    forged = copy.deepcopy(honest)
    forged["gains"][0]["ratio"]["low"] *= 0.9
    assert any("is not the ratio of its row" in each for each in contradictions(forged))

    forged = copy.deepcopy(honest)
    returned, tie = first_of(forged, "returned"), first_of(forged, "tie")
    returned["kind"], tie["kind"] = "mix", "single"
    assert any("not faster beyond doubt" in each for each in contradictions(forged))

    forged = copy.deepcopy(honest)
    returned, slower = first_of(forged, "returned"), first_of(forged, "slower")
    returned["verdict"], slower["verdict"] = "slower", "returned"
    assert any("faster beyond doubt than what is returned" in each for each in contradictions(_paired(forged)))


def _paired(report: dict[str, Any]) -> dict[str, Any]:
    """Return a report whose ratios are over its returned row."""
    from statistics import median

    from collage.cost.statistics import median_interval

    own = first_of(report, "returned")["rounds_us"]
    for row in report["rows"]:
        if row["rounds_us"]:
            ratios = [a / b for a, b in zip(row["rounds_us"], own, strict=True)]
            low, high = median_interval(ratios).as_list()
            row["ratio"] = {"value": median(ratios), "low": low, "high": high}
    return report
