"""Arithmetic of ONNX in operators of Relax, where TVM's importer computes something else; see ``importer``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

__all__ = ["PAIRWISE", "mish", "pairwise", "remainder", "shifted", "whole_exponent"]

_HIGHEST_EXPONENT = 8
"""Beyond it products of small integers leave the range of most types."""

_LINEAR_FROM = 20.0
"""``Mish`` of this and more is the number itself, to all digits of a double."""

PAIRWISE: Mapping[str, Callable[[Any, Any], Any]] = {
    "Max": relax.op.maximum,
    "Mean": relax.op.add,
    "Min": relax.op.minimum,
    "Sum": relax.op.add,
}
"""Operators of any number of operands, and that of two."""


def pairwise(op_name: str, inputs: Sequence[Any], bb: Any) -> Any:
    """An operator of any number of operands, two at a time."""
    total = functools.reduce(lambda x, y: bb.normalize(PAIRWISE[op_name](x, y)), inputs)
    if op_name == "Mean":
        return relax.op.divide(total, relax.const(len(inputs), total.ty.dtype))
    return total


def whole_exponent(inputs: Sequence[Any]) -> int | None:
    """Return the exponent of a power of integers if it is one small constant, else None."""
    base, exponent = inputs
    if not str(base.ty.dtype).startswith("int") or not isinstance(exponent, tvm.ir.GenericConst):
        return None
    number = exponent.value.numpy()
    if number.ndim or number not in range(1, _HIGHEST_EXPONENT + 1):
        return None
    return int(number)


def shifted(x: Any, places: Any, right: bool) -> Any:
    """A shift that leaves zeros, or the sign, where it is by more places than there are, or by fewer than none."""
    dtype = str(x.ty.dtype)
    signed = dtype.startswith("int")
    unsigned = f"u{dtype}" if signed else dtype
    # Read as an unsigned number a negative one is larger than any width.
    count = relax.op.astype(places, unsigned) if signed else places
    last = np.iinfo(dtype).bits - 1
    near = relax.op.astype(relax.op.minimum(count, relax.const(last, unsigned)), dtype)
    if right and signed:
        return relax.op.right_shift(x, near)
    moved = relax.op.right_shift(x, near) if right else relax.op.left_shift(x, near)
    return relax.op.where(relax.op.greater(count, relax.const(last, unsigned)), relax.const(0, dtype), moved)


def remainder(x: Any, y: Any) -> Any:
    """The remainder that has the sign of the divisor, of the exact quotient."""
    dtype = str(x.ty.dtype)
    zero, negative = relax.const(0.0, dtype), relax.op.less(y, relax.const(0.0, dtype))
    rest = relax.op.mod(x, y)
    turned = relax.op.logical_xor(relax.op.less(rest, zero), negative)
    nothing = relax.op.where(negative, relax.const(-0.0, dtype), zero)
    return relax.op.where(relax.op.equal(rest, zero), nothing, relax.op.where(turned, relax.op.add(rest, y), rest))


def mish(x: Any) -> Any:
    """``x * tanh(log(1 + e))``, where ``e = exp(x)``, without the logarithm: ``tanh(log(a)) = (a² - 1) / (a² + 1)``."""
    dtype = str(x.ty.dtype)
    two = relax.const(2.0, dtype)
    e = relax.op.exp(relax.op.minimum(x, relax.const(_LINEAR_FROM, dtype)))
    n = relax.op.multiply(e, relax.op.add(e, two))
    return relax.op.multiply(x, relax.op.divide(n, relax.op.add(n, two)))
