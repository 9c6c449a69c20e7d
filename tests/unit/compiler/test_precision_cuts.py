from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collage.compiler.precision_cuts import expected_share, widest_kept

SHARES = st.lists(st.floats(0.01, 0.99), min_size=1, max_size=60, unique=True).map(sorted)


@given(SHARES, st.floats(0, 1), st.floats(0, 1))
def test_the_widest_kept_share_is_found_up_to_what_three_trials_can_tell(
    shares: list[float], first: float, limit: float
) -> None:
    tried: list[int] = []

    def keeps(number: int) -> bool:
        tried.append(number)
        return shares[number] <= limit

    found = widest_kept(shares, first, keeps)
    assert len(tried) == len(set(tried)) <= 3
    kept = [number for number in tried if shares[number] <= limit]
    assert found == (max(kept) if kept else None)
    best = max((number for number, share in enumerate(shares) if share <= limit), default=-1)
    # Each trial leaves the places on one side of it alone.
    between = [number for number in range(len(shares)) if (-1 if found is None else found) < number]
    refused = [number for number in tried if shares[number] > limit]
    assert best in {-1 if found is None else found, *(n for n in between if n < min(refused, default=len(shares)))}


def test_few_places_are_searched_through() -> None:
    shares = [i / 8 for i in range(1, 8)]
    for limit in range(8):
        found = widest_kept(shares, 0.5, lambda number, limit=limit: number < limit)
        assert found == (limit - 1 if limit else None)


def test_squares_of_errors_add() -> None:
    share = expected_share(1e-3, 1.2e-2, 1e-2)
    assert math.sqrt(share * 1.2e-2**2 + (1 - share) * 1e-3**2) == pytest.approx(1e-2)
    assert expected_share(1e-3, 9e-3, 1e-2) == 1
    assert expected_share(2e-2, 3e-2, 1e-2) == 0
