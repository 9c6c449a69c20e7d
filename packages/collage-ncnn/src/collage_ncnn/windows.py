"""Pooling, reductions, normalisations and softmax."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

from collage_ncnn.convolutions import window_pads
from collage_ncnn.layers import Blob, Parameter
from collage_ncnn.operator import Lowering, Operator

__all__ = ["LOWERINGS"]

_REDUCTIONS = {"ReduceSum": 0, "ReduceMean": 3, "ReduceMax": 4, "ReduceMin": 5}
_MEAN = "ReduceMean"


def _pool(is_mean: bool, op: Operator) -> Sequence[Blob]:
    op.one_result()
    x, out = _image(op), op.out_shape()
    dims = len(op.shape()) - 2
    kernel = op.wholes("kernel_shape")
    strides, dilations = op.wholes("strides") or [1] * dims, op.wholes("dilations") or [1] * dims
    if {len(kernel), len(strides), len(dilations)} != {dims} or min(*kernel, *strides) < 1 or set(dilations) != {1}:
        raise op.refuse(f"has a window of {kernel}, strides {strides} and dilations {dilations}")
    sizes, results = op.shape()[2:], out[2:]
    pads = window_pads(op, sizes, kernel, strides, dilations)
    if any(max(pads[i], pads[i + dims]) >= kernel[i] for i in range(dims)):
        raise op.refuse("has windows of padding alone")
    counted = bool(op.whole("count_include_pad", 0))
    for i in range(dims):
        reach = (results[i] - 1) * strides[i] + kernel[i]
        beyond = max(0, reach - sizes[i] - pads[i] - pads[i + dims])
        if (results[i] - 1) * strides[i] >= sizes[i] + pads[i]:
            raise op.refuse("has a window that begins behind the image")
        if reach + strides[i] <= sizes[i] + pads[i] + pads[i + dims]:
            raise op.refuse(f"makes {list(out)}")
        if beyond and is_mean and counted:
            raise op.refuse("counts padding, and has a window that ends behind it")
        pads[i + dims] += beyond
    if dims == 1:
        kernel, strides, pads = [1, *kernel], [1, *strides], [0, pads[0], 0, pads[1]]
    height, width = x.shape[1] + pads[0] + pads[2], x.shape[2] + pads[1] + pads[3]
    if height * width * x.shape[0] * 4 >= 2**31:
        raise op.refuse("has an image too large for 32 bits")
    parameters: dict[int, Parameter] = {0: int(is_mean), 1: kernel[1], 2: strides[1], 3: pads[1], 5: 1}
    parameters |= {6: int(counted), 11: kernel[0], 12: strides[0], 13: pads[0], 14: pads[3], 15: pads[2]}
    shape = (x.shape[0], (height - kernel[0]) // strides[0] + 1, (width - kernel[1]) // strides[1] + 1)
    if math.prod(shape) != math.prod(out):
        raise op.refuse(f"makes {list(out)}")
    return [op.add("Pooling", [x], shape, parameters)]


def _global_pool(is_mean: bool, op: Operator) -> Sequence[Blob]:
    x = _image(op)
    return [op.add("Pooling", [x], x.shape[:1], {0: int(is_mean), 4: 1})]


def _image(op: Operator) -> Blob:
    """Return the operand as channels of two dimensions."""
    shape = op.shape()
    if len(shape) not in (3, 4) or shape[0] != 1:
        raise op.refuse(f"of {list(shape)} is not of one image")
    return op.read(0, (shape[1], 1, shape[2]) if len(shape) == 3 else shape[1:])


def _reduce(op: Operator) -> Sequence[Blob]:
    shape = op.shape()
    axes = op.integers(1, "axes") or op.wholes("axes")
    if not axes and op.whole("noop_with_empty_axes", 0):
        return [op.read()]
    places = sorted({axis % len(shape) for axis in axes}) if axes else list(range(len(shape)))
    x = op.read()
    dropped = len(shape) - len(x.shape)
    taken = [axis - dropped for axis in places if axis >= dropped]
    if not taken:
        return [x]
    if op.kind == _MEAN and len(x.shape) == 3 and taken == [1, 2]:
        return [op.add("Pooling", [x], x.shape[:1], {0: 1, 4: 1})]
    kept = [1 if axis in taken else length for axis, length in enumerate(x.shape)]
    parameters: dict[int, Parameter] = {0: _REDUCTIONS[op.kind], 1: 0, 3: taken, 4: 1, 5: 1}
    return [op.add("Reduction", [x], kept, parameters)]


def _batch_norm(op: Operator) -> Sequence[Blob]:
    op.one_result()
    shape = op.shape()
    if op.whole("training_mode", 0) or len(shape) < 2 or shape[0] != 1:
        raise op.refuse(f"of {list(shape)} is not of one image, or trains")
    # ncnn reads them as scale, mean, variance and bias.
    scale, bias, mean, variance = (op.weight(i, "statistics") for i in range(1, 5))
    if {each.shape for each in (scale, bias, mean, variance)} != {(shape[1],)}:
        raise op.refuse("has statistics of other channels")
    x = op.read(0, shape[1:])
    parameters: dict[int, Parameter] = {0: shape[1], 1: op.number("epsilon", 1e-5)}
    return [op.add("BatchNorm", [x], x.shape, parameters, [scale, mean, variance, bias])]


def _instance_norm(op: Operator) -> Sequence[Blob]:
    x = _image(op)
    weights = [op.weight(i, "scales") for i in (1, 2)]
    if any(weight.shape != (x.shape[0],) for weight in weights):
        raise op.refuse("has scales of other channels")
    return [op.add("InstanceNorm", [x], x.shape, {0: x.shape[0], 1: op.number("epsilon", 1e-5), 2: 1}, weights)]


def _group_norm(op: Operator) -> Sequence[Blob]:
    shape, groups = op.shape(), op.whole("num_groups", 0)
    if len(shape) not in (3, 4) or shape[0] != 1 or groups < 1 or shape[1] % groups:
        raise op.refuse(f"of {list(shape)} in {groups} groups is not of one image")
    weights = [op.weight(i, "scales") for i in (1, 2)]
    if any(weight.shape != (shape[1],) for weight in weights):
        raise op.refuse("has scales of other channels")
    x = _image(op)
    parameters: dict[int, Parameter] = {0: groups, 1: shape[1], 2: op.number("epsilon", 1e-5), 3: 1}
    return [op.add("GroupNorm", [x], x.shape, parameters, weights)]


def _layer_norm(op: Operator) -> Sequence[Blob]:
    raise op.refuse("is not a number where the sum of squares leaves float32, as of large operands, in ncnn")


def _softmax(op: Operator) -> Sequence[Blob]:
    shape = op.shape()
    axis = op.axis(-1, len(shape)) if shape else 0
    x = op.read()
    place = axis - (len(shape) - len(x.shape)) if shape else 0
    if place < 0:
        raise op.refuse("along the batch is not translated")
    return [op.add("Softmax", [x], x.shape, {0: place, 1: 1})]


LOWERINGS: Mapping[str, Lowering] = {
    **dict.fromkeys(_REDUCTIONS, _reduce),
    "AveragePool": partial(_pool, True),
    "BatchNormalization": _batch_norm,
    "GlobalAveragePool": partial(_global_pool, True),
    "GlobalMaxPool": partial(_global_pool, False),
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "LayerNormalization": _layer_norm,
    "MaxPool": partial(_pool, False),
    "Softmax": _softmax,
}
