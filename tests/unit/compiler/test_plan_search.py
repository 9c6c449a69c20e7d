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
    ("objective", "best_s", "predicted_s", "promising"),
    [
        ("latency", 1.0, {"a": 0.98, "b": 0.99, "c": 1.01}, ["a", "b"]),
        ("latency", 1.0, {"a": 1.02, "b": 1.01, "c": 1.3}, ["b"]),
        ("latency", 1.0, {"a": 1.51, "b": 1.6}, []),
        ("latency", 1.0, {"a": 1.2, "b": None}, ["b"]),
        ("latency", 0.0019, {"a": 0.0018, "b": 0.002, "c": 0.0029}, ["a", "b"]),
        ("latency", None, {"a": 9.0, "b": 1.0}, ["a", "b"]),
        ("throughput", 1.0, {"a": 1.49, "b": 1.51, "c": 0.9}, ["a", "c"]),
        ("memory", 1.0, {"a": 1.51, "b": 1.0}, ["a", "b"]),
    ],
)
def test_mixes_that_promise_nothing_are_not_built(
    monkeypatch: pytest.MonkeyPatch,
    objective: Any,
    best_s: float | None,
    predicted_s: dict[str, float | None],
    promising: list[str],
) -> None:
    problem = SimpleNamespace(options=CompileOptions(objective=objective), comparison_plan=ComparisonPlan())
    lab: Any = SimpleNamespace(problem=problem, costs=None)
    target = Target.parse("llvm")
    single, slower = (Plan(name, (), target) for name in ("single", "slower"))
    reduced = Plan("reduced", (), Target.parse("llvm -precision=int8"))  # It may miss the limits.
    host = Plan("host", ())  # What the host runs as it is written is no target alone.
    seconds = {"single": best_s, "slower": 9.0 if best_s else None, "host": 0.1, "reduced": 0.1, **predicted_s}
    monkeypatch.setattr(plan_search, "predicted_s", lambda _problem, _costs, plan: seconds[plan.name])
    search = plan_search._PlanSearch.__new__(plan_search._PlanSearch)
    search._lab, search.singles = lab, [slower, single, host, reduced]
    found = search._promising([Plan(name, ()) for name in predicted_s])
    assert [plan.name for plan in found] == promising
