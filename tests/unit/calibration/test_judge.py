"""The judge: answers of another model against the original's, and metrics that go wrong."""

import sys

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from collage._errors import InputError, UsageError
from collage.calibration import Judge, find_metric, judge, open_data, runs_worker

METRICS = """
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

constant = 3
"""


def write(path, factor):
    text = f"g (float[1, 3] x) => (float[1, 3] y) {{ f = Constant <value_float: float = {factor}> () y = Mul (x, f) }}"
    ir.save(ir.from_proto(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> {text}')), path)
    return ir.load(path)


@pytest.fixture
def judged(tmp_path, monkeypatch):
    """Return a function that has a model, which doubles, judged by a metric against one that does not."""
    model = write(tmp_path / "original.onnx", 1.0)
    write(tmp_path / "double.onnx", 2.0)
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "collage_test_metrics.py").write_text(METRICS)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "modules")])

    def ask(metric, samples, labels=None):
        given = samples if labels is None else zip(samples, labels, strict=True)
        data = open_data(given, model, tmp_path / "data")
        found = find_metric(metric, data.has_labels)
        who = Judge(data, runs_worker(tmp_path / "original.onnx", watches=False), [found], tmp_path / "judging")
        try:
            who.find_functions()
            with runs_worker(tmp_path / "double.onnx", watches=False) as worker:
                return who.drops(worker, range(data.count))[metric]
        finally:
            who.close()

    return ask


def samples(*rows):
    return [{"x": np.array([row], np.float32)} for row in rows]


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
    assert judged("python:collage_test_metrics:right", samples([1, 2, 3], [0, 0, 8]), labels=[2, 0]) == [0, 0]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere:f", "cannot be imported"),
        ("collage_test_metrics:nothing", "cannot be imported"),
        ("collage_test_metrics:constant", "not a function"),
        ("collage_test_metrics:raises", "sample 0: raised ValueError: of two lines at least"),
        ("collage_test_metrics:not_a_number", "returned nan"),
        ("collage_test_metrics:slow", "more than"),
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
