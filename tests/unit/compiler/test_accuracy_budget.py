"""The price of errors, by which plans within an accuracy budget are searched for."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest

from collage.compiler import accuracy_budget
from collage.plan import Plan

BUDGET = 1e-2
ROUGH, EXACT = Plan("rough", ()), Plan("exact", ())


@pytest.mark.parametrize(("best_single_s", "whole_s"), [(2.0, 2.0), (math.inf, 3.0)])
def test_prices_are_finite_even_if_no_target_takes_the_whole_model(
    best_single_s: float, whole_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accuracy_budget, "keeps_limits", lambda *args: args[-1] is EXACT)
    monkeypatch.setattr(accuracy_budget, "predicted_s", lambda *_: 3.0)
    prices: list[float] = []
    costs = SimpleNamespace(best_single_s=best_single_s, error_price_s=0.0, say=lambda _: None)
    problem = SimpleNamespace(tolerance=BUDGET, options=SimpleNamespace(time_budget_s=None))

    def search_again() -> list[Plan]:
        prices.append(costs.error_price_s)
        return [EXACT if len(prices) > 2 else ROUGH]

    survey = SimpleNamespace(precision=None)
    lab = SimpleNamespace(problem=problem, costs=costs, session=None, survey=survey)
    found = accuracy_budget.within_budget(cast(Any, lab), [ROUGH], search_again)
    assert found == [EXACT]
    assert prices[0] == whole_s / BUDGET
    assert all(math.isfinite(price) for price in prices)
    assert costs.error_price_s == 0.0
