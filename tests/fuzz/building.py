"""Small models that are written down operator by operator."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import ml_dtypes  # noqa: F401  so that NumPy knows bfloat16 by name
import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.fuzz.draft import IR_VERSION, Sample

_IR_VERSION_OF_OLD = 8
_OLD = 13


class Builder:
    """A model that grows.

    Args:
        rng: Decides everything.
        opset: The operator set.
        dtype: What numbers are of, where nothing else is said.
    """

    def __init__(self, rng: random.Random, opset: int, dtype: str = "float32") -> None:
        self.rng = rng
        self.opset = opset
        self.dtype = dtype
        self.numbers = np.random.default_rng(rng.randrange(2**32))
        self._feeds: dict[str, Any] = {}
        self._weights: list[onnx.TensorProto] = []
        self._nodes: list[onnx.NodeProto] = []

    def maybe(self, share: float = 0.5) -> bool:
        """Return True in this share of cases."""
        return self.rng.random() < share

    def given(self, array: Any, dtype: str | None = None) -> str:
        """Return a new graph input."""
        name = f"x{len(self._feeds)}"
        self._feeds[name] = np.asarray(array, dtype)
        return name

    def floats(self, *shape: int, dtype: str | None = None) -> str:
        """Return a graph input of random numbers."""
        return self.given(self.numbers.uniform(-2, 2, shape).astype(dtype or self.dtype))

    def integers(self, *shape: int, dtype: str = "int64") -> str:
        """Return a graph input of random integers that are small."""
        low = 0 if dtype.startswith("u") else -9
        return self.given(self.numbers.integers(low, 10, shape).astype(dtype))

    def constant(self, array: Any, dtype: str | None = None) -> str:
        """Return an initializer."""
        name = f"c{len(self._weights)}"
        with np.errstate(all="ignore"):
            self._weights.append(numpy_helper.from_array(np.asarray(array).astype(dtype or self.dtype), name))
        return name

    def weight(self, *shape: int, dtype: str | None = None) -> str:
        """Return an initializer of random numbers."""
        return self.constant(self.numbers.uniform(-1, 1, shape), dtype)

    def op(self, op_type: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """Append an operator and return its output, the first of several."""
        return self.ops(op_type, *inputs, outputs=outputs, **attributes)[0]

    def ops(self, op_type: str, *inputs: str, outputs: int = 1, **attributes: Any) -> list[str]:
        """Append an operator and return its outputs."""
        number = len(self._nodes)
        names = [f"v{number}" + (f"_{i}" if i else "") for i in range(outputs)]
        told = {name: value for name, value in attributes.items() if value is not None}
        self._nodes.append(helper.make_node(op_type, inputs, names, name=f"n{number}", **told))
        return names

    def cast(self, x: str, dtype: str) -> str:
        """Append a cast."""
        return self.op("Cast", x, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def reduce(self, kind: str, x: str, axes: Sequence[int], keepdims: int = 1) -> str:
        """Append a reduction, with its axes where the operator set has them."""
        if self.opset >= 18 or (kind == "Sum" and self.opset >= 13):
            return self.op(f"Reduce{kind}", x, self.constant(axes, "int64"), keepdims=keepdims)
        return self.op(f"Reduce{kind}", x, axes=list(axes), keepdims=keepdims)

    def clip(self, x: str, low: float | None, high: float | None, dtype: str | None = None) -> str:
        """Append a Clip, in the form that the operator set has."""
        if self.opset < 11:
            return self.op("Clip", x, min=low, max=high)
        ends = ["" if end is None else self.constant(end, dtype) for end in (low, high)]
        return self.op("Clip", x, *(ends if high is not None else ends[:1] if low is not None else []))

    def body(self, nodes: Sequence[onnx.NodeProto], inputs: Sequence[Any], outputs: Sequence[Any]) -> onnx.GraphProto:
        """Return a graph for an attribute."""
        return helper.make_graph(nodes, f"body{len(self._nodes)}", inputs, outputs)

    def sample(self) -> Sample:
        """Return the model. Its outputs are what nothing reads; shapes and types are as they are inferred."""
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for name, x in self._feeds.items()
        ]
        read = {name for node in self._nodes for name in node.input}
        made = [name for node in self._nodes for name in node.output]
        graph = helper.make_graph(self._nodes, "g", inputs, [], self._weights)
        version = _IR_VERSION_OF_OLD if self.opset < _OLD else IR_VERSION
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=version)
        asked = onnx.ModelProto()
        asked.CopyFrom(model)
        asked.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made if name not in read)
        found = {value.name: value for value in onnx.shape_inference.infer_shapes(asked).graph.output}
        model.graph.output.extend(found[name] for name in made if name not in read)
        return Sample(model, dict(self._feeds))
