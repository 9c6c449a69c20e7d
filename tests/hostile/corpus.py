"""Where hostile models are registered: each entry writes one attack into a folder and returns the path of the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CORPUS: dict[str, Callable[[Path], Path]] = {}
"""Models that are refused."""

LABORIOUS: dict[str, Callable[[Path], Path]] = {}
"""Models that are valid, but gigabytes of work to whoever takes their lengths for shapes."""


def attack(function: Callable[[Path], Path]) -> Callable[[Path], Path]:
    CORPUS[function.__name__] = function
    return function


def laborious(function: Callable[[Path], Path]) -> Callable[[Path], Path]:
    LABORIOUS[function.__name__] = function
    return function


def model(nodes, *, initializers=(), inputs=None, outputs=None, functions=(), opset=17, name="g") -> onnx.ModelProto:
    inputs = inputs or [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])]
    outputs = outputs or [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(list(nodes), name, inputs, outputs, list(initializers))
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, ir_version=10, opset_imports=imports, functions=list(functions))


def save(proto: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def constant(name: str, values, dtype=np.int64) -> TensorProto:
    return numpy_helper.from_array(np.array(values, dtype), name)
