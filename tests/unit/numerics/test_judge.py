from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from collage.numerics.judge import NOISE_FACTOR, Evidence, judge, judge_all, tolerance_of
from collage.numerics.sizes import is_mixed, sizes_of


def test_the_error_is_relative_to_the_size_of_the_reference() -> None:
    found = judge(np.float32([100.0, 0.005]), np.float32([100.0, 0.0]), 1e-4)
    assert found.ok and found.max_rel == pytest.approx(5e-5)
    assert not judge(np.float32([100.0, 0.05]), np.float32([100.0, 0.0]), 1e-4).ok


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_values_must_meet_their_like(bad: float) -> None:
    assert judge(np.float32([bad, 1]), np.float32([bad, 1]), 1e-4).ok
    assert not judge(np.float32([bad, 1]), np.float32([0, 1]), 1e-4).ok
    assert not judge(np.float32([0, 1]), np.float32([bad, 1]), 1e-4).ok


def test_an_infinite_answer_of_a_right_run_excuses_itself_alone() -> None:
    right = np.float32([3.0e38, 1.0])
    overflows = Evidence((np.float32([np.inf, 1.0]),))
    assert judge(np.float32([np.inf, 1.0]), right, 1e-4, evidence=overflows).ok
    assert not judge(np.float32([0.0, 1.0]), right, 1e-4, evidence=overflows).ok
    assert not judge(np.float32([-np.inf, 1.0]), right, 1e-4, evidence=overflows).ok
    finite = Evidence((right,))
    for value, ok in (
        (np.inf, True),
        (3.0e38, True),
        (3.00001e38, True),
        (2.0e38, False),
        (-3.0e38, False),
        (np.nan, False),
    ):
        found = judge(np.float32([value, 1.0]), np.float32([np.inf, 1.0]), 1e-4, evidence=finite)
        assert found.ok is ok, value


def test_integers_are_exact_but_bytes_may_round() -> None:
    assert not judge(np.int64([1, 2]), np.int64([1, 3]), 1e-4).ok
    assert judge(np.uint8([1, 2]), np.uint8([1, 3]), 1e-4).ok
    assert not judge(np.uint8([1, 2]), np.uint8([1, 4]), 1e-4).ok
    assert not judge(np.array([True]), np.array([False]), 1e-4).ok


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_integers_that_float64_does_not_tell_apart_are_exact(dtype: str) -> None:
    right = np.array([2**53, 5], dtype)
    other = right + np.array([1, 0], dtype)
    assert judge(right, right.copy(), 0.0).ok
    assert not judge(other, right, 0.0).ok
    assert not judge(other, right, 0.0, evidence=Evidence((right,))).ok
    assert judge(other, right, 0.0, evidence=Evidence((other,))).ok


def test_texts_differ_in_zeros_at_their_end_and_may_be_bytes_or_of_any_length() -> None:
    assert not judge(np.array(["a\0"], object), np.array(["a"], object), 0.0).ok
    assert judge(np.array(["é".encode()]), np.array(["é"], object), 0.0).ok
    assert judge(np.array("a", object), np.array("a"), 0.0).ok
    many = np.array(["x" * 2**24, *["y"] * 2**14], object)  # 1 TiB if all were as long as the first.
    other = np.array([*many[:-1], "z"], object)
    assert judge(many, many.copy(), 0.0).ok
    assert not judge(other, many, 0.0).ok and judge(other, many, 0.0, evidence=Evidence((other,))).ok


def test_numbers_are_no_texts() -> None:
    assert not judge(np.array([1.5]), np.array(["1.5"], object), 0.0).ok


def test_shape_and_type_must_agree() -> None:
    assert "shape [1, 2]" in str(judge(np.ones((1, 2), "f"), np.ones(2, "f"), 1e-4).reason)
    assert "float64" in str(judge(np.ones(2), np.ones(2, "f"), 1e-4).reason)


def test_strings_sequences_and_absent_values() -> None:
    assert judge(np.array(["a"], object), np.array(["a"], object), 0).ok
    assert not judge(np.array(["a"], object), np.array(["b"], object), 0).ok
    assert judge([np.ones(2, "f")], [np.ones(2, "f")], 1e-4).ok
    assert not judge([np.ones(2, "f")], [], 1e-4).ok
    assert judge(None, None, 0).ok
    assert not judge(np.ones(1), None, 0).ok


def test_empty_and_narrow_tensors() -> None:
    assert judge(np.zeros((0, 3), "f"), np.zeros((0, 3), "f"), 1e-4).ok
    narrow = np.ones(3, ml_dtypes.bfloat16)
    assert judge(narrow, narrow, tolerance_of(["bfloat16"])).ok


def test_the_worst_output_counts() -> None:
    good, bad = np.float32([1.0]), np.float32([1.1])
    assert "output 1" in str(judge_all([good, bad], [good, good], 1e-4).reason)


