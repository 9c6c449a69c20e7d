"""Plans of a search that are not worth building."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from collage.compiler import plan_search
from collage.measure.track import ComparisonPlan
from collage.options import CompileOptions
from collage.plan import Plan
from collage.target import Target


@pytest.mark.parametrize(
    ("objective", "best_s", "predicted_s", "hopeless"),
    [
        ("latency", 1.0, 1.49, False),
        ("latency", 1.0, 1.51, True),
        ("throughput", 1.0, 1.51, True),
        ("memory", 1.0, 1.51, False),
        ("latency", 1.0, None, False),
        ("latency", None, 9.0, False),
    ],
)
def test_what_the_race_would_leave_out_is_not_built(
    monkeypatch: pytest.MonkeyPatch, objective: Any, best_s: float | None, predicted_s: float | None, hopeless: bool
) -> None:
    problem = SimpleNamespace(options=CompileOptions(objective=objective), comparison_plan=ComparisonPlan())
    lab: Any = SimpleNamespace(problem=problem, costs=None)
    target = Target.parse("llvm")
    single, slower = (Plan(name, (), target) for name in ("single", "slower"))
    host, mix = (Plan(name, ()) for name in ("host", "mix"))  # What the host runs as it is written is no target alone.
    seconds = {"single": best_s, "slower": 9.0 if best_s else None, "host": 0.1, "mix": predicted_s}
    monkeypatch.setattr(plan_search, "predicted_s", lambda _problem, _costs, plan: seconds[plan.name])
    search = plan_search._PlanSearch.__new__(plan_search._PlanSearch)
    search._lab, search.singles = lab, [slower, single, host]
    assert search._is_hopeless(mix) is hopeless
