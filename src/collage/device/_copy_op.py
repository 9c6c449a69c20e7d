"""``device_copy``: the operator that moves a tensor to another scope.

It is a function of the domain ``collage`` whose body is an Identity, so that a planned model runs anywhere. Its scopes
are metadata of the calling node.
"""

from __future__ import annotations

import onnx_ir as ir

from collage._errors import ModelError
from collage.device._scope import ScopeLike, SEScope, as_scope
from collage.graph import KERNEL_DOMAIN

__all__ = [
    "DEVICE_COPY",
    "DST_SE_SCOPE",
    "PLANNED_COPY",
    "SRC_SE_SCOPE",
    "copies_from_identities",
    "copies_to_identities",
    "copy_scopes",
    "device_copy",
    "is_device_copy",
]

DEVICE_COPY = "device_copy"

SRC_SE_SCOPE = "src_se_scope"
"""Metadata key of copies: where the tensor comes from."""

DST_SE_SCOPE = "dst_se_scope"
"""Metadata key of copies: where it goes."""

PLANNED_COPY = "planned_copy"
"""Metadata key of copies that ``PlanDevices`` inserted; it removes and inserts them again."""

_IDENTIFIER = (KERNEL_DOMAIN, DEVICE_COPY, "")
_DOMAIN_VERSION = 1
_OLDEST_OPSET = 13


def is_device_copy(node: ir.Node) -> bool:
    """Return True if a node is a copy between scopes."""
    return node.op_identifier() == _IDENTIFIER


def copy_scopes(node: ir.Node) -> tuple[SEScope, SEScope]:
    """The source and the destination of a copy, as far as they are given."""
    metadata = node.metadata_props
    return SEScope.parse(metadata.get(SRC_SE_SCOPE, "?")), SEScope.parse(metadata.get(DST_SE_SCOPE, "?"))


def device_copy(model: ir.Model, value: ir.Value, dst: ScopeLike, src: ScopeLike = "?") -> ir.Value:
    """Insert a copy of a value right after the node that computes it. The caller redirects readers to the copy.

    Args:
        model: The model, changed in place.
        value: A tensor of its main graph, of a body or of a function.
        dst: Scope of the copy.
        src: Scope of the value; usually left to the planner.

    Returns:
        The copy.
    """
    graph = value.graph
    assert graph is not None
    node = new_copy(model, value, str(as_scope(src)), str(as_scope(dst)), f"{value.name}_copy")
    insert_after_definition(graph, value, node)
    import_domain(model)
    return node.outputs[0]


def copies_from_identities(model: ir.Model) -> None:
    """Make copies, in place, of the Identity nodes that the front door made of copies in a file."""
    for node in model.graph.all_nodes():
        if node.op_identifier() == ("", "Identity", "") and DST_SE_SCOPE in node.metadata_props:
            register(model)
            node.domain, node.op_type = KERNEL_DOMAIN, DEVICE_COPY


def copies_to_identities(model: ir.Model) -> None:
    """Turn all copies into Identity nodes, in place, for a runtime that plans its own copies."""
    for node in model.graph.all_nodes():
        if is_device_copy(node):
            node.domain, node.op_type = "", "Identity"
    if model.functions.pop(_IDENTIFIER, None) is not None and not model.functions:
        model.graph.opset_imports.pop(KERNEL_DOMAIN, None)


def import_domain(model: ir.Model) -> None:
    """Lets every function that copies, in its bodies too, import the operator's domain."""
    for function in model.functions.values():
        if any(map(is_device_copy, function.all_nodes())):
            function.opset_imports.setdefault(KERNEL_DOMAIN, _DOMAIN_VERSION)


def new_copy(model: ir.Model, value: ir.Value, src: str, dst: str, name: str) -> ir.Node:
    """A copy that belongs to no graph yet; makes its function known to the model."""
    register(model)
    node = ir.Node(
        KERNEL_DOMAIN,
        DEVICE_COPY,
        [value],
        name=name,
        metadata_props={SRC_SE_SCOPE: src, DST_SE_SCOPE: dst},
    )
    result = node.outputs[0]
    result.name, result.type = name, value.type
    result.shape = value.shape.copy() if value.shape is not None else None
    return node


def insert_after_definition(graph: ir.Graph, value: ir.Value, node: ir.Node) -> None:
    """Put a node where a value of a graph first exists."""
    producer = value.producer()
    if producer is not None and producer.graph is graph:
        graph.insert_after(producer, node)
    elif len(graph):
        graph.insert_before(graph[0], node)
    else:
        graph.append(node)


def check_function(model: ir.Model) -> None:
    """Refuse a model that uses the name of the operator for something else.

    Raises:
        ModelError: Its function is not an Identity.
    """
    function = model.functions.get(_IDENTIFIER)
    if function is None:
        return
    nodes = list(function)
    is_identity = len(nodes) == len(function.inputs) == len(function.outputs) == 1 and (
        nodes[0].op_identifier() == ("", "Identity", "")
        and nodes[0].inputs[0] is function.inputs[0]
        and nodes[0].outputs[0] is function.outputs[0]
    )
    if not is_identity:
        raise ModelError(f"function {KERNEL_DOMAIN}.{DEVICE_COPY} of the model is not an Identity")


def register(model: ir.Model) -> None:
    """Make the operator known to a model."""
    model.graph.opset_imports.setdefault(KERNEL_DOMAIN, _DOMAIN_VERSION)
    if _IDENTIFIER in model.functions:
        return
    x = ir.Value(name="x")
    node = ir.Node("", "Identity", [x], name="identity")
    node.outputs[0].name = "y"
    opset = model.graph.opset_imports.get("", _OLDEST_OPSET)
    body = ir.Graph([x], node.outputs, nodes=[node], opset_imports={"": opset}, name=DEVICE_COPY)
    function = ir.Function(KERNEL_DOMAIN, DEVICE_COPY, graph=body, attributes=())
    # Inlining it would lose the scopes.
    function.metadata_props["SkipOptimization"] = "1"
    model.functions[_IDENTIFIER] = function
