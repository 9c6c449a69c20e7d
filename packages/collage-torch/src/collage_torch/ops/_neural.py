"""Products, convolutions and pools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from collage.toolchains import Unsupported
from collage_torch.ops._table import Call, op

__all__ = ["Window", "transposed_window", "window"]

Tensor = Any


@op("MatMul")
def matmul(call: Call, x: Tensor, y: Tensor) -> Tensor:
    return torch.matmul(*_singles(call, x, y)).to(x.dtype) if _is_slow(x) else torch.matmul(x, y)


def _is_slow(x: Tensor) -> bool:
    """Return True for types that torch multiplies 30 to 300 times more slowly than float32."""
    return bool(x.dtype == torch.float16 and x.device.type == "cpu")


def _singles(call: Call, *halves: Tensor | None) -> list[Tensor | None]:
    """Halves in single precision; constants once, for compilers that take no arithmetic of constants."""
    return [None if x is None else call.once(f"single {i}", x.float, i) for i, x in enumerate(halves)]


@op("Gemm")
def gemm(call: Call, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    if _is_slow(a):
        return gemm(call, *_singles(call, a, b, c)).to(a.dtype)
    a = a.t() if call.get("transA", 0) else a
    b = b.t() if call.get("transB", 0) else b
    alpha, beta = call.get("alpha", 1.0), call.get("beta", 1.0)
    if not a.is_floating_point():
        raise Unsupported("Gemm of integers")
    if c is None:
        return torch.mm(a, b) if alpha == 1 else torch.mm(a, b) * alpha
    return torch.addmm(c, a, b, alpha=alpha, beta=beta)


@op("MatMulInteger")
def matmul_integer(
    call: Call, a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None
) -> Tensor:
    if (a_zero is not None and a_zero.numel() > 1) or (b_zero is not None and b_zero.numel() > 1):
        raise Unsupported("MatMulInteger with a zero point for each row")
    # Torch multiplies integers in plain loops, and its compiler packs constant ones as if they were floats.
    # Other lengths than those of constants may be others when it runs.
    is_short = 1 in call.frozen and b.shape[max(b.dim() - 2, 0)] <= _MOST_IN_SINGLES
    exact = torch.float32 if is_short else torch.float64
    factors = [_from_zero(call, i, x, zero, exact) for i, (x, zero) in enumerate(((a, a_zero), (b, b_zero)))]
    wide = torch.matmul(*factors).to(torch.int64)
    return wide.to(torch.int32)  # wraps around, as sums of 32 bits do


_MOST_IN_SINGLES = (1 << 24) // 255**2
"""So many products of bytes, each taken from its zero point, a float32 sums up exactly."""


def _from_zero(call: Call, i: int, x: Tensor, zero: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Integers as floats, from their zero point: constants once, for compilers that take no arithmetic of constants."""
    x = call.once(f"wide {i}", lambda: x.to(dtype), i)
    if zero is None:
        return x
    start = call.once(f"zero {i}", lambda: zero.to(dtype), i + 2)
    return call.once(f"from zero {i}", lambda: x - start, i, i + 2)


