"""Ranking of units by what quantising them does, with a bounded number of runs."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collage.compiler.precision_front import points
from collage.compiler.precision_sensitivity import expected_exempt, ranked_units
from collage.plan import Plan


@given(st.integers(1, 200), st.randoms())
def test_the_most_sensitive_unit_comes_first_and_runs_are_bounded(count, random):
    worst = random.randrange(count)
    own = [1e-3 * random.random() for _ in range(count)]
    own[worst] = 1.0
    asked, lefts = [], []

    def noise(units, left):
        asked.append(units)
        lefts.append(left)
        return math.sqrt(sum(own[i] ** 2 for i in units))

    order = list(ranked_units(count, noise))
    assert sorted(order) == list(range(count))
    assert order[0] == worst
    assert len(asked) <= 30
    assert all(left >= len(asked) - i for i, left in enumerate(lefts))


@pytest.mark.parametrize(
    ("noises", "share", "exempt"),
    [
        ([4.0, 3.0, 0.0], 0.6, 1),
        ([4.0, 3.0, 0.0], 0.59, 2),
        ([1.0, 1.0, 1.0, 1.0], 0.5, 3),
        ([1.0, 1.0, 1.0, 1.0], 1.0, 1),
        ([1.0, 1.0], 0.1, 2),
        ([math.inf, 1.0], 0.5, 1),
    ],
)
def test_as_many_units_are_exempt_as_leave_the_share_of_the_noise(noises, share, exempt):
    assert expected_exempt(noises, share) == exempt


def test_each_budget_gets_the_fastest_plan_whose_worse_end_keeps_it():
    exact, fine, rough = (Plan(name, ()) for name in ("exact", "fine", "rough"))
    plans = [
        (exact, (0.0, 0.0, 0.0), 3.0),
        (fine, (1e-3, 5e-4, 2e-3), 2.0),
        (rough, (1e-2, 5e-3, 2e-2), 1.0),
    ]
    found = points([0.0, 1e-3, 2e-3, 2e-2], plans)
    assert [(point["budget"], point["time_ms"]) for point in found] == [(0, 3e3), (1e-3, 3e3), (2e-3, 2e3), (2e-2, 1e3)]
    assert points([1e-4], plans[1:]) == []
