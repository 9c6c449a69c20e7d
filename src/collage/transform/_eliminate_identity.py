"""EliminateIdentity: values are used under the name that they were computed by."""

from __future__ import annotations

import onnx_ir as ir

from collage.transform._context import PassContext
from collage.transform._draft import has_operator
from collage.transform._info import PassInfo
from collage.transform._pass import FunctionLike, FunctionPass

__all__ = ["EliminateIdentity"]


class EliminateIdentity(FunctionPass):
    """Drops Identity nodes.

    One that makes an output of the graph is dropped only where the node that computes the value can make the output
    in its place; an output that is an input, a constant, or equal to another output keeps its Identity.
    """

    def __init__(self) -> None:
        super().__init__(PassInfo("EliminateIdentity", opt_level=1))

    def transform_function(self, function: FunctionLike, model: ir.Model, context: PassContext) -> FunctionLike:
        """Drops in place."""
        if not has_operator(function, ("Identity",)):
            return function
        for node in list(function):
            if node.op_type == "Identity" and node.domain == "" and node.inputs[0] is not None:
                _drop(function, node, node.inputs[0], node.outputs[0])
        return function


def _drop(function: FunctionLike, node: ir.Node, source: ir.Value, result: ir.Value) -> None:
    is_output = result.is_graph_output()
    producer = source.producer()
    if is_output and (producer is None or producer.graph is not node.graph or source.is_graph_output()):
        return
    source.type = source.type or result.type
    source.shape = source.shape if source.shape is not None else result.shape
    result.replace_all_uses_with(source, replace_graph_outputs=True)
    function.remove(node, safe=True)
    if is_output:
        source.name = result.name