class Window:
    """The geometry of a sliding window: one number for each spatial dimension.

    Attributes:
        kernel: Sizes.
        stride: Steps.
        dilation: Distances between the window's elements.
        begin: Padding before.
        end: Padding after.
    """

    __slots__ = ("begin", "dilation", "end", "kernel", "stride")

    def __init__(self, call: Call, sizes: Sequence[int], kernel: Sequence[int]) -> None:
        count = len(kernel)
        self.kernel = list(kernel)
        self.stride = call.get("strides") or [1] * count
        self.dilation = call.get("dilations") or [1] * count
        pads = call.get("pads") or [0] * (2 * count)
        self.begin, self.end = list(pads[:count]), list(pads[count:])
        mode = call.get("auto_pad", "NOTSET")
        if mode == "VALID":
            self.begin, self.end = [0] * count, [0] * count
        elif mode.startswith("SAME"):
            for i in range(count):
                reach = (kernel[i] - 1) * self.dilation[i] + 1
                total = max((-(-sizes[i] // self.stride[i]) - 1) * self.stride[i] + reach - sizes[i], 0)
                less, more = total // 2, total - total // 2
                self.begin[i], self.end[i] = (less, more) if mode == "SAME_UPPER" else (more, less)

    @property
    def symmetric(self) -> bool:
        """True if there is as much padding before as after."""
        return self.begin == self.end

    @property
    def pad(self) -> list[int]:
        """Padding in the order of ``torch.nn.functional.pad``: last dimension first."""
        return [width for pair in zip(reversed(self.begin), reversed(self.end), strict=True) for width in pair]


def window(call: Call, x: Tensor, kernel: Sequence[int]) -> Window:
    """The window of a convolution or a pool over ``x``."""
    return Window(call, x.shape[2:], kernel)


_CONVOLUTIONS = (F.conv1d, F.conv2d, F.conv3d)
_TRANSPOSED = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)


@op("Conv")
def conv(call: Call, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    where = window(call, x, w.shape[2:])
    padding = where.begin
    if not where.symmetric:
        x, padding = F.pad(x, where.pad), [0] * len(padding)
    function = _CONVOLUTIONS[w.ndim - 3]
    return function(x, w, b, where.stride, padding, where.dilation, call.get("group", 1))


def transposed_window(call: Call, x: Tensor, w: Tensor) -> tuple[Window, list[int]]:
    """The window of a transposed convolution, and its output padding."""
    where = Window(call, x.shape[2:], w.shape[2:])
    extra = list(call.get("output_padding") or [0] * len(where.kernel))
    wanted, mode = call.get("output_shape"), call.get("auto_pad", "NOTSET")
    if wanted is not None or mode.startswith("SAME"):
        for i, size in enumerate(x.shape[2:]):
            full = (size - 1) * where.stride[i] + (where.kernel[i] - 1) * where.dilation[i] + 1 + extra[i]
            total = full - (wanted[i] if wanted else size * where.stride[i])
            if total < 0:
                raise Unsupported("ConvTranspose to a larger shape than its window reaches")
            less, more = total // 2, total - total // 2
            where.begin[i], where.end[i] = (less, more) if mode == "SAME_UPPER" else (more, less)
    return where, extra


@op("ConvTranspose")
def conv_transpose(call: Call, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    """Torch crops both ends alike. An uneven rest is cropped, or added as output padding, here."""
    where, extra = transposed_window(call, x, w)
    function, group = _TRANSPOSED[w.ndim - 3], call.get("group", 1)
    if where.symmetric and all(p < max(s, d) for p, s, d in zip(extra, where.stride, where.dilation, strict=True)):
        return function(x, w, b, where.stride, where.begin, extra, group, where.dilation)
    y = function(x, w, b, where.stride, 0, 0, group, where.dilation)
    if any(extra):
        raise Unsupported("ConvTranspose with uneven padding and output padding")
    for i, (begin, end) in enumerate(zip(where.begin, where.end, strict=True)):
        y = y.narrow(i + 2, begin, y.shape[i + 2] - begin - end)
    return y


def _pool_window(call: Call, x: Tensor) -> Window:
    """The window of a pool, its end padding grown until the last window is whole (``ceil_mode``)."""
    where = window(call, x, call.get("kernel_shape"))
    if call.get("ceil_mode", 0):
        for i, size in enumerate(x.shape[2:]):
            reach = (where.kernel[i] - 1) * where.dilation[i] + 1
            over = (size + where.begin[i] + where.end[i] - reach) % where.stride[i]
            grown = (where.stride[i] - over) % where.stride[i]
            starts_inside = size + where.begin[i] + where.end[i] + grown - reach < size + where.begin[i]
            where.end[i] += grown if starts_inside else 0
    return where


_MAX_POOLS = (F.max_pool1d, F.max_pool2d, F.max_pool3d)
_AVERAGE_POOLS = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)


@op("MaxPool")
def max_pool(call: Call, x: Tensor) -> Tensor:
    if call.outputs > 1 or call.get("storage_order", 0):
        raise Unsupported("MaxPool with indices")
    where, function = _pool_window(call, x), _MAX_POOLS[x.ndim - 3]
    if not x.is_floating_point():
        raise Unsupported("MaxPool of integers")
    if where.symmetric and all(2 * p <= k for p, k in zip(where.begin, where.kernel, strict=True)):
        return function(x, where.kernel, where.stride, where.begin, where.dilation)
    padded = F.pad(x, where.pad, value=float("-inf"))
    return function(padded, where.kernel, where.stride, 0, where.dilation)


@op("AveragePool")
def average_pool(call: Call, x: Tensor) -> Tensor:
    where, function = _pool_window(call, x), _AVERAGE_POOLS[x.ndim - 3]
    counted = bool(call.get("count_include_pad", 0))
    plain = not call.get("ceil_mode", 0) and where.dilation == [1] * len(where.kernel)
    if plain and where.symmetric and all(2 * p <= k for p, k in zip(where.begin, where.kernel, strict=True)):
        return function(x, where.kernel, where.stride, where.begin, False, counted)
    if counted and call.get("ceil_mode", 0):
        raise Unsupported("AveragePool that counts padding, with ceil_mode")
    ones = torch.ones_like(x[:1, :1])
    return _window_sums(where, x) / _window_sums(where, ones, border=float(counted))


def _window_sums(where: Window, x: Tensor, border: float = 0.0) -> Tensor:
    padded, channels = F.pad(x, where.pad, value=border), x.shape[1]
    kernel = torch.ones([channels, 1, *where.kernel], dtype=x.dtype, device=x.device)
    return _CONVOLUTIONS[x.ndim - 3](padded, kernel, None, where.stride, 0, where.dilation, channels)


@op("LpPool")
def lp_pool(call: Call, x: Tensor) -> Tensor:
    p = call.get("p", 2)
    return torch.pow(_window_sums(_pool_window(call, x), torch.pow(torch.abs(x), p)), 1 / p)


@op("GlobalAveragePool")
def global_average_pool(call: Call, x: Tensor) -> Tensor:
    return torch.mean(x, list(range(2, x.ndim)), keepdim=True)


@op("GlobalMaxPool")
def global_max_pool(call: Call, x: Tensor) -> Tensor:
    return torch.amax(x, list(range(2, x.ndim)), keepdim=True)
