"""Copying nodes into new graphs. Tensors share their bytes, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import TypeAlias

import onnx_ir as ir

from collage.graph._calibrated import copy_notes
from collage.graph._handle import tensor_handle

__all__ = ["ValueMap", "clone_graph", "clone_node", "new_value"]

ValueMap: TypeAlias = MutableMapping[ir.Value, ir.Value]
"""From values of the old graph to values of the new one."""

CloneBody: TypeAlias = Callable[[ir.Graph, ValueMap], ir.Graph]
"""A function that copies the bodies of a node."""


def new_value(value: ir.Value, tensor: ir.TensorProtocol | None = None, *, bind: bool = True) -> ir.Value:
    """A free-standing value with the name, type, shape and range of another.

    Args:
        value: The value to copy.
        tensor: Its tensor, if it is a constant: type and shape come from it.
        bind: True if the new value is that constant too.
    """
    if tensor is None:
        shape = value.shape.copy() if value.shape is not None else None
        made = ir.Value(name=value.name, shape=shape, type=value.type)
        copy_notes(value, made)
        return made
    return ir.Value(
        name=value.name,
        shape=ir.Shape(tensor.shape.numpy()),
        type=ir.TensorType(tensor.dtype),
        const_value=tensor_handle(tensor) if bind else None,
    )


def clone_node(
    node: ir.Node,
    values: ValueMap,
    metadata: Mapping[str, str] | None = None,
    clone_body: CloneBody | None = None,
) -> ir.Node:
    """A copy of a node that reads the new values. Its outputs, and values of its bodies, are entered into ``values``.

    Args:
        node: The node to copy.
        values: New values by old ones; everything that the node reads and that is not in it is read as it is.
        metadata: Added to the node's metadata_props.
        clone_body: Copies a control-flow body; :func:`clone_graph` by default.
    """
    copy = ir.Node(
        node.domain,
        node.op_type,
        [None if v is None else values.get(v, v) for v in node.inputs],
        [_clone_attribute(attribute, values, clone_body or clone_graph) for attribute in node.attributes.values()],
        overload=node.overload,
        num_outputs=len(node.outputs),
        version=node.version,
        name=node.name,
        doc_string=node.doc_string,
        metadata_props={**node.metadata_props, **(metadata or {})},
    )
    for old, new in zip(node.outputs, copy.outputs, strict=True):
        new.name, new.type, new.doc_string = old.name, old.type, old.doc_string
        new.shape = old.shape.copy() if old.shape is not None else None
        copy_notes(old, new)
        values[old] = new
    return copy


def clone_graph(graph: ir.Graph, values: ValueMap) -> ir.Graph:
    """A copy of a graph; values from outside that it captures are looked up in ``values``."""
    for value in (*graph.inputs, *graph.initializers.values()):
        if value not in values:
            values[value] = new_value(value, value.const_value)
    nodes = [clone_node(node, values) for node in graph]
    return ir.Graph(
        [values[v] for v in graph.inputs],
        [values.get(v, v) for v in graph.outputs],
        nodes=nodes,
        initializers=[values[v] for v in graph.initializers.values()],
        doc_string=graph.doc_string,
        opset_imports=dict(graph.opset_imports),
        name=graph.name,
        metadata_props=dict(graph.metadata_props),
    )


def _clone_attribute(attribute: ir.Attr, values: ValueMap, clone_body: CloneBody) -> ir.Attr:
    if attribute.is_ref():
        return attribute
    if attribute.type == ir.AttributeType.GRAPH:
        return ir.AttrGraph(attribute.name, clone_body(attribute.as_graph(), values))
    if attribute.type == ir.AttributeType.GRAPHS:
        return ir.AttrGraphs(attribute.name, [clone_body(g, values) for g in attribute.as_graphs()])
    if attribute.type == ir.AttributeType.TENSOR:
        return ir.AttrTensor(attribute.name, tensor_handle(attribute.as_tensor()), doc_string=attribute.doc_string)
    return attribute
