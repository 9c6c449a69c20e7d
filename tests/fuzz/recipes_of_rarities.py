"""Recipes of ``draft.py``: operators that few models have, and values that are no tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import NodeProto, helper

import tests.fuzz.recipes_of_layers  # noqa: F401  registers its recipes
from tests.fuzz.draft import Draft, Rejected, recipe
from tests.fuzz.recipes_of_layers import groups


@recipe(since=20)
def affine_grid(d: Draft) -> None:
    axes = d.rng.choice((2, 2, 3))
    theta = d.graph_input(d.made_up((d.rng.choice((1, 2)), axes, axes + 1), d.dtype))
    sizes = [d.shape(theta)[0], d.rng.randint(1, 3), *(d.rng.randint(1, 4) for _ in range(axes))]
    d.node("AffineGrid", [theta, d.how(sizes)], align_corners=d.rng.choice((None, 0, 1)))


@recipe(since=19)
def deformed_convolution(d: Draft) -> None:
    x = d.image(2)
    batch, channels, *sizes = d.shape(x)
    kernel = [d.rng.randint(1, min(3, size)) for size in sizes]
    strides = [d.rng.randint(1, 2) for _ in sizes]
    pads = [d.rng.randint(0, k // 2) for k in (*kernel, *kernel)]
    group = groups(d, channels)
    apart = groups(d, channels)
    made = [(s + pads[i] + pads[i + 2] - kernel[i]) // strides[i] + 1 for i, s in enumerate(sizes)]
    w = d.weight((group * d.rng.choice((1, 2)), channels // group, *kernel))
    offset = d.graph_input(d.made_up((batch, apart * 2 * kernel[0] * kernel[1], *made), d.dtype, -1.3, 1.3))
    bias = d.weight(d.shape(w)[:1]) if d.maybe() else ""
    mask = d.graph_input(d.made_up((batch, apart * kernel[0] * kernel[1], *made), d.dtype, 0, 1)) if d.maybe() else ""
    told: dict[str, Any] = {"group": group, "offset_group": apart, "strides": strides, "pads": pads}
    d.node("DeformConv", [x, w, offset, bias, mask], kernel_shape=kernel if d.maybe() else None, **told)


@recipe()
def best_boxes(d: Draft) -> None:
    batch, count, classes = d.rng.choice((1, 2)), d.rng.randint(2, 6), d.rng.choice((1, 2, 3))
    corners = d.numbers.uniform(0, 2, (batch, count, 2))
    sizes = d.numbers.uniform(0.3, 1.5, (batch, count, 2))
    by_center = d.maybe(0.3)
    boxes = np.concatenate([corners, sizes if by_center else corners + sizes], -1)
    scores = d.made_up((batch, classes, count), "float32", 0, 1)
    told = [d.how([d.rng.randint(1, 3)])]  # of one element, as models have them, though scalars are meant
    if d.maybe(0.8):
        told.append(d.constant([d.rng.choice((0.2, 0.5))], "float32"))
        told += [d.constant([d.rng.choice((0.1, 0.4))], "float32")] if d.maybe(0.6) else []
    given = [d.graph_input(boxes.astype(np.float32)), d.graph_input(scores)]
    d.node("NonMaxSuppression", [*given, *told], center_point_box=1 if by_center else d.rng.choice((None, 0)))
    d.varies = True


@recipe(since=17)
def short_time_fourier(d: Draft) -> None:
    length = d.rng.choice((4, 5, 8))
    x = d.graph_input(d.made_up((d.rng.choice((1, 2)), length + d.rng.randint(0, 9), 1), d.dtype))
    window = d.constant(d.made_up((length,), d.dtype, 0.2, 1)) if d.maybe(0.7) else ""
    told = d.constant(length, "int64") if not window or d.maybe() else ""
    d.node("STFT", [x, d.constant(d.rng.randint(1, 3), "int64"), window, told], onesided=d.rng.choice((None, 0, 1)))


@recipe(since=17)
def mel_weights(d: Draft) -> None:
    numbers = [d.constant(n, "int64") for n in (d.rng.randint(2, 5), 16, 8000)]
    edges = [d.constant(hertz, "float32") for hertz in (d.rng.choice((0.0, 50.0)), 3500.0)]
    d.node("MelWeightMatrix", [*numbers, *edges])


@recipe(since=24)
def written_cache(d: Draft) -> None:
    rank = d.rng.choice((3, 4))
    x = d.pick(rank, where=lambda x: x.size > 0)
    axis = d.rng.choice([i for i in range(1, rank)])
    batch, length = d.shape(x)[0], d.shape(x)[axis]
    shape = list(d.shape(x))
    shape[axis] = d.rng.randint(1, length)
    mode = d.rng.choice((None, "linear", "circular"))
    last = length - 1 if mode == "circular" else length - shape[axis]
    places = d.constant(d.numbers.integers(0, last, (batch,), endpoint=True), "int64") if d.maybe(0.8) else ""
    told = d.rng.choice((axis, axis - rank)) if axis != rank - 2 or d.maybe() else None
    d.node("TensorScatter", [x, d.weight(shape), places], axis=told, mode=mode)


@recipe(since=26)
def running_product(d: Draft) -> None:
    x = d.pick((1, 2, 3))
    flags = {"exclusive": d.rng.choice((None, 0, 1)), "reverse": d.rng.choice((None, 0, 1))}
    d.node("CumProd", [x, d.constant(d.axis(x), "int64")], **flags)


@recipe()
def pooled_and_back(d: Draft) -> None:
    x = d.image(2)
    if min(d.shape(x)[2:]) < 2 or len(np.unique(d.array(x))) < d.array(x).size:
        raise Rejected
    same = {"kernel_shape": [2, 2], "strides": [2, 2]}
    small, places = d.node("MaxPool", [x], 2, **same)
    d.node("MaxUnpool", [small, places], **same)


@recipe(times=4)
def sequences(d: Draft) -> None:
    """A tensor is cut, its parts are moved about, and all or one of them become a tensor again."""
    x = d.pick((1, 2, 3), (d.dtype, d.dtype, "int64"), lambda x: x.size > 0)
    axis, tag = d.axis(x), f"{len(d.nodes)}"
    nodes: list[NodeProto] = []

    def add(op_type: str, *inputs: str, **attributes: Any) -> str:
        made = f"s{tag}_{len(nodes)}"
        nodes.append(helper.make_node(op_type, inputs, [made], name=f"n{tag}_{len(nodes)}", **attributes))
        return made

    read, length = [x], d.shape(x)[axis]
    if d.maybe(0.3):
        parts, count = add("SequenceConstruct", x, x), 2
    elif d.maybe(0.4):
        parts, count = add("SplitToSequence", x, axis=axis), length
    else:
        size = d.rng.randint(1, length)
        read.append(d.constant(size, "int64"))
        parts, count = add("SplitToSequence", x, read[-1], axis=axis), -(-length // size)
    if d.maybe() and count > 1:
        read.append(d.constant(d.rng.randint(-count, count - 1), "int64"))
        parts, count = add("SequenceErase", parts, read[-1]), count - 1
    if d.maybe():
        extra = d.weight(d.shape(x), d.array(x).dtype.name)
        told = [d.constant(d.rng.randint(0, count), "int64")] if d.maybe() else []
        parts, count = add("SequenceInsert", parts, extra, *told), count + 1
        read += [extra, *told]
    how = d.rng.choice(("ConcatFromSequence", "ConcatFromSequence", "SequenceAt", "SequenceLength"))
    if how == "SequenceAt":
        read.append(d.constant(d.rng.randint(-count, count - 1), "int64"))
        made = add(how, parts, read[-1])
    else:
        made = add(how, parts, **({"axis": axis} if how == "ConcatFromSequence" else {}))
    d.append(nodes, list(dict.fromkeys(read)), [made])
