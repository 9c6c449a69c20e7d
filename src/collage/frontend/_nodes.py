"""Facts about nodes that all checks need: the name for messages, and the bodies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx

__all__ = ["all_nodes", "bodies_of", "node_label"]

_LONGEST = 80


def node_label(node: onnx.NodeProto) -> str:
    """A node by its name, or by its first output where it has none."""
    name = node.name or next(iter(node.output), "")
    # What is printed may reach a terminal, which obeys some characters: ``repr`` shows them instead.
    return f"node {name[:_LONGEST]!r} ({repr(str(node.op_type)[:_LONGEST])[1:-1]})"


def bodies_of(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs among a node's attributes."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes and, after each, the nodes of its bodies."""
    for node in nodes:
        yield node
        for body in bodies_of(node):
            yield from all_nodes(body.node)
