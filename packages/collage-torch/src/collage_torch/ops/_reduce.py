"""Reductions, softmax, sorting and running sums."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from collage.toolchains import Unsupported
from collage_torch.ops._table import OPS, Call, Entry, op

Tensor = Any


def _amax(x: Tensor, dims: list[int], keep: bool) -> Tensor:
    return torch.amax(x, dims, keep) if x.numel() else _of_nothing(x, dims, keep, -1)


def _amin(x: Tensor, dims: list[int], keep: bool) -> Tensor:
    return torch.amin(x, dims, keep) if x.numel() else _of_nothing(x, dims, keep, 1)


def _of_nothing(x: Tensor, dims: list[int], keep: bool, sign: int) -> Tensor:
    if not x.is_floating_point():
        raise Unsupported("the largest or smallest of no integers")
    return torch.sum(x, dims, keepdim=keep) + sign * math.inf


def _sum(x: Tensor, dims: list[int], keep: bool) -> Tensor:
    return torch.sum(x, dims, keepdim=keep, dtype=x.dtype)


def _product(x: Tensor, dims: list[int], keep: bool) -> Tensor:
    for dim in sorted(dims, reverse=True):
        x = torch.prod(x, dim, keepdim=keep, dtype=x.dtype)
    return x


def _mean(x: Tensor, dims: list[int], keep: bool) -> Tensor:
    if not x.is_floating_point():
        raise Unsupported("ReduceMean of integers")
    return torch.mean(x, dims, keepdim=keep)


def _length(x: Tensor, dims: list[int], keep: bool) -> Tensor:
    return torch.sqrt(_sum(x * x, dims, keep).to(_float_of(x))).to(x.dtype)


def _log_sum_exp(x: Tensor, dims: list[int], keep: bool) -> Tensor:
    return torch.logsumexp(x.to(_float_of(x)), dims, keep).to(x.dtype)


def _float_of(x: Tensor) -> Any:
    return x.dtype if x.is_floating_point() else torch.float64


_REDUCTIONS: dict[str, Callable[[Tensor, list[int], bool], Tensor]] = {
    "ReduceL1": lambda x, dims, keep: _sum(torch.abs(x), dims, keep),
    "ReduceL2": _length,
    "ReduceLogSum": lambda x, dims, keep: torch.log(_sum(x, dims, keep).to(_float_of(x))).to(x.dtype),
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceMax": _amax,
    "ReduceMean": _mean,
    "ReduceMin": _amin,
    "ReduceProd": _product,
    "ReduceSum": _sum,
    "ReduceSumSquare": lambda x, dims, keep: _sum(x * x, dims, keep),
}


def _reduce(
    call: Call, x: Tensor, axes: Any = None, *, function: Callable[[Tensor, list[int], bool], Tensor]
) -> Tensor:
    """Axes are an input since opset 18 (13 for ReduceSum), an attribute before."""
    if axes is None:
        axes = call.get("axes") or ()
    dims = sorted(int(axis) % max(x.ndim, 1) for axis in axes)
    if not dims and call.get("noop_with_empty_axes", 0):
        return _elementwise_part(call, x)
    if x.ndim == 0:
        return function(x.reshape(1), [0], False)
    was_bool = x.dtype == torch.bool
    y = function(x.to(torch.uint8) if was_bool else x, dims or list(range(x.ndim)), bool(call.get("keepdims", 1)))
    return y.to(torch.bool) if was_bool else y


def _elementwise_part(call: Call, x: Tensor) -> Tensor:
    """Return the result of a reduction over no axis."""
    if call.op_type in ("ReduceL1", "ReduceL2"):
        return torch.abs(x)
    if call.op_type == "ReduceSumSquare":
        return x * x
    return torch.log(x) if call.op_type == "ReduceLogSum" else x


def _enter_reductions() -> None:
    for name, function in _REDUCTIONS.items():
        OPS[name] = Entry(functools.partial(_reduce, function=function), frozenset({1}))


_enter_reductions()


@op("ArgMax", "ArgMin")
def arg_max(call: Call, x: Tensor) -> Tensor:
    axis, keep = call.get("axis", 0), bool(call.get("keepdims", 1))
    find = torch.argmax if call.op_type == "ArgMax" else torch.argmin
    if not call.get("select_last_index", 0):
        return find(x, axis, keepdim=keep)
    return x.shape[axis] - 1 - find(torch.flip(x, [axis]), axis, keepdim=keep)


def _over_rows(call: Call, x: Tensor, function: Callable[[Tensor, int], Tensor]) -> Tensor:
    """Apply a function along an axis; before opset 13, over everything from the axis on."""
    if call.version >= 13:
        return function(x, call.get("axis", -1))
    axis = call.get("axis", 1) % max(x.ndim, 1)
    rows = math.prod(x.shape[:axis])
    return function(x.reshape(rows, math.prod(x.shape[axis:])), 1).reshape(x.shape)


@op("Softmax")
def softmax(call: Call, x: Tensor) -> Tensor:
    return _over_rows(call, x, torch.softmax)


@op("LogSoftmax")
def log_softmax(call: Call, x: Tensor) -> Tensor:
    return _over_rows(call, x, torch.log_softmax)


@op("Hardmax")
def hardmax(call: Call, x: Tensor) -> Tensor:
    def first_largest(rows: Tensor, axis: int) -> Tensor:
        return torch.zeros_like(rows).scatter(axis, torch.argmax(rows, axis, keepdim=True), 1)

    return _over_rows(call, x, first_largest)


@op("LpNormalization")
def lp_normalization(call: Call, x: Tensor) -> Tensor:
    norm = torch.linalg.vector_norm(x, call.get("p", 2), call.get("axis", -1), keepdim=True)
    return torch.where(norm == 0, torch.zeros_like(x), x / norm)


@op("CumSum", "CumProd", host=(1,))
def running(call: Call, x: Tensor, axis: Any) -> Tensor:
    dim = int(axis.reshape(()))
    run, start = (torch.cumsum, 0) if call.op_type == "CumSum" else (torch.cumprod, 1)
    if call.get("reverse", 0):
        x = torch.flip(x, [dim])
    y = run(x, dim, dtype=x.dtype)
    if call.get("exclusive", 0):
        first = torch.full_like(x.narrow(dim, 0, min(1, x.shape[dim])), start)
        y = torch.cat([first, y.narrow(dim, 0, max(x.shape[dim] - 1, 0))], dim)
    return torch.flip(y, [dim]) if call.get("reverse", 0) else y


_LONG = 2048
"""From this length on, finding a few elements is faster than sorting all."""


@op("TopK", host=(1,))
def top_k(call: Call, x: Tensor, k: Any) -> Any:
    """ArgMax or ArgMin. Of equal elements ONNX takes the first; torch's own call takes any, but a stable sort takes the first."""
    axis, count, largest = call.get("axis", -1), int(k.reshape(())), bool(call.get("largest", 1))
    if x.dtype == torch.float32 and x.ndim and x.shape[axis] >= max(_LONG, 4 * count):
        return _first_of_equals(x, axis, count, largest)
    values, indices = torch.sort(x, dim=axis, descending=largest, stable=True)
    return values.narrow(axis, 0, count), indices.narrow(axis, 0, count)


def _first_of_equals(x: Tensor, axis: int, count: int, largest: bool) -> tuple[Tensor, Tensor]:
    """The largest or smallest by keys that are all different: an element's rank among float32 numbers, then its place.

    Read as integers, positive numbers are in order and negative ones in reverse. NaN is the largest, as in torch's sort.
    """
    bits = (x + 0.0).view(torch.int32)  # of the two zeros, one
    ranks = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).masked_fill(torch.isnan(x), 0x7FFFFFFF).to(torch.int64)
    places = torch.arange(x.shape[axis], device=x.device).reshape([-1, *[1] * (x.ndim - 1 - axis % x.ndim)])
    keys = ((ranks if largest else -ranks) << 32) - places
    indices = -torch.topk(keys, count, axis).values & 0xFFFFFFFF
    return torch.gather(x, axis, indices), indices


@op("Einsum")
def einsum(call: Call, *xs: Tensor) -> Tensor:
    return torch.einsum(call.get("equation"), *xs)
