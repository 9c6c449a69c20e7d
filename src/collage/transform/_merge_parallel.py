"""MergeParallel: linear operators side by side become one wide one, and a Split.

The projections of an attention's queries, keys and values, the branches of an inception, experts: operators of one type and of
equal attributes that read one value, each with a weight of its own. Any number of them is merged at once. One large product is
often faster than several small ones, and the Split costs a copy, so this is a matter of measurement: level 3.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from collage.frontend import name_everything
from collage.pattern import attributes_of
from collage.transform._context import PassContext
from collage.transform._info import PassInfo
from collage.transform._linear import add_constant, constant_of, own_weight
from collage.transform._pass_kinds import FunctionLike, FunctionPass

if TYPE_CHECKING:
    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["MergeParallel"]

_MAX_BYTES = 1 << 28
"""Weights that are put together are copied; larger groups stay as they are."""

_MATRIX = 2


@dataclass(frozen=True, slots=True)
class _Branch:
    """A linear operator, with the constant that is added to its result, if there is one.

    Attributes:
        node: The operator.
        weight: Its weight.
        bias: The constant that is added, one number per output channel; None if nothing is added.
        add: The Add that adds it; None if the operator does.
        channel_axis: Axis of the weight that counts output channels.
        alike: Equal for branches that can be merged.
    """

    node: ir.Node
    weight: Array
    bias: Array | None
    add: ir.Node | None
    channel_axis: int
    alike: Hashable

    @property
    def last(self) -> ir.Node:
        """The node whose output the rest of the model reads."""
        return self.add or self.node

    @property
    def channels(self) -> int:
        """Number of output channels."""
        return int(self.weight.shape[self.channel_axis])


class MergeParallel(FunctionPass):
    """Merges MatMul, Gemm and Conv that read one value, with the constants that are added to their results."""

    def __init__(self) -> None:
        super().__init__(PassInfo("MergeParallel", opt_level=3, required=("InferType",)))

    def transform_function(self, function: FunctionLike, model: ir.Model, context: PassContext) -> FunctionLike:
        """Merge in place."""
        if not isinstance(function, ir.Graph):
            return function  # A function has no initializers to put the weights into.
        opset = model.opset_imports.get("", 1)
        merged = 0
        for group in list(_groups(function, model)):
            size = sum(branch.weight.nbytes for branch in group)
            if size > _MAX_BYTES:
                context.remark(
                    f"{len(group)} parallel operators have weights of {size:,} bytes, too many", group[0].node
                )
                continue
            _merge(function, group, opset)
            merged += 1
        if merged:
            name_everything(model)
        return function


def _groups(graph: ir.Graph, model: ir.Model) -> Iterator[list[_Branch]]:
    by_key: dict[Hashable, list[_Branch]] = {}
    for node in graph:
        branch = _branch_of(node, model)
        if branch is not None:
            by_key.setdefault((node.inputs[0], branch.alike), []).append(branch)
    yield from (group for group in by_key.values() if len(group) > 1)


def _branch_of(node: ir.Node, model: ir.Model) -> _Branch | None:
    if node.domain != "" or node.op_type not in ("MatMul", "Gemm", "Conv") or node.inputs[0] is None:
        return None
    weight = own_weight(node)
    rank = len(node.inputs[0].shape) if node.inputs[0].shape is not None else None
    if weight is None or rank is None or node.outputs[0].is_graph_output():
        return None
    attributes = attributes_of(node, model.opset_imports)
    if node.op_type == "MatMul":
        if weight.ndim != _MATRIX or rank < _MATRIX:
            return None
        axis = 1
    elif node.op_type == "Gemm":
        axis = 0 if attributes.get("transB") else 1
    else:
        if attributes.get("group") != 1:
            return None
        axis = 0
    rest = tuple(size for i, size in enumerate(weight.shape) if i != axis)
    channels = int(weight.shape[axis])
    add = None
    if len(node.inputs) > _MATRIX and node.inputs[_MATRIX] is not None:
        bias = _own_bias(node.inputs[_MATRIX], channels)
        if bias is None:
            return None
    else:
        add, bias = _bias_after(node, channels) if node.op_type == "MatMul" else (None, None)
    settings = tuple(sorted((name, repr(value)) for name, value in attributes.items()))
    alike = (node.op_type, settings, weight.dtype, rest, bias is None, add is None)
    return _Branch(node, weight, bias, add, axis, alike)


def _own_bias(value: ir.Value | None, channels: int) -> Array | None:
    """A constant with one number for each channel, which nothing else reads."""
    array = constant_of(value)
    if (
        value is None
        or array is None
        or len(value.uses()) != 1
        or value.is_graph_output()
        or array.shape != (channels,)
    ):
        return None
    return array


def _bias_after(node: ir.Node, channels: int) -> tuple[ir.Node | None, Array | None]:
    uses = list(node.outputs[0].uses())
    add = uses[0].node if len(uses) == 1 else None
    if add is None or add.domain != "" or add.op_type != "Add" or add.outputs[0].is_graph_output():
        return None, None
    bias = _own_bias(add.inputs[1 - uses[0].idx], channels)
    return (None, None) if bias is None else (add, bias)


def _merge(graph: ir.Graph, group: list[_Branch], opset: int) -> None:
    """Put one operator and a Split in the place of the branches."""
    first = group[0]
    name = f"{first.node.name or first.node.op_type}_and_{len(group) - 1}_more"
    weight = add_constant(graph, f"{name}_weight", np.concatenate([b.weight for b in group], first.channel_axis))
    biases = [branch.bias for branch in group if branch.bias is not None]
    bias = add_constant(graph, f"{name}_bias", np.concatenate(biases)) if biases else None
    operands = [first.node.inputs[0], weight, *([bias] if bias is not None and first.add is None else [])]
    wide = ir.Node("", first.node.op_type, operands, list(first.node.attributes.values()), num_outputs=1, name=name)
    nodes = [wide]
    if first.add is not None:
        nodes.append(ir.Node("", "Add", [wide.outputs[0], bias], num_outputs=1, name=f"{name}_add"))
    sizes = [branch.channels for branch in group]
    channel_axis = 1 if first.node.op_type in ("Conv", "Gemm") else -1
    attributes: list[ir.Attr] = [ir.AttrInt64("axis", channel_axis)]
    split_operands: list[ir.Value | None] = [nodes[-1].outputs[0]]
    if opset < 13:
        attributes.append(ir.AttrInt64s("split", sizes))
    else:
        split_operands.append(add_constant(graph, f"{name}_sizes", np.array(sizes, dtype=np.int64)))
    split = ir.Node("", "Split", split_operands, attributes, num_outputs=len(group), name=f"{name}_split")
    _type_wide(nodes, group, channel_axis)
    graph.insert_before(first.node, [*nodes, split])
    for branch, part in zip(group, split.outputs, strict=True):
        old = branch.last.outputs[0]
        part.type, part.shape = old.type, old.shape
        ir.convenience.replace_all_uses_with(old, part)
    for branch in group:
        graph.remove([node for node in (branch.add, branch.node) if node is not None], safe=True)


def _type_wide(nodes: list[ir.Node], group: list[_Branch], channel_axis: int) -> None:
    """State type and shape of the merged results: those of a branch, with the channels of all."""
    old = group[0].node.outputs[0]
    for node in nodes:
        node.outputs[0].type = old.type
        if old.shape is not None:
            dims = list(old.shape)
            dims[channel_axis] = sum(branch.channels for branch in group)
            node.outputs[0].shape = ir.Shape(dims)
