"""Recipes of ``draft.py``: layers of networks, quantised operators, and control flow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import helper

import tests.fuzz.recipes_of_moves  # noqa: F401  registers its recipes
from tests.fuzz.draft import Draft, Rejected, recipe, typed
from tests.fuzz.recipes_of_arithmetic import within


def window(d: Draft, sizes: Sequence[int], dilated: bool = True) -> dict[str, Any]:
    """Attributes of a window that fits: its sizes, strides, dilations, and padding by number or by name."""
    kernel = [d.rng.randint(1, min(5 if d.wide else 3, size)) for size in sizes]
    found: dict[str, Any] = {"kernel_shape": kernel}
    if d.maybe(0.6):
        found["strides"] = [d.rng.randint(1, 3) for _ in sizes]
    if dilated and d.maybe(0.3):
        found["dilations"] = [2 if 2 * (k - 1) < size else 1 for k, size in zip(kernel, sizes, strict=True)]
    if d.maybe(0.3):
        found["auto_pad"] = d.rng.choice(("SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"))
    elif d.maybe(0.6):
        found["pads"] = [d.rng.randint(0, k // 2) for k in (*kernel, *kernel)]
    return found


def groups(d: Draft, channels: int) -> int:
    return d.rng.choice([n for n in (1, 1, 2, 3, channels) if channels % n == 0])


def _each(d: Draft, group: int) -> int:
    """Output channels of a group."""
    return d.width(1, 2, 3) if group == 1 else d.rng.choice((1, 2, 3))


@recipe(times=6)
def convolution(d: Draft) -> None:
    x = d.image()
    channels, sizes = d.shape(x)[1], d.shape(x)[2:]
    attributes = window(d, sizes)
    group = groups(d, channels)
    w = d.weight((group * _each(d, group), channels // group, *attributes["kernel_shape"]))
    bias = d.weight(d.shape(w)[:1]) if d.maybe() else ""
    if d.maybe(0.3):
        del attributes["kernel_shape"]
    (y,) = d.node("Conv", [x, w, bias], group=group if group > 1 or d.maybe() else None, **attributes)
    if d.maybe(0.3):
        d.node(d.rng.choice(("Relu", "Sigmoid", "HardSwish")), [y])


@recipe(times=4)
def transposed_convolution(d: Draft) -> None:
    x = d.image()
    channels, sizes = d.shape(x)[1], d.shape(x)[2:]
    attributes = window(d, sizes)
    group = groups(d, channels)
    w = d.weight((channels, _each(d, group), *attributes["kernel_shape"]))
    bias = d.weight((group * d.shape(w)[1],)) if d.maybe() else ""
    if "strides" in attributes and d.maybe(0.4):
        attributes["output_padding"] = [d.rng.randint(0, stride - 1) for stride in attributes["strides"]]
    d.node("ConvTranspose", [x, w, bias], group=group if group > 1 else None, **attributes)


@recipe(times=4)
def pool(d: Draft) -> None:
    op_type = d.rng.choice(("MaxPool", "MaxPool", "AveragePool", "AveragePool", "LpPool"))
    x = d.image()
    attributes = window(d, d.shape(x)[2:], op_type == "MaxPool" or d.opset >= 19)
    if d.maybe(0.4) and (op_type != "LpPool" or d.opset >= 18):
        attributes["ceil_mode"] = 1
    if op_type == "AveragePool" and d.maybe(0.4):
        attributes["count_include_pad"] = 1
    if op_type == "LpPool" and d.maybe():
        attributes["p"] = d.rng.choice((1, 2, 3))
    d.node(op_type, [x], 2 if op_type == "MaxPool" and d.maybe(0.15) else 1, **attributes)


@recipe(times=2)
def pool_of_everything(d: Draft) -> None:
    op_type = d.rng.choice(("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"))
    d.node(op_type, [d.image(least=1)])


@recipe(times=3)
def normalised(d: Draft) -> None:
    op_type = d.rng.choice(("BatchNormalization", "InstanceNormalization", "LRN", "MeanVarianceNormalization"))
    x = d.image(2 if op_type in ("LRN", "MeanVarianceNormalization") else None, least=2)
    width = d.shape(x)[1:2]
    epsilon = d.rng.choice((None, 1e-3, 1e-2))
    if op_type == "LRN":
        d.node(
            "LRN", [x], size=d.rng.choice((1, 3, 5)), alpha=d.rng.choice((None, 0.05)), bias=d.rng.choice((None, 2.0))
        )
    elif op_type == "MeanVarianceNormalization":
        d.node(op_type, [x], axes=d.rng.choice((None, [2, 3], [1, 2, 3])))
    elif op_type == "InstanceNormalization":
        d.node(op_type, [x, d.weight(width), d.weight(width)], epsilon=epsilon)
    else:
        statistics = [d.weight(width, low=-0.5, high=0.5), d.weight(width, low=0.5, high=2)]
        d.node(op_type, [x, d.weight(width), d.weight(width), *statistics], epsilon=epsilon)


@recipe(since=17, times=2)
def layer_normalised(d: Draft) -> None:
    x = d.pick((1, 2, 3, 4))
    axis = d.rng.choice((None, d.axis(x)))
    shape = d.shape(x)[-1 if axis is None else axis :]
    op_type = d.rng.choice(("LayerNormalization", *(["RMSNormalization"] if d.opset >= 23 else [])))
    shape = shape if d.maybe(0.8) else shape[-1:]
    bias = d.weight(shape) if op_type == "LayerNormalization" and d.maybe() else ""
    outputs = 3 if op_type == "LayerNormalization" and d.maybe(0.15) else 1
    d.node(op_type, [x, d.weight(shape), bias], outputs, axis=axis, epsilon=d.rng.choice((None, 1e-3)))


@recipe(since=21)
def group_normalised(d: Draft) -> None:
    x = d.image(least=2)
    width = d.shape(x)[1]
    d.node("GroupNormalization", [x, d.weight((width,)), d.weight((width,))], num_groups=groups(d, width))


@recipe()
def norm_one(d: Draft) -> None:
    x = d.pick((1, 2, 3))
    d.node("LpNormalization", [x], p=d.rng.choice((None, 1, 2)), axis=d.rng.choice((None, d.axis(x))))


@recipe(times=3)
def soft_max(d: Draft) -> None:
    x = d.pick((1, 2, 3, 4))
    d.node(d.rng.choice(("Softmax", "Softmax", "LogSoftmax", "Hardmax")), [x], axis=d.rng.choice((None, d.axis(x))))


@recipe(times=5)
def resized(d: Draft) -> None:
    x = d.image(d.rng.choice((1, 2, 2, 2, 3)), least=2)
    mode = d.rng.choice(("nearest", "nearest", "linear", "linear", "cubic"))
    spatial = d.shape(x)[2:]
    ways = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", None]
    if d.opset >= 19:
        ways.append("half_pixel_symmetric")
    attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": d.rng.choice(ways)}
    if mode == "nearest":
        attributes["nearest_mode"] = d.rng.choice((None, "round_prefer_floor", "round_prefer_ceil", "floor", "ceil"))
    if mode == "cubic" and d.maybe():
        attributes["cubic_coeff_a"] = -0.5
    if mode != "nearest" and d.opset >= 18 and d.maybe(0.2):
        attributes["antialias"] = 1
    if mode == "cubic" and d.maybe(0.3):
        attributes["exclude_outside"] = 1
    only_spatial = d.opset >= 18 and d.maybe(0.4)
    if only_spatial:
        attributes["axes"] = [axis - d.rng.choice((0, d.rank(x))) for axis in range(2, d.rank(x))]
    ahead = () if only_spatial else d.shape(x)[:2]
    if d.maybe():
        scales = [d.rng.choice((0.5, 1.0, 1.5, 2.0, 2.6)) for _ in spatial]
        d.node("Resize", [x, "", d.constant([*(1.0 for _ in ahead), *scales], "float32")], **attributes)
    else:
        sizes = [d.width(*range(1, 10)) for _ in spatial]
        d.node("Resize", [x, "", "", d.how([*ahead, *sizes])], **attributes)


@recipe(since=16)
def sampled(d: Draft) -> None:
    x = d.image(2, least=2)
    grid = d.made_up((d.shape(x)[0], 3, 4, 2), d.dtype, -1.2, 1.2)
    modes = ("bilinear", "nearest", "bicubic") if d.opset < 20 else ("linear", "nearest", "cubic")
    padding = d.rng.choice((None, "zeros", "border", "reflection"))
    name = d.graph_input(grid)
    d.node("GridSample", [x, name], mode=d.rng.choice(modes), padding_mode=padding, align_corners=int(d.maybe()))


@recipe(since=18)
def columns_to_image(d: Draft) -> None:
    channels, block, image = d.rng.choice((1, 2)), (2, d.rng.choice((1, 2))), (4, 5)
    count = (image[0] - block[0] + 1) * (image[1] - block[1] + 1)
    x = d.graph_input(d.made_up((1, channels * math.prod(block), count), d.dtype))
    d.node("Col2Im", [x, d.constant(image, "int64"), d.constant(block, "int64")])


@recipe()
def regions(d: Draft) -> None:
    x = d.image(2, least=3)
    boxes = d.constant([[0.2, 0.4, 2.3, 2.6], [0.0, 0.7, 1.9, 3.1]], d.dtype)
    batches = d.constant([0, d.shape(x)[0] - 1], "int64")
    attributes: dict[str, Any] = {"output_height": 2, "output_width": 3, "sampling_ratio": d.rng.choice((1, 2))}
    attributes |= {"mode": d.rng.choice((None, "avg", "max")), "spatial_scale": d.rng.choice((None, 0.7))}
    if d.opset >= 16:
        attributes["coordinate_transformation_mode"] = d.rng.choice((None, "half_pixel", "output_half_pixel"))
    d.node("RoiAlign", [x, boxes, batches], **attributes)


@recipe(times=3)
def recurrent(d: Draft) -> None:
    op_type, gates = d.rng.choice((("LSTM", 4), ("GRU", 3), ("RNN", 1)))
    x = d.pick(3, where=lambda x: x.size > 0)
    steps, batch, width = d.shape(x)
    hidden = d.width(1, 3, 4)
    direction = d.rng.choice((None, "forward", "reverse", "bidirectional"))
    ways = 2 if direction == "bidirectional" else 1
    inputs = [x, d.weight((ways, gates * hidden, width)), d.weight((ways, gates * hidden, hidden))]
    inputs.append(d.weight((ways, 2 * gates * hidden)) if d.maybe(0.6) else "")
    inputs.append(d.constant(d.numbers.integers(1, steps, batch, endpoint=True), "int32") if d.maybe(0.2) else "")
    inputs.append(d.weight((ways, batch, hidden)) if d.maybe(0.4) else "")
    if op_type == "LSTM":
        inputs.append(d.weight((ways, batch, hidden)) if inputs[5] and d.maybe() else "")
        inputs.append(d.weight((ways, 3 * hidden)) if d.maybe(0.15) else "")
    attributes: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    if op_type == "GRU":
        attributes["linear_before_reset"] = d.rng.choice((None, 0, 1))
    if d.maybe(0.1):
        attributes["clip"] = 0.4
    d.node(op_type, inputs, 3 if op_type == "LSTM" and d.maybe() else d.rng.choice((1, 2)), **attributes)


QUANTISED = ("uint8", "int8")


def scale_of(d: Draft) -> str:
    return d.constant(round(d.rng.uniform(0.01, 0.2), 4), "float32")


def zero_point(d: Draft, dtype: str) -> str:
    return d.constant(d.rng.choice((0, 3, 100)), dtype)


@recipe(times=3)
def quantised(d: Draft) -> None:
    x = d.pick((1, 2, 3, 4), ("float32",))
    dtype = d.rng.choice(QUANTISED)
    if d.maybe(0.25):
        d.node("DynamicQuantizeLinear", [x], 3)
        return
    axis = d.axis(x) if d.maybe(0.4) else None
    if axis is None:
        parameters = [scale_of(d), zero_point(d, dtype)]
        parameters = parameters if d.maybe(0.7) or dtype == "int8" else parameters[:1]
    else:
        width = d.shape(x)[axis]
        parameters = [
            d.constant(d.numbers.uniform(0.01, 0.2, width), "float32"),
            d.constant(d.numbers.integers(0, 9, width), dtype),
        ]
    (y,) = d.node("QuantizeLinear", [x, *parameters], axis=axis)
    if d.maybe(0.8):
        d.node("DequantizeLinear", [y, *parameters], axis=axis)


@recipe(times=2)
def products_of_integers(d: Draft) -> None:
    left, right = d.rng.choice(QUANTISED), d.rng.choice(QUANTISED)
    if d.maybe():
        x = d.pick((2, 3), (left,))
        w = d.weight((d.shape(x)[-1], d.width(1, 3)), right, -9, 9)
        zeros = [zero_point(d, left), d.rng.choice(("", zero_point(d, right)))] if d.maybe(0.6) else []
        d.node("MatMulInteger", [x, w, *zeros])
    else:
        x = d.image(2, ("uint8",))
        attributes = window(d, d.shape(x)[2:])
        w = d.weight((d.width(3), d.shape(x)[1], *attributes["kernel_shape"]), right, -9, 9)
        d.node("ConvInteger", [x, w, *([zero_point(d, "uint8")] if d.maybe(0.6) else [])], **attributes)


@recipe(times=2)
def quantised_products(d: Draft) -> None:
    dtype = d.rng.choice(QUANTISED)
    made = [scale_of(d), zero_point(d, dtype)]
    if d.maybe():
        x = d.pick((2, 3), (dtype,))
        w = d.weight((d.shape(x)[-1], d.width(1, 3)), dtype, -9, 9)
        d.node("QLinearMatMul", [x, scale_of(d), zero_point(d, dtype), w, scale_of(d), zero_point(d, dtype), *made])
    else:
        x = d.image(2, (dtype,))
        attributes = window(d, d.shape(x)[2:])
        w = d.weight((d.width(4), d.shape(x)[1], *attributes["kernel_shape"]), dtype, -9, 9)
        bias = d.weight(d.shape(w)[:1], "int32", -50, 50) if d.maybe() else ""
        weights = [w, scale_of(d), d.constant(0, dtype)]
        d.node("QLinearConv", [x, scale_of(d), zero_point(d, dtype), *weights, *made, bias], **attributes)


@recipe(times=2)
def branches(d: Draft) -> None:
    x = d.pick(where=lambda x: x.size > 0)
    condition = d.graph_input(np.asarray(d.maybe()))
    bodies = []
    for name, op_type in zip(
        ("left", "right"), d.rng.sample(("Neg", "Relu", "Tanh", "Abs", "Identity"), 2), strict=True
    ):
        out = f"{name}{len(d.nodes)}"
        body = [helper.make_node(op_type, [x], [out])]
        bodies.append(helper.make_graph(body, name, [], [typed(out, d.array(x), fixed=False)]))
    d.node("If", [condition], captured=[x], then_branch=bodies[0], else_branch=bodies[1])


@recipe()
def loop(d: Draft) -> None:
    x = d.pick((1, 2), where=lambda x: x.size > 0)
    tag, array = f"_{len(d.nodes)}", d.array(x)
    step = d.weight(d.shape(x)[-1:])
    names = {name: name + tag for name in ("i", "go", "state", "again", "next", "each")}
    body = [
        helper.make_node("Identity", [names["go"]], [names["again"]]),
        helper.make_node(d.rng.choice(("Add", "Sub", "Max")), [names["state"], step], [names["next"]]),
        helper.make_node("Tanh", [names["next"]], [names["each"]]),
    ]
    scalar, flag = np.zeros((), np.int64), np.zeros((), bool)
    graph = helper.make_graph(
        body,
        "body",
        [typed(names["i"], scalar, True), typed(names["go"], flag, True), typed(names["state"], array, False)],
        [typed(names["again"], flag, True), typed(names["next"], array, False), typed(names["each"], array, False)],
    )
    trips = d.constant(d.rng.randint(1, 4), "int64")
    d.node("Loop", [trips, d.constant(True, "bool"), x], 2, captured=[step], body=graph)


@recipe()
def scan(d: Draft) -> None:
    x = d.pick((2, 3), where=lambda x: x.size > 0)
    state = d.weight(d.shape(x)[1:])
    tag = f"_{len(d.nodes)}"
    names = {name: name + tag for name in ("state", "row", "next", "each")}
    body = [
        helper.make_node("Add", [names["state"], names["row"]], [names["next"]]),
        helper.make_node("Sigmoid", [names["next"]], [names["each"]]),
    ]
    row = d.array(state)
    graph = helper.make_graph(
        body,
        "body",
        [typed(names["state"], row, True), typed(names["row"], row, True)],
        [typed(names["next"], row, True), typed(names["each"], row, True)],
    )
    given = {"scan_input_directions": [1]} if d.maybe(0.3) else {}
    d.node("Scan", [state, x], 2, num_scan_inputs=1, body=graph, **given)


@recipe(since=23)
def attention(d: Draft) -> None:
    heads, length, width = d.rng.choice((1, 2, 4)), d.width(2, 3, 4, 5), d.width(2, 4)
    batch, others = d.rng.choice((1, 2)), d.width(2, 3, 4, 5)
    shared = d.rng.choice([n for n in (1, heads) if heads % n == 0])
    q = d.pick(
        4, where=lambda x: x.shape == (batch, heads, length, width), shape=lambda _: (batch, heads, length, width)
    )
    k, v = (d.graph_input(d.made_up((batch, shared, others, width), d.dtype)) for _ in range(2))
    mask = d.weight((length, others)) if d.maybe(0.4) else ""
    attributes: dict[str, Any] = {"is_causal": d.rng.choice((None, 1)), "scale": d.rng.choice((None, 0.3))}
    attributes["softcap"] = d.rng.choice((None, None, 2.0))
    d.node("Attention", [q, k, v, mask], **attributes)


@recipe(since=23)
def rotary(d: Draft) -> None:
    batch, heads, length, width = 1, d.rng.choice((1, 2)), d.rng.randint(2, 4), 4
    x = d.pick(4, where=lambda x: x.shape == (1, heads, length, 4), shape=lambda _: (batch, heads, length, width))
    angles = d.numbers.uniform(0, 6, (batch, length, width // 2))
    cosines, sines = d.constant(np.cos(angles), d.dtype), d.constant(np.sin(angles), d.dtype)
    d.node("RotaryEmbedding", [x, cosines, sines], interleaved=d.rng.choice((None, 0, 1)))


@recipe()
def loss(d: Draft) -> None:
    x = d.pick((2, 3), where=lambda x: x.size > 0)
    labels = d.constant(d.numbers.integers(0, d.shape(x)[1], d.shape(x)[:1] + d.shape(x)[2:]), "int64")
    weights = [d.weight(d.shape(x)[1:2], low=0.2, high=1)] if d.maybe(0.4) else []
    op_type = d.rng.choice(("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"))
    d.node(op_type, [x, labels, *weights], reduction=d.rng.choice((None, "mean", "sum", "none")))


@recipe()
def determinant(d: Draft) -> None:
    d.node("Det", [d.pick((2, 3), where=lambda x: x.size > 0 and x.shape[-1] == x.shape[-2], shape=lambda n: (2,) * n)])


@recipe()
def dropped(d: Draft) -> None:
    d.node("Dropout", [d.pick()], 2 if d.maybe(0.3) else 1)


@recipe(since=17)
def signal(d: Draft) -> None:
    if d.maybe():
        op_type = d.rng.choice(("HannWindow", "HammingWindow", "BlackmanWindow"))
        d.node(op_type, [d.constant(d.rng.randint(3, 8), "int64")], periodic=d.rng.choice((None, 0, 1)))
        return
    x = d.graph_input(d.made_up((1, d.rng.choice((4, 5, 8)), d.rng.choice((1, 2))), d.dtype))
    real = d.shape(x)[-1] == 1
    given = {"onesided": int(real and d.maybe()), "inverse": 0 if real else int(d.maybe())}
    if d.opset >= 20:
        d.node("DFT", [x, "", *([d.constant(1, "int64")] if d.maybe() else [])], **given)
    else:
        d.node("DFT", [x], axis=d.rng.choice((None, 1)), **given)


@recipe()
def raised(d: Draft) -> None:
    """What is written as a power or a logarithm again undone: passes look for such pairs."""
    x = within(d, d.pick(), "positive")
    inner, outer = d.rng.choice((("Log", "Exp"), ("Sqrt", "Reciprocal"), ("Neg", "Neg"), ("Reciprocal", "Log")))
    (y,) = d.node(inner, [x])
    if not d.array(y).size:
        raise Rejected
    d.node(outer, [y])
