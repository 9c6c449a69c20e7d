"""Models with symbolic lengths, whole and operator by operator, at lengths for which nothing was compiled."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage.frontend import read_model
from collage.graph import DataflowGraph
from collage.testing import executable_of
from collage.transform import prepare

F, I64 = TensorProto.FLOAT, TensorProto.INT64
Shapes = list[dict[str, tuple[int, ...]]]


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


def model(nodes: list[onnx.NodeProto], inputs: dict, outputs: dict, weights: dict) -> onnx.ModelProto:
    ports = [[helper.make_tensor_value_info(n, *facts) for n, facts in table.items()] for table in (inputs, outputs)]
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "g", *ports, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def weight(*shape: int) -> np.ndarray:
    return (0.3 * np.random.default_rng(0).standard_normal(shape)).astype(np.float32)


def x(*shapes: tuple[int, ...]) -> Shapes:
    return [{"x": shape} for shape in shapes]


MODELS: dict[str, tuple[onnx.ModelProto, Shapes]] = {
    "attention": (
        model(
            [
                node("MatMul", "x wq", "q"),
                node("MatMul", "x wk", "k"),
                node("Transpose", "k", "kt", perm=[0, 2, 1]),
                node("MatMul", "q kt", "a"),
                node("Softmax", "a", "p", axis=-1),
                node("MatMul", "p x", "y"),
            ],
            {"x": (F, ["b", "s", 8])},
            {"y": (F, ["b", "s", 8])},
            {"wq": weight(8, 8), "wk": weight(8, 8)},
        ),
        x((2, 16, 8), (1, 1, 8), (3, 7, 8), (0, 4, 8), (1, 0, 8)),
    ),
    "convolution": (
        model(
            [
                node("Conv", "x w", "c", pads=[1, 1, 1, 1]),
                node("Relu", "c", "r"),
                node("GlobalAveragePool", "r", "g"),
                node("Flatten", "g", "y"),
            ],
            {"x": (F, ["b", 3, "h", "w_"])},
            {"y": (F, ["b", 4])},
            {"w": weight(4, 3, 3, 3)},
        ),
        x((1, 3, 16, 16), (2, 3, 9, 5), (1, 3, 1, 1), (0, 3, 4, 4)),
    ),
    "computed shape": (
        model(
            [
                node("Shape", "x", "s"),
                node("Gather", "s zero", "b"),
                node("Unsqueeze", "b axis", "bu"),
                node("Concat", "bu minus", "to", axis=0),
                node("Reshape", "x to", "f"),
                node("ReduceSum", "f one", "y", keepdims=0),
            ],
            {"x": (F, ["b", "s", 4])},
            {"y": (F, ["b"])},
            {"zero": np.int64(0), "axis": [0], "one": [1], "minus": [-1]},
        ),
        x((2, 3, 4), (1, 1, 4), (5, 2, 4), (2, 0, 4)),
    ),
    "two symbols": (
        model(
            [node("Concat", "x z", "c", axis=1), node("Sigmoid", "c", "g"), node("Split", "g", "y1 y2", axis=2)],
            {"x": (F, ["b", "s", 4]), "z": (F, ["b", "t", 4])},
            {"y1": (F, ["b", None, 2]), "y2": (F, ["b", None, 2])},
            {},
        ),
        [{"x": (b, s, 4), "z": (b, t, 4)} for b, s, t in ((2, 3, 5), (1, 1, 1), (3, 5, 2), (0, 2, 2), (2, 0, 1))],
    ),
    "embedding": (
        model(
            [node("Gather", "t i", "e"), node("ReduceSum", "e one", "m", keepdims=0), node("MatMul", "m w", "y")],
            {"i": (I64, ["b", "s"])},
            {"y": (F, ["b", 3])},
            {"t": weight(10, 6), "w": weight(6, 3), "one": [1]},
        ),
        [{"i": shape} for shape in ((2, 5), (1, 1), (4, 9), (0, 3), (2, 0))],
    ),
}


@pytest.mark.few(6)
@pytest.mark.parametrize("target", ["onnxruntime", "openvino", "llvm"])
@pytest.mark.parametrize("name", MODELS)
def test_right_at_every_length(name: str, target: str) -> None:
    proto, shapes = MODELS[name]
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    kinds = {port.name: "int64" if "int64" in port.type else "float32" for port in session.get_inputs()}
    count = len(DataflowGraph(prepare(read_model(proto))))
    # TVM takes half a second for a kernel, and no Reshape to a shape that is an input.
    whole, single = [(range(count), target)], [([i], target) for i in range(count)]
    for parts in [whole] if target == "llvm" else [whole, single]:
        exe = executable_of(proto, parts)
        for number, given in enumerate(shapes):
            random = np.random.default_rng(number)
            feeds = {
                n: random.integers(0, 9, s) if kinds[n] == "int64" else random.random(s, "f") for n, s in given.items()
            }
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # The host may have to help out; right it must be.
                outputs = exe.run(feeds)
            for actual, wanted in zip(outputs.values(), session.run(None, feeds), strict=True):
                assert actual.shape == wanted.shape
                np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-5)


def test_a_trace_leaves_tensors_without_elements_to_the_host_too() -> None:
    """OpenVINO starts a maximum at the smallest finite number, and ONNX at minus infinity."""
    reduced = node("ReduceMax", "r", "y", axes=[0], keepdims=0)
    proto = model([node("Relu", "x", "r"), reduced], {"x": (F, ["n", 4])}, {"y": (F, [4])}, {})
    exe = executable_of(proto, "openvino")
    feeds = {"x": np.zeros((0, 4), np.float32)}
    outputs, spans = exe.trace(feeds)
    np.testing.assert_array_equal(outputs["y"], exe.run(feeds)["y"])
    np.testing.assert_array_equal(outputs["y"], np.full(4, -np.inf, np.float32))
    assert len(spans) == len(exe.recipe.kernels)
