"""Metrics, by what they are defined as; intervals, against published numbers and by simulation."""

import math
import random
import statistics

import ml_dtypes
import numpy as np
import pytest

from collage._errors import InputError, UsageError
from collage.calibration import PythonMetric, find_metric
from collage.calibration.metrics import mean_interval, prediction_bound, wilson


def scores(*rows):
    return {"logits": np.array(rows, np.float32)}


def test_the_largest_error_is_relative_to_the_largest_output():
    metric = find_metric("max-error")
    right = {"a": np.array([1.0, -4.0], np.float32), "b": np.array([10.0], np.float32)}
    wrong = {"a": np.array([1.2, -4.0], np.float32), "b": np.array([10.0], np.float32)}
    assert metric.drop(right, right, None) == 0
    assert metric.drop(wrong, right, None) == pytest.approx(0.05)
    assert metric.drop({"a": right["a"]}, right, None) == math.inf
    assert metric.drop({**right, "b": np.array([np.nan], np.float32)}, right, None) == math.inf
    assert metric.drop({"n": np.array([1, 2, 3, 9])}, {"n": np.array([1, 2, 3, 4])}, None) == 0.25


@pytest.mark.parametrize("name", ["top1", "top5", "next-token"])
def test_an_answer_of_nan_has_no_class(name):
    right, wrong = scores([3, 1, 2, 0, 0, 0]), scores([math.nan] * 6)
    assert find_metric(name).drop(wrong, right, None) == 1
    assert find_metric(name).drop(wrong, wrong, None) == 0
    assert find_metric("top1", has_labels=True).drop(wrong, right, np.array([0])) == 1


def test_cosine_and_noise():
    right, turned = {"a": np.array([3.0, 4.0], np.float32)}, {"a": np.array([4.0, 3.0], np.float32)}
    assert find_metric("cosine").drop(turned, right, None) == pytest.approx(1 - 24 / 25)
    assert find_metric("snr").drop(turned, right, None) == pytest.approx(math.sqrt(2) / 5)
    assert "17.0 dB" in find_metric("snr").told(find_metric("snr").sum_up([math.sqrt(2) / 10, math.sqrt(2) / 10]))


def test_top1_is_agreement_without_labels_and_lost_accuracy_with_them():
    right, other = scores([0, 3, 1]), scores([9, 3, 1])
    assert find_metric("top1").drop(right, right, None) == 0
    assert find_metric("top1").drop(other, right, None) == 1
    with_labels = find_metric("top1", has_labels=True)
    assert with_labels.drop(other, right, np.array(1)) == 1
    assert with_labels.drop(other, right, np.array(0)) == -1
    assert with_labels.drop(other, right, np.array(2)) == 0
    with pytest.raises(InputError, match="label"):
        with_labels.drop(other, right, np.array([1, 2]))


@pytest.mark.parametrize("name", ["top1", "top5", "next-token", "kl"])
def test_an_answer_without_rows_agrees_with_itself(name):
    nothing = {"logits": np.zeros((0, 3), np.float32)}
    assert find_metric(name).drop(nothing, nothing, None) == 0
    if name != "kl":
        assert find_metric(name).drop(scores([0, 3, 1]), nothing, None) == 1
    labelled = find_metric("top1", has_labels=True)
    assert labelled.drop(nothing, nothing, np.zeros(0, np.int64)) == 0
    assert labelled.score(nothing, np.zeros(0, np.int64)) is None


@pytest.mark.parametrize("drops", [[math.inf, 0.0], [1e308, -1e308], [math.nan, 1.0], [math.inf]])
@pytest.mark.parametrize("name", ["top1", "snr", "perplexity", "python:m:f"])
def test_drops_beyond_all_numbers_keep_no_limit(name, drops):
    metric = find_metric(name)
    estimate = metric.sum_up(drops)
    assert not estimate.keeps(1e100) and metric.told(estimate)


