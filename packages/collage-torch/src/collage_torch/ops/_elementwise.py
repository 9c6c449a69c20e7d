"""Elementwise operators, with broadcasting."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from collage.toolchains import Unsupported
from collage_torch.ops._dtypes import torch_dtype
from collage_torch.ops._table import OPS, Call, Entry, op

__all__ = ["gelu_of"]

Tensor = Any
Array = Any

_EXACT_POWERS = (1, 2, 3)
"""Exponents that torch takes as numbers to multiply by, five times as fast; its root differs from a power of an infinity."""

_UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "Abs": torch.abs,
    "Acos": torch.acos,
    "Acosh": torch.acosh,
    "Asin": torch.asin,
    "Asinh": torch.asinh,
    "Atan": torch.atan,
    "Atanh": torch.atanh,
    "BitwiseNot": torch.bitwise_not,
    "Ceil": torch.ceil,
    "Cos": torch.cos,
    "Cosh": torch.cosh,
    "Det": torch.det,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Floor": torch.floor,
    "HardSwish": lambda x: x * F.hardsigmoid(x),  # torch's own multiplies first, and makes infinity of 1e38
    "Identity": lambda x: x,
    "IsNaN": torch.isnan,
    "Log": torch.log,
    "Mish": F.mish,
    "Neg": torch.neg,
    "Not": torch.logical_not,
    "Reciprocal": torch.reciprocal,
    "Relu": torch.relu,
    "Round": torch.round,
    "Sigmoid": torch.sigmoid,
    "Sign": lambda x: torch.where(x == x, torch.sign(x), x),
    "Sin": torch.sin,
    "Sinh": torch.sinh,
    "Softplus": lambda x: torch.logaddexp(x, torch.zeros_like(x)),
    "Softsign": F.softsign,
    "Sqrt": torch.sqrt,
    "Tan": torch.tan,
    "Tanh": torch.tanh,
}

_BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Add": torch.add,
    "And": torch.logical_and,
    "BitwiseAnd": torch.bitwise_and,
    "BitwiseOr": torch.bitwise_or,
    "BitwiseXor": torch.bitwise_xor,
    "Equal": torch.eq,
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
    "Mul": torch.mul,
    "Or": torch.logical_or,
    "Sub": torch.sub,
    "Xor": torch.logical_xor,
}


def _enter_plain() -> None:
    for name, unary in _UNARY.items():
        OPS[name] = Entry(lambda call, x, f=unary: f(x))
    for name, binary in _BINARY.items():
        OPS[name] = Entry(lambda call, x, y, f=binary: f(x, y))


_enter_plain()


@op("Div")
def div(call: Call, x: Tensor, y: Tensor) -> Tensor:
    if x.is_floating_point():
        return torch.true_divide(x, y)
    unsafe = _is_unsafe(call, y)
    if unsafe is None:
        return torch.div(x, y, rounding_mode="trunc")
    # The product is the quotient by -1, which wraps around, and 0 where the divisor is.
    return torch.where(unsafe, x * y, torch.div(x, y.masked_fill(unsafe, 1), rounding_mode="trunc"))


def _is_unsafe(call: Call, y: Tensor) -> Tensor | None:
    """Return the places of divisors 0 and -1, which may end the process; None if it is a constant without either."""

    def found() -> Tensor:
        return (y == 0) | (y == -1) if y.dtype.is_signed else y == 0

    if 1 not in call.frozen:
        return found()
    unsafe: Tensor | None = call.once("unsafe", lambda: found() if found().any() else None, 1, given=y.device)
    return unsafe


@op("Pow", host_constants=(1,))
def power(call: Call, x: Tensor, y: Tensor | Array) -> Tensor:
    if isinstance(y, np.ndarray):
        if y.item() in _EXACT_POWERS and y.ndim <= x.ndim and x.is_floating_point():
            return torch.pow(x, int(y.item()))
        y = torch.full(y.shape, y.item(), dtype=torch.from_numpy(np.empty(0, y.dtype)).dtype, device=x.device)
    return torch.pow(x, y).to(x.dtype) if x.is_floating_point() or not y.is_floating_point() else _as_float(x, y)


def _as_float(x: Tensor, y: Tensor) -> Tensor:
    return torch.pow(x.to(torch.float64), y).to(x.dtype)


@op("Mod")
def mod(call: Call, x: Tensor, y: Tensor) -> Tensor:
    unsafe = None if y.is_floating_point() else _is_unsafe(call, y)
    y = y if unsafe is None else y.masked_fill(unsafe, 1)
    return torch.fmod(x, y) if call.get("fmod", 0) else torch.remainder(x, y)


@op("BitShift")
def bit_shift(call: Call, x: Tensor, y: Tensor) -> Tensor:
    return (torch.bitwise_left_shift if call.get("direction") == "LEFT" else torch.bitwise_right_shift)(x, y)


@op("Max")
def maximum(call: Call, *xs: Tensor) -> Tensor:
    return functools.reduce(torch.maximum, xs)


@op("Min")
def minimum(call: Call, *xs: Tensor) -> Tensor:
    return functools.reduce(torch.minimum, xs)


@op("Sum")
def total(call: Call, *xs: Tensor) -> Tensor:
    return functools.reduce(torch.add, xs)


@op("Mean")
def mean(call: Call, *xs: Tensor) -> Tensor:
    return functools.reduce(torch.add, xs) / len(xs)


@op("Where")
def where(call: Call, condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return torch.where(condition, x, y)


@op("Clip")
def clip(call: Call, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    if call.version < 11:
        return torch.clamp(x, call.get("min"), call.get("max")) if call.attributes else x
    if low is not None:
        x = torch.maximum(x, low)
    return x if high is None else torch.minimum(x, high)


@op("LeakyRelu")
def leaky_relu(call: Call, x: Tensor) -> Tensor:
    return F.leaky_relu(x, call.get("alpha", 0.01))


@op("PRelu")
def prelu(call: Call, x: Tensor, slope: Tensor) -> Tensor:
    return torch.where(x < 0, x * slope, x)


@op("Elu")
def elu(call: Call, x: Tensor) -> Tensor:
    return F.elu(x, call.get("alpha", 1.0))


@op("Celu")
def celu(call: Call, x: Tensor) -> Tensor:
    return F.celu(x, call.get("alpha", 1.0))


@op("Selu")
def selu(call: Call, x: Tensor) -> Tensor:
    alpha, gamma = call.get("alpha", 1.6732632423543772), call.get("gamma", 1.0507009873554805)
    return gamma * torch.where(x > 0, x, alpha * torch.expm1(x))


@op("ThresholdedRelu")
def thresholded_relu(call: Call, x: Tensor) -> Tensor:
    return torch.where(x > call.get("alpha", 1.0), x, torch.zeros_like(x))


@op("HardSigmoid")
def hard_sigmoid(call: Call, x: Tensor) -> Tensor:
    return torch.clamp(x * call.get("alpha", 0.2) + call.get("beta", 0.5), 0, 1)


@op("Gelu")
def gelu(call: Call, x: Tensor) -> Tensor:
    return gelu_of(x, call.get("approximate", "none"))


def gelu_of(x: Tensor, approximate: str) -> Tensor:
    """Return GELU. OneDNN's, which torch calls, makes NaN of infinity, and infinity of numbers that are nearly as large."""
    y = F.gelu(x, approximate=approximate)
    # Elsewhere than on processors, another library computes it, and a look at numbers waits for the device.
    is_onednn = x.device.type == "cpu" and approximate == "none" and not torch.compiler.is_exporting()
    if not is_onednn or not x.numel() or x.amax().item() < _ITSELF:
        return y
    return torch.where(x > _ITSELF, x, y)