def test_the_coarsest_type_decides() -> None:
    assert tolerance_of(["float32"]) == 1e-4
    assert tolerance_of(["float32", "float16", "int64"]) == 2e-3
    assert tolerance_of(["float32"], quantised=True) == 5e-2
    assert tolerance_of(["float32"], quantised=True, saturating=True) == 2e-1
    assert tolerance_of(["float8_e4m3fn"]) == 2e-1
    assert tolerance_of(["int64"]) == 1e-7


def test_noise_excuses_an_element_that_float_arithmetic_errs_on_and_no_other() -> None:
    right, noisy = np.float32([1.0, 0.5, 0.25]), np.float32([1.0, 0.501, 0.25])
    evidence = Evidence((noisy,), right.astype(np.float64))
    for factor, index, ok in ((0.5, 1, True), (0.9, 1, True), (1.2, 1, False), (0.5, 2, False)):
        made = right.copy()
        made[index] += factor * NOISE_FACTOR * 1e-3
        assert not judge(made, right, 1e-4).ok and judge(made, right, 1e-4).is_open
        found = judge(made, right, 1e-4, evidence=evidence)
        assert found.ok is ok and found.noise == pytest.approx(1e-3, rel=1e-3)
        assert not found.is_open and found.excused == (1 / 3 if ok else 0.0)


def test_the_centre_is_the_truth_where_the_reference_itself_errs() -> None:
    truth = np.float64([1.0, 1e-3])
    reference, made = np.float32([1.0, 1.5e-3]), np.float32([1.0, 0.6e-3])
    assert not judge(made, reference, 1e-4).ok
    assert judge(made, reference, 1e-4, evidence=Evidence((reference,), truth)).ok


def test_any_answer_of_a_right_run_is_right_and_others_between_are_as_near() -> None:
    labels, other = np.int64([3, 7, 1]), np.int64([3, 5, 1])
    evidence = Evidence((other,))
    assert judge(other, labels, 1e-4, evidence=evidence).ok
    assert not judge(np.int64([3, 7, 2]), labels, 1e-4, evidence=evidence).ok
    words, tied = np.array(["a", "b"], object), np.array(["a", "c"], object)
    assert judge(tied, words, 0.0, evidence=Evidence((tied,))).ok
    assert not judge(np.array(["c", "b"], object), words, 0.0, evidence=Evidence((tied,))).ok
    inf = Evidence((np.float32([np.inf, 1]),))
    assert judge(np.float32([np.inf, 1]), np.float32([3e38, 1]), 1e-4, evidence=inf).ok


def test_selections_may_have_the_shape_of_any_right_run() -> None:
    kept, fewer = np.int64([[0], [4], [9]]), np.int64([[0], [9]])
    assert judge(fewer, kept, 0.0).is_open
    assert judge(fewer, kept, 0.0, evidence=Evidence((fewer,))).ok
    assert not judge(np.int64([[0]]), kept, 0.0, evidence=Evidence((fewer,))).ok
    assert not judge(np.int64([0, 4]), kept, 0.0).is_open


def test_the_last_bits_of_the_usual_size_are_noise() -> None:
    """A sigmoid may be nearly 0 everywhere. Its error is then not to be seen relative to its largest output."""
    expected, made = np.float32([0, 6e-8, 9e-8]), np.float32([6e-8, 0, 9e-8])
    usual = np.float32([1.0, 0.3, 0.9])
    assert not judge(made, expected, 1e-4).ok
    assert judge(made, expected, 1e-4, usual=usual).ok
    assert not judge(made, expected, 1e-4, usual=usual * 1e-3).ok
    for wrong in (np.float32([2e-6, 0, 0]), np.float32([np.nan, 0, 0])):
        assert not judge(wrong, expected, 1e-4, usual=usual).ok


def test_fill_values_do_not_hide_the_errors_of_real_ones() -> None:
    random = np.random.default_rng(0)
    expected = random.standard_normal((1, 400)).astype(np.float32)
    expected[:, ::3] = -1e8
    made = np.where(expected == -1e8, expected, expected * np.float32(1.01))
    assert judge(made, expected, 2e-2).max_rel == pytest.approx(0.01, rel=0.01)
    assert not judge(made, expected, 1e-4).ok
    moved = expected.copy()
    moved[0, 0] = 0.0
    assert not judge(moved, expected, 2e-2).ok


def test_rows_of_other_magnitudes_have_sizes_of_their_own() -> None:
    random = np.random.default_rng(0)
    boxes, scores = random.uniform(0, 640, (1, 4, 1000)), random.uniform(0, 1, (1, 6, 1000))
    expected = np.concatenate([boxes, scores], axis=1).astype(np.float32)
    made = expected.copy()
    made[:, 4:] = 1.0 - made[:, 4:]
    assert judge(made, expected, 2e-2).max_rel == pytest.approx(1.0, rel=0.01)
    assert is_mixed(np.abs(expected))
    sizes = sizes_of(np.abs(expected))
    assert sizes.shape == (1, 10, 1) and sizes[0, 0, 0] > 600 and sizes[0, 9, 0] <= 1.0


