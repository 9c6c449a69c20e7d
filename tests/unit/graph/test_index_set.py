from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collage.graph import IndexSet, NameSupply

SETS = st.frozensets(st.integers(0, 40))


@given(SETS, SETS)
def test_is_a_set(a, b):
    x, y = IndexSet.from_indices(a), IndexSet.from_indices(b)
    assert (set(x | y), set(x & y), set(x - y)) == (a | b, a & b, a - b)
    assert x.is_subset_of(y) == (a <= b)
    assert x.is_disjoint_from(y) == a.isdisjoint(b)
    assert list(x) == sorted(a) and len(x) == len(a) and bool(x) == bool(a)
    assert (x.first, x.last) == ((min(a), max(a)) if a else (-1, -1))
    assert all((i in x) == (i in a) for i in range(42))
    assert (x == y) == (a == b)


@given(SETS, SETS)
def test_order_prefers_the_set_that_has_the_lowest_index_where_two_differ(a, b):
    x, y = IndexSet.from_indices(a), IndexSet.from_indices(b)
    if a == b:
        assert not x < y and not y < x
    else:
        assert (x < y) == (min(a ^ b) in a)


@pytest.mark.parametrize(
    ("indices", "text"),
    [
        ([], "{}"),
        ([4], "{4}"),
        ([0, 1], "{0,1}"),
        ([0, 3, 4, 5, 6], "{0,3..6}"),
        ([0, 1, 2, 9, 10], "{0..2,9,10}"),
    ],
)
def test_prints_runs_of_three_or_more_as_ranges(indices, text):
    assert str(IndexSet.from_indices(indices)) == text


def test_range():
    assert list(IndexSet.range(2, 5)) == [2, 3, 4]
    assert not IndexSet.range(5, 5) and not IndexSet.range(5, 2)


@given(st.lists(st.text(max_size=5), max_size=30))
def test_names_are_fresh_identifiers(hints):
    supply = NameSupply("collage", reserved=["collage_a"])
    names = [supply.fresh(hint) for hint in hints]
    assert len({*names, "collage_a"}) == len(names) + 1
    assert all(name.isascii() and name.isidentifier() for name in names)


def test_names_keep_the_hint_where_they_can():
    supply = NameSupply()
    assert [supply.fresh("conv/relu") for _ in range(3)] == ["conv_relu", "conv_relu_1", "conv_relu_2"]
    supply.reserve(["conv_relu_3"])
    assert supply.fresh("conv_relu") == "conv_relu_4"


def test_sets_that_are_shifted_by_a_layer_have_different_hashes():
    shifted = {hash(IndexSet.range(k, k + 5)) for k in range(0, 6100, 61)}
    assert len(shifted) == 100 and hash(IndexSet.of(3)) == hash(IndexSet(8))
