"""A model small enough to build in every test, as kernels of two runtimes with a view between them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage.runtime import Executable
from collage.testing import executable_of

Build = Callable[..., Executable]


def small_model() -> onnx.ModelProto:
    """x [n, 6] -> relu(x) @ w, reshaped to [n, 2, 2] -> softmax; and relu(x) itself."""
    weight = np.random.default_rng(0).standard_normal((6, 400)).astype(np.float32)
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="relu"),
        helper.make_node("MatMul", ["r", "w"], ["m"], name="matmul"),
        helper.make_node("Reshape", ["m", "shape"], ["v"], name="reshape"),
        helper.make_node("Softmax", ["v"], ["y"], name="softmax", axis=-1),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 6])]
    outputs = [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 200, 2]),
        helper.make_tensor_value_info("r", TensorProto.FLOAT, ["n", 6]),
    ]
    weights = [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(np.array([-1, 200, 2]), "shape")]
    graph = helper.make_graph(nodes, "small", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def expected(x: np.ndarray) -> dict[str, np.ndarray]:
    weight = numpy_helper.to_array(small_model().graph.initializer[0])
    relu = np.maximum(x, 0)
    scores = np.exp((relu @ weight).reshape(-1, 200, 2))
    return {"y": scores / scores.sum(-1, keepdims=True), "r": relu}


def assert_right(exe: Executable, seed: int = 0, rows: int = 3) -> None:
    x = np.random.default_rng(seed).standard_normal((rows, 6)).astype(np.float32)
    outputs = exe.run({"x": x})
    for name, wanted in expected(x).items():
        np.testing.assert_allclose(outputs[name], wanted, rtol=1e-4, atol=1e-6)


@pytest.fixture(scope="session")
def build() -> Build:
    def make(**options: object) -> Executable:
        parts = [([0, 1], "onnxruntime"), ([2], "host"), ([3], "openvino")]
        return executable_of(small_model(), parts, **options)  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="session")
def small(build: Build) -> Executable:
    return build()


@pytest.fixture
def artefact(small: Executable, tmp_path: Path) -> Path:
    return small.save(tmp_path / "small.collage")
