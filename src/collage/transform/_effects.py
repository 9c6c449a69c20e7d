"""Operators that must not be folded or merged: two calls of a random operator are two numbers."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

__all__ = ["bodies", "is_pure", "is_random"]

_RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
_STANDARD_DOMAINS = ("", "ai.onnx", "ai.onnx.ml")
_DROPOUT_TRAINING_INPUT = 2


def is_random(node: ir.Node) -> bool:
    """Return True if a node draws random numbers, itself or in a body."""
    if node.domain in ("", "ai.onnx"):
        if node.op_type in _RANDOM:
            return True
        if node.op_type == "Dropout" and _may_train(node):
            return True
    return any(is_random(inner) for body in bodies(node) for inner in body)


def is_pure(node: ir.Node) -> bool:
    """Return True if equal inputs give equal outputs. Operators of unknown domains are not trusted to."""
    return node.domain in _STANDARD_DOMAINS and not is_random(node)


def bodies(node: ir.Node) -> Iterator[ir.Graph]:
    """The control-flow bodies of a node."""
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def _may_train(dropout: ir.Node) -> bool:
    if len(dropout.inputs) <= _DROPOUT_TRAINING_INPUT:
        return False
    mode = dropout.inputs[_DROPOUT_TRAINING_INPUT]
    if mode is None:
        return False
    known = mode.const_value if not mode.is_graph_input() else None
    return known is None or bool(known.numpy().any())
