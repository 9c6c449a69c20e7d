"""A model's structure as protobuf, without its weights: for checks and inference that need no data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import onnx
import onnx_ir as ir

__all__ = ["without_weights"]

_KEPT_BYTES = 1024
"""Smaller tensors stay: shape inference reads them."""


@contextmanager
def without_weights(model: ir.Model) -> Iterator[onnx.ModelProto]:
    """Serialises a model whose larger initializers are replaced by graph inputs of the same type.

    The model itself is as before when the block ends. The bodies of control flow keep their initializers.
    """
    graph = model.graph
    inputs = list(graph.inputs)
    large = [
        value
        for value in graph.initializers.values()
        if value.const_value is not None and value.const_value.nbytes > _KEPT_BYTES
    ]
    for value in large:
        tensor = value.const_value
        assert tensor is not None and value.name is not None
        value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape)
        del graph.initializers[value.name]
    graph.inputs.extend(value for value in large if value not in inputs)
    try:
        proto = ir.to_proto(model)
    finally:
        del graph.inputs[:]
        graph.inputs.extend(inputs)
        for value in large:
            graph.register_initializer(value)
    yield proto
