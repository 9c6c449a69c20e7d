"""InferType: types and shapes of all values, by ONNX's own inference."""

from __future__ import annotations

import onnx_ir as ir

from collage.frontend import forget_claims, infer_shapes, inferable, skeleton
from collage.transform._context import PassContext
from collage.transform._info import PassInfo
from collage.transform._pass import ModulePass

__all__ = ["InferType"]


class InferType(ModulePass):
    """Finds types and shapes, with the values of small shape computations propagated.

    What was known is refined, never forgotten: a number beats a symbol, and a symbol of the model one that inference
    made up. Where a file claims one number and another follows from its inputs, the claim is wrong: people change the batch
    of their inputs, and runtimes go by these. A claim counts where nothing follows, as of what foreign operators return.
    """

    def __init__(self) -> None:
        super().__init__(PassInfo("InferType", opt_level=0))

    def transform_module(self, model: ir.Model, context: PassContext) -> ir.Model:
        """Infers types and shapes in place."""
        proto = skeleton(model)
        forget_claims(proto.graph)
        _learn(model, ir.from_proto(infer_shapes(inferable(proto))))
        if any(
            value.shape is None or not value.shape.is_static() for graph in model.graphs() for value in _values(graph)
        ):
            _learn(model, ir.from_proto(infer_shapes(inferable(skeleton(model)))))
        return model


def _learn(model: ir.Model, inferred: ir.Model) -> None:
    for graph, inferred_graph in zip(model.graphs(), inferred.graphs(), strict=True):
        found = {value.name: value for value in _values(inferred_graph)}
        for value in _values(graph):
            if value.name in found:
                _refine(value, found[value.name])


def _values(graph: ir.Graph) -> list[ir.Value]:
    return [*graph.inputs, *(value for node in graph for value in node.outputs)]


def _refine(value: ir.Value, found: ir.Value) -> None:
    if value.type is None:
        value.type = found.type
    if found.shape is None:
        return
    if value.shape is None:
        value.shape = ir.Shape(found.shape)
    elif len(value.shape) == len(found.shape):
        value.shape = ir.Shape(
            theirs if isinstance(theirs, int) or not _is_known(ours) else ours
            for ours, theirs in zip(value.shape, found.shape, strict=True)
        )
    elif not value.is_graph_input():
        value.shape = ir.Shape(found.shape)


def _is_known(dim: int | ir.SymbolicDim) -> bool:
    return isinstance(dim, int) or dim.value is not None
