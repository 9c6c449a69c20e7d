"""Activations as sums, products and extremes: ``ConvertLayout`` keeps the layout of a convolution behind those.

TVM's own ``clip``, ``leakyrelu`` and loops of a single activation have no rule for layouts: data went from channels last to
channels first before each of them, and back behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

__all__ = ["activation"]

Number = Callable[[float], Any]
"""A constant of the type of the data."""


def activation(op_name: str, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any | None:
    """Return an activation of floating-point numbers; None if TVM's own conversion is to be taken."""
    if op_name not in _ACTIVATIONS or not isinstance(inputs[0].ty, relax.TensorType):
        return None
    dtype = str(inputs[0].ty.dtype)
    if dtype not in ("float32", "float64"):
        return None
    return _ACTIVATIONS[op_name](inputs, attrs, lambda value: relax.const(value, dtype))


def _leaky_relu(inputs: Sequence[Any], attrs: Mapping[str, Any], number: Number) -> Any | None:
    x, alpha = inputs[0], attrs.get("alpha", 0.01)
    return relax.op.maximum(x, relax.op.multiply(x, number(alpha))) if 0 < alpha <= 1 else None


def _clip(inputs: Sequence[Any], attrs: Mapping[str, Any], number: Number) -> Any | None:
    x, *bounds = inputs
    values = [None if bound is None else _value(bound) for bound in bounds]
    if any(value is None for bound, value in zip(bounds, values, strict=True) if bound is not None):
        return None
    low, high = [*values, None, None][:2]
    return _between(x, attrs.get("min", low), attrs.get("max", high), number)


def _hard_sigmoid(inputs: Sequence[Any], attrs: Mapping[str, Any], number: Number) -> Any:
    scaled = relax.op.multiply(inputs[0], number(attrs.get("alpha", 0.2)))
    return _between(relax.op.add(scaled, number(attrs.get("beta", 0.5))), 0.0, 1.0, number)


def _hard_swish(inputs: Sequence[Any], _: Mapping[str, Any], number: Number) -> Any:
    gate = _between(relax.op.add(inputs[0], number(3.0)), 0.0, 6.0, number)
    return relax.op.multiply(inputs[0], relax.op.divide(gate, number(6.0)))


_ACTIVATIONS: Mapping[str, Callable[[Sequence[Any], Mapping[str, Any], Number], Any | None]] = {
    "Clip": _clip,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "LeakyRelu": _leaky_relu,
}


def _between(x: Any, low: float | None, high: float | None, number: Number) -> Any:
    """Return the numbers within two bounds. A bound that is None or not a number bounds nothing."""
    # Where its operands do not compare, TVM takes the second one: so what is not a number stays that.
    if low is not None and not np.isnan(low):
        x = relax.op.maximum(number(low), x)
    if high is not None and not np.isnan(high):
        x = relax.op.minimum(number(high), x)
    return x


def _value(bound: Any) -> float | None:
    """Return the value of a constant of one number; None if it is anything else."""
    values = bound.value.numpy() if isinstance(bound, tvm.ir.GenericConst) else np.zeros(0)
    return float(values.item()) if values.size == 1 else None
