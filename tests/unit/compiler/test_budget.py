"""What one compilation may use."""

from __future__ import annotations

import pytest

from collage.compiler.budget import SearchBudget
from collage.measure.comparison import ComparisonPlan
from collage.options import CompileOptions


@pytest.mark.parametrize("search", ["proof", "exhaustive"])
def test_one_that_is_to_prove_something_may_ask_for_all(search: str) -> None:
    plan = ComparisonPlan.of_model(0, 1 << 30)
    budget = SearchBudget(CompileOptions(search=search), plan)
    assert budget.kernels(100_000) >= 100_000
    assert budget.seconds_left([]) == float("inf")
    held = SearchBudget(CompileOptions(search=search, measure_budget=7, time_budget_s=60.0), plan)
    assert held.kernels(100_000) == 7
    assert 0 < held.seconds_left([]) <= 60.0
