"""ResolveSequences: operators on a sequence become operators on its tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from collage.frontend import lift_constants, name_everything, remove_unused
from collage.transform._context import PassContext
from collage.transform._draft import source
from collage.transform._effects import bodies
from collage.transform._info import PassInfo
from collage.transform._marks import marked_functions_hidden
from collage.transform._pass_kinds import ModulePass

__all__ = ["ResolveSequences"]

_Tensors: TypeAlias = tuple[ir.Value, ...]

_MOST_PARTS = 128
"""Most parts of a sequence that get a node each."""
_MOST_NODES = 20_000
"""Most nodes that one call adds: an untrusted file must not grow without end."""
_LEAVING = frozenset({"ConcatFromSequence", "SequenceAt", "SequenceLength"})
"""Operators that make a tensor of a sequence: where there is none of them, there is nothing to gain."""


class ResolveSequences(ModulePass):
    """Replaces tensors that are taken or joined from sequences, if the contents of these are known ahead.

    Exporters split a tensor into a sequence and take its parts one by one, or collect tensors in a sequence and join
    them. Few toolchains take such values, although the result is only a ``Split`` or a ``Concat``. A sequence is
    followed from its origin through insertions and erasures. Their positions must be constants, and the length of a
    split axis must be known. Sequences that a loop or a branch makes, or that are inputs, stay. Exact.
    """

    def __init__(self) -> None:
        super().__init__(PassInfo("ResolveSequences", opt_level=1, required=("InferType",), invalidates=("InferType",)))

    def transform_module(self, model: ir.Model, context: PassContext) -> ir.Model:
        """Replace in place."""
        if not any(node.op_type in _LEAVING and node.domain == "" for node in source(model).graph.all_nodes()):
            return model
        with marked_functions_hidden(model):
            resolver = _Resolver()
            resolver.visit(model.graph)
            if resolver.added:
                lift_constants(model)
                remove_unused(model)
                name_everything(model)
        return model


class _Resolver:
    """Follows sequences through a graph and its bodies, in the order in which they run.

    Attributes:
        added: The number of new nodes; some may be of no use.
    """

    def __init__(self) -> None:
        self.added = 0
        self._held: dict[ir.Value, _Tensors] = {}

    def visit(self, graph: ir.Graph) -> None:
        for node in list(graph):
            for body in bodies(node):
                self.visit(body)
            if node.domain != "" or len(node.outputs) != 1:
                continue
            if node.op_type in _LEAVING:
                self._replace(graph, node)
            elif (held := self._made(graph, node)) is not None and len(held) <= _MOST_PARTS:
                self._held[node.outputs[0]] = held

    def _made(self, graph: ir.Graph, node: ir.Node) -> _Tensors | None:
        """Return the members of the sequence that a node makes, None if they are not known or it makes none."""
        if node.op_type == "SequenceEmpty":
            return ()
        if node.op_type == "SequenceConstruct":
            return tuple(value for value in node.inputs if value is not None)
        if node.op_type == "SplitToSequence":
            return self._split(graph, node)
        first = node.inputs[0] if node.inputs else None
        held = self._held.get(first) if first is not None else None
        if held is None:
            return None
        if node.op_type == "Identity":
            return held
        if node.op_type == "SequenceErase":
            place = _place(node, 1, len(held), default=len(held) - 1)
            return None if place is None else (*held[:place], *held[place + 1 :])
        if node.op_type == "SequenceInsert" and (tensor := node.inputs[1]) is not None:
            place = _place(node, 2, len(held), default=len(held), or_behind=True)
            return None if place is None else (*held[:place], tensor, *held[place:])
        return None

    def _replace(self, graph: ir.Graph, node: ir.Node) -> None:
        """Make the tensor that a node takes from a sequence, without the sequence."""
        held = self._held.get(node.inputs[0]) if node.inputs[0] is not None else None
        made = None if held is None else _taken(node, held)
        if made is None or not self._may_add(made):
            return
        (result,) = node.outputs
        last = made[-1].outputs[0]
        last.type, last.shape = result.type, result.shape
        ir.convenience.replace_nodes_and_values(graph, node, [node], made, [result], [last])

    def _split(self, graph: ir.Graph, node: ir.Node) -> _Tensors | None:
        """Split a tensor where it is split into a sequence, and return the parts."""
        x, told = (*node.inputs, None)[:2]
        axis = node.attributes.get_int("axis", 0) or 0
        if x is None or x.shape is None or not -len(x.shape) <= axis < len(x.shape):
            return None
        length = x.shape[axis]
        sizes = _sizes(length, told) if isinstance(length, int) else None
        if not sizes or len(sizes) > _MOST_PARTS or min(sizes) < 0 or sum(sizes) != length:
            return None
        made = _parts(x, sizes, axis, squeezed=told is None and not node.attributes.get_int("keepdims", 1))
        if not self._may_add(made):
            return None
        graph.insert_before(node, made)
        return tuple(each.outputs[0] for each in made[-len(sizes) :])

    def _may_add(self, nodes: Sequence[ir.Node]) -> bool:
        if self.added + len(nodes) > _MOST_NODES:
            return False
        self.added += len(nodes)
        return True


def _taken(node: ir.Node, held: _Tensors) -> list[ir.Node] | None:
    """Return nodes; the last one makes the tensor that a node takes from a sequence."""
    if node.op_type == "SequenceLength":
        return [_constant(np.asarray(len(held)))]
    if node.op_type == "SequenceAt":
        place = _place(node, 1, len(held))
        return None if place is None else [ir.node("Identity", [held[place]])]
    axis = node.attributes.get_int("axis")
    if not held or axis is None:
        return None
    if not node.attributes.get_int("new_axis", 0):
        return [ir.node("Concat", held, {"axis": axis})]
    axes = _constant(np.asarray([axis]))
    apart = {value: ir.node("Unsqueeze", [value, axes.outputs[0]]) for value in dict.fromkeys(held)}
    joined = ir.node("Concat", [apart[value].outputs[0] for value in held], {"axis": axis})
    return [axes, *apart.values(), joined]


def _parts(x: ir.Value, sizes: Sequence[int], axis: int, *, squeezed: bool) -> list[ir.Node]:
    """Return nodes that split a tensor. The last ones make one part each."""
    told = _constant(np.asarray(sizes))
    split = ir.node("Split", [x, told.outputs[0]], {"axis": axis}, num_outputs=len(sizes))
    if not squeezed:
        return [told, split, *(ir.node("Identity", [part]) for part in split.outputs)]
    axes = _constant(np.asarray([axis]))
    return [told, split, axes, *(ir.node("Squeeze", [part, axes.outputs[0]]) for part in split.outputs)]


def _sizes(length: int, told: ir.Value | None) -> list[int] | None:
    """The lengths of the parts of a tensor; None if they are not constants, or too many."""
    if told is None:
        return [1] * length if length <= _MOST_PARTS else None
    if told.const_value is None or told.is_graph_input():
        return None
    array = told.const_value.numpy()
    if array.ndim:
        return [int(size) for size in array]
    size = int(array)
    fits = size > 0 and length <= size * _MOST_PARTS
    return [min(size, length - start) for start in range(0, length, size)] if fits else None


def _place(
    node: ir.Node, index: int, length: int, *, default: int | None = None, or_behind: bool = False
) -> int | None:
    """The place in a sequence that an input names, from the front; None if it is not known, or not there.

    Args:
        node: Reads it.
        index: Index of the input.
        length: Number of tensors in the sequence. Negative places count from the end.
        default: The place that is meant where the input is left out.
        or_behind: True if the place after the last one is valid.
    """
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None:
        place = default
    elif value.const_value is None or value.is_graph_input() or value.const_value.size != 1:
        return None
    else:
        place = int(value.const_value.numpy().reshape(()))
        place += length if place < 0 else 0
    return place if place is not None and 0 <= place < length + or_behind else None


def _constant(array: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> ir.Node:
    return ir.node("Constant", [], {"value": ir.tensor(array)})
