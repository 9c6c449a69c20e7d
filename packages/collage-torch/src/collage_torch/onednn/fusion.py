"""Groups of operators that are one call: convolutions and products with the operators after them, attention, norms, LSTMs.

Weights are packed once, into the blocked layout that oneDNN chooses for the shapes at hand; activations run in
channels-last layout, in which oneDNN needs no reorder between two convolutions. If a kernel is little more than its
borders, whose tensors are row-major, convolutions take these as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from collage_torch.onednn.blocked import blocked_chain
from collage_torch.onednn.recurrent import lstm
from collage_torch.op_groups import (
    attention,
    call_of,
    constant,
    group_norm,
    is_of,
    only_user,
    static_shape,
    tensor,
)
from collage_torch.ops import OPS, Call, Fused
from collage_torch.ops._elementwise import gelu_of
from collage_torch.ops._neural import Window

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["find_groups"]

_LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}
_POOLS = frozenset(("MaxPool", "AveragePool", "LpPool"))
"""Torch's are many times as fast on channels-last tensors."""
_LARGEST_DEPTHWISE = 7
"""Side of the largest depthwise filter that is tried in blocked layout: a row of 31 takes seven times as long there."""
_SMALL_PRODUCT = 1 << 20
"""Multiplications in a product that torch's plain call does sooner: oneDNN's takes 12 us longer to begin."""
_LONGEST_SUM = 128
"""Terms of a product's sums after which oneDNN begins to add them up in blocks, and to take far too long for curved
activations: GELU of a product of 768 takes 8.7 ms with it, and 6.7 ms apart from it. Convolutions do better with theirs.
"""
_NAMES = {"Relu": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh", "HardSwish": "hardswish"}


@dataclass(frozen=True)
class _Epilogue:
    """The operation after a product, as oneDNN names it."""

    name: str = "none"
    scalars: tuple[float, ...] = ()
    algorithm: str = ""
    added: ir.Value | None = None


def find_groups(graph: ir.Graph, channels_last: bool = False) -> list[Fused]:
    """The groups of a graph; each node is in at most one.

    Args:
        graph: The graph of the kernel.
        channels_last: True if its images come channels-last, and are to be returned so; False if they are row-major.
    """
    groups = []
    taken: set[ir.Node] = set()
    row_major = not channels_last and _pays_row_major(graph)
    plainly = partial(_convolution, row_major=row_major)
    makers = _MAKERS | {"Conv": plainly if channels_last else lambda node: blocked_chain(node) or plainly(node)}
    for node in graph:
        make = makers.get(node.op_type) if node.domain == "" else None
        if make is not None and not is_of(node, "FLOAT"):
            make = _half_product if node.op_type in ("MatMul", "Gemm") and is_of(node, "FLOAT16") else None
        group = make(node) if make is not None else None
        if group is not None and taken.isdisjoint(group.nodes):
            taken.update(group.nodes)
            groups.append(group)
    return groups


def _pays_row_major(graph: ir.Graph) -> bool:
    """Return True if the convolutions of a kernel should take and return row-major tensors.

    OneDNN then brings all tensors between them, and the weights, into its own blocked layout in every run; but it does so
    three times as fast as torch makes the tensors at the kernel's borders channels-last, and has better code for groups.
    """
    convolutions = [node for node in graph if node.op_type == "Conv" and node.domain == ""]
    if any(node.op_type in _POOLS for node in graph) or not all(map(_has_blocked_code, convolutions)):
        return False
    borders, outputs, made, weights = (
        sum(map(_elements, values))
        for values in (
            (*graph.inputs, *graph.outputs),
            graph.outputs,
            (node.outputs[0] for node in convolutions),
            (node.inputs[1] for node in convolutions),
        )
    )
    return 2 * weights + made - outputs <= borders < math.inf


def _has_blocked_code(node: ir.Node) -> bool:
    """Return True unless a convolution is depthwise and one for which oneDNN falls back to loops in blocked layout."""
    w = static_shape(node.inputs[1])
    if w is None or w[1] > 1:
        return w is not None
    return len(w) == 4 and w[0] == node.attributes.get_int("group", 1) and max(w[2:]) <= _LARGEST_DEPTHWISE


def _elements(value: ir.Value | None) -> float:
    """Return the number of elements of an image, infinity if it is not known, 0 for fewer than three dimensions."""
    if value is not None and value.shape is not None and len(value.shape) < 3:
        return 0
    shape = static_shape(value)
    return math.inf if shape is None else math.prod(shape)


def _convolution(node: ir.Node, row_major: bool) -> Fused | None:
    w, b, call = constant(node, 1), constant(node, 2), call_of(node)
    if w is None or (len(node.inputs) > 2 and node.inputs[2] is not None and b is None) or w.ndim not in (3, 4, 5):
        return None
    shape = static_shape(node.inputs[0])
    if shape is None and call.get("auto_pad", "NOTSET").startswith("SAME"):
        return None
    where = Window(call, shape[2:] if shape else [0] * (w.ndim - 2), w.shape[2:])
    if not where.symmetric:
        return None
    nodes, epilogue = _follow(node, addable=True)
    function = _Convolution(w, b, where, call, shape, epilogue, row_major)
    inputs = [node.inputs[0]] if epilogue.added is None else [node.inputs[0], epilogue.added]
    return Fused(nodes, nodes[-1], tuple(v for v in inputs if v is not None), function)


class _Convolution:
    """A convolution of one, two or three dimensions; one dimension is two, the first of size 1."""

    def __init__(
        self,
        w: Any,
        b: Any,
        where: Window,
        call: Call,
        shape: Sequence[int] | None,
        epilogue: _Epilogue,
        row_major: bool,
    ) -> None:
        self._flat = w.ndim == 3
        lift = [0] if self._flat else []
        ones = [1] if self._flat else []
        w = w.unsqueeze(2) if self._flat else w
        self._layout = torch.contiguous_format if row_major else _LAYOUTS[w.ndim]
        self._where = (lift + where.begin, ones + where.stride, ones + where.dilation, call.get("group", 1))
        size = None if shape is None or 0 in shape else [*shape[:2], *ones, *shape[2:]]
        self._plain: Callable[[Any], Any] = lambda x: OPS["Conv"].function(
            call, x, w.squeeze(2) if self._flat else w, b
        )
        self._epilogue = epilogue
        self._w, self._b = w, b
        if not row_major:
            self._w = torch.ops.mkldnn._reorder_convolution_weight(w, *self._where, size)

    def __call__(self, x: Any, added: Any = None) -> Any:
        if not x.numel():
            return _apply(self._epilogue, self._plain(x), added)
        given = x
        x = (x.unsqueeze(2) if self._flat else x).contiguous(memory_format=self._layout)
        e = self._epilogue
        if added is None:
            y = torch.ops.mkldnn._convolution_pointwise(
                x, self._w, self._b, *self._where, e.name, list(e.scalars), e.algorithm
            )
        else:
            added = (added.unsqueeze(2) if self._flat else added).contiguous(memory_format=self._layout)
            y = torch.ops.mkldnn._convolution_pointwise.binary(
                x, added, self._w, self._b, *self._where, "add", 1.0, None if e.name == "none" else e.name, [], None
            )
        return _unless_infinite(e, y.squeeze(2) if self._flat else y, self._plain, given)


def _transposed(node: ir.Node) -> Fused | None:
    w, b, call = constant(node, 1), constant(node, 2), call_of(node)
    plain = call.get("auto_pad", "NOTSET") == "NOTSET" and call.get("output_shape") is None
    bound = len(node.inputs) < 3 or node.inputs[2] is None or b is not None
    if w is None or w.ndim not in (3, 4, 5) or not plain or not bound:
        return None
    where = Window(call, [0] * (w.ndim - 2), w.shape[2:])
    extra = call.get("output_padding") or [0] * (w.ndim - 2)
    slow = w.shape[1] == 1 < call.get("group", 1)  # depthwise: torch's own takes half the time
    if slow or not where.symmetric or any(e >= s for e, s in zip(extra, where.stride, strict=True)):
        return None
    nodes, epilogue = _follow(node, addable=False)
    return Fused(nodes, nodes[-1], _first(node), _Transposed(w, b, where, extra, call, epilogue))


class _Transposed:
    """A transposed convolution of one, two or three dimensions; one dimension is two, the first of size 1."""

    def __init__(self, w: Any, b: Any, where: Window, extra: list[int], call: Call, epilogue: _Epilogue) -> None:
        self._flat = w.ndim == 3
        self._plain: Callable[[Any], Any] = lambda x: OPS["ConvTranspose"].function(call, x, w, b)
        lift, ones = ([0], [1]) if self._flat else ([], [])
        lifted = w.unsqueeze(2) if self._flat else w
        self._layout = _LAYOUTS[lifted.ndim]
        strides = (ones + where.stride, ones + where.dilation, call.get("group", 1))
        self._where = (lift + where.begin, lift + extra, *strides)
        self._epilogue = epilogue
        self._w, self._b = torch.ops.mkldnn._reorder_convolution_transpose_weight(lifted, *self._where, None), b

    def __call__(self, x: Any) -> Any:
        e = self._epilogue
        if not x.numel():
            return _apply(e, self._plain(x), None)
        given = x
        x = (x.unsqueeze(2) if self._flat else x).contiguous(memory_format=self._layout)
        y = torch.ops.mkldnn._convolution_transpose_pointwise(
            x, self._w, self._b, *self._where, e.name, list(e.scalars), e.algorithm
        )
        return _unless_infinite(e, y.squeeze(2) if self._flat else y, self._plain, given)


def _product(node: ir.Node) -> Fused | None:
    """``x @ w`` with constant weights, a bias added by the node itself or by the next one, and the operators after it."""
    x, w, bias = _operands(node)
    if x is None or w is None:
        return None
    before: tuple[ir.Node, ...] = (node,)
    if node.op_type == "MatMul":
        following = only_user(node)
        if following is not None and following.op_type == "Add":
            other = following.inputs[1 - list(following.inputs).index(node.outputs[0])]
            added = None if other is None or other.const_value is None else tensor(other)
            if added is not None and added.ndim <= 1 and added.numel() == w.shape[0] and added.dtype == torch.float32:
                bias, before = added.reshape(-1).contiguous(), (node, following)
    rows = _rows(x)
    if rows is not None and rows * w.numel() <= _SMALL_PRODUCT:
        return Fused(before, before[-1], (x,), partial(torch.nn.functional.linear, weight=w, bias=bias))
    after, e = _follow(before[-1], addable=True)
    if e.added is not None:
        after, e = after[:2], _Epilogue(added=e.added)  # oneDNN's product takes a sum, or an activation
    nodes = (*before[:-1], *after)
    inputs = (x,) if e.added is None else (x, e.added)
    return Fused(nodes, nodes[-1], inputs, _Product(w, bias, rows, e))


def _half_product(node: ir.Node) -> Fused | None:
    """``x @ w`` of halves, in single precision, rounded once: torch's own product of them takes 30 to 300 times as long."""
    x, w, bias = _operands(node)
    if x is None or w is None:
        return None
    dtype = w.dtype
    product = _Product(w.float(), None if bias is None else bias.float(), _rows(x), _Epilogue())
    return Fused((node,), node, (x,), lambda x: product(x.float()).to(dtype))


def _operands(node: ir.Node) -> tuple[ir.Value | None, Any, Any]:
    """Return the operand of a MatMul or Gemm, its constant weights [columns, rows] and its own bias. All are None for others."""
    x, w, bias, call = node.inputs[0], constant(node, 1), None, call_of(node)
    if w is None or w.ndim != 2 or x is None or x.shape is None or len(x.shape) < 2 or 0 in w.shape:
        return None, None, None
    if node.op_type == "Gemm":
        plain = not call.get("transA", 0) and call.get("alpha", 1.0) == 1 and call.get("beta", 1.0) == 1
        bias = constant(node, 2)
        if not plain or (len(node.inputs) > 2 and node.inputs[2] is not None and bias is None):
            return None, None, None
    w = (w if call.get("transB", 0) else w.t()).contiguous()
    if bias is not None:
        if bias.numel() != w.shape[0] or bias.ndim > 2 or (bias.ndim == 2 and bias.shape[0] != 1):
            return None, None, None
        bias = bias.reshape(-1).contiguous()
    return x, w, bias


class _Product:
    """A product with constant weights [columns, rows] and the operators after it."""

    def __init__(self, w: Any, bias: Any, rows: int | None, epilogue: _Epilogue) -> None:
        self._plain: Callable[[Any], Any] = lambda x: torch.nn.functional.linear(x, w, bias)
        apart = _APART.get(epilogue.name) if w.shape[1] > _LONGEST_SUM else None
        self._after = None if apart is None else partial(apart, epilogue)
        self._bias, self._epilogue = bias, epilogue if apart is None else _Epilogue()
        self._w = torch.ops.mkldnn._reorder_linear_weight(w, rows)

    def __call__(self, x: Any, added: Any = None) -> Any:
        e = self._epilogue
        if not x.numel():
            return _apply(e, self._plain(x), added)
        x, call = x.contiguous(), torch.ops.mkldnn._linear_pointwise
        if added is not None:
            return call.binary(x, added.contiguous(), self._w, self._bias, "add")
        y = call(x, self._w, self._bias, e.name, list(e.scalars), e.algorithm)
        return _unless_infinite(e, y, self._plain, x) if self._after is None else self._after(y)


_APART: dict[str, Callable[[_Epilogue, Any], Any]] = {
    "tanh": lambda epilogue, y: y.tanh_(),
    "swish": lambda epilogue, y: torch.nn.functional.silu(y, inplace=True),
    "gelu": lambda epilogue, y: gelu_of(y, epilogue.algorithm),
}
"""Activations that follow a product, apart from it."""


_MAKERS: dict[str, Callable[[Any], Fused | None]] = {
    "ConvTranspose": _transposed,
    "Gemm": _product,
    "InstanceNormalization": group_norm,
    "MatMul": lambda node: _product(node) or attention(node),
    "LSTM": lambda node: lstm(node, call_of(node), static_shape(node.inputs[0])),
}


def _follow(node: ir.Node, addable: bool) -> tuple[tuple[ir.Node, ...], _Epilogue]:
    """The nodes after ``node`` that become its epilogue."""
    swish = _swish(node)
    if swish is not None:
        return (node, *swish), _Epilogue("swish")
    user = only_user(node)
    if user is None:
        return (node,), _Epilogue()
    if (epilogue := _activation(user)) is not None:
        return (node, user), epilogue
    if addable and user.op_type == "Add" and (other := _equal_partner(user, node.outputs[0])) is not None:
        last = only_user(user)
        if last is not None and last.op_type == "Relu":
            return (node, user, last), _Epilogue("relu", added=other)
        return (node, user), _Epilogue(added=other)
    return (node,), _Epilogue()


def _activation(node: ir.Node) -> _Epilogue | None:
    if node.domain != "":
        return None
    call = call_of(node)
    if node.op_type in _NAMES:
        return _Epilogue(_NAMES[node.op_type])
    if node.op_type == "LeakyRelu":
        return _Epilogue("leaky_relu", (call.get("alpha", 0.01),))
    if node.op_type == "Gelu":
        return _Epilogue("gelu", (), call.get("approximate", "none"))
    if node.op_type == "Clip" and len(node.inputs) == 3:
        low, high = constant(node, 1), constant(node, 2)
        if low is not None and high is not None:
            return _Epilogue("hardtanh", (float(low), float(high)))
    return None


def _swish(node: ir.Node) -> tuple[ir.Node, ir.Node] | None:
    """``Sigmoid`` and ``Mul`` if they are the only readers and form ``x * sigmoid(x)``."""
    y = node.outputs[0]
    users = [user for user, _ in y.uses()]
    if y.is_graph_output() or len(users) != 2:
        return None
    sigmoid = next((user for user in users if user.op_type == "Sigmoid"), None)
    product = next((user for user in users if user.op_type == "Mul"), None)
    if sigmoid is None or product is None or only_user(sigmoid) is not product:
        return None
    return sigmoid, product


def _equal_partner(node: ir.Node, value: ir.Value) -> ir.Value | None:
    """The other input of a sum of two different values of equal, known shapes."""
    left, right = node.inputs
    other = right if left is value else left
    if other is None or other is value or other.const_value is not None:
        return None
    shape = static_shape(value)
    return other if shape is not None and shape == static_shape(other) else None


def _unless_infinite(epilogue: _Epilogue, y: Any, plain: Callable[[Any], Any], x: Any) -> Any:
    """Return a result, computed apart from its GELU if that has met infinity, of which oneDNN makes NaN."""
    if epilogue.name != "gelu" or epilogue.algorithm != "none" or y.amax().item() < math.inf:
        return y
    return gelu_of(plain(x), epilogue.algorithm)


def _apply(epilogue: _Epilogue, y: Any, added: Any) -> Any:
    """An epilogue on a result without elements: only its shape counts."""
    return y if added is None else y + added


def _first(node: ir.Node) -> tuple[ir.Value, ...]:
    assert node.inputs[0] is not None
    return (node.inputs[0],)


def _rows(x: ir.Value) -> int | None:
    """Rows of a product, where they are known."""
    shape = static_shape(x)
    return int(np.prod(shape[:-1])) if shape and 0 not in shape else None