@pytest.mark.parametrize("name", ["top1", "python:m:f"])
def test_right_or_wrong_answers_that_all_agree_do_not_exclude_others(name):
    few, many = (find_metric(name).sum_up([0.0] * count, 0.01) for count in (20, 1000))
    assert few.value == few.low == many.value == 0
    assert few.high == pytest.approx(wilson(0, 20)[1])
    assert (few.is_vague, many.is_vague) == (True, False)


def test_a_score_of_the_users_has_the_interval_of_its_mean():
    found = find_metric("python:m:f").sum_up([0.1, 0.2, 0.3])
    assert found.value == pytest.approx(0.2) and found.low < 0.1 < 0.3 < found.high


@pytest.mark.parametrize("name", ["cosine", "snr"])
def test_imaginary_parts_count(name):
    right, real = {"y": np.array([3 + 4j], np.complex64)}, {"y": np.array([3], np.complex64)}
    assert find_metric(name).drop(right, right, None) == 0
    assert find_metric(name).drop(real, right, None) == pytest.approx({"cosine": 0.4, "snr": 0.8}[name])
    assert find_metric(name).drop({"y": np.array(["a"])}, right, None) == 1


@pytest.mark.parametrize("shape", [(1, 2), (1, 4), (0, 3), None])
def test_an_answer_of_another_shape_is_all_wrong(shape):
    """Detectors select: in another precision there may be other numbers of boxes."""
    right = scores([0, 3, 1])
    other = {} if shape is None else {"logits": np.ones(shape, np.float32)}
    drops = {name: find_metric(name).drop(other, right, None) for name in ("max-error", "cosine", "snr", "top1")}
    assert drops == {"max-error": math.inf, "cosine": 1, "snr": 1, "top1": 1}
    assert find_metric("top1", has_labels=True).drop(other, right, np.array(1)) == 1


def test_outputs_without_numbers_have_no_noise():
    words = {"word": np.array(["a", "b"], object)}
    assert find_metric("max-error").drop(words, words, None) == 0
    with pytest.raises(InputError, match="no numbers"):
        find_metric("snr").drop(words, words, None)


def test_top5_takes_any_of_five():
    right = scores(list(range(10)))
    answer = scores([9, 8, 7, 6, 0, 0, 0, 0, 0, 5])
    assert find_metric("top1").drop(answer, right, None) == 1
    assert find_metric("top5").drop(answer, right, None) == 0


def test_several_classes_to_a_sample_are_a_share():
    right, answer = scores([0, 1], [0, 1], [1, 0], [1, 0]), scores([0, 1], [1, 0], [1, 0], [1, 0])
    assert find_metric("top1").drop(answer, right, None) == 0.25
    image = {"s": np.zeros((1, 2, 2, 2), np.float32)}
    image["s"][0, 1] = 1
    other = {"s": image["s"].copy()}
    other["s"][0, 0, 0, 0] = 2
    assert find_metric("top1").drop(other, image, None) == 0.25


def test_models_without_classes_are_told_so():
    with pytest.raises(InputError, match="scores"):
        find_metric("top1").drop({"a": np.float32([1.0])}, {"a": np.ones(1, np.float32)}, None)


@pytest.mark.parametrize(
    "name", ["", "top2", "python:", "python:os", "python:os:system()", "python:a b:c", "os:system"]
)
def test_other_names_are_refused(name):
    with pytest.raises(UsageError, match="metric"):
        find_metric(name)


def test_functions_are_named_by_module_and_name():
    assert find_metric("python:a.b_c:d") == PythonMetric("python:a.b_c:d", "a.b_c", "d")


@pytest.mark.parametrize(
    ("hits", "count", "low", "high"),
    [(0, 10, 0.0, 0.2775), (1, 10, 0.0179, 0.4042), (5, 10, 0.2366, 0.7634), (81, 263, 0.2553, 0.3662)],
)
def test_wilsons_interval(hits, count, low, high):
    assert wilson(hits, count) == pytest.approx((low, high), abs=1e-3)  # Newcombe 1998, table I.


