"""FoldScaleAxis: multiplications per channel disappear into the weights beside them.

Weights are scaled in double precision and rounded once. So a result ``sum(weight * scale * x) + bias * scale`` differs from
the one before by at most ``n + 3`` units in the last place of the sum of its terms' sizes, of which there are ``n``. That holds
as long as nothing in between leaves the range of the type, before or after. Scales that would drive all weights of a channel
out of that range are not folded, nor are negative ones across operators that depend on the sign.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from collage.frontend import name_everything
from collage.transform._context import PassContext
from collage.transform._info import PassInfo
from collage.transform._linear import add_constant, constant_of, keeps_range, own_weight, scale_inputs, scale_outputs
from collage.transform._pass_kinds import FunctionLike, FunctionPass
from collage.transform._sequential import Sequential

if TYPE_CHECKING:
    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["BackwardFoldScaleAxis", "FoldScaleAxis", "ForwardFoldScaleAxis"]

_CONVOLUTIONS = ("Conv", "ConvTranspose")
_PRODUCTS = ("Gemm", "MatMul")
_HOMOGENEOUS = ("LeakyRelu", "Relu")
"""Operators through which a positive factor passes; a negative one turns them over."""
_POOLS = {"AveragePool": False, "GlobalAveragePool": False, "GlobalMaxPool": True, "MaxPool": True}
"""Operators on [N, C, ...] through which a factor per channel passes; True if only a positive one does."""


def FoldScaleAxis() -> Sequential:
    """Both directions. Backward is first, since it does not depend on the nodes that follow."""
    return Sequential([BackwardFoldScaleAxis(), ForwardFoldScaleAxis()], opt_level=3, name="FoldScaleAxis")


class BackwardFoldScaleAxis(FunctionPass):
    """Folds ``linear(x) * scale`` into the weight and bias of the Conv, ConvTranspose, Gemm or MatMul before it.

    The scale is a constant per output channel. Between the two there may be constants that are added, pools, and,
    where the scale is positive, Relu and LeakyRelu; nothing else may read what lies between.
    """

    def __init__(self) -> None:
        super().__init__(PassInfo("BackwardFoldScaleAxis", opt_level=3, required=("InferType",)))

    def transform_function(self, function: FunctionLike, model: ir.Model, context: PassContext) -> FunctionLike:
        """Folds in place."""
        return _fold_all(function, model, _fold_backward)


class ForwardFoldScaleAxis(FunctionPass):
    """Folds ``linear(x * scale)`` into the weight of the Conv, ConvTranspose, Gemm or MatMul after it.

    The scale is a constant per input channel. Between the two there may be pools and, where the scale is positive,
    Relu and LeakyRelu; nothing else may read what lies between.
    """

    def __init__(self) -> None:
        super().__init__(PassInfo("ForwardFoldScaleAxis", opt_level=3, required=("InferType",)))

    def transform_function(self, function: FunctionLike, model: ir.Model, context: PassContext) -> FunctionLike:
        """Folds in place."""
        return _fold_all(function, model, _fold_forward)


def _fold_all(function: FunctionLike, model: ir.Model, fold: Callable[[ir.Graph, _Scale], None]) -> FunctionLike:
    if not isinstance(function, ir.Graph):
        return function  # a function has no initializers to fold into
    constants = len(function.initializers)
    for node in list(function):
        scale = _scale_of(node)
        if scale is not None:
            fold(function, scale)
    if len(function.initializers) > constants:
        name_everything(model)
    return function


@dataclass(frozen=True, slots=True)
class _Scale:
    """A node that multiplies ``data`` by ``factor``, which broadcasts against it; in double precision."""

    node: ir.Node
    data: ir.Value
    factor: Array

    @property
    def is_positive(self) -> bool:
        return bool((self.factor > 0).all())

    def passes(self, node: ir.Node) -> bool:
        """Return True if scaling before the node is the same as scaling after it, on [N, C, ...] or elementwise."""
        if node.domain != "" or any(value.uses() for value in node.outputs[1:]):
            return False
        return (node.op_type in _HOMOGENEOUS and self.is_positive) or (
            node.op_type in _POOLS and (self.is_positive or not _POOLS[node.op_type])
        )

    def per_channel(self, rank: int, channel_axis: int, channels: int) -> Array | None:
        """The factor as one number per channel; None if it is none."""
        if self.factor.ndim > rank:
            return None
        if self.factor.size == 1:
            return np.full(channels, self.factor.reshape(()))
        from_end = rank - channel_axis
        along = self.factor.shape[-from_end] if self.factor.ndim >= from_end else 1
        return self.factor.reshape(-1) if along == self.factor.size == channels else None


@dataclass(slots=True)
class _Edit:
    """New constants for operands of nodes; put in only if all are in range."""

    operands: list[tuple[ir.Node, int, Array]] = field(default_factory=list)

    def add(self, node: ir.Node, index: int, wide: Array) -> bool:
        """Plans ``wide`` for an operand, in the operand's type; False if it does not fit it."""
        operand = node.inputs[index]
        assert operand is not None and operand.dtype is not None
        before = constant_of(operand)
        assert before is not None
        with np.errstate(over="ignore", under="ignore"):
            array = wide.astype(operand.dtype.numpy())
        self.operands.append((node, index, array))
        return keeps_range(before, wide, array)

    def commit(self, graph: ir.Graph) -> None:
        for node, index, array in self.operands:
            name = f"{node.name or node.op_type}_scaled_{index}"
            node.replace_input_with(index, add_constant(graph, name, array))


