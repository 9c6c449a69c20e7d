"""Models of one node, run by ONNX Runtime as they are and as ``ExpandContributed`` writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage.transform import ExpandContributed, InferType, PassContext

ort = pytest.importorskip("onnxruntime")

F = np.float32


def floats(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(F)


@dataclass(frozen=True)
class Case:
    """A node: inputs by position, None where left out; those in ``weights`` are initializers."""

    op_type: str
    inputs: Sequence[np.ndarray[Any, Any] | None]
    weights: Sequence[int] = ()
    outputs: int = 1
    attributes: dict[str, Any] = field(default_factory=dict)
    domain: str = "com.microsoft"
    symbolic: bool = False

    def model(self, version: int) -> onnx.ModelProto:
        """As a model of one node and one more behind it, whose shape nothing but the node's tells."""
        names = [f"i{i}" if x is not None else "" for i, x in enumerate(self.inputs)]
        outputs = [f"y{i}" for i in range(self.outputs)]
        node = helper.make_node(self.op_type, names, outputs, "node", domain=self.domain, **self.attributes)
        after = [helper.make_node("Squeeze", [y], [f"o{y}"], f"after {y}") for y in outputs]
        given = [i for i, x in enumerate(self.inputs) if x is not None and i not in self.weights]
        graph = helper.make_graph(
            [node, *after],
            "g",
            [
                helper.make_tensor_value_info(names[i], helper.np_dtype_to_tensor_dtype(x.dtype), self._shape(i, x))
                for i, x in enumerate(self.inputs)
                if x is not None and i in given
            ],
            [helper.make_tensor_value_info(f"o{y}", self.output_type(i), None) for i, y in enumerate(outputs)],
            [numpy_helper.from_array(x, names[i]) for i in self.weights if (x := self.inputs[i]) is not None],
        )
        opsets = [helper.make_opsetid("", version), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)

    def output_type(self, index: int) -> int:
        if (self.op_type, index) == ("EmbedLayerNormalization", 1):
            return TensorProto.INT32
        if self.op_type == "Range":
            return helper.np_dtype_to_tensor_dtype(np.asarray(self.inputs[0]).dtype)
        in_bytes = self.op_type.startswith(("QLinear", "Quantize")) or (
            self.op_type == "QGemm" and len(self.inputs) > 7
        )
        return TensorProto.UINT8 if in_bytes else TensorProto.FLOAT

    def _shape(self, i: int, x: np.ndarray[Any, Any]) -> list[Any]:
        return [f"d{i}.{axis}" if axis == 0 and self.symbolic else length for axis, length in enumerate(x.shape)]

    def feeds(self) -> dict[str, np.ndarray[Any, Any]]:
        return {f"i{i}": x for i, x in enumerate(self.inputs) if x is not None and i not in self.weights}


def expanded(case: Case, version: int, *, assuming: bool = False) -> ir.Model:
    with PassContext(opt_level=0):
        return ExpandContributed(assuming=assuming)(InferType()(ir.from_proto(case.model(version))))


def answers(model: onnx.ModelProto, case: Case) -> list[np.ndarray[Any, Any]]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model.SerializeToString(), options).run(None, case.feeds())
