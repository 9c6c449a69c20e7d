"""Linear operators with constant weights: scaling the weights in place of inputs or outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

if TYPE_CHECKING:
    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["add_constant", "constant_of", "keeps_range", "own_weight", "scale_inputs", "scale_outputs"]


def constant_of(value: ir.Value | None) -> Array | None:
    """The array of an initializer that callers cannot override; None for anything else."""
    if value is None or value.const_value is None or not value.is_initializer() or value.is_graph_input():
        return None
    return value.const_value.numpy()


def own_weight(linear: ir.Node) -> Array | None:
    """The floating-point weight of a linear operator, if it is a constant that nothing else reads."""
    weight = linear.inputs[1] if len(linear.inputs) > 1 else None
    if weight is None or len(weight.uses()) != 1 or weight.is_graph_output():
        return None
    if weight.dtype is None or not weight.dtype.is_floating_point():
        return None
    return constant_of(weight)


def scale_outputs(linear: ir.Node, weight: Array, factor: Array) -> Array | None:
    """The weight, in double precision, that makes the operator's result ``factor`` times as large per channel.

    Weights of Conv are [M, C/group, ...], of ConvTranspose [C, M/group, ...], of MatMul [..., K, M], of Gemm [K, M],
    or [M, K] with transB.

    Args:
        linear: A Conv, ConvTranspose, Gemm or MatMul.
        weight: Its weight.
        factor: One number per output channel, [M].

    Returns:
        The scaled weight; None if the numbers do not fit the channels.
    """
    if linear.op_type == "ConvTranspose":
        return _scale_grouped(linear, weight, factor)
    axis = 0 if linear.op_type == "Conv" or _is_transposed(linear) else weight.ndim - 1
    return _scale_axis(weight, factor, axis)


def scale_inputs(linear: ir.Node, weight: Array, factor: Array) -> Array | None:
    """The weight, in double precision, that has the effect of multiplying the operator's input by ``factor``.

    Args:
        linear: A Conv, ConvTranspose, Gemm or MatMul.
        weight: Its weight; see ``scale_outputs``.
        factor: One number per input channel, [C] or [K].

    Returns:
        The scaled weight; None if the numbers do not fit the channels.
    """
    if linear.op_type == "Conv":
        return _scale_grouped(linear, weight, factor)
    if linear.op_type == "ConvTranspose":
        return _scale_axis(weight, factor, 0)
    return _scale_axis(weight, factor, 1 if _is_transposed(linear) else max(weight.ndim - 2, 0))


def keeps_range(before: Array, wide: Array, rounded: Array) -> bool:
    """If a scaled constant lost nothing by rounding but digits.

    No number may have become infinite, and of no axis may a whole slice, such as the weights of a channel, have fallen among
    the subnormal numbers, which have no digits to lose.

    Args:
        before: The constant.
        wide: It scaled, in double precision.
        rounded: The scaled constant in the constant's own type.
    """
    if not np.isfinite(rounded.astype(np.float64)).all():
        return False
    least = float(ml_dtypes.finfo(rounded.dtype).tiny)
    sizes = [np.abs(np.broadcast_to(array, wide.shape).astype(np.float64)) for array in (before, wide, rounded)]
    for axis in range(wide.ndim):
        others = tuple(other for other in range(wide.ndim) if other != axis)
        was, wanted, now = (size.max(axis=others, initial=0.0) for size in sizes)
        if ((was >= least) & (wanted > 0) & (now < least)).any():
            return False
    return True


def add_constant(graph: ir.Graph, name: str, array: Array) -> ir.Value:
    """A new initializer; its name is made unique."""
    while name in graph.initializers:
        name += "_"
    tensor = ir.tensor(array, name=name)
    value = ir.Value(name=name, const_value=tensor, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape))
    graph.register_initializer(value)
    return value


def _is_transposed(linear: ir.Node) -> bool:
    return linear.op_type == "Gemm" and linear.attributes.get_int("transB", 0) == 1


def _scale_axis(weight: Array, factor: Array, axis: int) -> Array | None:
    if weight.ndim == 0 or weight.shape[axis] != factor.size:
        return None
    return np.asarray(weight.astype(np.float64) * factor.reshape([-1 if i == axis else 1 for i in range(weight.ndim)]))


def _scale_grouped(linear: ir.Node, weight: Array, factor: Array) -> Array | None:
    """Scale the second axis, which in a grouped operator has only the channels of one group."""
    groups = linear.attributes.get_int("group", 1)
    if weight.shape[1] * groups != factor.size or weight.shape[0] % groups:
        return None
    split = weight.astype(np.float64).reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
    ones = (1,) * (weight.ndim - 2)
    return np.asarray((split * factor.reshape(groups, 1, -1, *ones)).reshape(weight.shape))
