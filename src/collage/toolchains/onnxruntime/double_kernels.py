"""Operators in float64 that ONNX Runtime has for float32 alone: convolutions, averages and instance normalisation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import onnx

__all__ = ["run"]

Array = np.ndarray[Any, Any]


def run(node: onnx.NodeProto, operands: Sequence[Any], version: int) -> list[Array] | None:
    """Return the results of an operator in float64, or None if it is not one of these.

    Args:
        node: An operator.
        operands: Its operands; those of floats are float64.
        version: The version of the operator set.
    """
    import onnx

    if node.domain not in ("", "ai.onnx") or not operands or not _is_double(operands[0]):
        return None
    told = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    x = operands[0]
    match node.op_type:
        case "Conv" if len(operands) > 1 and _is_double(operands[1]):
            return [_conv(x, operands[1], operands[2] if len(operands) > 2 else None, told)]
        case "GlobalAveragePool":
            return [x.mean(axis=tuple(range(2, x.ndim)), keepdims=True)]
        case "AveragePool" if not told.get("ceil_mode") and _fits(x, told):
            return [_average(x, told)]
        case "InstanceNormalization":
            axes = tuple(range(2, x.ndim))
            mean, variance = x.mean(axis=axes, keepdims=True), x.var(axis=axes, keepdims=True)
            scale, bias = (each.reshape(-1, *[1] * (x.ndim - 2)) for each in operands[1:3])
            return [(x - mean) / np.sqrt(variance + told.get("epsilon", 1e-5)) * scale + bias]
        case "Erf":
            return [np.array([math.erf(each) for each in x.ravel()]).reshape(x.shape)] if x.size < 1 << 20 else None
    return None


def _is_double(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == np.float64


def _fits(x: Array, told: Any) -> bool:
    """Return True if a window is not longer than the picture."""
    pads = _padding(x.shape[2:], told["kernel_shape"], told)
    sizes = zip(x.shape[2:], told["kernel_shape"], pads, strict=True)
    return all(length + before + after >= span for length, span, (before, after) in sizes)


def _padding(sizes: Sequence[int], kernel: Sequence[int], told: Any) -> list[tuple[int, int]]:
    """Return the padding before and after each axis of a picture."""
    rank = len(kernel)
    auto = told.get("auto_pad", b"NOTSET")
    if auto in (b"SAME_UPPER", b"SAME_LOWER"):
        strides = told.get("strides", [1] * rank)
        spans = [(k - 1) * d + 1 for k, d in zip(kernel, told.get("dilations", [1] * rank), strict=True)]
        totals = [max(0, (-(-n // s) - 1) * s + span - n) for n, s, span in zip(sizes, strides, spans, strict=True)]
        pairs = [(total // 2, total - total // 2) for total in totals]
        return pairs if auto == b"SAME_UPPER" else [(after, before) for before, after in pairs]
    pads = told.get("pads", [0] * (2 * rank)) if auto == b"NOTSET" else [0] * (2 * rank)
    return list(zip(pads[:rank], pads[rank:], strict=True))


def _windows(x: Array, kernel: Sequence[int], told: Any) -> Array:
    """Return a view of all windows: batch, channels, places, and then the elements of a window."""
    rank = len(kernel)
    strides, dilations = told.get("strides", [1] * rank), told.get("dilations", [1] * rank)
    x = np.pad(x, [(0, 0), (0, 0), *_padding(x.shape[2:], kernel, told)])
    spans = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True))
    windows = np.lib.stride_tricks.sliding_window_view(x, spans, axis=tuple(range(2, 2 + rank)))
    steps = [slice(None), slice(None), *(slice(None, None, s) for s in strides)]
    return windows[(*steps, *(slice(None, None, d) for d in dilations))]


def _conv(x: Array, weights: Array, bias: Array | None, told: Any) -> Array:
    """Return a convolution, summed over the places of its window: copies of all windows would take far longer."""
    groups, rank, kernel = told.get("group", 1), x.ndim - 2, weights.shape[2:]
    strides, dilations = told.get("strides", [1] * rank), told.get("dilations", [1] * rank)
    x = np.pad(x, [(0, 0), (0, 0), *_padding(x.shape[2:], kernel, told)])
    axes = list(zip(x.shape[2:], kernel, strides, dilations, strict=True))
    lengths = [(n - (k - 1) * d - 1) // s + 1 for n, k, s, d in axes]
    filters = weights.reshape(groups, -1, *weights.shape[1:])
    channels = weights.shape[1]
    result = np.zeros((len(x), groups, filters.shape[1], math.prod(lengths)))
    for place in np.ndindex(*kernel):
        steps = (
            slice(i * d, i * d + (length - 1) * s + 1, s)
            for i, length, (_, _, s, d) in zip(place, lengths, axes, strict=True)
        )
        part = x[(slice(None), slice(None), *steps)].reshape(len(x), groups, channels, -1)
        taps = filters[(slice(None), slice(None), slice(None), *place)]
        result += taps * part if channels == 1 else taps @ part
    result = result.reshape(len(x), -1, *lengths)
    return result if bias is None else result + bias.reshape(-1, *[1] * rank)


def _average(x: Array, told: Any) -> Array:
    kernel = told["kernel_shape"]
    rank = len(kernel)
    inner = tuple(range(-rank, 0))
    total = _windows(x, kernel, told).sum(axis=inner)
    if told.get("count_include_pad"):
        return np.asarray(total / math.prod(kernel))
    return np.asarray(total / _windows(np.ones_like(x[:1, :1]), kernel, told).sum(axis=inner))
