"""What one compilation may use."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from collage.compiler.budget import SearchBudget
from collage.compiler.problem import Part
from collage.compiler.refusals import over_time
from collage.cost.outcome import Outcome
from collage.cost.statistics import summarise
from collage.measure.track import ComparisonPlan
from collage.options import CompileOptions
from collage.status import Status


@pytest.mark.parametrize("search", ["proof", "exhaustive"])
def test_one_that_is_to_prove_something_may_ask_for_all(search: str) -> None:
    plan = ComparisonPlan.of_model(0, 1 << 30)
    budget = SearchBudget(CompileOptions(search=search), plan)
    assert budget.kernels(100_000) >= 100_000
    assert budget.seconds_left([]) == float("inf")
    timed = replace(plan, ends_at=time.monotonic() + 60.0)
    held = SearchBudget(CompileOptions(search=search, measure_budget=7, time_budget_s=60.0), timed)
    assert held.kernels(100_000) == 7
    assert 0 < held.seconds_left([]) <= 60.0


def test_parts_of_a_compilation_share_its_limits() -> None:
    plan = ComparisonPlan()
    whole, quarter = (SearchBudget(CompileOptions(), plan, Part(search=share)) for share in (1.0, 0.25))
    assert quarter.seconds_left([]) == pytest.approx(whole.seconds_left([]) / 4)
    assert quarter.kernels(900) == whole.kernels(900) / 4
    assert SearchBudget(CompileOptions(measure_budget=9), plan, Part(0.25, 0.5)).kernels(900) == 2


@pytest.mark.parametrize("left_s", [-5.0, 0.0, 10.0, 300.0])
def test_the_comparison_gets_at_most_half_of_what_is_left(left_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    plan = replace(ComparisonPlan(), ends_at=now_s + left_s)
    single = Outcome(Status.OK, time=summarise([0.02]), build_s=5.0)
    budget = SearchBudget(CompileOptions(time_budget_s=left_s + 30.0), plan)
    # Two singles: 10 s of building, and 22 rounds of a block each, both twice.
    expected = left_s - min(left_s / 2, 2 * (10.0 + 22 * 2 * plan.block_s))
    assert budget.seconds_left([single, single]) == pytest.approx(max(0.0, expected), abs=1e-6)


@pytest.mark.parametrize(
    ("budget_s", "took_s", "warns"), [(None, 900.0, False), (40.0, 43.9, False), (40.0, 44.1, True)]
)
def test_a_budget_that_did_not_hold_is_told(budget_s: float | None, took_s: float, warns: bool) -> None:
    told = over_time(budget_s, took_s, 31.0)
    assert bool(told) is warns
    assert all("40 s did not hold: 44 s" in text and "took 31 s" in text for text in told)
    (short,) = over_time(0.2, 0.9, 0.3)
    assert "0.2 s did not hold: 0.9 s" in short and "took 0.3 s" in short and short.endswith("allow about 0.6 s")


def test_a_survey_is_not_blamed_for_what_came_after_it() -> None:
    (warning,) = over_time(60.0, 111.0, 16.0)
    assert "allow about" not in warning and "never cut short" in warning
