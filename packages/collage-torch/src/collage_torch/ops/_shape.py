"""Operators that move elements, and operators on shapes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from collage.toolchains import Unsupported
from collage_torch.ops._dtypes import from_array, torch_dtype
from collage_torch.ops._table import Call, host_op, op

Tensor = Any
Array = Any
"""A NumPy array on the host."""


def _sizes(shape: Array) -> list[Any]:
    return list(shape.reshape(-1).tolist())


@op("Reshape", host=(1,))
def reshape(call: Call, x: Tensor, shape: Array) -> Tensor:
    wanted = _sizes(shape)
    if not call.get("allowzero", 0):
        wanted = [x.shape[i] if isinstance(size, int) and size == 0 else size for i, size in enumerate(wanted)]
    return x.reshape(wanted)


@op("Flatten")
def flatten(call: Call, x: Tensor) -> Tensor:
    axis = call.get("axis", 1)
    axis = axis if axis >= 0 else x.ndim + axis
    rows = columns = 1
    for i, size in enumerate(x.shape):
        rows, columns = (rows * size, columns) if i < axis else (rows, columns * size)
    return x.reshape(rows, columns)


@op("Transpose")
def transpose(call: Call, x: Tensor) -> Tensor:
    return x.permute(call.get("perm") or list(range(x.ndim))[::-1])


@op("Squeeze", host=(1,))
def squeeze(call: Call, x: Tensor, axes: Array | None = None) -> Tensor:
    dims = call.get("axes") if axes is None else _sizes(axes)
    if dims is None:
        return x.squeeze()
    if any(x.shape[dim] != 1 for dim in dims):
        raise Unsupported("Squeeze of a dimension that is not 1")
    return x.squeeze(tuple(dims))


@op("Unsqueeze", host=(1,))
def unsqueeze(call: Call, x: Tensor, axes: Array | None = None) -> Tensor:
    dims = call.get("axes") if axes is None else _sizes(axes)
    for dim in sorted(dim % (x.ndim + len(dims)) for dim in dims):
        x = x.unsqueeze(dim)
    return x


@op("Concat")
def concat(call: Call, *xs: Tensor) -> Tensor:
    return torch.cat(xs, call.get("axis"))


@op("Split", host=(1,))
def split(call: Call, x: Tensor, sizes: Array | None = None) -> Any:
    axis = call.get("axis", 0)
    given = call.get("split") if sizes is None else _sizes(sizes)
    if given is None:
        step = -(-x.shape[axis] // call.outputs)
        given = [step] * (call.outputs - 1)
        given.append(x.shape[axis] - sum(given))
    return torch.split(x, given, axis)


@op("Slice", host=(1, 2, 3, 4))
def slice_(
    call: Call,
    x: Tensor,
    starts: Array | None = None,
    ends: Array | None = None,
    axes: Array | None = None,
    steps: Array | None = None,
) -> Tensor:
    """Parameters are inputs since opset 10, attributes before."""
    begin = call.get("starts") if starts is None else _sizes(starts)
    end = call.get("ends") if ends is None else _sizes(ends)
    dims = (call.get("axes") if axes is None else _sizes(axes)) or list(range(len(begin)))
    strides = [1] * len(begin) if steps is None else _sizes(steps)
    for dim, first, last, stride in zip(dims, begin, end, strides, strict=True):
        if stride > 0:
            # Torch adds the step to a length, beyond 64 bits if both are large.
            x = x[(slice(None),) * (dim % x.ndim) + (slice(first, last, min(stride, _LONGEST)),)]
        else:
            kept = range(*slice(first, last, stride).indices(x.shape[dim]))
            x = x.index_select(dim, torch.tensor(list(kept), dtype=torch.int64, device=x.device))
    return x


_LONGEST = 1 << 62
"""More than the length of any tensor."""


def _from_zero(indices: Tensor, size: Any) -> Tensor:
    """Indices counted from the front: ONNX's may be negative. One that was expanded stays so: torch scatters whole rows by it."""
    repeated = [isinstance(stride, int) and stride == 0 for stride in indices.stride()]
    few = indices[tuple(slice(0, 1) if same else slice(None) for same in repeated)] if any(repeated) else indices
    return torch.where(few < 0, few + size, few).to(torch.int64).expand(indices.shape)


def _places(call: Call, indices: Tensor, size: Any) -> Tensor:
    """The indices of a node, its second input, counted from the front."""
    return call.once("places", lambda: _from_zero(indices, size), 1, given=(size, indices.device))


@op("Gather")
def gather(call: Call, x: Tensor, indices: Tensor) -> Tensor:
    axis = call.get("axis", 0) % x.ndim
    found = _places(call, indices, x.shape[axis]).reshape(-1)
    y = x.index_select(axis, found)
    return y.reshape([*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]])


