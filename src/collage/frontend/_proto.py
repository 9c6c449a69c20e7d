"""A model's structure as protobuf, without its weights: for checks, inference and digests that need no data."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from collage.frontend._nodes import bodies_of

__all__ = ["KEPT_BYTES", "forget_claims", "reattach_weights", "skeleton"]

KEPT_BYTES = 1024
"""Larger initializers are left out; smaller ones stay, because shape inference reads them."""


def skeleton(model: ir.Model, kept_bytes: int = KEPT_BYTES) -> onnx.ModelProto:
    """Serialise a model whose larger initializers are replaced by graph inputs of the same type.

    Initializers in external files are left out whatever their size; those of control-flow bodies stay. The model is
    as before when this returns.
    """
    graph = model.graph
    inputs = list(graph.inputs)
    weights = [value for value in graph.initializers.values() if _is_weight(value, kept_bytes)]
    order = list(graph.initializers.values())
    described = [(value, value.type, value.shape) for value in weights]
    # Serialising names tensors after the values that hold them.
    tensors = [value.const_value for part in model.graphs() for value in part.initializers.values()]
    named = [(tensor, tensor.name) for tensor in tensors if tensor is not None]
    for value in weights:
        tensor = value.const_value
        assert tensor is not None and value.name is not None
        value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
        del graph.initializers[value.name]
    graph.inputs.extend(value for value in weights if value not in inputs)
    try:
        return ir.to_proto(model)
    finally:
        graph.inputs.clear()
        graph.inputs.extend(inputs)
        graph.initializers.clear()
        for value in order:
            graph.initializers.add(value)
        for value, type_, shape in described:
            value.type, value.shape = type_, shape
        for tensor, name in named:
            tensor.name = name


def _is_weight(value: ir.Value, kept_bytes: int) -> bool:
    tensor = value.const_value
    return tensor is not None and (isinstance(tensor, ir.ExternalTensor) or tensor.nbytes > kept_bytes)


def forget_claims(graph: onnx.GraphProto) -> None:
    """Drop the stated shapes of results, in bodies too. Their types stay, and so do the types and shapes of inputs."""
    given = {value.name for value in (*graph.input, *graph.initializer)}
    for value in (*graph.value_info, *graph.output):
        if value.name not in given and value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    for node in graph.node:
        for body in bodies_of(node):
            forget_claims(body)


def reattach_weights(converted: ir.Model, model: ir.Model) -> None:
    """Give a model that was made from the skeleton of ``model`` its initializers back."""
    weights = {name: value.const_value for name, value in model.graph.initializers.items()}
    graph = converted.graph
    for value in list(graph.inputs):
        if value.name in weights:
            graph.inputs.remove(value)
            value.const_value = weights[value.name]
            graph.register_initializer(value)
