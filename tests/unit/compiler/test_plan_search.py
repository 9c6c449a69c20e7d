"""Which plans of a search are worth building."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from collage.compiler import plan_search
from collage.measure.track import ComparisonPlan
from collage.options import CompileOptions


@pytest.mark.parametrize(
    ("objective", "best_s", "predicted_s", "hopeless"),
    [
        ("latency", 1.0, 1.49, False),
        ("latency", 1.0, 1.51, True),
        ("throughput", 1.0, 1.51, True),
        ("memory", 1.0, 1.51, False),
        ("latency", 1.0, None, False),
        ("latency", float("inf"), 9.0, False),
    ],
)
def test_what_the_race_would_leave_out_is_not_built(
    monkeypatch: pytest.MonkeyPatch, objective: Any, best_s: float, predicted_s: float | None, hopeless: bool
) -> None:
    problem = SimpleNamespace(options=CompileOptions(objective=objective), comparison_plan=ComparisonPlan())
    lab: Any = SimpleNamespace(problem=problem, costs=SimpleNamespace(best_single_s=best_s))
    monkeypatch.setattr(plan_search, "predicted_s", lambda *_: predicted_s)
    search = plan_search._PlanSearch.__new__(plan_search._PlanSearch)
    search._lab = lab
    plan: Any = None
    assert search._is_hopeless(plan) is hopeless
