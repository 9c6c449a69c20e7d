"""Normalisations of channels, and of groups of channels, as operators that take any layout which convolutions have.

TVM's ``variance`` makes one loop nest of two sums, and its ``group_norm`` a nest of many. There are schedules for such nests
only if they run along rows, as they do while channels lie first. Convolutions turn a kernel channels-last. So these
functions compute the sums separately, and give parameters the rank of the normalised tensor. Then no transpose is
needed between two convolutions.

Before operator set 18, groups are normalised as a Reshape to [N, groups, ...], an InstanceNormalization and a Reshape back.

Language models divide rows by the root of the mean of their squares. The squares are summed up in the nest that computes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import ir, relax, te, tirx

from collage.toolchains.tvm.weight_layout import bound_call

__all__ = ["is_of_images", "mean_of_squares", "normalised_images", "reshaped", "with_channels"]

_RANK = 4
"""Of images that convolutions turn."""
_SQUARE = 2.0


def is_of_images(x: Any) -> bool:
    """Return True if a value is images of a known number of channels, of a type that sums are exact enough in."""
    return x.ty.ndim == _RANK and _channels(x) is not None and str(x.ty.dtype) in ("float32", "float64")


def _channels(x: Any) -> int | None:
    """Return the length of the second dimension, None if it is not known."""
    length = x.ty.shape.values[1] if isinstance(x.ty.shape, relax.ShapeExpr) else None
    return int(length) if isinstance(length, tirx.IntImm) else None


def normalised_images(bb: Any, x: Any, scale: Any, bias: Any, epsilon: float, groups: int) -> Any:
    """Normalise each group of channels of each image.

    Sums of rows come first: threads share them, and errors of rounding do not add up.

    Args:
        bb: Relax's builder.
        x: The images, [N, C, H, W].
        scale: A factor for each channel or for each group.
        bias: A summand, of the shape of ``scale``.
        epsilon: Added to the variance.
        groups: Number of groups.
    """
    emit, channels, dtype = bb.normalize, int(x.ty.shape.values[1]), str(x.ty.dtype)

    def to_channels(value: Any, samples: Any) -> Any:
        if channels != groups and int(value.ty.shape.values[-1]) == groups:
            column = emit(relax.op.reshape(value, relax.ShapeExpr([samples, groups, 1])))
            value = emit(relax.op.broadcast_to(column, relax.ShapeExpr([samples, groups, channels // groups])))
        return emit(relax.op.reshape(value, relax.ShapeExpr([samples, channels, 1, 1])))

    def mean_of(value: Any) -> Any:
        for axis in (3, 2):
            value = emit(relax.op.mean(value, axis, keepdims=True))
        if channels == groups:
            return value
        samples = x.ty.shape.values[0]
        members = emit(relax.op.reshape(value, relax.ShapeExpr([samples, groups, channels // groups])))
        return to_channels(emit(relax.op.mean(members, 2)), samples)

    mean = mean_of(x)

    def about_zero() -> Any:
        return emit(relax.op.subtract(x, mean))

    variance = mean_of(emit(relax.op.square(about_zero())))
    deviation = emit(relax.op.sqrt(emit(relax.op.add(variance, relax.const(epsilon, dtype)))))
    scaled = emit(relax.op.multiply(emit(relax.op.divide(about_zero(), deviation)), to_channels(scale, 1)))
    return relax.op.add(scaled, to_channels(bias, 1))


def with_channels(bb: Any, x: Any) -> Any | None:
    """Return the images, [N, C, H, W], of which ``x``, [N, groups, ...], is a Reshape; None if it is not one."""
    made, groups = bound_call(bb, x, "relax.reshape"), _channels(x)
    if made is None or not groups or not is_of_images(made.args[0]):
        return None
    whole = made.args[0]
    is_of_same_samples = tvm_ffi.structural_equal(whole.ty.shape.values[0], x.ty.shape.values[0])
    return whole if is_of_same_samples and int(whole.ty.shape.values[1]) % groups == 0 else None


def reshaped(bb: Any, y: Any) -> Any:
    """Return a Reshape without the Reshape that it undoes; ``y`` if there is none."""
    last = bound_call(bb, y, "relax.reshape")
    first = None if last is None else bound_call(bb, last.args[0], "relax.reshape")
    if first is None or not tvm_ffi.structural_equal(first.args[0].ty.shape, y.ty.shape):
        return y
    return first.args[0]


def mean_of_squares(bb: Any, x: Any, axes: Sequence[int]) -> Any | None:
    """Return the mean of a row of squares, which stays as an axis of length 1; None for other means.

    Args:
        bb: TVM's builder of blocks.
        x: The value of which the mean is taken.
        axes: The axes of which it is the mean.
    """
    base = _base_of_square(bb, x)
    if base is None or str(base.ty.dtype) != "float32" or [axis % x.ty.ndim for axis in axes] != [x.ty.ndim - 1]:
        return None
    length = base.ty.shape.values[-1] if isinstance(base.ty.shape, relax.ShapeExpr) else None
    return bb.emit_te(_mean, base, primfunc_name_hint="mean_of_squares") if isinstance(length, tirx.IntImm) else None


def _mean(x: Any) -> Any:
    *outer, length = x.shape
    k = te.reduce_axis((0, length), name="k")
    total = te.compute((*outer, 1), lambda *at: te.sum(x[*at[:-1], k] * x[*at[:-1], k], axis=k), name="squares")
    return te.compute(total.shape, lambda *at: total[*at] / tirx.const(float(int(length)), "float32"), name="mean")


def _base_of_square(bb: Any, x: Any) -> Any | None:
    """Return the value of which another is the square; None for anything else."""
    product, power = bound_call(bb, x, "relax.multiply"), bound_call(bb, x, "relax.power")
    if product is not None and product.args[0].same_as(product.args[1]):
        return product.args[0]
    if power is None or not isinstance(power.args[1], ir.GenericConst):
        return None
    exponent = power.args[1].value.numpy()
    return power.args[0] if exponent.size == 1 and float(exponent.item()) == _SQUARE else None