_ITSELF = 1e4
"""GELU of a number from this on is the number."""


@op("Swish")
def swish(call: Call, x: Tensor) -> Tensor:
    alpha = call.get("alpha", 1.0)
    return F.silu(x) if alpha == 1 else x * torch.sigmoid(alpha * x)


@op("Shrink")
def shrink(call: Call, x: Tensor) -> Tensor:
    bias, border = call.get("bias", 0.0), call.get("lambd", 0.5)
    inner = torch.where(x > border, x - bias, torch.zeros_like(x))
    return torch.where(x < -border, x + bias, inner).to(x.dtype)


@op("IsInf")
def is_inf(call: Call, x: Tensor) -> Tensor:
    up, down = call.get("detect_positive", 1), call.get("detect_negative", 1)
    none = torch.zeros_like(x, dtype=torch.bool)
    return (x == math.inf if up else none) | (x == -math.inf if down else none)


@op("Cast")
def cast(call: Call, x: Tensor) -> Tensor:
    return x.to(torch_dtype(call.get("to")))


@op("CastLike")
def cast_like(call: Call, x: Tensor, like: Tensor) -> Tensor:
    return x.to(like.dtype)


@op("Dropout")
def dropout(call: Call, x: Tensor, ratio: Tensor | None = None, training: Tensor | None = None) -> Any:
    if training is not None:
        raise Unsupported("Dropout with a training_mode input")
    return x if call.outputs == 1 else (x, torch.ones_like(x, dtype=torch.bool))


@op("QuantizeLinear")
def quantize_linear(call: Call, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    dtype = zero.dtype if zero is not None else torch_dtype(call.get("output_dtype") or 2)
    if dtype not in (torch.int8, torch.uint8) or call.get("block_size") or x.dtype != torch.float32:
        raise Unsupported(f"QuantizeLinear of {x.dtype} to {dtype}, or by blocks")
    limits = torch.iinfo(dtype)
    steps = torch.round(x / _along(call, scale, x))
    steps = steps if zero is None else steps + _along(call, zero, x)
    return torch.clamp(steps, limits.min, limits.max).to(dtype)


@op("DequantizeLinear")
def dequantize_linear(call: Call, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    if call.get("block_size") or scale.dtype != torch.float32:
        raise Unsupported("DequantizeLinear by blocks, or to another type than float32")
    steps = x.to(torch.int32)
    steps = steps if zero is None else steps - _along(call, zero, x).to(torch.int32)
    return steps.to(scale.dtype) * _along(call, scale, x)


def _along(call: Call, parameter: Tensor, x: Tensor) -> Tensor:
    """A parameter for each slice of the quantisation axis."""
    if parameter.ndim == 0 or parameter.numel() == 1:
        return parameter.reshape(())
    axis = call.get("axis", 1) % x.ndim
    return parameter.reshape([-1 if i == axis else 1 for i in range(x.ndim)])


@op("DynamicQuantizeLinear")
def dynamic_quantize_linear(call: Call, x: Tensor) -> Any:
    zero = torch.zeros((), dtype=x.dtype)
    low, high = torch.minimum(x.min(), zero), torch.maximum(x.max(), zero)
    scale = (high - low) / 255
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    point = torch.clamp(torch.round(-low / scale), 0, 255)
    return torch.clamp(torch.round(x / scale) + point, 0, 255).to(torch.uint8), scale, point.to(torch.uint8)
