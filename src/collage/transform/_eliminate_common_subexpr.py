"""EliminateCommonSubexpr: equal nodes are computed once."""

from __future__ import annotations

from collections.abc import Hashable

import onnx_ir as ir

from collage.transform._context import PassContext
from collage.transform._effects import bodies, is_pure
from collage.transform._info import PassInfo
from collage.transform._pass_kinds import FunctionLike, FunctionPass

__all__ = ["EliminateCommonSubexpr"]

_COMPARED_BYTES = 4096
"""Constants up to this size are compared by value; larger ones by identity."""


class EliminateCommonSubexpr(FunctionPass):
    """Merges nodes of one graph that apply the same operator, with the same attributes, to the same values.

    Random operators, operators of unknown domains and control flow are never merged, nor are two nodes that both
    make an output of the graph: each output keeps a node and a name of its own.

    Exact: attributes and constants are equal to the bit, and of the same type, so -0.0 and 0.0 are two numbers.
    """

    def __init__(self) -> None:
        super().__init__(PassInfo("EliminateCommonSubexpr", opt_level=2))

    def transform_function(self, function: FunctionLike, model: ir.Model, context: PassContext) -> FunctionLike:
        """Merge in place."""
        constants: dict[Hashable, int] = {}
        first: dict[Hashable, ir.Node] = {}
        for node in list(function):
            if not is_pure(node) or any(True for _ in bodies(node)):
                continue
            key = _key(node, constants)
            kept = first.setdefault(key, node)
            if kept is not node and not _replace(function, node, kept):
                first[key] = node
        return function


def _key(node: ir.Node, constants: dict[Hashable, int]) -> Hashable:
    attributes = tuple((name, _attribute_key(attribute)) for name, attribute in sorted(node.attributes.items()))
    inputs = tuple(None if value is None else _value_key(value, constants) for value in node.inputs)
    return node.op_identifier(), attributes, inputs, len(node.outputs)


def _value_key(value: ir.Value, constants: dict[Hashable, int]) -> int:
    tensor = value.const_value
    if tensor is None or not value.is_initializer() or value.is_graph_input():
        return id(value)
    key = _tensor_key(tensor)
    return constants.setdefault(key, id(value))


def _attribute_key(attribute: ir.Attr) -> Hashable:
    if attribute.is_ref():
        return "ref", attribute.ref_attr_name
    if attribute.type == ir.AttributeType.TENSOR:
        return _tensor_key(attribute.as_tensor())
    if attribute.type == ir.AttributeType.TENSORS:
        return tuple(map(_tensor_key, attribute.as_tensors()))
    if attribute.type in (ir.AttributeType.SPARSE_TENSOR, ir.AttributeType.SPARSE_TENSORS):
        return id(attribute.value)
    return attribute.type, repr(attribute.value)  # of numbers, it tells -0.0 from 0.0


def _tensor_key(tensor: ir.TensorProtocol) -> Hashable:
    if tensor.dtype == ir.DataType.STRING or tensor.nbytes > _COMPARED_BYTES:
        return id(tensor)
    return tensor.dtype, tuple(tensor.shape.numpy()), tensor.tobytes()


def _replace(function: FunctionLike, node: ir.Node, kept: ir.Node) -> bool:
    """Lets the users of ``node`` use ``kept``; False if an output of the graph stands in the way."""
    if any(value.is_graph_output() for value in node.outputs):
        return False
    for value, replacement in zip(node.outputs, kept.outputs, strict=True):
        if not replacement.name:
            replacement.name = value.name
        if replacement.shape is None:
            replacement.shape = value.shape
        value.replace_all_uses_with(replacement)
    function.remove(node, safe=True)
    return True
