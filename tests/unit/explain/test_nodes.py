"""Sets of operators as ranges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collage.explain import NodeRanges

SETS = st.sets(st.integers(0, 60))


@given(SETS)
def test_ranges_hold_what_they_were_made_of(indices: set[int]) -> None:
    nodes = NodeRanges.of(indices)
    assert list(nodes) == sorted(indices)
    assert len(nodes) == len(indices)
    assert all((i in nodes) == (i in indices) for i in range(62))
    assert NodeRanges.from_bits(sum(1 << i for i in indices)) == nodes
    assert NodeRanges.parse(str(nodes)) == nodes
    if indices:
        assert (nodes.first, nodes.last) == (min(indices), max(indices))


@pytest.mark.parametrize(
    "text",
    ["a", "3-", "-3", "5-4", "1,1", "1,2", "4-6,5", "4,3", "1 ", "\uff11", "1-2-3", "999999999"],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        NodeRanges.parse(text)