@op("GatherElements")
def gather_elements(call: Call, x: Tensor, indices: Tensor) -> Tensor:
    axis = call.get("axis", 0)
    return torch.gather(x, axis, _places(call, indices, x.shape[axis]))


@op("GatherND")
def gather_nd(call: Call, x: Tensor, indices: Tensor) -> Tensor:
    batch, depth = call.get("batch_dims", 0), indices.shape[-1]
    grids = torch.meshgrid(*(torch.arange(n, device=x.device) for n in x.shape[:batch]), indexing="ij") if batch else ()
    grids = [grid.reshape([*grid.shape, *[1] * (indices.ndim - 1 - batch)]) for grid in grids]
    return x[(*grids, *(indices[..., i] for i in range(depth)))]


_SCATTER = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


@op("ScatterElements", "Scatter")
def scatter_elements(call: Call, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    axis, reduction = call.get("axis", 0), call.get("reduction", "none")
    places = _places(call, indices, x.shape[axis])
    if reduction == "none":
        return torch.scatter(x, axis, places, updates)
    if reduction == "add":
        return torch.scatter_add(x, axis, places, updates)
    return torch.scatter_reduce(x, axis, places, updates, _SCATTER[reduction])


@op("ScatterND")
def scatter_nd(call: Call, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    places = tuple(indices[..., i] for i in range(indices.shape[-1]))
    reduction = call.get("reduction", "none")
    if reduction in ("none", "add"):
        return torch.index_put(x, places, updates, accumulate=reduction == "add")
    rows = torch.arange(x.numel(), device=x.device).reshape(x.shape)[places].reshape(-1)
    return x.reshape(-1).scatter_reduce(0, rows, updates.reshape(-1), _SCATTER[reduction]).reshape(x.shape)


@op("Expand", host=(1,))
def expand(call: Call, x: Tensor, shape: Array) -> Tensor:
    return x.expand(torch.broadcast_shapes(x.shape, _sizes(shape)))


@op("Tile", host=(1,))
def tile(call: Call, x: Tensor, repeats: Array) -> Tensor:
    return x.repeat(_sizes(repeats))


_PADDING = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}


@op("Pad", host=(1, 3), host_constants=(2,))
def pad(
    call: Call, x: Tensor, pads: Array | None = None, value: Array | Tensor | None = None, axes: Array | None = None
) -> Tensor:
    widths = call.get("pads") if pads is None else _sizes(pads)
    dims = [dim % x.ndim for dim in (range(x.ndim) if axes is None else _sizes(axes))]
    before, after = dict.fromkeys(range(x.ndim), 0), dict.fromkeys(range(x.ndim), 0)
    before.update(zip(dims, widths[: len(dims)], strict=True))
    after.update(zip(dims, widths[len(dims) :], strict=True))
    mode = call.get("mode", "constant")
    if mode == "constant":
        flat = [width for dim in reversed(range(x.ndim)) for width in (before[dim], after[dim])]
        if isinstance(value, torch.Tensor):
            kept = F.pad(torch.ones_like(x, dtype=torch.bool), flat, value=False)
            return torch.where(kept, F.pad(x, flat), value.reshape(-1)[0])
        fill = call.get("value", 0.0) if value is None else value.reshape(-1)[0].item()
        return torch.constant_pad_nd(x, flat, fill)  # F.pad makes a double of it
    for dim in dims:
        x = _pad_by_index(x, dim, before[dim], after[dim], _PADDING[mode])
    return x


def _pad_by_index(x: Tensor, dim: int, before: int, after: int, mode: str) -> Tensor:
    size = x.shape[dim]
    places = torch.arange(-before, size + after, device=x.device)
    if mode == "replicate":
        places = places.clamp(0, size - 1)
    elif mode == "circular":
        places = places % size
    else:
        period = max(2 * (size - 1), 1)
        places = places.abs() % period
        places = torch.where(places < size, places, period - places)
    return x.index_select(dim, places)


@op("ConstantOfShape", host=(0,))
def constant_of_shape(call: Call, shape: Array) -> Tensor:
    value = call.get("value")
    fill = torch.zeros(1) if value is None else from_array(np.array(value))
    return torch.full(_sizes(shape), fill.reshape(-1)[0].item(), dtype=fill.dtype)


@op("Range", host=(0, 1, 2))
def range_(call: Call, start: Array, limit: Array, delta: Array) -> Tensor:
    kind = from_array(np.array(start)).dtype
    if kind.is_floating_point:
        count = max(math.ceil((limit - start).item() / delta.item()), 0)  # in doubles, as ONNX Runtime counts
    else:
        count = len(range(start.item(), limit.item(), delta.item()))  # the difference may be beyond the type
    return start.item() + torch.arange(count, dtype=kind) * delta.item()


@op("Trilu", host=(1,))
def trilu(call: Call, x: Tensor, k: Array | None = None) -> Tensor:
    return (torch.triu if call.get("upper", 1) else torch.tril)(x, 0 if k is None else int(k.reshape(())))


@op("OneHot", host=(1,))
def one_hot(call: Call, indices: Tensor, depth: Array, values: Tensor) -> Tensor:
    count = int(depth.reshape(()))
    places = indices.to(torch.int64)
    places = torch.where(places < 0, places + count, places)
    axis = call.get("axis", -1) % (indices.ndim + 1)
    shape = [count if i == axis else 1 for i in range(indices.ndim + 1)]
    return torch.where(places.unsqueeze(axis) == torch.arange(count).reshape(shape), values[1], values[0])


@op("EyeLike")
def eye_like(call: Call, x: Tensor) -> Tensor:
    dtype = torch_dtype(call.get("dtype")) if call.get("dtype") else x.dtype
    rows, columns = torch.arange(x.shape[0]).unsqueeze(1), torch.arange(x.shape[1])
    return (columns == rows + call.get("k", 0)).to(dtype)


@op("NonZero")
def non_zero(call: Call, x: Tensor) -> Tensor:
    if x.ndim == 0:
        raise Unsupported("NonZero of a scalar")
    return torch.nonzero(x).t()


@op("Compress", host=(1,))
def compress(call: Call, x: Tensor, condition: Array) -> Tensor:
    axis = call.get("axis")
    x, axis = (x.reshape(-1), 0) if axis is None else (x, axis)
    return x.index_select(axis, torch.from_numpy(np.flatnonzero(condition)))


@op("DepthToSpace")
def depth_to_space(call: Call, x: Tensor) -> Tensor:
    size, (n, c, h, w) = call.get("blocksize"), x.shape
    if call.get("mode", "DCR") == "CRD":
        return F.pixel_shuffle(x, size)
    parts = x.reshape(n, size, size, c // size**2, h, w)
    return parts.permute(0, 3, 4, 1, 5, 2).reshape(n, c // size**2, h * size, w * size)


@op("SpaceToDepth")
def space_to_depth(call: Call, x: Tensor) -> Tensor:
    size, (n, c, h, w) = call.get("blocksize"), x.shape
    if call.get("mode", "DCR") != "DCR":
        raise Unsupported("SpaceToDepth in another mode than DCR")
    parts = x.reshape(n, c, h // size, size, w // size, size)
    return parts.permute(0, 3, 5, 1, 2, 4).reshape(n, c * size**2, h // size, w // size)


@op("ReverseSequence", host=(1,))
def reverse_sequence(call: Call, x: Tensor, lengths: Array) -> Tensor:
    batch, time = call.get("batch_axis", 1), call.get("time_axis", 0)
    moved = x.movedim((batch, time), (0, 1)).clone()
    for row, length in enumerate(_sizes(lengths)):
        moved[row, :length] = moved[row, :length].flip(0)
    return moved.movedim((0, 1), (batch, time))


@host_op("Shape")
def shape_of(call: Call, x: Tensor) -> Array:
    sizes = tuple(x.shape)[slice(call.get("start", 0), call.get("end"))]
    return _array(sizes)


@host_op("Size")
def size_of(call: Call, x: Tensor) -> Array:
    return np.array(x.numel())


def _array(sizes: Any) -> Array:
    plain = all(isinstance(size, int) for size in sizes)
    return np.array(sizes, np.int64 if plain else object)


@host_op("Gather")
def host_gather(call: Call, x: Array, indices: Array) -> Array:
    return np.asarray(np.take(x, indices.astype(np.int64), axis=call.get("axis", 0)))


@host_op("Concat")
def host_concat(call: Call, *xs: Array) -> Array:
    return np.concatenate(xs, call.get("axis"))


@host_op("Slice")
def host_slice(call: Call, x: Array, starts: Array, ends: Array, axes: Any = None, steps: Any = None) -> Array:
    step = 1 if steps is None else int(steps.reshape(()))
    return x[slice(int(starts.reshape(())), int(ends.reshape(())), step)]


@host_op("Squeeze")
def host_squeeze(call: Call, x: Array, axes: Any = None) -> Array:
    return x.squeeze()


@host_op("Unsqueeze")
def host_unsqueeze(call: Call, x: Array, axes: Array) -> Array:
    return np.expand_dims(x, tuple(_sizes(axes)))


@host_op("Add")
def host_add(call: Call, x: Array, y: Array) -> Array:
    return np.asarray(x + y)


@host_op("Sub")
def host_sub(call: Call, x: Array, y: Array) -> Array:
    return np.asarray(x - y)


@host_op("Mul")
def host_mul(call: Call, x: Array, y: Array) -> Array:
    return np.asarray(x * y)


@host_op("Identity")
def host_identity(call: Call, x: Array) -> Array:
    return x
