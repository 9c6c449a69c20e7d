"""InferType: types and shapes of all values, by ONNX's own inference."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from collage.frontend import forget_claims, infer_shapes, inferable, skeleton
from collage.graph import note_lengths
from collage.transform._context import PassContext
from collage.transform._info import PassInfo
from collage.transform._pass_kinds import ModulePass

__all__ = ["InferType"]

_MADE_UP = "unk__"
"""Beginning of the symbols that inference makes up, one for each unknown length."""

_MOST_DOUBTS = 8
"""Most rounds in which lengths that a Loop changes cast doubt on others. There are fewer in each round."""


class InferType(ModulePass):
    """Finds types and shapes, with the values of small shape computations propagated.

    Known facts are refined, never forgotten: a number beats a symbol, and a symbol of the model one that inference
    made up. If a file claims one number and another follows from its inputs, the claim is wrong: people change the batch
    of their inputs, and runtimes go by these. So is one number where a symbol of an input follows: it is true of one length
    alone. A claim counts if nothing is inferred, for example for results of foreign operators.
    A loop-carried value has a length in the body only if its initial value has it and every iteration keeps it.
    """

    def __init__(self) -> None:
        super().__init__(PassInfo("InferType", opt_level=0))

    def transform_module(self, model: ir.Model, context: PassContext) -> ir.Model:
        """Infers types and shapes in place."""
        symbols = _symbols_of_inputs(model)
        _forget_made_up(model, symbols)
        proto = skeleton(model)
        forget_claims(proto.graph)
        _learn(model, ir.from_proto(infer_shapes(inferable(proto))), symbols)
        if any(
            value.shape is None or not value.shape.is_static() for graph in model.graphs() for value in _values(graph)
        ):
            _forget_made_up(model, symbols)
            _learn(model, ir.from_proto(infer_shapes(inferable(skeleton(model)))))
        loops = [node for node in model.graph.all_nodes() if node.op_type == "Loop" and node.domain == ""]
        for _ in range(_MOST_DOUBTS):
            if not any([_doubt_carried(loop) for loop in loops]):
                break
            _learn(model, ir.from_proto(infer_shapes(inferable(skeleton(model)))))
        note_lengths(model.graph)
        return model


def _doubt_carried(loop: ir.Node) -> bool:
    """Drop lengths of loop-carried values that change between iterations, and all facts that were inferred from them."""
    body, doubted = loop.attributes["body"].as_graph(), False
    for begun, carried, handed_on in zip(loop.inputs[2:], body.inputs[2:], body.outputs[1:], strict=False):
        claimed, next_one = carried.shape, handed_on.shape
        if claimed is None or next_one is None:
            continue
        first = begun.shape if begun is not None and begun.shape is not None else claimed
        if len(next_one) != len(claimed) or len(first) != len(claimed):
            carried.shape, doubted = None, True
            continue
        changes = [
            _is_known(dim) and not str(dim).startswith(_MADE_UP) and not dim == after == before
            for dim, after, before in zip(claimed, next_one, first, strict=True)
        ]
        if any(changes):
            dims = (None if changed else dim for dim, changed in zip(claimed, changes, strict=True))
            carried.shape, doubted = ir.Shape(dims), True
    if doubted:
        for value in (value for node in body.all_nodes() for value in node.outputs):
            value.shape = None
    return doubted


def _symbols_of_inputs(model: ir.Model) -> frozenset[str]:
    dims = (dim for value in model.graph.inputs for dim in value.shape or ())
    return frozenset(str(dim) for dim in dims if not isinstance(dim, int) and dim.value is not None)


def _forget_made_up(model: ir.Model, symbols: Collection[str]) -> None:
    """Drop the symbols that an inference made up: the next one begins to count at 0 again."""
    for value in (value for node in model.graph.all_nodes() for value in node.outputs):
        dims = [None if isinstance(dim, int) else dim.value for dim in value.shape or ()]
        made_up = [dim is not None and dim.startswith(_MADE_UP) and dim not in symbols for dim in dims]
        if any(made_up) and value.shape is not None:
            value.shape = ir.Shape(None if drop else dim for dim, drop in zip(value.shape, made_up, strict=True))


def _learn(model: ir.Model, inferred: ir.Model, proven: frozenset[str] = frozenset()) -> None:
    for graph, inferred_graph in zip(model.graphs(), inferred.graphs(), strict=True):
        found = {value.name: value for value in _values(inferred_graph)}
        for value in _values(graph):
            if value.name in found:
                _refine(value, found[value.name], proven)


def _values(graph: ir.Graph) -> list[ir.Value]:
    return [*graph.inputs, *(value for node in graph for value in node.outputs)]


def _refine(value: ir.Value, found: ir.Value, proven: frozenset[str]) -> None:
    if value.type is None:
        value.type = found.type
    if found.shape is None:
        return
    if value.shape is None:
        value.shape = ir.Shape(found.shape)
    elif len(value.shape) == len(found.shape):
        value.shape = ir.Shape(
            theirs
            if isinstance(theirs, int) or not _is_known(ours) or (isinstance(ours, int) and str(theirs) in proven)
            else ours
            for ours, theirs in zip(value.shape, found.shape, strict=True)
        )
    elif not value.is_graph_input():
        value.shape = ir.Shape(found.shape)


def _is_known(dim: int | ir.SymbolicDim) -> bool:
    return isinstance(dim, int) or dim.value is not None
