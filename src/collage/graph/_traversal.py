"""Reading onnx_ir graphs: the values that a node uses, constants, and a canonical order of nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

import onnx_ir as ir

from collage._errors import ModelError

__all__ = [
    "GraphLike",
    "all_graphs",
    "bodies",
    "captured_values",
    "constant_tensor",
    "is_kernel_value",
    "post_dfs",
    "used_values",
]

GraphLike: TypeAlias = ir.Graph | ir.Function
"""A main graph, a control-flow body, or a function: the source of a DataflowGraph."""

_GRAPH_ATTRIBUTES = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
_NO_TENSORS = frozenset(
    {"Optional", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceMap"}
    | {"SplitToSequence", "StringConcat", "StringNormalizer", "StringSplit", "ZipMap", "CastMap"}
)


def all_graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """Yield the graphs of a model and of its functions, with those of bodies inside."""
    yield from model.graphs()
    for function in model.functions.values():
        yield function.graph
        yield from function.graph.subgraphs()


def bodies(node: ir.Node) -> Iterator[ir.Graph]:
    """The graphs held by the node's attributes (control-flow bodies), in order of attribute name."""
    # Most nodes have none: ``data`` is the dictionary behind the attributes, and read several times as fast.
    held = [a for a in node.attributes.data.values() if a.type in _GRAPH_ATTRIBUTES and not a.is_ref()]
    for attribute in sorted(held, key=lambda attribute: attribute.name):
        yield from (attribute.as_graph(),) if attribute.type == ir.AttributeType.GRAPH else attribute.as_graphs()


def captured_values(node: ir.Node) -> tuple[ir.Value, ...]:
    """Values from outside that the node's control-flow bodies use, in canonical order, each once."""
    captured: dict[ir.Value, None] = {}
    for body in bodies(node):
        defined: set[ir.Value] = {*body.inputs, *body.initializers.values()}
        inner = _uses_in_order(body)
        inner.update((n, used_values(n)) for n in body if n not in inner)
        for n in inner:
            defined.update(n.outputs)
        uses = [v for used in inner.values() for v in used] + list(body.outputs)
        captured.update((v, None) for v in uses if v not in defined)
    return tuple(captured)


def used_values(node: ir.Node) -> tuple[ir.Value, ...]:
    """All values that the node reads, each once: its inputs, then the values that its bodies capture."""
    used = dict.fromkeys(v for v in node.inputs if v is not None)
    if any(a.type in _GRAPH_ATTRIBUTES for a in node.attributes.data.values()):
        used.update(dict.fromkeys(captured_values(node)))
    return tuple(used)


def post_dfs(graph: GraphLike) -> list[ir.Node]:
    """The nodes that reach an output, each after everything it reads.

    The order is that of a depth-first walk from the outputs that visits a node's inputs in their order, so branches
    stay together, and neither names nor the order of the node list matter.

    Raises:
        ModelError: The graph has a cycle.
    """
    return list(_uses_in_order(graph))


def _uses_in_order(graph: GraphLike) -> dict[ir.Node, tuple[ir.Value, ...]]:
    """Return the nodes as ``post_dfs`` does, each with the values that it reads.

    These are looked up once a node. With more look-ups, the time would be a power of the depth of bodies within bodies.
    """
    own = graph.graph if isinstance(graph, ir.Function) else graph
    order: dict[ir.Node, tuple[ir.Value, ...]] = {}
    used: dict[ir.Node, tuple[ir.Value, ...]] = {}  # of the nodes that have been met
    for output in graph.outputs:
        stack = [(output.producer(), False)]
        while stack:
            node, is_ready = stack.pop()
            if node is None or node.graph is not own:
                continue
            if is_ready:
                order[node] = used[node]
            elif node not in used:
                used[node] = used_values(node)
                stack.append((node, True))
                stack.extend((value.producer(), False) for value in reversed(used[node]))
    _refuse_cycles(order)
    return order


def _refuse_cycles(order: Mapping[ir.Node, tuple[ir.Value, ...]]) -> None:
    position = {node: i for i, node in enumerate(order)}
    for node, i in position.items():
        for value in order[node]:
            producer = value.producer()
            if producer is not None and position.get(producer, -1) >= i:
                raise ModelError(f"the graph has a cycle through node {node.name!r}")


def constant_tensor(value: ir.Value) -> ir.TensorProtocol | None:
    """The tensor of an initializer or of a Constant node; None if the value varies.

    An initializer that is also a graph input is only a default, so it varies.
    """
    if value.is_initializer():
        return None if value.is_graph_input() else value.const_value
    node = value.producer()
    if node is None or node.op_type != "Constant" or node.domain != "":
        return None
    attribute = next(iter(node.attributes.values()), None)
    if attribute is None or attribute.is_ref() or attribute.type == ir.AttributeType.SPARSE_TENSOR:
        return None
    return stored_tensor(value)


def stored_tensor(value: ir.Value) -> ir.TensorProtocol | None:
    """Return the tensor that is known of a value, defaults of inputs included; None if there is none.

    The function of ONNX IR for this renames the tensor of a Constant node, and so changes the model that it looks at.
    """
    node = value.producer()
    if value.const_value is None and node is not None and node.op_identifier() == ("", "Constant", ""):
        attribute = node.attributes.get("value")
        if attribute is not None and not attribute.is_ref():
            return attribute.as_tensor()
    return ir.convenience.get_const_tensor(value)


def is_kernel_value(value: ir.Value) -> bool:
    """Return True if a value may cross a kernel's border: tensors may; sequences, optionals, maps and strings may not."""
    if value.type is not None:
        return isinstance(value.type, ir.TensorType) and value.dtype != ir.DataType.STRING
    node = value.producer()
    return node is None or node.op_type not in _NO_TENSORS
