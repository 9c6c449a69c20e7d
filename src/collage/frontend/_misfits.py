"""Shapes that no input can make fit: found by ONNX's strict inference, with the node and its input shapes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import onnx
import onnx_ir as ir

from collage._errors import ModelError
from collage.frontend._inferable import inferable
from collage.frontend._nodes import all_nodes
from collage.frontend._proto import forget_claims, skeleton
from collage.frontend._sandbox import infer_shapes

__all__ = ["shape_misfit"]

_FAILURE = re.compile(r"\(op_type:(?P<op>[^,)]*)(?:, node name: (?P<name>.*?))?\): \[ShapeInferenceError\] (?P<why>.*)")


def shape_misfit(model: ir.Model, shapes: Mapping[str, Sequence[int]] = MappingProxyType({})) -> str | None:
    """Return a sentence about the first node whose inputs cannot fit each other, for any inputs of the model.

    Only inputs and weights count: what a model claims of the shapes in between may be wrong, and runtimes pass over that.

    Args:
        model: The model.
        shapes: Shapes of inputs, by name, if it is given just these.

    Returns:
        The sentence, or None if nothing speaks against the shapes.
    """
    proto = skeleton(model)
    forget_claims(proto.graph)
    proto = inferable(proto)
    for value in proto.graph.input:
        dims = value.type.tensor_type.shape.dim if value.type.HasField("tensor_type") else ()
        for dim, length in zip(dims, shapes.get(value.name, ()), strict=False):
            dim.dim_value = length
    try:
        infer_shapes(proto, strict=True)
    except RuntimeError as error:
        found = _FAILURE.search(str(error))
    except ModelError:
        return None
    else:
        return None
    if found is None:
        return None
    node = next((node for node in all_nodes(proto.graph.node) if _is(node, found)), None)
    given = _shapes(node, proto) if node is not None else ""
    name = f" {found['name']!r}" if found["name"] else ""
    return f"node{name} ({found['op']}) is given shapes that do not fit{given}: {found['why'].strip()}"


def _is(node: onnx.NodeProto, found: re.Match[str]) -> bool:
    return node.op_type == found["op"] and (found["name"] is None or node.name == found["name"])


def _shapes(node: onnx.NodeProto, proto: onnx.ModelProto) -> str:
    """Inputs of a node with their shapes, as far as these are known."""
    try:
        graph = infer_shapes(proto).graph
    except (RuntimeError, ModelError):
        return ""
    types = {value.name: value.type.tensor_type for value in (*graph.value_info, *graph.input)}
    shapes = {name: [_length(dim) for dim in kind.shape.dim] for name, kind in types.items() if kind.HasField("shape")}
    shapes |= {tensor.name: list(map(str, tensor.dims)) for tensor in graph.initializer}
    told = [f"{name} [{', '.join(shapes[name])}]" for name in node.input if name in shapes]
    return f", {' and '.join(told)}" if told else ""


def _length(dim: onnx.TensorShapeProto.Dimension) -> str:
    return str(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or "?"
