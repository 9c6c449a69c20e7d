"""Normalisations."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from collage.toolchains import Unsupported
from collage_torch.ops._dtypes import torch_dtype
from collage_torch.ops._table import Call, op

Tensor = Any


@op("BatchNormalization")
def batch_normalization(call: Call, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    if call.get("training_mode", 0) or call.outputs > 1:
        raise Unsupported("BatchNormalization in training mode")
    if not x.dtype == scale.dtype == mean.dtype:
        raise Unsupported("BatchNormalization of mixed types")
    return F.batch_norm(x, mean, variance, scale, bias, False, 0.0, call.get("epsilon", 1e-5))


@op("InstanceNormalization")
def instance_normalization(call: Call, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    return torch.group_norm(x, x.shape[1], scale, bias, call.get("epsilon", 1e-5))


@op("GroupNormalization")
def group_normalization(call: Call, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """Scale and bias are per channel since opset 21, per group before."""
    groups = call.get("num_groups")
    if call.version < 21:
        scale, bias = (p.repeat_interleave(x.shape[1] // groups) for p in (scale, bias))
    return torch.group_norm(x, groups, scale, bias, call.get("epsilon", 1e-5))


def _check_precision(call: Call, x: Tensor) -> None:
    if x.dtype != torch_dtype(call.get("stash_type", 1)) and x.dtype != torch.float64:
        raise Unsupported(f"{call.op_type} of {x.dtype} with another stash type")


@op("LayerNormalization")
def layer_normalization(call: Call, x: Tensor, scale: Tensor, bias: Tensor | None = None) -> Any:
    _check_precision(call, x)
    axis, epsilon = call.get("axis", -1) % x.ndim, call.get("epsilon", 1e-5)
    shape = list(x.shape[axis:])
    if list(scale.shape) == shape and (bias is None or list(bias.shape) == shape):
        if call.outputs == 1:
            return F.layer_norm(x, shape, scale, bias, epsilon)
        return torch.native_layer_norm(x, shape, scale, bias, epsilon)
    y, mean, inverse = torch.native_layer_norm(x, shape, None, None, epsilon)
    y = y * scale if bias is None else y * scale + bias
    return y if call.outputs == 1 else (y, mean, inverse)


@op("RMSNormalization")
def rms_normalization(call: Call, x: Tensor, scale: Tensor) -> Tensor:
    _check_precision(call, x)
    dims = list(range(call.get("axis", -1) % x.ndim, x.ndim))
    return x * torch.rsqrt(torch.mean(x * x, dims, keepdim=True) + call.get("epsilon", 1e-5)) * scale


@op("MeanVarianceNormalization")
def mean_variance_normalization(call: Call, x: Tensor) -> Tensor:
    axes = call.get("axes") or [0, 2, 3]
    centred = x - torch.mean(x, axes, keepdim=True)
    return centred / (torch.sqrt(torch.mean(centred * centred, axes, keepdim=True)) + 1e-9)


@op("LRN")
def lrn(call: Call, x: Tensor) -> Tensor:
    size = call.get("size")
    squares = (x * x).unsqueeze(1)
    padded = F.pad(squares, [0, 0] * (x.ndim - 2) + [(size - 1) // 2, math.ceil((size - 1) / 2)])
    sums = padded.squeeze(1).unfold(1, size, 1).sum(-1)
    return x / torch.pow(call.get("bias", 1.0) + call.get("alpha", 1e-4) / size * sums, call.get("beta", 0.75))
