"""SimplifyInference: fold operators that exist for training only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from collage.frontend import name_everything
from collage.transform._context import PassContext
from collage.transform._draft import has_operator
from collage.transform._info import PassInfo
from collage.transform._linear import add_constant, constant_of, own_weight, scale_outputs
from collage.transform._pass_kinds import FunctionLike, FunctionPass

if TYPE_CHECKING:
    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["SimplifyInference"]

_LINEAR = ("Conv", "ConvTranspose", "Gemm")
_DEFAULT_EPSILON = 1e-5


class SimplifyInference(FunctionPass):
    """Folds BatchNormalization into the Conv, ConvTranspose or Gemm before it.

    ``scale * (W x + b - mean) / sqrt(var + epsilon) + shift`` is linear in x again. It is folded where the linear
    node feeds nothing else, its weights are constants that nothing else reads, and the normalisation is not training.

    Weights and bias are folded in double precision and rounded once. So a result differs from the one before by at most
    ``n + 4`` units in the last place of ``sum(|W x factor|) + |b factor| + |mean factor| + |shift|``, where ``factor`` is
    ``scale / sqrt(var + epsilon)`` and ``n`` the number of terms. Weights and factors that are subnormal add the smallest
    such number times the sizes of what they multiply: ``x``, ``W x + b`` and ``mean``. That holds as long as nothing in
    between overflows. Parameters that fold to infinities, as where ``var + epsilon`` is 0, are not folded.
    """

    def __init__(self) -> None:
        super().__init__(PassInfo("SimplifyInference", opt_level=0))

    def transform_function(self, function: FunctionLike, model: ir.Model, context: PassContext) -> FunctionLike:
        """Folds in place."""
        if isinstance(function, ir.Function):
            return function  # a function has no initializers to fold into
        if not has_operator(function, ("BatchNormalization",)):
            return function
        constants = len(function.initializers)
        for node in list(function):
            linear = _foldable_into(node)
            if linear is not None:
                _fold(function, linear, node)
        if len(function.initializers) > constants:
            name_everything(model)
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
    known = all(value is None or constant_of(value) is not None for value in constants)
    return linear if alone and known and own_weight(linear) is not None else None


def _fold(graph: ir.Graph, linear: ir.Node, norm: ir.Node) -> None:
    with np.errstate(all="ignore"):
        folded = _folded_constants(linear, norm)
    # Parameters out of range would fold to infinities; the operators themselves may still get away with them.
    if folded is None or not all(np.isfinite(array.astype(np.float64)).all() for array in folded):
        return
    name = str(norm.outputs[0].name)
    weight, bias = folded
    constants = [
        add_constant(graph, f"{name}_folded_{kind}", array) for kind, array in (("weight", weight), ("bias", bias))
    ]
    _rewire(graph, linear, norm, constants)


def _folded_constants(linear: ir.Node, norm: ir.Node) -> tuple[Array, Array] | None:
    """Weight and bias of the one node that replaces two; None if their channels do not fit."""
    affine = _affine(norm)
    weight = constant_of(linear.inputs[1])
    bias = constant_of(linear.inputs[2]) if len(linear.inputs) > 2 else None
    assert weight is not None
    scaled = scale_outputs(linear, weight, affine.factor)
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
        np.asarray(constant_of(value)).astype(np.float64).reshape(-1) for value in norm.inputs[1:5]
    )
    factor = scale / np.sqrt(variance + norm.attributes.get_float("epsilon", _DEFAULT_EPSILON))
    return _Affine(factor, shift - mean * factor)


def _rewire(graph: ir.Graph, linear: ir.Node, norm: ir.Node, constants: Sequence[ir.Value]) -> None:
    """Put one node in the place of two; it takes over the name of the normalisation's result."""
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
