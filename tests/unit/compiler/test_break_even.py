"""The rest of the cheapest plan, against every cover there is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage.compiler.break_even import Priced, cheapest_rests

N = 5
CANDIDATES = st.lists(
    st.builds(Priced, st.integers(1, (1 << N) - 1), st.one_of(st.floats(0.0, 9.0), st.just(math.inf)), st.booleans()),
    max_size=12,
)


def covers(candidates: Sequence[Priced], covered: int = 0) -> Iterator[list[int]]:
    if covered == (1 << N) - 1:
        yield []
        return
    first = next(i for i in range(N) if not covered >> i & 1)
    for place, candidate in enumerate(candidates):
        if candidate.bits >> first & 1 and not candidate.bits & covered:
            for rest in covers(candidates, covered | candidate.bits):
                yield [place, *rest]


@settings(deadline=None)
@given(CANDIDATES)
def test_rests_are_those_of_the_cheapest_covers(candidates: list[Priced]) -> None:
    best = [math.inf] * len(candidates)
    for cover in covers(candidates):
        for place in cover:
            best[place] = min(best[place], math.fsum(candidates[i].seconds for i in cover if i != place))
    rests = cheapest_rests(N, candidates)
    assert rests is not None
    assert [rest.seconds for rest in rests] == pytest.approx(best)


def test_a_rest_tells_whether_a_cost_in_it_is_expected() -> None:
    candidates = [Priced(0b01, 1.0), Priced(0b10, 1.0, True), Priced(0b10, 3.0), Priced(0b01, math.inf, True)]
    rests = cheapest_rests(2, candidates)
    assert rests is not None
    assert [(rest.seconds, rest.is_expected) for rest in rests] == [
        (1.0, True),
        (1.0, False),
        (1.0, False),
        (1.0, True),
    ]


def test_too_many_covered_sets_leave_the_question_open() -> None:
    candidates = [Priced(1 << i, 1.0) for i in range(8)]
    assert cheapest_rests(8, candidates, most_steps=7) is None
    assert cheapest_rests(8, candidates, most_steps=8) is not None


def test_an_empty_model_has_no_candidates() -> None:
    assert cheapest_rests(0, []) == []
