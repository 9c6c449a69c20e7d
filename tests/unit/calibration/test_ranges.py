"""Ranges of activations, against NumPy."""

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import onnx_ir as ir
import pytest

from collage.calibration import (
    Ranges,
    annotate_ranges,
    collect_ranges,
    mean_axes,
    runs_worker,
    share_outside,
    touches_unbounded,
)
from collage.graph import DataflowGraph, IndexSet, SubGraph, extract, structural_hash, value_means, value_range
from collage.system.codec import from_json, to_json


@pytest.fixture
def model():
    text = "g (float[2, 3] x) => (float[2, 3] y) { d = Mul (x, x) e = Log (x) y = Add (d, e) }"
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> {text}')
    return ir.from_proto(proto)


def samples(count):
    random = np.random.default_rng(0)
    return [{"x": random.uniform(0.5, 2.0, (2, 3)).astype(np.float32)} for _ in range(count)]


def test_ranges_are_the_extremes_over_all_samples(model, tmp_path):
    ir.save(model, tmp_path / "model.onnx")
    fed = samples(5)
    seen = []
    worker = runs_worker(tmp_path / "model.onnx")
    try:
        ranges = collect_ranges(worker, iter(fed), tmp_path / "sample", after_each=lambda r: seen.append(r.samples))
    finally:
        worker.kill()
    x = np.stack([sample["x"] for sample in fed])
    expected = {"x": x, "d": x * x, "e": np.log(x), "y": x * x + np.log(x)}
    assert seen == [1, 2, 3, 4, 5]
    assert set(ranges.extents) == set(expected)
    for name, values in expected.items():
        assert ranges.extents[name] == pytest.approx((values.min(), values.max()), rel=1e-6)
    assert not ranges.unbounded


def test_means_are_those_of_all_samples_and_survive_extraction(tmp_path):
    text = "g (float[N, 3] x, float[3, 2] w) => (float[N, 2] y) { y = MatMul (x, w) }"
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> {text}')
    weights = onnx.numpy_helper.from_array(np.ones((3, 2), np.float32), "w")
    proto.graph.initializer.append(weights)
    del proto.graph.input[1]
    model = ir.from_proto(proto)
    ir.save(model, tmp_path / "model.onnx")
    fed = samples(5)
    axes = mean_axes(model)
    assert axes == {"x": -1}
    with runs_worker(tmp_path / "model.onnx") as worker:
        first = collect_ranges(worker, fed[:2], tmp_path / "sample", axes=axes)
        ranges = collect_ranges(worker, fed[2:], tmp_path / "sample", from_json(Ranges, to_json(first)), axes=axes)
    expected = np.stack([sample["x"] for sample in fed]).mean(axis=(0, 1))
    assert ranges.means == {"x": pytest.approx(list(expected), rel=1e-6)}
    annotate_ranges(model, ranges)
    graph = DataflowGraph(model)
    kernel = extract(graph, SubGraph(graph, IndexSet(1)), "k")
    np.testing.assert_allclose(value_means(kernel.graph.inputs[0], -1), expected, rtol=1e-6)
    assert value_means(kernel.graph.inputs[0], 1) is None


@pytest.mark.parametrize("text", ["", "1", "1 AAA", "1 ?", "1 AAAA", "1 AADAfw==", "x AAAAAA=="])
def test_means_that_cannot_be_read_are_none(model, text):
    model.graph.inputs[0].metadata_props["collage.means"] = text
    assert value_means(model.graph.inputs[0], 1) is None


def test_collecting_goes_on_where_it_was_written_down(model, tmp_path):
    ir.save(model, tmp_path / "model.onnx")
    worker = runs_worker(tmp_path / "model.onnx")
    try:
        whole = collect_ranges(worker, samples(4), tmp_path / "sample")
        first = collect_ranges(worker, samples(4)[:2], tmp_path / "sample")
        again = collect_ranges(worker, samples(4)[2:], tmp_path / "sample", from_json(Ranges, to_json(first)))
    finally:
        worker.kill()
    assert again == whole


def test_samples_with_nan_are_left_out_and_counted(model, tmp_path):
    ir.save(model, tmp_path / "model.onnx")
    bad = {"x": np.array([[1, np.nan, 2], [1, 1, 100]], np.float32)}
    fed = samples(4)
    with runs_worker(tmp_path / "model.onnx") as worker:
        clean = collect_ranges(worker, fed, tmp_path / "sample", axes={"d": 1})
        mixed = collect_ranges(worker, [bad, *fed[:2], bad, *fed[2:]], tmp_path / "sample", axes={"d": 1})
    assert (mixed.samples, mixed.skipped) == (6, 2)
    assert (mixed.extents, mixed.unbounded) == (clean.extents, clean.unbounded)
    assert mixed.means["d"] == pytest.approx(clean.means["d"])
    assert from_json(Ranges, to_json(mixed)) == mixed


def test_infinite_and_huge_values_are_noted(model, tmp_path):
    ir.save(model, tmp_path / "model.onnx")
    worker = runs_worker(tmp_path / "model.onnx")
    try:
        fed = {"x": np.array([[0, 1, 2], [1, 1, 1e7]], np.float32)}  # The logarithm of 0 is infinite.
        ranges = collect_ranges(worker, [fed], tmp_path / "sample")
    finally:
        worker.kill()
    assert ranges.unbounded == {"x", "d", "e", "y"}
    assert ranges.extents["e"] == pytest.approx((0, np.log(1e7)), rel=1e-6)
    assert all(touches_unbounded(node, ranges) for node in model.graph)


def test_elements_outside_their_range_are_counted(model, tmp_path):
    ir.save(model, tmp_path / "model.onnx")
    ranges = Ranges()
    ranges.add({"x": [0.5, 1.5, 0], "d": [0.25, 2.25, 0]})
    fed = {"x": np.array([[1, 1, 1], [1, 1, 2]], np.float32)}
    worker = runs_worker(tmp_path / "model.onnx")
    try:
        assert share_outside(worker, [fed], tmp_path / "sample", ranges) == pytest.approx(2 / 12)
        assert share_outside(worker, [], tmp_path / "sample", ranges) is None
    finally:
        worker.kill()


def test_kernels_keep_ranges_and_their_structure(model):
    graph = DataflowGraph(model)
    place = SubGraph(graph, IndexSet((1 << len(graph)) - 1))
    plain = structural_hash(extract(graph, place, "k"))
    ranges = Ranges()
    ranges.add({"x": [0.1, 2, 0], "d": [0.01, 4, 0], "y": [-1.0, 3.0, 0]})
    annotate_ranges(model, ranges)
    kernel = extract(graph, place, "k")
    found = {v.name: value_range(v) for v in (*kernel.graph.inputs, *(v for n in kernel.graph for v in n.outputs))}
    assert found == {"x": (0.1, 2.0), "d": (0.01, 4.0), "e": None, "y": (-1.0, 3.0)}
    assert structural_hash(kernel) == plain
