"""A fingerprint of a model's structure, to see whether a pass changed anything."""

from __future__ import annotations

import hashlib
from typing import Any

import onnx_ir as ir

__all__ = ["fingerprint"]

_COMPARED_BYTES = 4096
"""Larger tensors are taken for equal if their types and shapes are."""


def fingerprint(model: ir.Model) -> str:
    """Changes whenever operators, attributes, wiring, shapes or small constants do; names do not count."""
    digest = hashlib.sha256(repr(sorted(model.opset_imports.items())).encode())
    numbers: dict[ir.Value, int] = {}
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        digest.update(repr(_describe_graph(graph, numbers)).encode())
    return digest.hexdigest()


def _describe_graph(graph: ir.Graph, numbers: dict[ir.Value, int]) -> list[Any]:
    lines: list[Any] = [[_describe_value(value, numbers) for value in graph.inputs]]
    lines.extend(_describe_initializer(value, numbers) for value in graph.initializers.values())
    for node in graph:
        inputs = [None if value is None else numbers.setdefault(value, len(numbers)) for value in node.inputs]
        attributes = [
            (name, _describe_attribute(attribute, numbers)) for name, attribute in sorted(node.attributes.items())
        ]
        outputs = [_describe_value(value, numbers) for value in node.outputs]
        lines.append((node.op_identifier(), inputs, attributes, outputs))
    lines.append([numbers.setdefault(value, len(numbers)) for value in graph.outputs])
    return lines


def _describe_value(value: ir.Value, numbers: dict[ir.Value, int]) -> tuple[int, str, str]:
    return numbers.setdefault(value, len(numbers)), str(value.type), str(value.shape)


def _describe_initializer(value: ir.Value, numbers: dict[ir.Value, int]) -> tuple[Any, ...]:
    tensor = value.const_value
    return (*_describe_value(value, numbers), None if tensor is None else _describe_tensor(tensor))


def _describe_attribute(attribute: ir.Attr, numbers: dict[ir.Value, int]) -> Any:
    if attribute.is_ref():
        return attribute.ref_attr_name
    match attribute.type:
        case ir.AttributeType.GRAPH:
            return _describe_graph(attribute.as_graph(), numbers)
        case ir.AttributeType.GRAPHS:
            return [_describe_graph(graph, numbers) for graph in attribute.as_graphs()]
        case ir.AttributeType.TENSOR:
            return _describe_tensor(attribute.as_tensor())
        case _:
            return str(attribute.value)


def _describe_tensor(tensor: ir.TensorProtocol) -> tuple[Any, ...]:
    small = tensor.nbytes <= _COMPARED_BYTES and tensor.dtype != ir.DataType.STRING
    return tensor.dtype.name, str(tensor.shape), tensor.tobytes() if small else None
