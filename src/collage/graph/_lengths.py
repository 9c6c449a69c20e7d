"""Values that follow from lengths of tensors and from constants alone: sizes, axes and steps that a caller cannot choose.

One kernel may be given such a value by another. So it is noted of the value, and kernels keep the note.
Files are not trusted: reading a model drops all notes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from collage.graph._traversal import bodies, constant_tensor

__all__ = ["FROM_LENGTHS", "follows_from_lengths", "forget_lengths", "note_lengths"]

FROM_LENGTHS = "collage.lengths"
"""Metadata key of values that follow from lengths and from constants alone: "+" if they are not negative, else "-"."""

_MOVES = frozenset(
    {"Cast", "Expand", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Tile", "Transpose", "Unsqueeze"}
)
"""Operators whose results have the signs of their first operand."""
_KEEPS_SIGN = frozenset({"Add", "Concat", "Div", "Max", "Min", "Mul", "ReduceProd", "ReduceSum", "Where"})
"""Operators whose results are not negative if no operand is."""
# NumPy has at most 64 axes.
_MOST_SIZES = 64


def follows_from_lengths(value: ir.Value) -> bool:
    """Return True if a value follows from lengths of tensors and from constants alone, in this graph or where it is from."""
    open_, seen = [value], set[ir.Value]()
    while open_:
        each = open_.pop()
        if each not in seen and not _is_noted(each):
            seen.add(each)
            sources = _sources(each.producer())
            if sources is None:
                return False
            open_ += sources
    return True


def note_lengths(graph: ir.Graph) -> None:
    """Note which values of a graph follow from lengths."""
    for node in graph:
        sources = _sources(node)
        if sources is not None and all(map(_is_noted, sources)):
            for value in node.outputs:
                value.metadata_props[FROM_LENGTHS] = "-" if _may_be_negative(node, sources) else "+"


def _may_be_negative(node: ir.Node, sources: Sequence[ir.Value]) -> bool:
    """Return True unless it is plain that no result is negative."""
    if node.domain or node.op_type not in {"Shape", "Size"} | _MOVES | _KEEPS_SIGN:
        return True
    signed = sources[:1] if node.op_type in _MOVES else sources[1:] if node.op_type == "Where" else sources
    tensors = [(value, constant_tensor(value)) for value in signed]
    return any(
        value.metadata_props.get(FROM_LENGTHS) != "+" if tensor is None else not _is_of_sizes(tensor)
        for value, tensor in tensors
    )


def _is_of_sizes(tensor: ir.TensorProtocol) -> bool:
    """Return True for integers that are not negative, no more than a tensor has axes."""
    return tensor.dtype.is_integer() and tensor.size <= _MOST_SIZES and bool(np.all(tensor.numpy() >= 0))


def forget_lengths(model: ir.Model) -> None:
    """Drop all such notes."""
    graphs: list[ir.Graph | ir.Function] = [*model.graphs(), *model.functions.values()]
    for graph in graphs:
        for value in (*graph.inputs, *(each for node in graph for each in node.outputs)):
            value.metadata_props.pop(FROM_LENGTHS, None)


def _is_noted(value: ir.Value) -> bool:
    is_constant = not value.is_graph_input() and constant_tensor(value) is not None
    return is_constant or FROM_LENGTHS in value.metadata_props


def _sources(node: ir.Node | None) -> Sequence[ir.Value] | None:
    """Return the values that must follow from lengths so that a node's results do; None if they never do."""
    # What has no inputs draws random numbers.
    if node is None or not node.inputs or any(True for _ in bodies(node)):
        return None
    if node.op_type in ("Shape", "Size") and not node.domain:
        return ()
    return [value for value in node.inputs if value is not None]
