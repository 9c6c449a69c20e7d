"""Profiles from a few measured segments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collage.graph import Cut
from collage.measure.segment_profile import profile_from_segments, segments

NODES = 40
positive = st.floats(1e-6, 1e3)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Cut], dict[int, float], list[int]]:
    """Cuts and weights of forty nodes, and two ranges of them."""
    counts = draw(st.lists(st.integers(1, 9), min_size=NODES + 1, max_size=NODES + 1))
    borders = draw(st.lists(st.booleans(), min_size=NODES + 1, max_size=NODES + 1))
    weights = draw(st.lists(positive, min_size=NODES, max_size=NODES))
    cuts = [Cut(p, count, 0, border) for p, (count, border) in enumerate(zip(counts, borders, strict=True))]
    middle = draw(st.integers(1, NODES - 2))
    return cuts, dict(enumerate(weights)), [(1 << middle) - 1, (1 << NODES) - (1 << middle + 1)]


@given(graphs(), st.integers(2, 12))
def test_segments_are_ranges_between_borders_that_cover_everything(
    drawn: tuple[list[Cut], dict[int, float], list[int]], most: int
) -> None:
    cuts, weights, ranges = drawn
    parts = segments(cuts, ranges, weights, most)
    assert len(parts) <= max(most, len(ranges))
    assert sum(parts) == sum(ranges)
    ends = {(bits & -bits).bit_length() - 1 for bits in parts}
    assert all(cuts[end].is_border for end in ends - {(bits & -bits).bit_length() - 1 for bits in ranges})
    assert all(
        (bits >> (bits & -bits).bit_length() - 1) + 1 & (bits >> (bits & -bits).bit_length() - 1) == 0 for bits in parts
    )


@given(graphs(), st.floats(1e-3, 1e3))
def test_a_profile_adds_up_to_the_whole_and_keeps_the_proportions_of_segments(
    drawn: tuple[list[Cut], dict[int, float], list[int]], total_s: float
) -> None:
    cuts, weights, ranges = drawn
    weights = {i: weight for i, weight in weights.items() if any(bits >> i & 1 for bits in ranges)}
    parts = segments(cuts, ranges, weights)
    seconds = {bits: float(n + 1) for n, bits in enumerate(parts)}
    profile = profile_from_segments(weights, seconds, total_s)
    assert sum(profile.values()) == pytest.approx(total_s)
    share = {bits: sum(profile[i] for i in range(NODES) if bits >> i & 1) for bits in parts}
    assert [share[bits] / share[parts[0]] for bits in parts] == pytest.approx(list(seconds.values()))


def test_the_heaviest_part_is_cut_where_one_value_crosses() -> None:
    cuts = [Cut(p, 1 if p in (2, 6) else 3, 0, True) for p in range(9)]
    weights = dict(enumerate([6.0, 6.0, 9.0, 9.0, 9.0, 9.0, 6.0, 6.0]))
    assert segments(cuts, [0b11111111], weights, 2) == [0b11, 0b11111100]
    assert profile_from_segments(weights, {}, 1.0) == {}
