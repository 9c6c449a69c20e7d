"""Rewriting models of operator sets before 7, in which operators had attributes for broadcasting, to set 7.

ONNX's own converter lays operands along wrong axes, and knows no comparisons, logic or recurrent networks of these sets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import onnx
import onnx_ir as ir

from collage.frontend._nodes import all_nodes
from collage.frontend._proto import forget_claims, skeleton
from collage.frontend._sandbox import infer_shapes

__all__ = ["raise_to_7"]

_BROADCAST = {"Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor"}
"""Their second operand is laid along the axes of the first from ``axis`` on, or along its last ones."""

_DROPPED = {
    "BatchNormalization": ("is_test",),
    "Dropout": ("is_test",),
    "GRU": ("output_sequence",),
    "Gemm": ("broadcast",),
    "LSTM": ("output_sequence",),
    "RNN": ("output_sequence",),
}
"""Attributes without which an operator of set 7 computes, when not training, what the older one computes with them."""


def raise_to_7(model: ir.Model) -> None:
    """Rewrite a model of a set before 7 to set 7, in place. It is in canonical form but for new Constant nodes.

    Raises:
        ValueError: An operator has no equal in set 7, or the ranks on which that depends are not known.
        ModelError: Shape inference takes more time or memory than any real model needs.
    """
    version = model.opset_imports[""]
    for node in [node for node in model.graph.all_nodes() if not node.domain]:
        node.attributes.pop("consumed_inputs", None)
        for name in _DROPPED.get(node.op_type, ()):
            node.attributes.pop(name, None)
        if (rewrite := _REWRITERS.get(node.op_type)) is not None:
            rewrite(node, version)
    model.opset_imports[""] = 7
    laid = [node for node in model.graph.all_nodes() if not node.domain and node.op_type in {"PRelu", *_BROADCAST}]
    ranks = _ranks(model) if any("axis" in node.attributes or node.op_type == "PRelu" for node in laid) else {}
    for node in laid:
        _lay(node, ranks)


def _lay(node: ir.Node, ranks: dict[str, int]) -> None:
    """Give the second operand axes of length 1, so that it is broadcast along the axes that it was laid along."""
    axis = node.attributes.get_int("axis", None)
    is_broadcast = node.attributes.get_int("broadcast", 0) and axis is not None
    for name in ("axis", "broadcast"):
        node.attributes.pop(name, None)
    if not is_broadcast and node.op_type != "PRelu":
        return
    left, right = (ranks.get(str(value.name)) if value is not None else None for value in node.inputs[:2])
    if left is None or right is None:
        raise ValueError(f"the rank of the input of {node.name!r} reads is not known")
    if node.op_type == "PRelu":
        slopes = node.inputs[1]
        assert slopes is not None
        axis = 1 if right == 1 and slopes.shape is not None and slopes.shape[0] != 1 else left - right
    assert axis is not None
    beyond = left - axis - right
    if axis < 0 or beyond < 0:
        raise ValueError(f"axis {axis} of {node.name!r} is not one along which its second operand fits")
    if beyond and right:
        axes = ir.AttrInt64s("axes", range(right, right + beyond))
        node.replace_input_with(1, _insert(node, ir.Node("", "Unsqueeze", [node.inputs[1]], [axes])))


def _ranks(model: ir.Model) -> dict[str, int]:
    """The ranks of values by name: inferred ranks, else the ranks that the model states."""
    proto = skeleton(model)
    claimed = _ranks_in(proto.graph)
    for node in all_nodes(proto.graph.node):
        if node.op_type in _BROADCAST and not node.domain:
            # Results are shaped like first operands; inference of set 7 would broadcast the second one otherwise.
            node.input[1] = node.input[0]
            for attribute in [a for a in node.attribute if a.name in ("axis", "broadcast")]:
                node.attribute.remove(attribute)
    forget_claims(proto.graph)
    try:
        inferred = _ranks_in(infer_shapes(proto).graph)
    except RuntimeError:
        inferred = {}
    return claimed | inferred


def _ranks_in(graph: onnx.GraphProto) -> dict[str, int]:
    values: Iterable[onnx.ValueInfoProto] = (*graph.input, *graph.value_info, *graph.output)
    ranks = {
        value.name: len(value.type.tensor_type.shape.dim)
        for value in values
        if value.type.tensor_type.HasField("shape")
    }
    ranks |= {tensor.name: len(tensor.dims) for tensor in graph.initializer}
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                ranks |= _ranks_in(attribute.g)
    return ranks


def _batch_normalization(node: ir.Node, _: int) -> None:
    if len(node.outputs) > 1:
        raise ValueError(f"{node.name!r} is in training")


def _cast(node: ir.Node, version: int) -> None:
    if version < 6:
        node.attributes["to"] = ir.AttrInt64("to", onnx.TensorProto.DataType.Value(node.attributes["to"].as_string()))


def _concat(node: ir.Node, _: int) -> None:
    node.attributes.setdefault("axis", ir.AttrInt64("axis", 1))


def _pool(node: ir.Node, version: int) -> None:
    if version < 2 and "p" in node.attributes:
        p = node.attributes["p"].as_float()
        if p != int(p):
            raise ValueError(f"the order {p} of {node.name!r} is not an integer")
        node.attributes["p"] = ir.AttrInt64("p", int(p))


def _pad(node: ir.Node, version: int) -> None:
    if version < 2:
        node.attributes["pads"] = ir.AttrInt64s("pads", node.attributes.pop("paddings").as_ints())


def _reshape(node: ir.Node, version: int) -> None:
    if version < 5:
        lengths = ir.tensor(list(node.attributes.pop("shape").as_ints()), ir.DataType.INT64)
        shape = _insert(node, ir.Node("", "Constant", [], [ir.AttrTensor("value", lengths)]))
        node.resize_inputs(2)
        node.replace_input_with(1, shape)


def _selu(node: ir.Node, version: int) -> None:
    if version < 6:
        node.attributes.setdefault("alpha", ir.AttrFloat32("alpha", 1.6732))
        node.attributes.setdefault("gamma", ir.AttrFloat32("gamma", 1.0507))


def _split(node: ir.Node, _: int) -> None:
    node.attributes.setdefault("axis", ir.AttrInt64("axis", 0))
    if len(node.inputs) > 1:
        lengths = node.inputs[1].const_value if node.inputs[1] is not None else None
        if lengths is None:
            raise ValueError(f"the lengths of {node.name!r} are computed")
        node.attributes["split"] = ir.AttrInt64s("split", [int(length) for length in lengths.numpy()])
        node.resize_inputs(1)


def _tile(node: ir.Node, version: int) -> None:
    if version < 6:
        raise ValueError(f"{node.name!r} repeats along one axis")


def _upsample(node: ir.Node, _: int) -> None:
    scales = [node.attributes.pop(name).as_float() for name in ("height_scale", "width_scale")]
    node.attributes["scales"] = ir.AttrFloat32s("scales", [1.0, 1.0, *scales])
    if node.attributes.get_string("mode", "nearest") == "bilinear":
        node.attributes["mode"] = ir.AttrString("mode", "linear")


_REWRITERS: dict[str, Callable[[ir.Node, int], None]] = {
    "BatchNormalization": _batch_normalization,
    "Cast": _cast,
    "Concat": _concat,
    "GlobalLpPool": _pool,
    "LpPool": _pool,
    "Pad": _pad,
    "Reshape": _reshape,
    "Selu": _selu,
    "Split": _split,
    "Tile": _tile,
    "Upsample": _upsample,
}


def _insert(before: ir.Node, node: ir.Node) -> ir.Value:
    """Insert a node before another one, and return its result."""
    assert isinstance(before.graph, ir.Graph)
    before.graph.insert_before(before, node)
    return node.outputs[0]
