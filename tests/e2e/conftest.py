"""Small real models, and a timing database of the test run's own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage.workers.worker import Worker
from tests.own_locks import own_locks
from tests.short_measurements import shorten_measurements

__all__ = ["own_locks"]

shorten_measurements()

MENU = ("llvm", "onnxruntime", "openvino")


@pytest.fixture(scope="session", autouse=True)
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    url = str(tmp_path_factory.mktemp("db") / "timings.sqlite")
    os.environ["COLLAGE_DB"] = url
    yield url
    del os.environ["COLLAGE_DB"]


def model_of(
    nodes: list[onnx.NodeProto], inputs: dict, outputs: dict, weights: dict, opset: int = 17
) -> onnx.ModelProto:
    def values(table: dict) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in table.items()]

    initializers = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "g", values(inputs), values(outputs), initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


@pytest.fixture(scope="session")
def mixed_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A convolution, a GRU with lengths of sequences, which TVM does not take, and two outputs."""
    random = np.random.default_rng(0)

    def weight(*shape: int) -> np.ndarray:
        return (0.2 * random.standard_normal(shape)).astype(np.float32)

    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], name="conv", pads=[1, 1]),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("Transpose", ["r"], ["t"], name="transpose", perm=[2, 0, 1]),
        helper.make_node("GRU", ["t", "gw", "gr", "", "lengths"], ["h", "last"], name="gru", hidden_size=16),
        helper.make_node("Squeeze", ["h", "axis"], ["s"], name="squeeze"),
        helper.make_node("MatMul", ["s", "m"], ["z"], name="project"),
        helper.make_node("Softmax", ["z"], ["y"], name="softmax", axis=-1),
    ]
    weights = {
        "w": weight(24, 8, 3),
        "b": weight(24),
        "gw": weight(1, 48, 24),
        "gr": weight(1, 48, 16),
        "lengths": np.array([50], np.int32),
        "axis": np.array([1]),
        "m": weight(16, 10),
    }
    float_ = TensorProto.FLOAT
    model = model_of(
        nodes, {"x": (float_, [1, 8, 50])}, {"y": (float_, [50, 1, 10]), "last": (float_, [1, 1, 16])}, weights
    )
    onnx.checker.check_model(model, full_check=True)
    path = tmp_path_factory.mktemp("models") / "mixed.onnx"
    onnx.save(model, path)
    return path


LENT: dict[str, Worker] = {}
"""Worker processes of installed toolchains, which compilations share: most of the time of a small one is theirs to start."""


@pytest.fixture(scope="session", autouse=True)
def _end_workers() -> Iterator[None]:
    yield
    for worker in LENT.values():
        worker.kill()
