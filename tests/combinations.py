"""Parametrisation by products and seeds: a part that covers the choices runs by default, the rest is slow."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def first(count: int, values: Iterable[Any]) -> list[Any]:
    """Return values as parameters, all but the first ones marked slow: such as seeds, of which more find rarer faults."""
    return [pytest.param(each, marks=pytest.mark.slow if i >= count else ()) for i, each in enumerate(values)]


def covering(*choices: Iterable[Any], strength: int = 2) -> list[Any]:
    """Return all combinations as parameters, marked slow unless they belong to a covering part.

    Args:
        choices: Values of each parameter.
        strength: Number of parameters of which every combination of values occurs in the covering part. 2 is every pair.
    """
    values = [list(of_one) for of_one in choices]
    combinations = list(itertools.product(*(range(len(of_one)) for of_one in values)))
    places = list(itertools.combinations(range(len(values)), min(strength, len(values))))

    def covered_by(combination: Sequence[int]) -> set[tuple[Any, ...]]:
        return {(place, tuple(combination[i] for i in place)) for place in places}

    missing = set().union(*map(covered_by, combinations))
    chosen = set()
    while missing:
        best = max(combinations, key=lambda combination: len(covered_by(combination) & missing))
        chosen.add(best)
        missing -= covered_by(best)
    return [
        pytest.param(
            *(of_one[i] for of_one, i in zip(values, combination, strict=True)),
            marks=() if combination in chosen else pytest.mark.slow,
        )
        for combination in combinations
    ]
