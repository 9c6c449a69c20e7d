"""Indices that an ``Expand`` repeats for each column, as exporters write sums over the edges of a graph.

``ScatterElements`` and ``GatherElements`` then read as many indices as there are elements. ``ScatterND`` and ``Gather`` of the
same rows read one for each row, and copy or add rows as a whole. Every operator keeps its place in the kernel.

ONNX Runtime's ``ScatterND`` adds from several threads at once, and loses updates where indices are equal. So this is for
other toolchains only.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from collage.graph import NameSupply, copy_model
from collage.toolchains.sdk.model_files import values_of

__all__ = ["with_indices_of_rows"]


def with_indices_of_rows(kernel: ir.Model) -> ir.Model:
    """Return a kernel in which no index is repeated along rows; the kernel itself if none is."""
    if not any(_users(node) for node in kernel.graph):
        return kernel
    kernel = copy_model(kernel)
    names = NameSupply("collage", [str(value.name) for value in values_of(kernel.graph)])
    for node in kernel.graph:
        users = _users(node)
        if not users:
            continue
        is_scatter = users[0].op_type == "ScatterElements"
        source, output = node.inputs[0], node.outputs[0]
        axis = (users[0].attributes.get_int("axis", 0) or 0) % len(source.shape)  # type: ignore[union-attr, arg-type]
        length = source.shape[axis]  # type: ignore[union-attr, index]
        tensor = ir.tensor(np.array([-1, 1] if is_scatter else [-1]))
        shape = ir.Value(
            name=names.fresh("rows"),
            type=ir.TensorType(tensor.dtype),
            shape=ir.Shape([2 if is_scatter else 1]),
            const_value=tensor,
        )
        kernel.graph.register_initializer(shape)
        node.op_type = "Reshape"
        node.replace_input_with(1, shape)
        output.shape = ir.Shape([length, 1] if is_scatter else [length])
        for user in users:
            user.op_type = "ScatterND" if is_scatter else "Gather"
            if is_scatter and "axis" in user.attributes:
                del user.attributes["axis"]
    return kernel


def _users(node: ir.Node) -> list[ir.Node]:
    """Return the operators that read what an ``Expand`` repeats, if all are of one kind and can read rows; else none."""
    if node.op_type != "Expand" or node.domain or node.outputs[0].is_graph_output():
        return []
    uses = node.outputs[0].uses()
    users = [user for user, place in uses if place == 1 and user.graph is node.graph and _is_of_rows(user, node)]
    kinds = {(user.op_type, user.attributes.get_int("axis", 0)) for user in users}
    return users if len(kinds) == 1 and len(users) == len(uses) else []


def _is_of_rows(user: ir.Node, repeat: ir.Node) -> bool:
    """True if an operator takes the same indices for every column, and all columns of each row."""
    data, repeated, source = user.inputs[0], repeat.outputs[0].shape, repeat.inputs[0]
    if data is None or source is None or data.shape is None or source.shape is None or repeated is None:
        return False
    rank, axis = len(data.shape), user.attributes.get_int("axis", 0) or 0
    if not -rank <= axis < rank or rank < 2 or len(repeated) != rank or len(source.shape) != rank:
        return False
    is_scatter = user.op_type == "ScatterElements" and axis % rank == 0 and _reduces(user, repeated)
    if user.domain or not (is_scatter or user.op_type == "GatherElements"):
        return False
    others = [i for i in range(rank) if i != axis % rank]
    is_once = all(source.shape[i] == 1 for i in others) and _is_same(source.shape[axis], repeated[axis])
    return is_once and all(_is_same(repeated[i], data.shape[i]) for i in others)


def _reduces(user: ir.Node, repeated: ir.Shape) -> bool:
    """True if an operator adds or compares all its updates. Of mere copies with equal indices any may be the last."""
    updates = user.inputs[2]
    if updates is None or updates.shape is None or len(updates.shape) != len(repeated):
        return False
    is_whole = all(map(_is_same, updates.shape, repeated))
    return is_whole and user.attributes.get_string("reduction", "none") != "none"


def _is_same(n: int | ir.SymbolicDim, m: int | ir.SymbolicDim) -> bool:
    return n == m and getattr(n, "value", n) is not None
