"""A model operator by operator: its truth in float64, and what rounding makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

from collage.toolchains import Perturbation, StepwiseModel

RANDOM = np.random.default_rng(0)
NODE = h.make_node


def weight(*shape: int) -> np.ndarray[Any, Any]:
    return RANDOM.standard_normal(shape).astype(np.float32)


def written(folder: Path, nodes: list[Any], shape: tuple[int, ...], output: int = T.FLOAT, **weights: Any) -> Path:
    graph = h.make_graph(
        nodes,
        "g",
        [h.make_tensor_value_info("x", T.FLOAT, shape)],
        [h.make_tensor_value_info("y", output, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    path = folder / "model.onnx"
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=9), path)
    return path


CONV = {"w": weight(6, 3, 3, 3), "b": weight(6)}
IMAGE = (2, 3, 13, 11)
CASES: dict[str, tuple[list[Any], tuple[int, ...], dict[str, Any]]] = {
    "conv": ([NODE("Conv", ["x", "w", "b"], ["y"], pads=[1, 0, 2, 1], strides=[2, 1], dilations=[1, 2])], IMAGE, CONV),
    "same": ([NODE("Conv", ["x", "w"], ["y"], auto_pad="SAME_LOWER", strides=[2, 2])], IMAGE, CONV),
    "groups": ([NODE("Conv", ["x", "w"], ["y"], group=2)], (1, 4, 9, 9), {"w": weight(6, 2, 3, 3)}),
    "depthwise": ([NODE("Conv", ["x", "w"], ["y"], group=3, pads=[1] * 4)], IMAGE, {"w": weight(6, 1, 3, 3)}),
    "one length": ([NODE("Conv", ["x", "w"], ["y"], pads=[1, 1])], (1, 3, 20), {"w": weight(5, 3, 3)}),
    "average": ([NODE("AveragePool", ["x"], ["y"], kernel_shape=[3, 2], pads=[1, 0, 1, 1], strides=[2, 2])], IMAGE, {}),
    "counted": ([NODE("AveragePool", ["x"], ["y"], kernel_shape=[2, 2], pads=[1] * 4, count_include_pad=1)], IMAGE, {}),
    "instance": (
        [NODE("InstanceNormalization", ["x", "s", "b"], ["y"])],
        IMAGE,
        {"s": weight(3), "b": weight(3)},
    ),
    "views": (
        [
            NODE("Conv", ["x", "w"], ["c"]),
            NODE("GlobalAveragePool", ["c"], ["p"]),
            NODE("Sub", ["c", "p"], ["d"]),
            NODE("Erf", ["d"], ["e"]),
            NODE("Softmax", ["e"], ["y"], axis=1),
        ],
        IMAGE,
        CONV,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_truth_is_what_the_runtime_computes_but_for_rounding(name: str, tmp_path: Path) -> None:
    nodes, shape, weights = CASES[name]
    path, x = written(tmp_path, nodes, shape, **weights), weight(*shape)
    (single,) = ort.InferenceSession(path).run(None, {"x": x})
    truth = StepwiseModel(path).run({"x": x}, ["y"])["y"]
    assert truth.dtype == np.float64
    np.testing.assert_allclose(single, truth, rtol=0, atol=2e-6 * np.abs(truth).max())
    assert np.abs(single - truth).max() > 0


def test_perturbed_runs_err_as_much_as_float32_does(tmp_path: Path) -> None:
    nodes = [
        NODE("MatMul", ["x", "w"], ["m"]),
        NODE("ReduceMean", ["m"], ["a"], axes=[1]),
        NODE("Sub", ["m", "a"], ["y"]),
    ]
    path, x = written(tmp_path, nodes, (64, 512), w=weight(512, 64)), weight(64, 512)
    model = StepwiseModel(path)
    truth = model.run({"x": x}, ["y"])["y"]
    (single,) = ort.InferenceSession(path).run(None, {"x": x})
    runs = [model.run({"x": x}, ["y"], Perturbation(seed))["y"] for seed in range(2)]
    assert not np.array_equal(*runs) and np.array_equal(runs[0], model.run({"x": x}, ["y"], Perturbation(0))["y"])
    errors = [float(np.sqrt(np.mean((run - truth) ** 2))) for run in (single, *runs)]
    assert 0.3 < errors[1] / errors[0] < 10


def test_ties_of_computed_scores_turn_over_and_those_of_given_ones_do_not(tmp_path: Path) -> None:
    x = np.repeat(weight(1000, 1), 4, axis=1)
    computed = [NODE("MatMul", ["x", "w"], ["s"]), NODE("ArgMax", ["s"], ["y"], axis=1)]
    model = StepwiseModel(written(tmp_path, computed, (1000, 4), T.INT64, w=np.eye(4, dtype=np.float32)))
    runs = [model.run({"x": x}, ["y"], Perturbation(seed, 1e-4))["y"] for seed in range(2)]
    assert (runs[0] != runs[1]).mean() > 0.5
    given = [NODE("Transpose", ["x"], ["s"], perm=[0, 1]), NODE("ArgMax", ["s"], ["y"], axis=1)]
    model = StepwiseModel(written(tmp_path, given, (1000, 4), T.INT64))
    assert not model.run({"x": x}, ["y"], Perturbation(0, 1e-4))["y"].any()


def test_a_small_sigmoid_errs_by_the_last_bit_of_one(tmp_path: Path) -> None:
    path = written(tmp_path, [NODE("Sigmoid", ["x"], ["y"])], (1000,))
    x = np.full(1000, -20.0, np.float32)
    found = StepwiseModel(path).run({"x": x}, ["y"], Perturbation(0))["y"]
    assert 1e-8 < np.abs(found).max() < 2.0**-22


def test_branches_are_run_inside(tmp_path: Path) -> None:
    def branch(name: str, op: str) -> onnx.GraphProto:
        return h.make_graph([NODE(op, ["x", "w"], [name])], name, [], [h.make_tensor_value_info(name, T.FLOAT, None)])

    for value, right in ((True, 2.0), (False, 0.5)):
        node = NODE("If", ["c"], ["y"], then_branch=branch("a", "Mul"), else_branch=branch("b", "Div"))
        path = written(tmp_path, [node], (3,), c=np.array(value), w=np.float32(2))
        truth = StepwiseModel(path).run({"x": np.ones(3, np.float32)}, ["y"])["y"]
        assert truth.dtype == np.float64 and (truth == right).all()
