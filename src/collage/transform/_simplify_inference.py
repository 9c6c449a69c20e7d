"""SimplifyInference: what exists for training only is folded away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from collage.transform._context import PassContext
from collage.transform._info import PassInfo
from collage.transform._pass import FunctionLike, FunctionPass

if TYPE_CHECKING:
    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["SimplifyInference"]

_LINEAR = ("Conv", "ConvTranspose", "Gemm")
_DEFAULT_EPSILON = 1e-5


class SimplifyInference(FunctionPass):
    """Folds BatchNormalization into the Conv, ConvTranspose or Gemm before it.

    ``scale * (W x + b - mean) / sqrt(var + epsilon) + shift`` is linear in x again. It is folded where the linear
    node feeds nothing else, its weights are constants that nobody shares, and the normalisation is not training.
    """

    def __init__(self) -> None:
        super().__init__(PassInfo("SimplifyInference", opt_level=0))

    def transform_function(self, function: FunctionLike, model: ir.Model, context: PassContext) -> FunctionLike:
        """Folds in place."""
        if isinstance(function, ir.Function):
            return function  # a function has no initializers to fold into
        for node in list(function):
            linear = _foldable_into(node)
            if linear is not None:
                _fold(function, linear, node)
        return function


@dataclass(frozen=True, slots=True)
class _Affine:
    """``factor * y + term`` per channel, in double precision."""

    factor: Array
    term: Array


def _foldable_into(node: ir.Node) -> ir.Node | None:
    """The linear node that a normalisation can be folded into."""
    if node.op_type != "BatchNormalization" or node.domain != "":
        return None
    data = node.inputs[0]
    linear = data.producer() if data is not None else None
    if data is None or linear is None or linear.op_type not in _LINEAR or linear.domain != "":
        return None
    if node.attributes.get_int("training_mode", 0) or node.attributes.get_int("spatial", 1) != 1:
        return None
    if any(value.uses() or value.is_graph_output() for value in node.outputs[1:]):
        return None
    alone = len(data.uses()) == 1 and not data.is_graph_output() and linear.graph is node.graph
    constants = [*linear.inputs[1:], *node.inputs[1:5]]
    known = all(value is None or _constant(value) is not None for value in constants)
    weight = linear.inputs[1]
    if not alone or not known or weight is None or len(weight.uses()) != 1:
        return None
    return linear if weight.dtype is not None and weight.dtype.is_floating_point() else None


def _constant(value: ir.Value | None) -> Array | None:
    if value is None or value.const_value is None or not value.is_initializer() or value.is_graph_input():
        return None
    return value.const_value.numpy()


def _fold(graph: ir.Graph, linear: ir.Node, norm: ir.Node) -> None:
    with np.errstate(all="ignore"):
        folded = _folded_constants(linear, norm)
    # Parameters out of range would fold to infinities; the operators themselves may still get away with them.
    if folded is None or not all(np.isfinite(array.astype(np.float64)).all() for array in folded):
        return
    name = str(norm.outputs[0].name)
    weight, bias = folded
    constants = [_register(graph, f"{name}_folded_weight", weight), _register(graph, f"{name}_folded_bias", bias)]
    _rewire(graph, linear, norm, constants)


def _folded_constants(linear: ir.Node, norm: ir.Node) -> tuple[Array, Array] | None:
    """Weight and bias of the one node that replaces two; None if their channels do not fit."""
    affine = _affine(norm)
    weight = _constant(linear.inputs[1])
    bias = _constant(linear.inputs[2]) if len(linear.inputs) > 2 else None
    assert weight is not None
    scaled = _scaled(linear, weight, affine.factor)
    # Gemm scales its bias by beta; folded in here, since the term that is added must not be.
    beta = linear.attributes.get_float("beta", 1.0) if linear.op_type == "Gemm" else 1.0
    start = np.zeros(affine.factor.shape) if bias is None else beta * bias.astype(np.float64)
    # A bias of Gemm may vary along the rows instead, [M, 1] or [M, N].
    per_channel = start.size == 1 or start.shape[-1:] == affine.factor.shape == (start.size,)
    if scaled is None or not per_channel:
        return None
    shifted = start.reshape(-1) * affine.factor + affine.term
    return scaled.astype(weight.dtype), shifted.astype(weight.dtype)


def _affine(norm: ir.Node) -> _Affine:
    scale, shift, mean, variance = (
        np.asarray(_constant(value)).astype(np.float64).reshape(-1) for value in norm.inputs[1:5]
    )
    factor = scale / np.sqrt(variance + norm.attributes.get_float("epsilon", _DEFAULT_EPSILON))
    return _Affine(factor, shift - mean * factor)


def _scaled(linear: ir.Node, weight: Array, factor: Array) -> Array | None:
    """The weight with each output channel scaled; None if the channels do not fit.

    Conv weights are [M, C/group, ...], those of ConvTranspose [C, M/group, ...], of Gemm [K, M], or [M, K] if transB.
    """
    wide = weight.astype(np.float64)
    if linear.op_type == "ConvTranspose":
        groups = linear.attributes.get_int("group", 1)
        if wide.shape[1] * groups != factor.size or wide.shape[0] % groups:
            return None
        split = wide.reshape(groups, wide.shape[0] // groups, *wide.shape[1:])
        ones = (1,) * (wide.ndim - 2)
        return np.asarray((split * factor.reshape(groups, 1, -1, *ones)).reshape(wide.shape))
    axis = 1 if linear.op_type == "Gemm" and not linear.attributes.get_int("transB", 0) else 0
    if wide.shape[axis] != factor.size:
        return None
    return wide * factor.reshape([-1 if dim == axis else 1 for dim in range(wide.ndim)])


def _register(graph: ir.Graph, name: str, array: Array) -> ir.Value:
    while name in graph.initializers:
        name += "_"
    value = ir.Value(name=name, const_value=ir.tensor(array, name=name))
    assert value.const_value is not None
    value.type, value.shape = ir.TensorType(value.const_value.dtype), ir.Shape(array.shape)
    graph.register_initializer(value)
    return value


def _rewire(graph: ir.Graph, linear: ir.Node, norm: ir.Node, constants: Sequence[ir.Value]) -> None:
    """Puts one node in the place of two; it takes over the name of the normalisation's result."""
    result = norm.outputs[0]
    attributes = [a for a in linear.attributes.values() if not (linear.op_type == "Gemm" and a.name == "beta")]
    node = ir.node(linear.op_type, [linear.inputs[0], *constants], name=linear.name)
    for attribute in attributes:
        node.attributes[attribute.name] = attribute
    (output,) = node.outputs
    output.name, output.type, output.shape = result.name, result.type, result.shape
    graph.insert_before(norm, node)
    for index, value in enumerate(graph.outputs):
        if value is result:
            graph.outputs[index] = output
    result.replace_all_uses_with(output)
    graph.remove([linear, norm], safe=True)
