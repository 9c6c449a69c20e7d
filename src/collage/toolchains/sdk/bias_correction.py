"""Correction of biases for the change of a product's mean that rounding its weights causes.

Each weight is off by up to half a step. Inputs with a mean other than zero, such as results of a ``Relu``, turn that into a
shift of each result channel, the same for every input. It follows from the weights and the means of the inputs, and is
taken off the bias, which costs no time.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from collage.graph import value_means
from collage.toolchains.sdk.int8_placement import channel_axis

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage.toolchains._contract import Tensor

__all__ = ["input_means", "mean_shift"]


def input_means(node: ir.Node) -> Tensor | None:
    """Return the noted means of a product's input along the axis that it sums over; None if there are none that fit."""
    value, weight = node.inputs[:2]
    assert value is not None and weight is not None and weight.const_value is not None
    shape = weight.const_value.shape.numpy()
    if node.op_type == "Conv":
        axis, count = 1, shape[1] * node.attributes.get_int("group", 1)
    else:
        axis, count = (1 if node.op_type == "ConvTranspose" else -1), shape[1 - channel_axis(node)]
    means = value_means(value, axis)
    return means if means is not None and means.size == count else None


def mean_shift(node: ir.Node, change: Tensor, means: Tensor) -> Tensor:
    """Return the mean that a change of a product's weights adds to each result channel.

    Args:
        node: The product.
        change: Rounded weights less the weights.
        means: The mean of each channel of the product's inputs.
    """
    change = change.astype(np.float64)
    if node.op_type in ("Gemm", "MatMul"):
        return np.asarray(change @ means if channel_axis(node) == 0 else means @ change)
    channels = change.shape[0]
    if node.op_type == "ConvTranspose":
        # Each result element sees one of so many elements of the weights.
        taps = change.reshape(channels, change.shape[1], -1).sum(axis=2)
        steps = node.attributes.get("strides")
        return np.asarray(means @ taps / (math.prod(steps.as_ints()) if steps is not None else 1))
    for axis, seen in enumerate(_shares_inside(node, change.shape[2:])):
        change = change * seen.reshape([-1 if i == axis + 2 else 1 for i in range(change.ndim)])
    taps = change.reshape(channels, change.shape[1], -1).sum(axis=2)
    groups = node.attributes.get_int("group", 1)
    of_group = means.reshape(groups, -1).repeat(channels // groups, axis=0)
    return np.asarray((taps * of_group).sum(axis=1))


def _shares_inside(node: ir.Node, kernel: tuple[int, ...]) -> list[Tensor]:
    """Return for each axis of space, and each place in the kernel, the share of positions at which it meets no padding."""
    value, result = node.inputs[0], node.outputs[0]
    everywhere = [np.ones(size) for size in kernel]
    pads = node.attributes.get("pads")
    if value is None or value.shape is None or result.shape is None or pads is None or "auto_pad" in node.attributes:
        return everywhere
    rank = len(kernel)
    given, made = list(value.shape)[2:], list(result.shape)[2:]
    strides, dilations = (
        list(found.as_ints()) if (found := node.attributes.get(name)) is not None else [1] * rank
        for name in ("strides", "dilations")
    )
    shares = []
    for axis, size in enumerate(kernel):
        before, length, count = pads.as_ints()[axis], given[axis], made[axis]
        if not isinstance(length, int) or not isinstance(count, int) or not count:
            shares.append(everywhere[axis])
            continue
        places = np.arange(count) * strides[axis] - before + np.arange(size)[:, np.newaxis] * dilations[axis]
        shares.append(((places >= 0) & (places < length)).mean(axis=1))
    return shares
