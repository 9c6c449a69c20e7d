from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from collage.numerics.compare import compare, compare_all, compare_roughly, tolerance_of, without_negligible


def test_the_error_is_relative_to_the_largest_reference() -> None:
    difference = compare(np.float32([100.0, 0.005]), np.float32([100.0, 0.0]), 1e-4)
    assert difference.ok
    assert difference.max_rel == pytest.approx(5e-5)
    assert not compare(np.float32([100.0, 0.05]), np.float32([100.0, 0.0]), 1e-4).ok


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_values_must_meet_their_like(bad: float) -> None:
    assert compare(np.float32([bad, 1]), np.float32([bad, 1]), 1e-4).ok
    assert not compare(np.float32([bad, 1]), np.float32([0, 1]), 1e-4).ok
    assert not compare(np.float32([0, 1]), np.float32([bad, 1]), 1e-4).ok


def test_integers_are_exact_but_bytes_may_round() -> None:
    assert not compare(np.int64([1, 2]), np.int64([1, 3]), 1e-4).ok
    assert compare(np.uint8([1, 2]), np.uint8([1, 3]), 1e-4).ok
    assert not compare(np.uint8([1, 2]), np.uint8([1, 4]), 1e-4).ok
    assert not compare(np.array([True]), np.array([False]), 1e-4).ok


def test_shape_and_type_must_agree() -> None:
    assert "shape [1, 2]" in str(compare(np.ones((1, 2), "f"), np.ones(2, "f"), 1e-4).reason)
    assert "float64" in str(compare(np.ones(2), np.ones(2, "f"), 1e-4).reason)


def test_strings_sequences_and_absent_values() -> None:
    assert compare(np.array(["a"], object), np.array(["a"], object), 0).ok
    assert not compare(np.array(["a"], object), np.array(["b"], object), 0).ok
    assert compare([np.ones(2, "f")], [np.ones(2, "f")], 1e-4).ok
    assert not compare([np.ones(2, "f")], [], 1e-4).ok
    assert compare(None, None, 0).ok
    assert not compare(np.ones(1), None, 0).ok


def test_empty_and_narrow_tensors() -> None:
    assert compare(np.zeros((0, 3), "f"), np.zeros((0, 3), "f"), 1e-4).ok
    narrow = np.ones(3, ml_dtypes.bfloat16)
    assert compare(narrow, narrow, tolerance_of(["bfloat16"])).ok


def test_the_worst_output_counts() -> None:
    good, bad = np.float32([1.0]), np.float32([1.1])
    assert "output 1" in str(compare_all([good, bad], [good, good], 1e-4).reason)


def test_the_coarsest_type_decides() -> None:
    assert tolerance_of(["float32"]) == 1e-4
    assert tolerance_of(["float32", "float16", "int64"]) == 2e-3
    assert tolerance_of(["float32"], quantised=True) == 5e-2
    assert tolerance_of(["float32"], quantised=True, saturating=True) == 2e-1
    assert tolerance_of(["float32"], saturating=True) == 1e-4
    assert tolerance_of(["float8_e4m3fn"]) == 2e-1
    assert tolerance_of(["int64"]) == 1e-7


def test_a_few_flips_of_a_classifier_are_recognisable_and_garbage_is_not() -> None:
    draw = np.random.default_rng(0)
    expected = np.eye(10, dtype=np.float32)[draw.integers(0, 10, 100)]
    flipped = expected.copy()
    flipped[:2] = np.roll(flipped[:2], 1, axis=1)
    assert not compare(flipped, expected, 0.25).ok
    found = compare_roughly([flipped], [expected], 0.25)
    assert found.ok and found.max_rel == 1
    for garbage in (np.zeros_like(expected), np.roll(expected, 1, axis=1), draw.random((100, 10), np.float32)):
        assert not compare_roughly([garbage], [expected], 0.25).ok


def test_of_rough_outputs_classes_are_not_compared_but_numbers_must_be_finite() -> None:
    expected = [np.int64([1, 2]), np.float32([1, np.inf, 3])]
    assert compare_roughly([np.int64([7, 2]), np.float32([1.1, np.inf, 3])], expected, 0.25).ok
    for wrong in ([1, 2, 3], [1, np.inf, np.nan], [np.inf, np.inf, 3]):
        found = compare_roughly([expected[0], np.float32(wrong)], expected, np.inf)
        assert not found.ok and str(found.reason).startswith("output 1")
    assert not compare_roughly([np.int32([1, 2]), expected[1]], expected, np.inf).ok


def test_shapes_of_rough_outputs_may_differ_only_where_values_do_not_count() -> None:
    more, fewer = np.ones(3, np.float32), np.ones(2, np.float32)
    assert compare_roughly([more], [fewer], np.inf).ok
    assert not compare_roughly([more], [fewer], 0.25).ok
    assert not compare_roughly([more[None]], [fewer], np.inf).ok


def test_two_units_in_the_last_place_of_the_usual_size_are_no_difference() -> None:
    """A sigmoid may be nearly 0 everywhere. Its error is then not to be seen relative to its largest output."""
    expected, made = np.float32([0, 6e-8, 9e-8]), np.float32([6e-8, 0, 9e-8])
    assert not compare(made, expected, 1e-4).ok
    assert compare(without_negligible(made, expected, 1.0), expected, 1e-4).ok
    assert not compare(without_negligible(made, expected, 1e-3), expected, 1e-4).ok
    for wrong in (np.float32([1e-6, 0, 0]), np.float32([np.nan, 0, 0])):
        assert not compare(without_negligible(wrong, expected, 1.0), expected, 1e-4).ok
    np.testing.assert_array_equal(without_negligible(np.int64([1]), np.int64([2]), 1.0), [1])
