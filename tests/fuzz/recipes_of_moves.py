"""Recipes of ``draft.py``: what moves elements about."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from onnx import TensorProto, helper

from tests.fuzz.draft import Draft, Rejected, recipe
from tests.fuzz.recipes_of_arithmetic import partner


@recipe(times=2)
def reshaped(d: Draft) -> None:
    x = d.pick(dtypes=(d.dtype, d.dtype, "int64", "bool"), where=lambda x: x.size > 0)
    sizes = list(d.shape(x))
    d.rng.shuffle(sizes)
    if len(sizes) > 1 and d.maybe():
        sizes = [sizes[0] * sizes[1], *sizes[2:]]
    if d.maybe(0.3):
        sizes.insert(d.rng.randint(0, len(sizes)), 1)
    if sizes and d.maybe():
        sizes[d.rng.randrange(len(sizes))] = -1
    places = [i for i, size in enumerate(sizes) if i < d.rank(x) and d.shape(x)[i] == size]
    if places and d.maybe(0.3):
        sizes[d.rng.choice(places)] = 0
    d.node("Reshape", [x, d.how(sizes)])


@recipe(times=3)
def laid_out(d: Draft) -> None:
    x = d.pick(dtypes=(d.dtype, d.dtype, d.dtype, "int32", "bool"))
    order = list(range(d.rank(x)))
    d.rng.shuffle(order)
    d.node("Transpose", [x], perm=order if d.maybe(0.85) else None)


@recipe()
def flattened(d: Draft) -> None:
    x = d.pick((1, 2, 3, 4))
    d.node("Flatten", [x], axis=d.rng.choice((None, d.rng.randint(-d.rank(x), d.rank(x)))))


@recipe(times=2)
def axes_of_one(d: Draft) -> None:
    x = d.pick()
    ones = [i for i, size in enumerate(d.shape(x)) if size == 1]
    if ones and d.maybe():
        chosen = [axis - d.rank(x) if d.maybe() else axis for axis in d.rng.sample(ones, d.rng.randint(1, len(ones)))]
        d.node("Squeeze", [x, *([d.how(chosen)] if d.maybe(0.7) else [])])
    else:
        rank = d.rank(x) + 2
        count = d.rng.randint(1, 2)
        rank = d.rank(x) + count
        chosen = d.rng.sample(range(rank), count)
        d.node("Unsqueeze", [x, d.how([axis - rank if d.maybe() else axis for axis in chosen])])


@recipe(times=4)
def sliced(d: Draft) -> None:
    x = d.pick((1, 2, 3, 4), (d.dtype, d.dtype, "int64", "bool"))
    axes = d.axes(x)
    steps = [d.rng.choice((1, 1, 2, 3, -1, -1, -2)) for _ in axes]
    starts, ends = [], []
    for axis, step in zip(axes, steps, strict=True):
        size = d.shape(x)[axis]
        first, last = d.rng.randint(-size - 1, size), d.rng.choice((d.rng.randint(-size, size), 2**31 - 1, 2**63 - 1))
        if step < 0:
            first, last = d.rng.choice((-1, size, size - 1)), d.rng.choice((0, -size - 1, -(2**31), -(2**63)))
        starts.append(first)
        ends.append(last)
    inputs = [d.how(starts), d.how(ends)]
    if axes == list(range(len(axes))) and d.maybe() and steps == [1] * len(axes):
        d.node("Slice", [x, *inputs])
    else:
        d.node("Slice", [x, *inputs, d.how(axes), d.how(steps)])


def places(d: Draft, size: int, shape: Sequence[int], least: int | None = None) -> str:
    """Indices into an axis, from the front and the back."""
    if size == 0:
        raise Rejected
    found = d.numbers.integers(-size if least is None else least, size, shape)
    array = found.astype(d.rng.choice(("int64", "int64", "int32")))
    return d.constant(array) if d.maybe(0.6) else d.graph_input(array)


@recipe(times=4)
def gathered(d: Draft) -> None:
    x = d.pick((1, 2, 3, 4), (d.dtype, d.dtype, "int64", "bool"))
    axis = d.axis(x)
    kind = d.rng.choice(("Gather", "GatherElements", "GatherND"))
    if kind == "Gather":
        d.node(
            kind, [x, places(d, d.shape(x)[axis], d.sizes(d.rng.randint(0, 2)))], axis=axis if d.maybe(0.8) else None
        )
    elif kind == "GatherElements":
        shape = [max(1, size - int(d.maybe(0.3))) for size in d.shape(x)]
        shape[axis] = d.width(1, 2, 3, 4)
        d.node(kind, [x, places(d, d.shape(x)[axis], shape)], axis=axis)
    else:
        batch = d.rng.randint(0, 1) if d.rank(x) > 1 else 0
        depth = d.rng.randint(1, d.rank(x) - batch)
        columns = [d.numbers.integers(-s, s, (*d.shape(x)[:batch], 3)) for s in d.shape(x)[batch : batch + depth] if s]
        if len(columns) < depth:
            raise Rejected
        d.node(kind, [x, d.constant(np.stack(columns, -1), "int64")], batch_dims=batch or None)


@recipe(times=3)
def scattered(d: Draft) -> None:
    x = d.pick((1, 2, 3), (d.dtype, d.dtype, "int64"), lambda x: x.size > 0)
    kinds = ("none", "none", "add", "mul", "max", "min")[: 6 if d.opset >= 18 else 4 if d.opset >= 16 else 2]
    reduction = d.rng.choice(kinds)
    dtype = d.array(x).dtype.name
    given = {"reduction": reduction} if reduction != "none" else {}
    if d.maybe():
        axis = d.axis(x)
        shape = list(d.shape(x))
        column = d.rng.sample(range(shape[axis]), d.rng.randint(1, shape[axis]))  # no place twice
        shape[axis] = len(column)
        along = [1] * len(shape)
        along[axis] = -1
        indices = np.broadcast_to(np.reshape(column, along), shape)
        d.node("ScatterElements", [x, d.constant(indices, "int64"), d.weight(shape, dtype)], axis=axis, **given)
    else:
        depth = d.rng.randint(1, d.rank(x))
        count = math.prod(d.shape(x)[:depth])
        chosen = d.rng.sample(range(count), d.rng.randint(1, min(4, count)))
        indices = np.stack(np.unravel_index(chosen, d.shape(x)[:depth]), -1)
        updates = d.weight((len(chosen), *d.shape(x)[depth:]), dtype)
        d.node("ScatterND", [x, d.constant(indices, "int64"), updates], **given)


@recipe(times=3)
def concatenated(d: Draft) -> None:
    x = d.pick((1, 2, 3, 4), (d.dtype, d.dtype, "int64"))
    axis = d.axis(x)
    others = [x] if d.maybe(0.2) else []
    for _ in range(d.rng.randint(0, 2)):
        shape = list(d.shape(x))
        shape[axis] = d.width(1, 2, 3, 4)
        others.append(d.weight(shape, d.array(x).dtype.name))
    inputs = [x, *others]
    d.rng.shuffle(inputs)
    d.node("Concat", inputs, axis=axis)


@recipe(times=2)
def split(d: Draft) -> None:
    x = d.pick((1, 2, 3, 4), (d.dtype, d.dtype, "int64"), lambda x: max(x.shape) > 1)
    axis = d.rng.choice([i for i, size in enumerate(d.shape(x)) if size > 1])
    size = d.shape(x)[axis]
    first = d.rng.randint(1, size - 1)
    if d.opset >= 18 and d.maybe():
        count = d.rng.randint(2, size)
        d.node("Split", [x], count, axis=axis - d.rank(x), num_outputs=count)
    else:
        parts = [first, size - first] if d.maybe(0.8) or first == 1 else [1, first - 1, size - first]
        d.node("Split", [x, d.how(parts)], len(parts), axis=axis)


@recipe(times=3)
def padded(d: Draft) -> None:
    x = d.pick((1, 2, 3, 4), (d.dtype, d.dtype, "int32"), lambda x: x.size > 0)
    mode = d.rng.choice(("constant", "constant", "reflect", "edge", *(("wrap",) if d.opset >= 19 else ())))
    axes = [axis % d.rank(x) for axis in d.axes(x)] if d.opset >= 18 and d.maybe(0.4) else list(range(d.rank(x)))
    sizes = [d.shape(x)[axis] for axis in axes]
    most = [2 if mode in ("constant", "edge") else min(2, size - 1) for size in sizes]
    pads = [
        d.rng.randint(-1 if mode == "constant" and size > 3 else 0, end) for end, size in zip(most, sizes, strict=True)
    ]
    pads += [d.rng.randint(0, end) for end in most]
    fill = d.constant(d.made_up((), d.array(x).dtype.name)) if mode == "constant" and d.maybe(0.6) else ""
    told = d.how(axes) if len(axes) < d.rank(x) or (d.opset >= 18 and d.maybe(0.2)) else ""
    d.node("Pad", [x, d.how(pads), fill, told], mode=None if mode == "constant" and d.maybe() else mode)


@recipe(times=2)
def expanded(d: Draft) -> None:
    x = d.pick((0, 1, 2, 3), (d.dtype, "int64", "bool"))
    shape = [d.rng.choice((1, 2, 3)) if size == 1 else d.rng.choice((1, size)) for size in d.shape(x)]
    if d.maybe(0.4):
        shape = [2, *shape]
    elif shape and d.maybe(0.3):
        shape = shape[1:]
    d.node("Expand", [x, d.how(shape)])


@recipe()
def tiled(d: Draft) -> None:
    x = d.pick((1, 2, 3, 4), (d.dtype, "int64"))
    d.node("Tile", [x, d.how([d.rng.choice((1, 1, 2, 3)) for _ in d.shape(x)])])


@recipe(times=2)
def depth_and_space(d: Draft) -> None:
    block = d.rng.choice((1, 2, 2, 3))
    if d.maybe():
        channels = block * block * d.rng.choice((1, 2))
        x = d.pick(
            4, where=lambda x: x.shape[1] % block**2 == 0, shape=lambda _: (d.rng.choice((1, 2)), channels, 2, 3)
        )
        d.node("DepthToSpace", [x], blocksize=block, mode=d.rng.choice((None, "DCR", "CRD")))
    else:
        x = d.pick(
            4,
            where=lambda x: x.shape[2] % block == 0 and x.shape[3] % block == 0,
            shape=lambda _: (1, d.rng.choice((1, 2, 3)), block, 2 * block),
        )
        d.node("SpaceToDepth", [x], blocksize=block)


@recipe(times=2)
def about_shapes(d: Draft) -> None:
    x = d.pick()
    choice = d.rng.choice(("Shape", "Size", "ConstantOfShape", "Range", "EyeLike", "Reshape"))
    if choice == "Size":
        d.node("Size", [x])
    elif choice == "Range":
        start, limit, delta = d.rng.choice(((0, 5, 1), (3, -4, -2), (1, 9, 3)))
        d.node("Range", [d.how(start), d.how(limit), d.how(delta)])
    elif choice == "EyeLike":
        matrix = d.pick(2)
        d.node("EyeLike", [matrix], k=d.rng.choice((None, 0, 1, -1)))
    else:
        ends = {"start": d.rng.randint(-3, 1), "end": d.rng.randint(-1, 4)} if d.opset >= 15 and d.maybe() else {}
        (sizes,) = d.node("Shape", [x], **ends)
        if choice == "ConstantOfShape":
            fill = d.rng.choice((None, helper.make_tensor("fill", TensorProto.FLOAT, [1], [1.5])))
            d.node("ConstantOfShape", [sizes], value=fill)
        elif choice == "Reshape":
            d.node("Reshape", [partner(d, x), sizes])


@recipe(since=14)
def trilu(d: Draft) -> None:
    x = d.pick((2, 3, 4), (d.dtype, "int64"))
    d.node("Trilu", [x, *([d.how(d.rng.randint(-2, 2))] if d.maybe() else [])], upper=d.rng.choice((None, 0, 1)))


@recipe()
def reversed_sequences(d: Draft) -> None:
    x = d.pick((2, 3), where=lambda x: x.size > 0)
    time_axis = d.rng.randint(0, 1)
    lengths = d.numbers.integers(1, d.shape(x)[time_axis], d.shape(x)[1 - time_axis], endpoint=True)
    d.node("ReverseSequence", [x, d.constant(lengths, "int64")], time_axis=time_axis, batch_axis=1 - time_axis)


@recipe(since=18)
def cropped(d: Draft) -> None:
    x = d.pick((1, 2, 3), where=lambda x: x.size > 0)
    axes = d.axes(x)
    d.node("CenterCropPad", [x, d.how([d.rng.randint(1, 6) for _ in axes])], axes=axes)
