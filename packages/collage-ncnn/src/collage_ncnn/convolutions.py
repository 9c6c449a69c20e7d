"""Convolutions, transposed convolutions and products with constant weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from collage_ncnn.layers import Blob, Parameter
from collage_ncnn.operator import Lowering, Operator

__all__ = ["LOWERINGS", "window_pads"]

_LARGEST = 2**31 - 1
_MOST = 1 << 16
"""The largest stride, dilation, kernel or padding that ncnn gets: products of two fit 32 bits."""


def _conv(op: Operator) -> Sequence[Blob]:
    x, out = op.shape(0), op.out_shape()
    w = op.weight(1, "weights")
    bias = op.weight(2, "a bias") if op.has(2) else None
    dims = len(x) - 2
    _refuse_rank(op, x, w, dims)
    group = op.whole("group", 1)
    channels, results = x[1], w.shape[0]
    if group < 1 or w.shape[1] * group != channels or results % group:
        raise op.refuse(f"has weights of shape {list(w.shape)} for {channels} channels in {group} groups")
    if not _is_vector(bias, results):
        raise op.refuse(f"needs a bias of {results} numbers")
    kernel = w.shape[2:]
    strides, dilations = _each(op, "strides", dims), _each(op, "dilations", dims)
    pads = window_pads(op, x[2:], kernel, strides, dilations)
    expected = [
        (size + before + after - dilation * (length - 1) - 1) // stride + 1
        for size, before, after, length, stride, dilation in zip(
            x[2:], pads[:dims], pads[dims:], kernel, strides, dilations, strict=True
        )
    ]
    if out != (1, results, *expected) or min(expected) < 1:
        raise op.refuse(f"has a result of shape {list(out)}")
    padded = [size + before + after for size, before, after in zip(x[2:], pads[:dims], pads[dims:], strict=True)]
    _refuse_size(op, (channels, *padded))
    name = ("Convolution" if group == 1 else "ConvolutionDepthWise") + ("1D" if dims == 1 else "")
    parameters = _window(results, kernel, strides, dilations, pads, bias is not None, w.size)
    if group > 1:
        parameters[7] = group
    weights = (w,) if bias is None else (w, bias)
    return [op.add(name, [op.read(0, x[1:])], out[1:], parameters, weights, tagged=1)]


def _conv_transpose(op: Operator) -> Sequence[Blob]:
    x, out = op.shape(0), op.out_shape()
    w = op.weight(1, "weights")
    bias = op.weight(2, "a bias") if op.has(2) else None
    dims = len(x) - 2
    _refuse_rank(op, x, w, dims)
    group = op.whole("group", 1)
    channels, each = x[1], w.shape[1]
    results = each * group
    if group < 1 or w.shape[0] != channels or channels % group:
        raise op.refuse(f"has weights of shape {list(w.shape)} for {channels} channels in {group} groups")
    if not _is_vector(bias, results):
        raise op.refuse(f"needs a bias of {results} numbers")
    kernel = w.shape[2:]
    strides, dilations = _each(op, "strides", dims), _each(op, "dilations", dims)
    extra = op.wholes("output_padding") or [0] * dims
    if len(extra) != dims or min(extra) < 0 or max(extra) > _MOST:
        raise op.refuse(f"has output_padding {extra}")
    whole = [
        (size - 1) * stride + dilation * (length - 1) + 1 + more
        for size, stride, dilation, length, more in zip(x[2:], strides, dilations, kernel, extra, strict=True)
    ]
    pads = _cut(op, whole, out[2:])
    expected = [size - pads[i] - pads[i + dims] for i, size in enumerate(whole)]
    if out != (1, results, *expected) or min(expected) < 1:
        raise op.refuse(f"has a result of shape {list(out)}")
    _refuse_size(op, (results, *whole))
    name = ("Deconvolution" if group == 1 else "DeconvolutionDepthWise") + ("1D" if dims == 1 else "")
    parameters = _window(results, kernel, strides, dilations, pads, bias is not None, w.size)
    parameters |= {18: extra[-1]} if dims == 1 else {18: extra[1], 19: extra[0]}
    if group > 1:
        parameters[7] = group
    turned = np.swapaxes(w.reshape(group, channels // group, each, *kernel), 1, 2)
    weights = (turned,) if bias is None else (turned, bias)
    return [op.add(name, [op.read(0, x[1:])], out[1:], parameters, weights, tagged=1)]


def _matmul(op: Operator) -> Sequence[Blob]:
    a, b, out = op.shape(0), op.shape(1), op.out_shape()
    if min(len(a), len(b)) < 1:
        raise op.refuse("has an operand without dimensions")
    if op.constant(1) is not None and len(b) == 2:
        return _product(op, op.weight(1, "weights").T, None, out)
    if min(len(a), len(b)) < 2 or a[:-2] != b[:-2]:
        raise op.refuse(f"of shapes {list(a)} and {list(b)} has one batch for several others")
    batch = math.prod(a[:-2])
    left, right = (batch, *a[-2:]), (batch, *b[-2:])
    if batch == 1:
        left, right = left[1:], right[1:]
    shape = (*left[:-1], right[-1])
    return [op.add("MatMul", [op.read(0, left), op.read(1, right)], shape)]


def _gemm(op: Operator) -> Sequence[Blob]:
    w = op.weight(1, "weights")
    if len(op.shape(0)) != 2 or w.ndim != 2 or op.whole("transA", 0):
        raise op.refuse("needs a first operand that is not transposed")
    w = w if op.whole("transB", 0) else w.T
    alpha, beta = op.number("alpha", 1.0), op.number("beta", 1.0)
    bias = None
    if op.has(2):
        c = op.weight(2, "a third operand")
        if c.size not in (1, w.shape[0]) or c.ndim > 2 or (c.ndim == 2 and c.shape[0] != 1):
            raise op.refuse(f"has a third operand of shape {list(c.shape)}")
        bias = np.float32(beta) * np.broadcast_to(c.reshape(-1), (w.shape[0],))
    return _product(op, w if alpha == 1 else np.float32(alpha) * w, bias, op.out_shape())


def _product(op: Operator, w: np.ndarray, bias: np.ndarray | None, out: tuple[int, ...]) -> Sequence[Blob]:
    """Multiply rows of the first operand with the transpose of a matrix."""
    a = op.shape(0)
    rows, (results, length) = math.prod(a[:-1]), w.shape
    if not a or a[-1] != length or out != (*a[:-1], results) or not _is_vector(bias, results):
        raise op.refuse(f"of shapes {list(a)} and {list(w.shape[::-1])} makes {list(out)}")
    if rows == 1:
        parameters: dict[int, Parameter] = {0: results, 1: int(bias is not None), 2: w.size}
        weights = (w,) if bias is None else (w, bias)
        return [op.add("InnerProduct", [op.read(0, (length,))], (results,), parameters, weights, tagged=1)]
    parameters = {3: 1, 5: 1, 6: 1, 8: results, 9: length, 10: -1 if bias is None else 4}
    weights = (w,) if bias is None else (w, bias)
    return [op.add("Gemm", [op.read(0, (rows, length))], (rows, results), parameters, weights, tagged=2)]


def _refuse_rank(op: Operator, x: tuple[int, ...], w: np.ndarray, dims: int) -> None:
    if dims not in (1, 2) or w.ndim != dims + 2:
        raise op.refuse(f"of {dims} dimensions is not translated")
    if x[0] != 1:
        raise op.refuse(f"has a batch of {x[0]}, and ncnn computes one image at a time")
    if w.size == 0 or w.size > _LARGEST or max(w.shape[2:]) > _MOST:
        raise op.refuse(f"has weights of shape {list(w.shape)}")
    declared = op.wholes("kernel_shape")
    if declared and tuple(declared) != w.shape[2:]:
        raise op.refuse(f"has kernel_shape {declared} for weights of shape {list(w.shape)}")


def _refuse_size(op: Operator, shape: Sequence[int]) -> None:
    if 4 * math.prod(shape) > _LARGEST:
        raise op.refuse(f"has an image of shape {list(shape)} with its padding, too large for 32 bits")


def _is_vector(bias: np.ndarray | None, length: int) -> bool:
    return bias is None or bias.shape == (length,)


def _each(op: Operator, name: str, dims: int) -> list[int]:
    values = op.wholes(name) or [1] * dims
    if len(values) != dims or min(values) < 1 or max(values) > _MOST:
        raise op.refuse(f"has {name} {values}")
    return values


def window_pads(
    op: Operator, sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> list[int]:
    """Return the padding of a window, beginnings first, as ``auto_pad`` or ``pads`` give it."""
    dims, mode = len(sizes), op.text("auto_pad", "NOTSET")
    if mode == "VALID":
        return [0] * 2 * dims
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        begins, ends = [], []
        for size, length, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
            results = -(-size // stride)
            total = max(0, (results - 1) * stride + dilation * (length - 1) + 1 - size)
            less, more = total // 2, total - total // 2
            begins.append(less if mode == "SAME_UPPER" else more)
            ends.append(more if mode == "SAME_UPPER" else less)
        return begins + ends
    pads = op.wholes("pads") or [0] * 2 * dims
    # Negative numbers have meanings of their own in ncnn.
    if mode != "NOTSET" or len(pads) != 2 * dims or min(pads) < 0 or max(pads) > _MOST:
        raise op.refuse(f"has auto_pad {mode} and pads {pads}")
    return pads


def _cut(op: Operator, whole: Sequence[int], out: Sequence[int]) -> list[int]:
    """Return the lengths that a transposed convolution cuts off, beginnings first."""
    dims, mode = len(whole), op.text("auto_pad", "NOTSET")
    wanted = op.wholes("output_shape")
    if wanted or mode in ("SAME_UPPER", "SAME_LOWER"):
        if len(wanted or out) != dims:
            raise op.refuse(f"has output_shape {wanted}")
        totals = [size - length for size, length in zip(whole, wanted or out, strict=True)]
        less, more = [total // 2 for total in totals], [total - total // 2 for total in totals]
        pads = less + more if mode == "SAME_UPPER" else more + less
    else:
        pads = op.wholes("pads") or [0] * 2 * dims
        if mode == "VALID":
            pads = [0] * 2 * dims
    if len(pads) != 2 * dims or min(pads) < 0 or max(pads) > _MOST:
        raise op.refuse(f"has auto_pad {mode} and pads {pads}")
    return pads


def _window(
    results: int,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
    has_bias: bool,
    size: int,
) -> dict[int, Parameter]:
    """Return the parameters that all convolutions share. The last axis is the first that ncnn names."""
    dims = len(kernel)
    found: dict[int, Parameter] = {0: results, 5: int(has_bias), 6: size}
    found |= {1: kernel[-1], 2: dilations[-1], 3: strides[-1], 4: pads[dims - 1], 15: pads[-1]}
    if dims == 2:
        found |= {11: kernel[0], 12: dilations[0], 13: strides[0], 14: pads[0], 16: pads[2]}
    return found


LOWERINGS: Mapping[str, Lowering] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Gemm": _gemm,
    "MatMul": _matmul,
}
