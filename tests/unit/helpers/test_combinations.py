from __future__ import annotations

import itertools

import pytest
from tests.combinations import covering, first


@pytest.mark.parametrize("strength", [1, 2, 3])
def test_the_default_part_covers_and_is_smaller_than_the_product(strength: int) -> None:
    choices = ("abc", range(4), [True, False])
    cases = covering(*choices, strength=strength)
    assert [case.values for case in cases] == list(itertools.product(*choices))
    default = [case.values for case in cases if not case.marks]
    for places in itertools.combinations(range(3), strength):
        wanted = set(itertools.product(*(choices[i] for i in places)))
        assert {tuple(case[i] for i in places) for case in default} == wanted
    assert len(default) <= {1: 4, 2: 13, 3: 24}[strength]


def test_a_single_choice_is_covered_by_all_of_its_values() -> None:
    assert [case.marks for case in covering("ab")] == [(), ()]


def test_all_but_the_first_values_are_slow() -> None:
    found = first(2, range(5))
    assert [each.values for each in found] == [(n,) for n in range(5)]
    assert [bool(each.marks) for each in found] == [False, False, True, True, True]
