"""EliminateIdentity: values are used under the name that they were computed by."""

from __future__ import annotations

import onnx_ir as ir

from collage.transform._context import PassContext
from collage.transform._draft import source
from collage.transform._info import PassInfo
from collage.transform._pass_kinds import FunctionLike, FunctionPass

__all__ = ["EliminateIdentity"]

_OF_MANY = ("Sum", "Mean", "Max", "Min")
"""Of one tensor they are that tensor."""


class EliminateIdentity(FunctionPass):
    """Drops Identity nodes, and nodes of equal effect: Sum, Mean, Max or Min of one tensor.

    One that makes an output of the graph is dropped only where the node that computes the value can make the output
    in its place; an output that is an input, a constant, or equal to another output keeps an Identity. Exact.
    """

    def __init__(self) -> None:
        super().__init__(PassInfo("EliminateIdentity", opt_level=1))

    def transform_function(self, function: FunctionLike, model: ir.Model, context: PassContext) -> FunctionLike:
        """Drop in place."""
        if not any(map(_hands_on, source(function))):
            return function
        for node in list(function):
            value = _hands_on(node)
            if value is not None:
                node.op_type = "Identity"
                node.attributes.clear()
                _drop(function, node, value, node.outputs[0])
        return function


def _hands_on(node: ir.Node) -> ir.Value | None:
    """Return the value that a node passes on unchanged; None if it does not."""
    of_one = node.op_type == "Identity" or (node.op_type in _OF_MANY and len(node.inputs) == 1)
    return node.inputs[0] if of_one and node.domain == "" else None


def _drop(function: FunctionLike, node: ir.Node, value: ir.Value, result: ir.Value) -> None:
    is_output = result.is_graph_output()
    producer = value.producer()
    if is_output and (producer is None or producer.graph is not node.graph or value.is_graph_output()):
        return
    value.type = value.type or result.type
    value.shape = value.shape if value.shape is not None else result.shape
    result.replace_all_uses_with(value, replace_graph_outputs=True)
    function.remove(node, safe=True)
    if is_output:
        value.name = result.name