def _scale_of(node: ir.Node) -> _Scale | None:
    if node.domain != "" or node.op_type not in ("Mul", "Div"):
        return None
    first, second = node.inputs
    constant = constant_of(second)
    if constant is None and node.op_type == "Mul":
        first, constant = second, constant_of(first)
    if first is None or constant is None or first.dtype is None or not first.dtype.is_floating_point():
        return None
    with np.errstate(all="ignore"):
        factor = constant.astype(np.float64)
        factor = 1 / factor if node.op_type == "Div" else factor
    return _Scale(node, first, factor) if np.isfinite(factor).all() and factor.size else None


def _fold_backward(graph: ir.Graph, scale: _Scale) -> None:
    edit, value, seen_pool = _Edit(), scale.data, False
    while True:
        node = value.producer()
        if node is None or node.domain != "" or node.graph is not graph or not _is_private(value):
            return
        if node.op_type in (*_CONVOLUTIONS, *_PRODUCTS):
            break
        if node.op_type == "Add" and (index := _constant_operand(node)) is not None:
            constant = constant_of(node.inputs[index])
            assert constant is not None
            if not edit.add(node, index, constant.astype(np.float64) * scale.factor):
                return
            data = node.inputs[1 - index]
        elif scale.passes(node):
            seen_pool |= node.op_type in _POOLS
            data = node.inputs[0]
        else:
            return
        assert data is not None
        value = data
    if (seen_pool and node.op_type in _PRODUCTS) or not _scale_linear_outputs(node, scale, edit):
        return
    edit.commit(graph)
    _drop(graph, scale)


def _scale_linear_outputs(linear: ir.Node, scale: _Scale, edit: _Edit) -> bool:
    weight = own_weight(linear)
    rank = _rank(linear, linear.outputs[0], weight)
    if weight is None or rank is None:
        return False
    factor = scale.per_channel(rank, 1 if linear.op_type in _CONVOLUTIONS else rank - 1, _channels(linear, weight))
    scaled = scale_outputs(linear, weight, factor) if factor is not None else None
    if scaled is None or factor is None or not edit.add(linear, 1, scaled):
        return False
    bias = linear.inputs[2] if len(linear.inputs) > 2 else None
    if bias is None:
        return True
    constant = constant_of(bias)
    # A bias of Gemm is [M], or broadcasts to [N, M]; the factor is [M] and lies along its last axis, too.
    return constant is not None and edit.add(linear, 2, constant.astype(np.float64) * factor)


def _fold_forward(graph: ir.Graph, scale: _Scale) -> None:
    value, seen_pool = scale.node.outputs[0], False
    while True:
        if not _is_private(value):
            return
        ((node, index),) = value.uses()
        if index != 0 or node.graph is not graph or node.domain != "":
            return
        if node.op_type in (*_CONVOLUTIONS, *_PRODUCTS):
            break
        if not scale.passes(node):
            return
        seen_pool |= node.op_type in _POOLS
        value = node.outputs[0]
    edit = _Edit()
    if (seen_pool and node.op_type in _PRODUCTS) or not _scale_linear_inputs(node, scale, edit):
        return
    edit.commit(graph)
    _drop(graph, scale)


def _scale_linear_inputs(linear: ir.Node, scale: _Scale, edit: _Edit) -> bool:
    weight = own_weight(linear)
    rank = _rank(linear, scale.data, weight)
    if weight is None or rank is None or linear.attributes.get_int("transA", 0) == 1:
        return False
    shape = scale.data.shape
    axis = 1 if linear.op_type in _CONVOLUTIONS else rank - 1
    # The multiplication must not have stretched its input: without it the input would stay narrow.
    channels = shape[axis] if shape is not None and len(shape) == rank else None
    if not isinstance(channels, int):
        return False
    factor = scale.per_channel(rank, axis, channels)
    scaled = scale_inputs(linear, weight, factor) if factor is not None else None
    return scaled is not None and edit.add(linear, 1, scaled)


def _rank(linear: ir.Node, value: ir.Value, weight: Array | None) -> int | None:
    """Rank of a linear operator's input or output; None if it is not known, or too small to have channels."""
    if weight is None or weight.ndim < 2:
        return None
    if linear.op_type in _CONVOLUTIONS:
        return weight.ndim
    if linear.op_type == "Gemm":
        return 2
    return len(value.shape) if value.shape is not None and len(value.shape) > 0 else None


def _channels(linear: ir.Node, weight: Array) -> int:
    """Number of output channels."""
    if linear.op_type == "ConvTranspose":
        return int(weight.shape[1]) * linear.attributes.get_int("group", 1)
    is_first = linear.op_type == "Conv" or linear.attributes.get_int("transB", 0) == 1
    return int(weight.shape[0 if is_first else -1])


def _is_private(value: ir.Value) -> bool:
    return len(value.uses()) == 1 and not value.is_graph_output()


def _constant_operand(node: ir.Node) -> int | None:
    return next((index for index in (1, 0) if constant_of(node.inputs[index]) is not None), None)


def _drop(graph: ir.Graph, scale: _Scale) -> None:
    """Remove the multiplication; its operand becomes its result."""
    result = scale.node.outputs[0]
    is_output = result.is_graph_output()
    result.replace_all_uses_with(scale.data, replace_graph_outputs=True)
    graph.remove(scale.node, safe=True)
    if is_output:
        scale.data.name = result.name
