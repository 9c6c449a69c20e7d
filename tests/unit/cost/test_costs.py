from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collage._errors import UsageError
from collage.cost.cost import Cost

costs = st.one_of(
    st.just(Cost.INVALID),
    st.builds(Cost, st.integers(0, 9), st.floats(0, 1e9)),
)


@given(costs, costs, costs)
def test_totally_ordered_and_adding_keeps_the_order(a: Cost, b: Cost, c: Cost) -> None:
    assert (a < b) + (a == b) + (a > b) == 1
    if a <= b:
        assert a + c <= b + c
    assert a + b == b + a
    assert a + Cost.ZERO == a


@given(st.lists(costs, max_size=6))
def test_the_sum_does_not_depend_on_the_order(parts: list[Cost]) -> None:
    assert len({Cost.sum(order) for order in itertools.islice(itertools.permutations(parts), 24)}) == 1


@given(costs)
def test_invalid_is_above_everything_and_absorbs(a: Cost) -> None:
    assert a <= Cost.INVALID
    assert (a + Cost.INVALID).is_invalid
    assert not (a + Cost.INVALID).is_unknown


def test_known_costs_come_before_unknown_ones_however_high() -> None:
    assert Cost(seconds=1e9) < Cost.UNKNOWN < Cost.unknown(2) < Cost.INVALID
    assert Cost.unknown(2) == Cost.UNKNOWN + Cost.UNKNOWN


@pytest.mark.parametrize(
    ("value", "cost"),
    [
        (2e-6, Cost(0, 2e-6)),
        (math.nan, Cost.UNKNOWN),
        (math.inf, Cost.INVALID),
        (Cost.ZERO, Cost.ZERO),
        (3, Cost(0, 3.0)),
    ],
)
def test_reads_what_estimators_return(value: float, cost: Cost) -> None:
    assert Cost.of(value) == cost


@pytest.mark.parametrize("value", [-1.0, None, "1.0", 10**400, -math.inf, 1e300, Cost(seconds=1e300)])
def test_refuses_what_is_no_cost(value: Any) -> None:
    with pytest.raises(UsageError, match="an estimator returns a cost"):
        Cost.of(value)


@pytest.mark.parametrize(
    ("cost", "text"),
    [
        (Cost(0, 12.5e-6), "12.5 µs"),
        (Cost.ZERO, "0 µs"),
        (Cost.INVALID, "invalid"),
        (Cost.UNKNOWN, "unknown (rank 1)"),
        (Cost(2, 1e-6), "unknown (rank 2) + 1 µs"),
    ],
)
def test_prints_microseconds(cost: Cost, text: str) -> None:
    assert str(cost) == text


@pytest.mark.parametrize("seconds", [math.nan, -1e-9, -math.inf])
def test_what_is_no_cost_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="a cost is a number"):
        Cost(seconds=seconds)


def test_ranks_start_at_one() -> None:
    with pytest.raises(ValueError, match="start at 1"):
        Cost.unknown(0)
