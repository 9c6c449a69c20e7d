"""The body of an If, a Loop or a Scan as a model of its own."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from collage.graph import DataflowGraph, IndexSet, SubGraph, bodies, constant_tensor, extract, is_view
from collage.transform import InferType, PassContext

__all__ = ["body_model", "everything", "is_searchable", "state_lengths", "stated_runs"]

_OPERATORS = ("If", "Loop", "Scan")
_OWN = 2
"""Inputs of a Loop, and of its body, before the states."""
_MOST_ROUNDS = 8


def everything(graph: DataflowGraph) -> SubGraph:
    """Return all nodes of a graph."""
    return SubGraph(graph, IndexSet.range(0, len(graph)))


def is_searchable(node: ir.Node) -> bool:
    """Return True if a node has bodies that are run here, with work in them."""
    inner = [each for body in bodies(node) for each in body.all_nodes()]
    return node.domain == "" and node.op_type in _OPERATORS and not all(map(is_view, inner))


_NO_LIMIT = (1 << 63) - 1
"""Trips of a Loop that only its condition ends, as exporters write them."""


def stated_runs(node: ir.Node) -> int:
    """Return how often each body of a node runs, if the model states it: the trips of a Loop, the length of a Scan; else 1."""
    if node.op_type == "Loop":
        trips = None if node.inputs[0] is None else constant_tensor(node.inputs[0])
        count = 1 if trips is None else max(0, int(trips.numpy().item()))
        return 1 if count == _NO_LIMIT else count
    if node.op_type == "Scan":
        count = node.attributes["num_scan_inputs"].as_int()
        axes = node.attributes["scan_input_axes"].as_ints() if "scan_input_axes" in node.attributes else [0] * count
        scanned = node.inputs[-count]
        length = None if scanned is None or scanned.shape is None else scanned.shape[axes[0]]
        return length if isinstance(length, int) else 1
    return 1


def body_model(graph: DataflowGraph, node: ir.Node, name: str) -> ir.Model:
    """Return the body of a node as a model. Its inputs are the body's inputs, and values from outside.

    Lengths of values carried from one iteration to the next are stated only if they follow from the initial lengths and
    from operators that keep them. All others are free.

    Args:
        graph: The body.
        node: The node that holds it.
        name: The name of the model.
    """
    model = extract(graph, everything(graph), name)
    carried = _carried(graph, node)
    shapes = {str(value.name): _shape_of(begun, value) for value, begun, _ in carried}
    shapes |= _given(graph, node)
    for _ in range(_MOST_ROUNDS):
        model = _inferred(model, shapes)
        known = {
            str(value.name): value for value in (*model.graph.inputs, *(v for n in model.graph for v in n.outputs))
        }
        doubted = False
        for value, _, handed_on in carried:
            claimed = shapes[str(value.name)]
            found = _result_shape(handed_on, known)
            kept = _kept(claimed, found)
            if kept != claimed:
                shapes[str(value.name)], doubted = kept, True
        if not doubted:
            return model
    return _inferred(model, {**shapes, **{str(value.name): None for value, _, _ in carried}})


def state_lengths(node: ir.Node, model: ir.Model) -> None:
    """State in the bodies of a node, and in those within, the lengths that `body_model` finds.

    The shape of a result of which nothing is found stays as the model states it: it is the shape of an empty stack.
    """
    for body in bodies(node):
        found = body_model(DataflowGraph(body, model=model), node, "lengths").graph
        shapes = {value.name: value.shape for value in (*found.inputs, *(v for n in found for v in n.outputs))}
        for value in body.inputs:
            value.shape = shapes.get(value.name, value.shape)
        for value in (v for n in body for v in n.outputs):
            if shapes.get(value.name) is not None:
                value.shape = shapes[value.name]
        for inner in body:
            state_lengths(inner, model)


Lengths = tuple[int | str | None, ...] | None
"""The lengths of a shape as far as they are known: a number, a name, or None; None if not even the rank is known."""


def _carried(graph: DataflowGraph, node: ir.Node) -> list[tuple[ir.Value, ir.Value | None, ir.Value]]:
    """Return the states of a Loop or a Scan: the body's input, its initial value, and the body's output for the next turn."""
    body = graph.graph
    inputs, outputs = list(body.inputs), list(body.outputs)
    if node.op_type == "Loop":
        return list(zip(inputs[_OWN:], node.inputs[_OWN:], outputs[1:], strict=False))
    if node.op_type == "Scan":
        count = len(node.inputs) - node.attributes["num_scan_inputs"].as_int()
        return list(zip(inputs[:count], node.inputs[:count], outputs[:count], strict=True))
    return []


def _given(graph: DataflowGraph, node: ir.Node) -> dict[str, Lengths]:
    """Return the shapes of the other inputs of a body: those of a Loop are scalars, a Scan takes tensors apart."""
    inputs = list(graph.graph.inputs)
    if node.op_type == "Loop":
        return {str(value.name): _lengths(value.shape) if value.shape is not None else () for value in inputs[:_OWN]}
    if node.op_type != "Scan":
        return {}
    count = node.attributes["num_scan_inputs"].as_int()
    axes = node.attributes["scan_input_axes"].as_ints() if "scan_input_axes" in node.attributes else [0] * count
    found: dict[str, Lengths] = {}
    for value, whole, axis in zip(inputs[-count:], node.inputs[-count:], axes, strict=True):
        lengths = None if whole is None else _lengths(whole.shape)
        if lengths is not None:
            axis %= len(lengths)
            found[str(value.name)] = (*lengths[:axis], *lengths[axis + 1 :])
    return found


def _inferred(model: ir.Model, shapes: Mapping[str, Lengths]) -> ir.Model:
    """Return a model whose results have only the shapes that follow from the lengths of its inputs."""
    for value in model.graph.inputs:
        if str(value.name) in shapes:
            lengths = shapes[str(value.name)]
            value.shape = None if lengths is None else ir.Shape(lengths)
    for node in model.graph.all_nodes():
        for value in node.outputs:
            value.shape = None
    with PassContext(opt_level=0):
        return InferType()(model)


def _shape_of(begun: ir.Value | None, value: ir.Value) -> Lengths:
    if begun is None:
        return _lengths(value.shape)
    tensor = constant_tensor(begun)
    return _lengths(begun.shape if tensor is None else ir.Shape(tensor.shape.numpy()))


def _result_shape(value: ir.Value, known: Mapping[str, ir.Value]) -> Lengths:
    tensor = constant_tensor(value)
    if tensor is not None:
        return tuple(int(length) for length in tensor.shape.numpy())
    return _lengths(known.get(str(value.name), value).shape)


def _kept(claimed: Lengths, found: Lengths) -> Lengths:
    """Return the lengths that are the same after an iteration."""
    if claimed is None or found is None or len(claimed) != len(found):
        return None
    return tuple(
        before if before is not None and before == after else None for before, after in zip(claimed, found, strict=True)
    )


def _lengths(shape: ir.Shape | None) -> Lengths:
    if shape is None:
        return None
    return tuple(length if isinstance(length, int) else length.value for length in shape)
