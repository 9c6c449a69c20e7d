"""Elementwise operators, and arithmetic of two tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from collage_ncnn.layers import Blob, Parameter
from collage_ncnn.operator import Lowering, Operator, shape_in_ncnn

__all__ = ["LOWERINGS"]

_UNARY = {"Abs": 0, "Neg": 1, "Floor": 2, "Ceil": 3, "Sqrt": 5}
"""Numbers of ``UnaryOp``. Exponentials, logarithms and angles are approximate beyond a range there, and are refused."""
_BINARY = {"Add": 0, "Sub": 1, "Mul": 2, "Div": 3, "Max": 4, "Min": 5}
_REVERSED = {"Sub": 7, "Div": 8}
_SMALLEST, _LARGEST = 1e-37, 1e37
"""Divisors between these are safe. By zero, infinity, and numbers whose reciprocal is either, ncnn makes NaN."""


def _plain(kind: str, parameters: Mapping[int, Parameter], op: Operator) -> Sequence[Blob]:
    """Add a layer of fixed parameters."""
    x = op.read()
    return [op.add(kind, [x], x.shape, dict(parameters))]


def _leaky_relu(op: Operator) -> Sequence[Blob]:
    return _plain("ReLU", {0: op.number("alpha", 0.01)}, op)


def _elu(op: Operator) -> Sequence[Blob]:
    return _plain("ELU", {0: op.number("alpha", 1.0)}, op)


def _selu(op: Operator) -> Sequence[Blob]:
    parameters = {
        0: op.number("alpha", 1.67326319217681884765625),
        1: op.number("gamma", 1.05070102214813232421875),
    }
    return _plain("SELU", parameters, op)


def _hard_sigmoid(op: Operator) -> Sequence[Blob]:
    alpha = op.number("alpha", 0.2)
    if alpha <= 0:
        raise op.refuse(f"has alpha {alpha}")
    return _plain("HardSigmoid", {0: alpha, 1: op.number("beta", 0.5)}, op)


def _gelu(op: Operator) -> Sequence[Blob]:
    return _plain("GELU", {0: int(op.text("approximate", "none") == "tanh")}, op)


def _swish(op: Operator) -> Sequence[Blob]:
    if op.number("alpha", 1.0) != 1.0:
        raise op.refuse(f"has alpha {op.number('alpha', 1.0)}")
    return _plain("Swish", {}, op)


def _prelu(op: Operator) -> Sequence[Blob]:
    x, slope = op.shape(0), op.weight(1, "slopes")
    # Slopes are told by the first dimension in ncnn, which is ONNX's second.
    aligned = (1,) * (len(x) - slope.ndim) + slope.shape
    per_channel = len(x) > 1 and x[0] == 1 and aligned == (1, x[1], *(1,) * (len(x) - 2))
    if slope.ndim > len(x) or not (slope.size == 1 or per_channel):
        raise op.refuse(f"has slopes of shape {list(slope.shape)} for {list(x)}")
    blob = op.read()
    return [op.add("PReLU", [blob], blob.shape, {0: slope.size}, [slope.reshape(-1)])]


def _clip(op: Operator) -> Sequence[Blob]:
    low, high = (_limit(op, i) for i in (1, 2))
    x = op.read()
    if low is not None and high is not None:
        return [op.add("Clip", [x], x.shape, {0: low, 1: high})]
    # Clip of one limit would make the largest number of infinity.
    for limit, number in ((low, _BINARY["Max"]), (high, _BINARY["Min"])):
        if limit is not None:
            x = op.add("BinaryOp", [x], x.shape, {0: number, 1: 1, 2: limit})
    return [x]


def _limit(op: Operator, i: int) -> float | None:
    if not op.has(i):
        return None
    array = op.constant(i)
    if array is None or array.size != 1 or array.dtype != np.float32 or np.isnan(array).any():
        raise op.refuse("needs constant limits")
    value = float(array.reshape(-1)[0])
    if np.isfinite(value):
        return value
    # An infinite limit on its own side is none.
    if (value < 0) != (i == 1):
        raise op.refuse(f"has the limit {value}")
    return None


def _binary(op: Operator) -> Sequence[Blob]:
    if len(op.node.inputs) == 1:
        return [op.read()]
    if op.kind == "Div":
        sizes = np.abs(op.weight(1, "divisors"))
        if not ((sizes >= _SMALLEST) & (sizes <= _LARGEST)).all():
            raise op.refuse("by zero or numbers near it, or by huge ones, makes NaN in ncnn")
    blob = _joined(op, 0, 1)
    for i in range(2, len(op.node.inputs)):
        blob = _joined(op, blob, i)
    return [blob]


def _joined(op: Operator, first: Blob | int, i: int) -> Blob:
    """Combine two operands: inputs by number, or a computed value, which has the shape of the result."""
    number = _BINARY.get(op.kind, 0)
    whole = op.out_shape()
    left, right = whole if isinstance(first, Blob) else op.shape(first), op.shape(i)
    result = np.broadcast_shapes(left, right)
    if isinstance(first, int):
        for at, other, code in ((i, first, number), (first, i, _REVERSED.get(op.kind, number))):
            scalar = op.constant(at)
            if scalar is not None and scalar.size == 1 and op.shape(other) == result:
                value = float(op.weight(at, "operands").reshape(-1)[0])
                x = op.read(other)
                return op.add("BinaryOp", [x], x.shape, {0: code, 1: 1, 2: value})
    if result not in (left, right):
        raise op.refuse(f"stretches both {list(left)} and {list(right)}")
    shape = shape_in_ncnn(result)
    operands = [
        each if isinstance(each, Blob) else op.read(each, _aligned(op.shape(each), result)) for each in (first, i)
    ]
    operands = [op.network.reshaped(each, _aligned(each.shape, shape)) for each in operands]
    return op.add("BinaryOp", operands, shape, {0: number})


def _aligned(shape: Sequence[int], result: Sequence[int]) -> tuple[int, ...]:
    """Return a shape with as many dimensions as a result has in ncnn."""
    rank = len(shape_in_ncnn(tuple(result)))
    lengths = (1,) * max(0, rank - len(shape)) + tuple(shape)
    return lengths[len(lengths) - rank :]


LOWERINGS: Mapping[str, Lowering] = {
    **{kind: partial(_plain, "UnaryOp", {0: number}) for kind, number in _UNARY.items()},
    **dict.fromkeys((*_BINARY, "Sum"), _binary),
    "Clip": _clip,
    "Elu": _elu,
    "Erf": partial(_plain, "Erf", {}),
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": partial(_plain, "HardSwish", {0: 1 / 6, 1: 0.5}),
    "LeakyRelu": _leaky_relu,
    "Mish": partial(_plain, "Mish", {}),
    "PRelu": _prelu,
    "Relu": partial(_plain, "ReLU", {}),
    "Selu": _selu,
    "Sigmoid": partial(_plain, "Sigmoid", {}),
    "Softplus": partial(_plain, "Softplus", {}),
    "Swish": _swish,
    "Tanh": partial(_plain, "TanH", {}),
}
