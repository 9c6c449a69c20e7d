"""Operators that ONNX's shape inference does not know, replaced by operators that it knows."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from collage.frontend._nodes import all_nodes, bodies_of
from collage.frontend.contrib_ops import is_contributed, opset_to_write_in, standard_form

__all__ = ["inferable"]

_LIKE_FIRST = frozenset(("GroupNormalization", "MeanVarianceNormalization"))
"""Operators that ONNX's inference does not know. Their only output has the type and shape of the first input."""


def inferable(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Change a model into one that infers alike: operators that ONNX does not know become some that it does.

    A single one in the middle of a model would leave everything behind it without a shape, and without the toolchains
    that need one.
    """
    nodes = list(all_nodes(proto.graph.node))
    opset = next((opset for opset in proto.opset_import if opset.domain in ("", "ai.onnx")), onnx.OperatorSetIdProto())
    if any(is_contributed(node.domain, node.op_type, opset.version) for node in nodes):
        opset.version = opset_to_write_in(opset.version, [(node.op_type, len(node.output)) for node in nodes])
        _expand_contributed(proto.graph, opset.version, {})
        nodes = list(all_nodes(proto.graph.node))
    for node in nodes:
        if node.domain in ("", "ai.onnx") and node.op_type in _LIKE_FIRST and len(node.output) == 1:
            del node.input[1:], node.attribute[:]
            node.op_type = "Identity"
        elif node.op_type == "STFT" and not any(attribute.name == "onesided" for attribute in node.attribute):
            # It is 1 where it is not given, and inference takes it for 0.
            node.attribute.append(onnx.helper.make_attribute("onesided", 1))
    return proto


def _expand_contributed(graph: onnx.GraphProto, version: int, around: Mapping[str, onnx.TypeProto]) -> None:
    """Write contributed operators in ONNX's own, in bodies too, as far as types and shapes go."""
    known = {**around, **{value.name: value.type for value in (*graph.value_info, *graph.output, *graph.input)}}
    weights = {weight.name: weight for weight in graph.initializer}

    def facts(name: str) -> tuple[int, list[int | None] | None]:
        if name in weights:
            return weights[name].data_type, list(weights[name].dims)
        tensor = known[name].tensor_type if name in known else onnx.TypeProto.Tensor()
        lengths = [dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim]
        return tensor.elem_type, lengths if tensor.HasField("shape") else None

    for body in (body for node in graph.node for body in bodies_of(node)):
        _expand_contributed(body, version, known)
    expanded: list[onnx.NodeProto] = []
    for node in graph.node:
        contributed = is_contributed(node.domain, node.op_type, version)
        expanded += (standard_form(node, version, facts, exact=False) if contributed else None) or [node]
    kept = onnx.GraphProto(node=expanded)
    del graph.node[:]
    graph.node.extend(kept.node)
