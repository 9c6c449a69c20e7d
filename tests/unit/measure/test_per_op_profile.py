"""Where the time goes on a toolchain that cannot tell."""

from __future__ import annotations

import pytest

from collage.measure.per_op_profile import parts_to_measure, profile_from_parts

TYPES = ["Conv", "Relu", "Conv", "Resize", "Relu", "Conv", "Cast"]
WEIGHTS = {0: 10.0, 1: 1.0, 2: 30.0, 3: 20.0, 4: 2.0, 5: 30.0, 6: 0.1}


def test_one_of_each_type_that_matters_is_measured_the_costliest_first() -> None:
    assert parts_to_measure(TYPES, WEIGHTS) == [2, 3, 4]


def test_where_nothing_is_known_all_types_matter() -> None:
    assert sorted(parts_to_measure(TYPES, dict.fromkeys(WEIGHTS, 1e-9))) == [0, 1, 3, 6]


def test_the_profile_adds_up_to_the_whole_and_keeps_what_was_measured_in_proportion() -> None:
    # Convolutions take half as long here as where the weights come from, resizing ten times as long.
    profile = profile_from_parts(TYPES, WEIGHTS, {2: 15.0, 3: 200.0}, 100.0)
    assert sum(profile.values()) == pytest.approx(100.0)
    assert profile[0] / profile[2] == pytest.approx(10 / 30)
    assert profile[3] / profile[2] == pytest.approx(200 / 15)


def test_without_a_whole_it_is_not_scaled() -> None:
    assert profile_from_parts(TYPES, WEIGHTS, {2: 15.0, 3: 200.0}, None)[3] == pytest.approx(200.0)


def test_without_parts_nothing_is_known() -> None:
    assert profile_from_parts(TYPES, WEIGHTS, {}, 100.0) == {}
