"""The judge: answers of another model against the original's, and metrics that go wrong."""

import sys
from dataclasses import replace

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from collage._errors import InputError, UsageError
from collage.calibration import CalibrationData, Judge, Sample, find_metric, judge, open_data, runs_worker

METRICS = """
import os
import time

def closeness(outputs, expected, label):
    return -float(abs(outputs["y"] - expected["y"]).max())

def right(outputs, expected, label):
    return float(outputs["y"].argmax() == label)

def raises(outputs, expected, label):
    raise ValueError("of two lines\\nat least")

def not_a_number(outputs, expected, label):
    return float("nan")

def slow(outputs, expected, label):
    time.sleep(60)

def infinite(outputs, expected, label):
    return -float("inf")

def nothing_at_all(outputs, expected, label):
    return None

def array(outputs, expected, label):
    return outputs["y"]

def text(outputs, expected, label):
    return "0.5"

def ends(outputs, expected, label):
    raise SystemExit(3)

def is_interrupted(outputs, expected, label):
    raise KeyboardInterrupt

def crashes(outputs, expected, label):
    os.abort()

def of_two(outputs, expected):
    return 1.0

def number_in_an_array(outputs, expected, label):
    return -abs(outputs["y"] - expected["y"]).max(keepdims=True)

constant = 3
"""


