"""How messages name a node."""

from __future__ import annotations

import onnx

__all__ = ["node_label"]

_LONGEST = 80


def node_label(node: onnx.NodeProto) -> str:
    """A node by its name, or by its first output where it has none."""
    name = node.name or next(iter(node.output), "")
    return f"node {name[:_LONGEST]!r} ({str(node.op_type)[:_LONGEST]})"