@pytest.mark.parametrize(("count", "t"), [(2, 12.706), (3, 4.303), (4, 3.182), (6, 2.571), (11, 2.228), (31, 2.042)])
def test_students_interval(count, t):
    values = [float(i) for i in range(count)]
    found = mean_interval(values)
    error = np.std(values, ddof=1) / math.sqrt(count)
    assert (found.high - found.value) / error == pytest.approx(t, rel=5e-3)
    assert found.value - found.low == pytest.approx(found.high - found.value)


def test_a_mean_of_one_sample_says_little():
    assert mean_interval([0.5]).is_vague


@pytest.mark.parametrize("count", [4, 40])
@pytest.mark.parametrize("spread", [0.05, 0.3])
def test_twenty_further_errors_stay_below_the_bound_in_nineteen_of_twenty_cases(count, spread):
    """The claim itself, by simulation."""
    draw, cases, kept = random.Random(count), 1000, 0
    for _ in range(cases):
        bound = prediction_bound([math.exp(draw.gauss(-5, spread)) for _ in range(count)])
        kept += all(math.exp(draw.gauss(-5, spread)) <= bound for _ in range(20))
    assert kept / cases >= 0.93


def test_a_bound_holds_for_errors_of_saturated_outputs_and_is_not_absurd():
    """Errors of probabilities lie many magnitudes apart."""
    draw, cases, kept = random.Random(3), 500, 0

    def one() -> float:
        margin = abs(draw.gauss(0, 8))
        return abs(1 / (1 + math.exp(-margin - draw.gauss(0, 0.02))) - 1 / (1 + math.exp(-margin)))

    for _ in range(cases):
        errors = [one() for _ in range(40)]
        bound = prediction_bound(errors)
        assert bound <= 4 * max(errors)
        kept += all(one() <= bound for _ in range(20))
    assert kept / cases >= 0.95


def test_a_bound_is_not_far_above_what_is_to_be_expected():
    draw, over = random.Random(7), []
    for _ in range(200):
        errors = [math.exp(draw.gauss(-5, 0.1)) for _ in range(40)]
        over.append(prediction_bound(errors) / math.exp(-5))
    assert statistics.fmean(over) < 1.4


def test_a_bound_is_no_less_than_the_largest_error():
    assert prediction_bound([0.0, 0.0, 0.0]) == 0
    assert prediction_bound([0.1]) == 0.2
    assert prediction_bound([0.1, 0.2, math.inf, 0.1]) == math.inf
    assert prediction_bound([1e-9, 1e-9, 1e-9, 1e-9, 0.0, 1e-3]) >= 1e-3


def test_a_limit_is_kept_by_the_worse_end():
    metric = find_metric("top1")
    assert metric.sum_up([0.0] * 1000, 0.01).keeps(0.01)
    assert not metric.sum_up([0.0] * 990 + [1.0] * 9, 0.01).keeps(0.01)  # 0.9 %, and up to 1.7 %.
    few = metric.sum_up([0.0] * 20, 0.01)
    assert few.is_vague
    assert few.keeps(0.01)
    assert not metric.sum_up([0.0] * 19 + [1.0], 0.01).keeps(0.01)
    assert "99.1 %" in metric.told(metric.sum_up([0.0] * 991 + [1.0] * 9))


def test_what_is_won_counts_against_what_is_lost():
    metric = find_metric("top1", has_labels=True)
    found = metric.sum_up([1.0] * 5 + [-1.0] * 5 + [0.0] * 990)
    assert found.value == 0
    assert found.low < 0 < found.high < 0.02


