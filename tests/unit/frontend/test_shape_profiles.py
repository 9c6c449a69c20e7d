"""Representative lengths and their weights."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collage import CompileOptions
from collage._errors import UsageError
from collage.frontend import lengths_as_json, lengths_from_json, shape_profiles

LENGTHS = st.dictionaries(
    st.text(min_size=1, max_size=4),
    st.integers(0, 999) | st.dictionaries(st.integers(0, 999), st.floats(0.01, 100), min_size=1, max_size=4),
    max_size=2,
)


def test_one_length_each_is_one_occasion() -> None:
    (only,) = shape_profiles({"batch": 1, "seq": 128})
    assert (dict(only.dims), only.weight) == ({"batch": 1, "seq": 128}, 1.0)
    assert [(dict(one.dims), one.weight) for one in shape_profiles({})] == [({}, 1.0)]


def test_several_are_combined_and_the_most_frequent_comes_first() -> None:
    found = shape_profiles({"batch": {1: 1, 8: 3}, "seq": {32: 0.5, 512: 0.5}, "past": 0})
    assert [(one.dims["batch"], one.dims["seq"], one.dims["past"], one.weight) for one in found] == [
        (8, 32, 0, 0.375),
        (8, 512, 0, 0.375),
        (1, 32, 0, 0.125),
        (1, 512, 0, 0.125),
    ]


@given(LENGTHS)
def test_weights_add_up_to_one_and_every_combination_is_there_once(lengths: dict) -> None:
    found = shape_profiles(lengths)
    assert math.isclose(sum(one.weight for one in found), 1.0)
    choices = [list(several) if isinstance(several, dict) else [several] for several in lengths.values()]
    assert len({tuple(one.dims.items()) for one in found}) == math.prod(map(len, choices)) == len(found)


@given(LENGTHS)
def test_they_survive_json(lengths: dict) -> None:
    assert lengths_from_json(json.loads(json.dumps(lengths_as_json(lengths)))) == lengths


@pytest.mark.parametrize(
    ("lengths", "reason"),
    [
        ({"n": -1}, "cannot be -1"),
        ({"n": {4: 1, -2: 1}}, "cannot be -2"),
        ({"n": {}}, "no representative length"),
        ({"n": {4: 0}}, "weight of length 4 is 0"),
        ({"n": {4: math.nan}}, "weight of length 4 is nan"),
        ({"n": {4: math.inf}}, "weight of length 4 is inf"),
        ({name: {i: 1 for i in range(3)} for name in "abc"}, "27 combinations"),
    ],
)
def test_what_makes_no_sense_is_said_before_anything_is_compiled(lengths: dict, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        CompileOptions(dims=lengths)


@pytest.mark.parametrize("told", [None, [1], {"n": "4"}, {"n": [4]}, {"n": {"x": 1}}, {"n": {"4": "1"}}, {"n": None}])
def test_what_an_artefact_says_is_not_believed_blindly(told: object) -> None:
    with pytest.raises(UsageError):
        lengths_from_json(told)