def test_a_value_inside_a_model_has_one_size_beside_its_fill_values() -> None:
    random = np.random.default_rng(0)
    expected = np.maximum(random.standard_normal((1, 64, 28, 28)), 0.0).astype(np.float32)
    expected[:, 5] *= 1e-2  # A channel of which ReLU leaves hardly anything.
    made = expected.copy()
    made[:, 5] += 1e-5
    assert judge(made, expected, 1e-4).is_open
    assert judge(made, expected, 1e-4, is_inside=True).ok
    made[:, 5] += 1e-3
    assert not judge(made, expected, 1e-4, is_inside=True).ok
    masked, off = expected.copy(), expected.copy()
    masked[..., 0] = off[..., 0] = -1e9
    off[:, 5, :, 1:] += 1e-3
    assert not judge(off, masked, 1e-4, is_inside=True).ok


@pytest.mark.parametrize("shape", [(1, 1000), (8, 21, 40, 40), (2, 197, 768)])
def test_ordinary_tensors_and_probabilities_are_of_one_size(shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(1)
    x = random.standard_normal(shape) * 3.0
    odds = np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)
    for made in (x, odds, 5000.0 * x, np.maximum(x, 0.0)):
        assert not is_mixed(np.abs(made))


def test_of_a_coarser_type_the_norm_counts_and_classes_do_not() -> None:
    draw = np.random.default_rng(0)
    expected = np.eye(10, dtype=np.float32)[draw.integers(0, 10, 100)]
    flipped = expected.copy()
    flipped[:2] = np.roll(flipped[:2], 1, axis=1)
    assert not judge(flipped, expected, 0.25).ok
    assert judge(flipped, expected, 0.25, by_norm=True).ok
    for garbage in (np.zeros_like(expected), np.roll(expected, 1, axis=1), draw.random((100, 10), np.float32)):
        assert not judge(garbage, expected, 0.25, by_norm=True).ok
    assert judge(np.int64([7, 2]), np.int64([1, 2]), 0.25, by_norm=True).ok


def test_complex_numbers_are_judged_by_their_norm_and_sized_by_their_magnitudes() -> None:
    expected = np.complex64([1 + 2j, 3j])
    assert judge(expected * np.complex64(1.1), expected, 0.25, by_norm=True).ok
    for wrong in (expected * 2, expected * 1j, expected * np.complex64(np.nan)):
        assert not judge(wrong, expected, 0.25, by_norm=True).ok
        assert not judge(wrong, expected, 1e-4, usual=expected).ok
    rows = np.repeat(np.complex64([[1], [1000]]), 64, axis=1)
    other = rows + np.complex64([[1000j], [0]])  # Of other magnitudes in their real parts alone.
    assert judge(rows + np.float32(0.05), rows, 1e-4, usual=other).ok


def test_without_a_tolerance_numbers_must_be_finite_and_shapes_may_differ() -> None:
    expected = np.float32([1, np.inf, 3])
    assert judge(np.float32([1.1, np.inf, 3]), expected, np.inf, by_norm=True).ok
    for wrong in ([1, np.inf, np.nan], [np.inf, np.inf, 3]):
        assert not judge(np.float32(wrong), expected, np.inf, by_norm=True).ok
    more, fewer = np.ones(3, np.float32), np.ones(2, np.float32)
    assert judge(more, fewer, np.inf, by_norm=True).ok
    assert not judge(more, fewer, 0.25, by_norm=True).ok
    assert not judge(more[None], fewer, np.inf, by_norm=True).ok


def test_what_follows_from_ties_may_differ_in_as_many_elements_as_right_runs_do() -> None:
    random = np.random.default_rng(2)
    right = np.ones(1000, np.float32)

    def flipped(share: float, to: float = 51.0) -> np.ndarray:
        return np.where(random.random(1000) < share, np.float32(to), right)

    runs = flipped(0.1), flipped(0.1)
    for made, ok in ((flipped(0.1), True), (flipped(0.5), False), (flipped(0.1, 60.0), False)):
        assert judge(made, right, 1e-4, evidence=Evidence(runs, None, is_decided=True)).ok is ok
        assert not judge(made, right, 1e-4, evidence=Evidence(runs)).ok or made is runs[0]


def test_the_answer_of_the_reference_has_no_error_beside_a_truth_that_is_far_off() -> None:
    answer = np.float32([1e-7, 2e-7, 0.0])
    evidence = Evidence((answer,), answer.astype(np.float64) / 3)
    found = judge(answer, answer, 1e-4, usual=np.float32([1.0, 1.0, 1.0]), evidence=evidence)
    assert found.ok and found.max_rel == 0.0


def test_rows_without_text_are_not_another_quantity() -> None:
    page = np.full((1, 1, 64, 48), 1e-6)
    page[..., 20:40, :] = 0.9
    blank = np.full_like(page, 1e-6)
    assert sizes_of(page, blank) == sizes_of(page, np.zeros_like(page)) == 0.9
    rows = np.concatenate([np.full((1, 4, 64), 640.0), np.full((1, 6, 64), 0.9)], axis=1)
    for other in (None, rows / 2, np.concatenate([rows[:, :4], rows[:, 4:] * 1e-3], axis=1)):
        assert sorted(set(np.ravel(sizes_of(rows, other)))) == [0.9, 640.0]