def test_few_samples_tell_what_interval_more_of_them_would_have() -> None:
    top1, cosine = find_metric("top1"), find_metric("cosine")
    assert top1.sum_up([0.0] * 60, 0.01, 500).keeps(0.01)
    assert not top1.sum_up([0.0] * 60 + [1.0], 0.01, 500).keeps(0.01)
    drops = [1e-3, 2e-3, 3e-3, 2e-3]
    few, more = cosine.sum_up(drops), cosine.sum_up(drops, count=400)
    assert few.value == more.value < more.high < few.high
    assert more.high - more.value == pytest.approx(1.966 * 0.8165e-3 / 20, rel=1e-3)
    assert few.samples == more.samples == 4


def as_probabilities(logits):
    powers = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def test_metrics_of_language_models_are_what_they_are_defined_as():
    rng = np.random.default_rng(0)
    right = {"logits": rng.normal(size=(1, 6, 11)).astype(np.float32)}
    other = {"logits": right["logits"] + 0.3 * rng.normal(size=(1, 6, 11)).astype(np.float32)}
    p, q = as_probabilities(right["logits"]), as_probabilities(other["logits"])
    tokens = np.array([[3, 0, 10, 7, 1, -100]])
    kl, perplexity, agreement = map(find_metric, ("kl", "perplexity", "next-token"))
    assert kl.drop(other, right, None) == pytest.approx((p * np.log(p / q)).sum(-1).mean())
    assert agreement.drop(other, right, tokens) == pytest.approx((p.argmax(-1) != q.argmax(-1)).mean())
    before, after = (-np.log(x[0, range(5), tokens[0, :5]]).mean() for x in (p, q))
    assert perplexity.score(right, tokens) == pytest.approx(before)
    drop = perplexity.drop(other, right, tokens)
    assert drop == pytest.approx(after - before)
    assert perplexity.sum_up([drop, drop]).value == pytest.approx(math.exp(after) / math.exp(before) - 1)
    assert all(metric.drop(right, right, tokens) == 0 for metric in (kl, perplexity, agreement))


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_broken_logits_are_far_off_and_masked_tokens_are_not(broken):
    right = {"logits": np.array([[[0.0, 1.0, -np.inf]]], np.float32)}
    odd = {"logits": np.full((1, 1, 3), broken, np.float32)}
    for answer in (odd, {}, {"logits": np.zeros((1, 3), np.float32)}):
        for name in ("kl", "perplexity"):
            drop = find_metric(name).drop(answer, right, np.array([[1]]))
            assert 100 < drop < math.inf
            assert not find_metric(name).sum_up([drop, 0.0]).keeps(0.5)
    assert find_metric("kl").drop(right, right, None) == 0


@pytest.mark.parametrize("name", ["kl", "perplexity"])
@pytest.mark.parametrize("values", [np.array(3), np.array([[1, 2]]), np.float32(1), np.zeros((1, 3, 0, 0), np.float32)])
def test_metrics_of_tokens_need_scores(name, values):
    with pytest.raises(InputError, match="kl and perplexity need an output of scores"):
        find_metric(name).drop({"y": values}, {"y": values}, np.zeros(values.shape[:-1], np.int64))


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, ml_dtypes.int4, ml_dtypes.uint4])
def test_integers_differ_by_their_share(dtype):
    right, other = np.array([1, 2, 3, 1], dtype), np.array([1, 2, 3, 2], dtype)
    assert find_metric("max-error").drop({"y": other}, {"y": right}, None) == 0.25


def test_perplexity_needs_tokens_that_fit():
    right = {"logits": np.zeros((1, 2, 5), np.float32)}
    for tokens in (None, np.array([1]), np.array([1, 5]), np.array([-1, -1]), np.array([0.5, 1.0])):
        with pytest.raises(InputError, match="follow"):
            find_metric("perplexity").score(right, tokens)


def test_where_only_some_samples_have_labels_agreement_does_not_read_them():
    assert find_metric("top1").drop(scores([0, 3, 1]), scores([0, 3, 1]), np.array(2)) == 0
