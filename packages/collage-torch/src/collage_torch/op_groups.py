"""Groups of operators that are one call in torch, for every torch toolchain: attention, group normalisation.

The conditions on nodes of a group are here too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from collage_torch.ops import Call, Fused, constant_array
from collage_torch.ops._attention import attend

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = [
    "attention",
    "call_of",
    "constant",
    "find_static_groups",
    "group_norm",
    "is_of",
    "only_user",
    "static_shape",
    "tensor",
]


def find_static_groups(graph: ir.Graph) -> list[Fused]:
    """The groups of a graph that no values have to be looked at for, as a mask of attention has, which may hide a whole row."""
    makers = {"InstanceNormalization": group_norm, "MatMul": _unmasked_attention}
    nodes = [node for node in graph if node.op_type in makers and node.domain == "" and is_of(node, "FLOAT")]
    groups = [makers[node.op_type](node) for node in nodes]
    return [group for group in groups if group is not None]


def group_norm(node: ir.Node) -> Fused | None:
    """An InstanceNormalization of a tensor reshaped to one channel for each group, as exporters write the norm of groups.

    Reshaped, a channels-last tensor would be copied to row-major, and back for the next convolution.
    """
    before = None if node.inputs[0] is None else node.inputs[0].producer()
    after = only_user(node)
    scale, bias = constant(node, 1), constant(node, 2)
    if before is None or before.op_type != "Reshape" or only_user(before) is not node or scale is None or bias is None:
        return None
    x = before.inputs[0]
    if after is None or after.op_type != "Reshape" or x is None or after.outputs[0].shape is None:
        return None
    grouped, dims = _dims(node.outputs[0]), _dims(x)
    if None in dims or dims != _dims(after.outputs[0]) or len(dims) < _LEAST_RANK or len(grouped) != _GROUPED_RANK:
        return None
    channels, groups = dims[1], scale.numel()
    if grouped[:2] != [dims[0], groups] or not isinstance(channels, int) or channels % groups:
        return None
    nodes = [before, node, after]
    w, b = (p.repeat_interleave(channels // groups) for p in (scale, bias))
    if (factors := _per_channel(nodes[-1], "Mul", len(dims), channels)) is not None:
        nodes, w, b = [*nodes, factors[0]], w * factors[1], b * factors[1]
    if (offsets := _per_channel(nodes[-1], "Add", len(dims), channels)) is not None:
        nodes, b = [*nodes, offsets[0]], b + offsets[1]
    epsilon = call_of(node).get("epsilon", 1e-5)
    function = partial(torch.group_norm, num_groups=groups, weight=w, bias=b, eps=epsilon)
    return Fused(tuple(nodes), nodes[-1], (x,), function)


_LEAST_RANK = 3
_GROUPED_RANK = 3


def _per_channel(node: ir.Node, op_type: str, rank: int, channels: int) -> tuple[ir.Node, Any] | None:
    """The node after ``node`` that multiplies by, or adds, a constant for each channel; and these constants."""
    user = only_user(node)
    if user is None or user.op_type != op_type:
        return None
    other = constant(user, 1 - list(user.inputs).index(node.outputs[0]))
    if other is None or other.ndim > rank:
        return None
    shape = [1] * (rank - other.ndim) + list(other.shape)
    return (user, other.reshape(-1)) if shape == [1, channels, *[1] * (rank - 2)] else None


def _unmasked_attention(node: ir.Node) -> Fused | None:
    group = attention(node)
    return group if group is not None and len(group.inputs) == _UNMASKED else None


_UNMASKED = 3
"""Inputs of an attention without a mask."""


def attention(node: ir.Node) -> Fused | None:
    """``softmax(q @ k * scale + mask) @ v`` as one call, which never holds all scores at once."""
    q, transposed_k = node.inputs
    if q is None or transposed_k is None:
        return None
    nodes, scale, mask = [node], 1.0, None
    following = only_user(node)
    while following is not None and (factor := _factor(following, nodes[-1].outputs[0])) is not None:
        nodes, scale, following = [*nodes, following], scale * factor, only_user(following)
    if following is not None and following.op_type == "Add":
        mask = following.inputs[1 - list(following.inputs).index(nodes[-1].outputs[0])]
        if mask is None or mask is nodes[-1].outputs[0]:
            return None
        nodes, following = [*nodes, following], only_user(following)
    last = None if following is None or not _is_softmax_of_rows(following) else only_user(following)
    if following is None or last is None or last.op_type != "MatMul" or last.inputs[0] is not following.outputs[0]:
        return None
    v = last.inputs[1]
    if v is None or not _same_heads(q, transposed_k, v):
        return None
    nodes += [following, last]
    k, order = transposed_k, _SWAPPED[len(_dims(q))]
    turn = transposed_k.producer()
    if turn is not None and turn.op_type == "Transpose" and only_user(turn) is node and turn.inputs[0] is not None:
        perm = call_of(turn).get("perm") or list(range(len(order)))[::-1]
        nodes, k, order = [turn, *nodes], turn.inputs[0], [*perm[:-2], perm[-1], perm[-2]]
    inputs = (q, k, v) if mask is None else (q, k, v, mask)
    return Fused(tuple(nodes), last, inputs, _Attention(order, scale))


class _Attention:
    """Attention with keys in another order of dimensions; a softmax over nothing stays undefined, as ONNX has it."""

    def __init__(self, order: Sequence[int], scale: float) -> None:
        self._order, self._scale = order, scale

    def __call__(self, q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        k = k.permute(self._order)
        if not (q.numel() and k.numel()) or (mask is not None and bool((mask.amax(-1) == -torch.inf).any())):
            scores = torch.matmul(q, k.transpose(-1, -2)) * self._scale
            return torch.matmul(torch.softmax(scores if mask is None else scores + mask, -1), v)
        q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
        if mask is not None:
            mask = mask.expand(*q.shape[:-1], k.shape[-2])
        if q.ndim == 4:
            return attend(q, k, v, mask, self._scale)
        q, k, v, mask = (None if x is None else x.unsqueeze(0) for x in (q, k, v, mask))
        return attend(q, k, v, mask, self._scale).squeeze(0)


_SWAPPED = {3: [0, 2, 1], 4: [0, 1, 3, 2]}
"""Orders of dimensions that swap the last two."""


def _factor(node: ir.Node, value: ir.Value) -> float | None:
    """Return the constant number that a Mul or Div multiplies ``value`` with."""
    if node.domain != "" or node.op_type not in ("Mul", "Div"):
        return None
    place = list(node.inputs).index(value)
    number = constant(node, 1 - place)
    if (
        number is None
        or number.numel() != 1
        or number.ndim > len(_dims(value))
        or (node.op_type == "Div" and place == 1)
    ):
        return None
    factor = float(number)
    return factor if node.op_type == "Mul" else 1 / factor if factor else None


def _is_softmax_of_rows(node: ir.Node) -> bool:
    """Return True for a Softmax over the last dimension, which is the default since opset 13."""
    x, graph = node.inputs[0], node.graph
    if node.op_type != "Softmax" or x is None or x.shape is None:
        return False
    version = graph.opset_imports.get("", 0) if graph is not None and hasattr(graph, "opset_imports") else 0
    axis = call_of(node).get("axis", -1 if version >= 13 else 1)
    return bool(axis in (-1, len(x.shape) - 1))


def _same_heads(q: ir.Value, transposed_k: ir.Value, v: ir.Value) -> bool:
    """Return True if the three have three or four dimensions, known and equal but for the last two."""
    q_dims, k_dims, v_dims = _dims(q), _dims(transposed_k), _dims(v)
    if len(q_dims) not in _SWAPPED or None in (*q_dims, *k_dims, *v_dims):
        return False
    return q_dims[:-2] == k_dims[:-2] == v_dims[:-2] and (q_dims[-1], k_dims[-1]) == (k_dims[-2], v_dims[-2])


def _dims(value: ir.Value) -> list[int | str | None]:
    """Sizes, or the names of those that vary, or None if neither is known."""
    return [size if isinstance(size, int) else size.value for size in value.shape or ()]


def only_user(node: ir.Node) -> ir.Node | None:
    """The standard ONNX node that is the only reader of a node's result, in the same graph; None if there is no such."""
    y = node.outputs[0]
    uses = list(y.uses())
    if len(uses) != 1 or y.is_graph_output():
        return None
    user: ir.Node = uses[0][0]
    return user if user.graph is node.graph and user.domain == "" else None


def is_of(node: ir.Node, dtype: str) -> bool:
    """Return True if the first input of a node is of this element type."""
    x = node.inputs[0]
    return x is not None and x.dtype is not None and x.dtype.name == dtype


def call_of(node: ir.Node) -> Call:
    """A node's attributes, as the table of torch calls reads them."""
    attributes = {name: _plain(attribute.value) for name, attribute in node.attributes.items()}
    return Call(node.op_type, 21, attributes, 1)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple | list) else value


def constant(node: ir.Node, index: int) -> Any:
    """Return the input of a node at this position as a tensor, None if it is not a constant."""
    value = node.inputs[index] if index < len(node.inputs) else None
    return None if value is None or value.const_value is None else tensor(value)


def tensor(value: ir.Value) -> Any:
    """A constant as a tensor of torch's."""
    assert value.const_value is not None
    return torch.from_numpy(constant_array(value.const_value))


def static_shape(value: ir.Value | None) -> list[int] | None:
    """The sizes of a value; None if any varies or is unknown."""
    if value is None or value.shape is None:
        return None
    sizes = [size for size in value.shape if isinstance(size, int)]
    return sizes if len(sizes) == len(value.shape) else None
