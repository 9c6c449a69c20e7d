from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from collage.numerics.compare import compare, compare_all, tolerance_of


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