def write(path, factor):
    text = f"g (float[1, 3] x) => (float[1, 3] y) {{ f = Constant <value_float: float = {factor}> () y = Mul (x, f) }}"
    ir.save(ir.from_proto(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> {text}')), path)
    return ir.load(path)


class Lent:
    """A worker that many judges ask, and that none of them ends."""

    def __init__(self, worker):
        self.call = worker.call

    def kill(self):
        pass


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Return a model that returns its input and one that doubles it, each with the worker that runs it."""
    folder = tmp_path_factory.mktemp("models")
    made = {}
    for name, factor in (("original", 1.0), ("double", 2.0)):
        path = folder / f"{name}.onnx"
        made[name] = write(path, factor), runs_worker(path, watches=False)
    yield made
    for _, worker in made.values():
        worker.kill()


def test_tensors_of_lists_are_compared(tmp_path):
    texts = {
        name: f"g (float[1, 3] x) => (seq(float) s) {{ y = {made} s = SequenceConstruct (x, y) }}"
        for name, made in (("original", "Identity (x)"), ("double", "Add (x, x)"))
    }
    for name, text in texts.items():
        proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> {text}')
        onnx.save(proto, tmp_path / f"{name}.onnx")
    original, double = (runs_worker(tmp_path / f"{name}.onnx", watches=False) for name in texts)
    data = open_data([{"x": np.float32([[1, 2, 4]])}], ir.load(tmp_path / "original.onnx"), tmp_path / "samples")
    made = Judge(data, original, [find_metric("max-error"), find_metric("snr")], tmp_path / "judging")
    with double:
        assert made.drops(double, [0]) == {"max-error": [1.0], "snr": [pytest.approx(0.5**0.5)]}
        assert made.drops(original, [0]) == {"max-error": [0.0], "snr": [0.0]}
    made.close()


def test_inputs_that_are_lists_are_asked(tmp_path):
    for name, made in (("original", "Identity (c)"), ("double", "Add (c, c)")):
        text = f"g (seq(float[N]) s) => (float[M] y) {{ c = ConcatFromSequence <axis=0> (s) y = {made} }}"
        proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> {text}')
        onnx.save(proto, tmp_path / f"{name}.onnx")
    original, double = (runs_worker(tmp_path / f"{name}.onnx", watches=False) for name in ("original", "double"))
    sample = Sample("lists", {"s": [np.float32([1]), np.float32([2, np.nan])]})
    data = CalibrationData(1, "digest", False, lambda _: sample, "made-up inputs")
    made = Judge(data, original, [find_metric("snr")], tmp_path / "judging")
    with double:
        assert made.drops(double, [0]) == {"snr": [1.0]}
    assert made.with_nan == {0: "lists"}
    made.close()


@pytest.fixture
def judge_of(tmp_path, monkeypatch, models):
    """Return a function that returns a judge of samples by a metric, and the metric; it is closed in the end."""
    model, original = models["original"]
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "collage_test_metrics.py").write_text(METRICS)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "modules")])

    made = []

    def make(metric, given):
        data = open_data(given, model, tmp_path / "data")
        found = find_metric(metric, data.has_labels)
        made.append(Judge(data, Lent(original), [found], tmp_path / "judging"))
        return made[-1], found

    yield make
    for who in made:
        who.close()


@pytest.fixture
def judged(judge_of, models):
    """Return a function that has a model, which doubles, judged by a metric against one that does not."""

    def ask(metric, samples, labels=None):
        who, _ = judge_of(metric, samples if labels is None else zip(samples, labels, strict=True))
        who.find_functions()
        return who.drops(models["double"][1], range(len(samples)))[metric]

    return ask


def samples(*rows):
    return [{"x": np.array([row], np.float32)} for row in rows]


def test_answers_of_the_original_that_were_not_all_written_are_asked_again(judge_of, models, tmp_path):
    who, _ = judge_of("max-error", samples([1, 2, 3]))
    (tmp_path / "judging" / "expected_0").mkdir(parents=True)
    assert who.drops(models["double"][1], [0]) == {"max-error": [1.0]}


def test_drops_are_those_of_the_metric_on_each_sample(judged):
    given = samples([1, 2, 3], [1, 0, -4])
    assert judged("max-error", given) == pytest.approx([1.0, 1.0])
    assert judged("cosine", given) == pytest.approx([0.0, 0.0], abs=1e-7)
    assert judged("top1", given) == [0, 0]


def test_more_samples_than_are_answered_with_one_call(judged):
    found = judged("snr", samples(*[[1, 2, n + 1] for n in range(40)]))
    assert found == pytest.approx([1.0] * 40)


def test_a_function_of_the_users_is_compared_with_the_originals_score(judged):
    assert judged("python:collage_test_metrics:closeness", samples([1, 2, 3], [0, 0, 8])) == pytest.approx([3, 8])
    assert judged("python:collage_test_metrics:number_in_an_array", samples([1, 2, 3])) == pytest.approx([3])
    assert judged("python:collage_test_metrics:right", samples([1, 2, 3], [0, 0, 8]), labels=[2, 0]) == [0, 0]


@pytest.mark.few(6)
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere:f", "cannot be imported"),
        ("collage_test_metrics:nothing", "cannot be imported"),
        ("collage_test_metrics:constant", "not a function"),
        ("collage_test_metrics:raises", "sample 0: raised ValueError: of two lines at least"),
        ("collage_test_metrics:not_a_number", "returned nan"),
        ("collage_test_metrics:slow", "sample 0: the function ran for 2 s, longer than it may for one sample"),
        ("collage_test_metrics:infinite", "returned -inf"),
        ("collage_test_metrics:nothing_at_all", "returned NoneType, and must return a finite number"),
        ("collage_test_metrics:array", r"returned ndarray\[1, 3\], and must"),
        ("collage_test_metrics:text", "returned str"),
        ("collage_test_metrics:ends", "raised SystemExit: 3"),
        ("collage_test_metrics:is_interrupted", "raised KeyboardInterrupt$"),
        ("collage_test_metrics:crashes", "SIGABRT"),
        ("collage_test_metrics:of_two", "raised TypeError"),
    ],
)
def test_a_function_that_goes_wrong_is_a_sentence(judged, monkeypatch, name, words):
    monkeypatch.setattr(judge, "_METRIC_S", 2.0)
    with pytest.raises(UsageError, match=words) as found:
        judged(f"python:{name}", samples([1, 2, 3]))
    assert name in str(found.value)
    assert "\n" not in str(found.value)


def test_a_label_that_does_not_fit_names_the_sample(judged):
    with pytest.raises(InputError, match=r"top1.*sample 0.*label"):
        judged("top1", samples([1, 2, 3]), labels=[np.array([1, 2])])


@pytest.mark.parametrize("label", [3, -1, 10**9])
def test_a_label_beyond_the_classes_names_the_sample(judged, label):
    with pytest.raises(InputError, match=rf"sample 1: the label is {label}; the model answers with 3 classes, 0 to 2"):
        judged("top1", samples([1, 2, 3], [1, 2, 3]), labels=[2, label])


def test_the_originals_own_score_is_told(judge_of, models):
    given = list(zip(samples([1, 2, 3], [3, 2, 1], [0, 5, 0]), [2, 0, 0], strict=True))
    who, metric = judge_of("top1", given)
    who.drops(models["double"][1], range(3))
    assert who.score_of_original(metric, range(3)) == pytest.approx(2 / 3)
    assert who.score_of_original(metric, range(4)) is None
    estimate = replace(metric.sum_up([0.0, 0.0, 1.0]), original=2 / 3)
    assert "33.3 % instead of the original's 66.7 %" in metric.told(estimate)


@pytest.mark.parametrize("metric", ["top1", "python:collage_test_metrics:raises", "python:collage_test_metrics:array"])
def test_a_rehearsal_finds_what_is_wrong_before_anything_is_compared(judge_of, metric):
    who, _ = judge_of(metric, [(samples([1, 2, 3])[0], 7)])
    with pytest.raises(UsageError, match="sample 0"):
        who.rehearse(0)


def test_samples_that_hold_nan_are_named(judge_of, models):
    who, _ = judge_of("top1", samples([1, 2, 3], [1, float("nan"), 2]))
    who.drops(models["double"][1], range(2))
    assert who.with_nan == {1: "sample 1"}


@pytest.mark.parametrize(
    ("feeds", "right"),
    [
        ({"input_ids": np.array([[4, 5, 6]])}, [[5, 6, -1]]),
        ({"tokens": np.array([4, 5], np.int32)}, [5, -1]),
        ({"input_ids": np.array([[4, 5]]), "attention_mask": np.array([[1, 1]])}, [[5, -1]]),
        ({"input_ids": np.array([[4, 5]]), "position_ids": np.array([[0, 1]])}, [[5, -1]]),
        ({"a": np.array([[4, 5]]), "b": np.array([[1, 1]])}, None),
        ({"x": np.ones((1, 2), np.float32)}, None),
    ],
)
def test_tokens_that_follow_are_those_of_the_text(feeds, right):
    found = judge._following(feeds)
    assert (None if found is None else found.tolist()) == right
