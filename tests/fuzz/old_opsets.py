"""Operators in the forms that operator sets 7 to 12 have: attributes that became inputs, meanings that changed."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
from onnx import helper

from tests.fuzz.building import Builder
from tests.fuzz.draft import Sample

OPSETS = range(7, 13)
STEPS: list[tuple[Callable[[Builder, str], str], int, int]] = []
Step = Callable[[Builder, str], str]
SHAPE = (2, 3, 4, 4)


def step(first: int = 7, last: int = 12) -> Callable[[Step], Step]:
    """Register what is appended to an image of ``SHAPE`` or the like, for some operator sets."""

    def register(append: Step) -> Step:
        STEPS.append((append, first, last))
        return append

    return register


def draw(number: int) -> Sample:
    """Return the model of a number: one to three steps, the first of which depends on the number."""
    rng = random.Random(number)
    built = Builder(rng, rng.choice(OPSETS), rng.choice(("float32", "float32", "float32", "float64", "float16")))
    able = [append for append, first, last in STEPS if first <= built.opset <= last]
    x = able[number // 7 % len(able)](built, built.floats(*SHAPE))
    for _ in range(rng.randint(0, 2)):
        x = built.op(rng.choice(("Relu", "Tanh", "Identity", "Neg", "Sigmoid")), x) if rng.random() < 0.5 else x
    built.op("Identity", x)
    return built.sample()


@step(7, 9)
def upsample(b: Builder, x: str) -> str:
    scales, mode = b.rng.choice(([1, 1, 2, 2], [1, 1, 1.5, 2], [1, 1, 3, 1])), b.rng.choice(("nearest", "linear"))
    if b.opset < 9:
        return b.op("Upsample", x, scales=[float(n) for n in scales], mode=mode)
    return b.op("Upsample", x, b.constant(scales, "float32"), mode=mode)


@step(10, 10)
def resize_10(b: Builder, x: str) -> str:
    scales = b.rng.choice(([1, 1, 2, 2], [1, 1, 0.5, 0.5], [1, 1, 1.5, 2], [1, 1, 0.6, 2.3]))
    return b.op("Resize", x, b.constant(scales, "float32"), mode=b.rng.choice(("nearest", "linear")))


@step(11, 12)
def resize_11(b: Builder, x: str) -> str:
    scales = b.rng.choice(([1, 1, 2, 2], [1, 1, 0.5, 0.5], [1, 1, 1.5, 2]))
    how = b.rng.choice(
        ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "tf_half_pixel_for_nn", None)
    )
    told = {"nearest_mode": b.rng.choice((None, "floor", "ceil", "round_prefer_ceil"))}
    mode = b.rng.choice(("nearest", "linear", "cubic"))
    roi = b.constant([], "float32")
    return b.op("Resize", x, roi, b.constant(scales, "float32"), mode=mode, coordinate_transformation_mode=how, **told)


@step()
def soft_max(b: Builder, x: str) -> str:
    return b.op(
        b.rng.choice(("Softmax", "LogSoftmax", "Hardmax")),
        x,
        axis=b.rng.choice((None, 0, 1, 2, 3, *((-1, -2) if b.opset >= 11 else ()))),
    )


@step()
def dropout(b: Builder, x: str) -> str:
    if b.opset >= 12:
        y, mask = b.ops("Dropout", x, *([b.constant(0.3, "float32")] if b.maybe() else []), outputs=2)
    else:
        y, mask = b.ops("Dropout", x, outputs=2, ratio=b.rng.choice((None, 0.3)))
    if b.maybe(0.6):
        # As a number: before operator set 10 a mask is a number already.
        b.cast(mask, "int32")
    return y


@step()
def batch_normalization(b: Builder, x: str) -> str:
    told = [b.weight(3), b.weight(3), b.weight(3), b.constant(b.numbers.uniform(0.1, 2, 3))]
    return b.op(
        "BatchNormalization",
        x,
        *told,
        epsilon=b.rng.choice((None, 1e-3)),
        spatial=1 if b.opset < 9 and b.maybe() else None,
    )


@step(7, 9)
def slice_by_attributes(b: Builder, x: str) -> str:
    axes = b.rng.choice(([0], [2, 3], [1, 3], [3, 1]))
    starts, ends = ([b.rng.choice(those) for _ in axes] for those in ((0, 1, -2), (2, 2**31, -1, 2**63 - 1)))
    return b.op("Slice", x, starts=starts, ends=ends, axes=axes)


@step(7, 10)
def pad_by_attributes(b: Builder, x: str) -> str:
    mode = b.rng.choice(("constant", "reflect", "edge", None))
    pads = b.rng.choice(([0, 0, 1, 2, 0, 0, 1, 1], [0, 0, 0, 1, 0, 0, 2, 0], [0, 0, -1, 0, 0, 0, 1, -1]))
    return b.op("Pad", x, pads=pads, mode=mode, value=b.rng.choice((None, 1.5)) if mode in ("constant", None) else None)


@step(7, 10)
def clip_by_attributes(b: Builder, x: str) -> str:
    return b.op("Clip", x, min=b.rng.choice((None, 0.0, -1.0)), max=b.rng.choice((None, 1.0, 6.0)))


@step()
def squeezed(b: Builder, x: str) -> str:
    y = b.op("Unsqueeze", x, axes=b.rng.choice(([0], [4], [1, 3], [0, 5])))
    return b.op("Squeeze", y) if b.maybe() else b.op("Unsqueeze", y, axes=[0])


@step()
def reduced(b: Builder, x: str) -> str:
    kind = b.rng.choice(("Sum", "Mean", "Max", "Min", "L1", "L2", "LogSumExp", "SumSquare", "Prod"))
    axes = b.rng.choice((None, [1], [2, 3], [0, 2], *(([-1], [-2, 1]) if b.opset >= 11 else ())))
    return b.op(f"Reduce{kind}", x, axes=axes, keepdims=b.rng.choice((None, 0, 1)))


@step()
def split(b: Builder, x: str) -> str:
    sizes = b.rng.choice((None, [1, 3], [2, 2]))
    first, second = b.ops("Split", x, outputs=2, axis=b.rng.choice((2, 3)), split=sizes)
    return b.op("Concat", second, first, axis=3 if sizes is None else 0) if sizes != [1, 3] else b.op("Relu", second)


@step(7, 9)
def top_k_by_attribute(b: Builder, x: str) -> str:
    values, places = b.ops("TopK", x, outputs=2, k=2, axis=b.rng.choice((None, -1, 1)))
    b.op("Cast", places, to=1)
    return values


@step(10, 12)
def top_k(b: Builder, x: str) -> str:
    values, places = b.ops("TopK", x, b.constant([2], "int64"), outputs=2, axis=b.rng.choice((None, -1, 1)))
    b.op("Cast", places, to=1)
    return values


@step()
def arg_extreme(b: Builder, x: str) -> str:
    last = b.rng.choice((None, 1)) if b.opset >= 12 else None
    y = b.op(
        b.rng.choice(("ArgMax", "ArgMin")),
        x,
        axis=b.rng.choice((None, 1, 3)),
        keepdims=b.rng.choice((None, 0)),
        select_last_index=last,
    )
    return b.cast(y, b.dtype)


@step()
def casts(b: Builder, x: str) -> str:
    middle = b.rng.choice(("int32", "int64", "uint8", "bool", "float16", "float64", "int8"))
    y = b.op("Mul", x, b.constant(b.rng.choice((1.0, 100.0, 0.3))))
    return b.cast(b.cast(b.op("Abs", y) if middle == "uint8" else y, middle), "float32")


@step()
def broadcast(b: Builder, x: str) -> str:
    shape = b.rng.choice(((3, 1, 1), (4,), (), (1, 3, 1, 4), (2, 1, 1, 1)))
    return b.op(
        b.rng.choice(("Add", "Sub", "Mul", "Div", "Pow", "PRelu", "Max", "Min")),
        x,
        b.constant(b.numbers.uniform(0.5, 2, shape)),
    )


@step()
def gemm(b: Builder, x: str) -> str:
    flat = b.op("Flatten", x, axis=b.rng.choice((None, 1)))
    c = (
        []
        if b.opset >= 11 and b.maybe(0.3)
        else [b.constant(b.numbers.uniform(-1, 1, b.rng.choice(((5,), (1, 5), (2, 5), (2, 1), (1,)))))]
    )
    return b.op("Gemm", flat, b.weight(48, 5), *c, alpha=b.rng.choice((None, 0.5)), beta=b.rng.choice((None, 2.0)))


@step()
def pooled(b: Builder, x: str) -> str:
    kind = b.rng.choice(("MaxPool", "AveragePool", "LpPool"))
    told = {"count_include_pad": 1} if kind == "AveragePool" and b.maybe() else {}
    if b.opset >= 10 and kind != "LpPool" and b.maybe(0.4):
        told["ceil_mode"] = 1
    pads = b.rng.choice((None, [1, 1, 1, 1], [0, 0, 1, 1], [1, 0, 0, 1]))
    auto = b.rng.choice((None, "SAME_UPPER", "SAME_LOWER", "VALID")) if pads is None else None
    return b.op(
        kind,
        x,
        kernel_shape=b.rng.choice(([2, 2], [3, 3], [3, 2])),
        strides=b.rng.choice((None, [2, 2])),
        pads=pads,
        auto_pad=auto,
        **told,
    )


@step()
def convolved(b: Builder, x: str) -> str:
    if b.maybe():
        auto = b.rng.choice((None, "SAME_UPPER", "SAME_LOWER", "VALID"))
        return b.op("Conv", x, b.weight(4, 3, 3, 3), b.weight(4), auto_pad=auto, strides=b.rng.choice((None, [2, 2])))
    told = b.rng.choice(({}, {"output_padding": [1, 1]}, {"output_shape": [8, 8]}, {"pads": [1, 0, 1, 1]}))
    return b.op("ConvTranspose", x, b.weight(3, 4, 3, 3), strides=[2, 2], **told)


@step(8, 8)
def scan_8(b: Builder, x: str) -> str:
    info = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(np.dtype(b.dtype)), [4, 4])
        for n in ("h", "s", "h1", "s1")
    ]
    nodes = [
        helper.make_node("Add", ["h", "s"], ["h1"], name="i0"),
        helper.make_node("Identity", ["h1"], ["s1"], name="i1"),
    ]
    body = b.body(nodes, info[:2], info[2:])
    return b.ops("Scan", "", b.floats(2, 4, 4), x, outputs=2, body=body, num_scan_inputs=1)[1]


@step(9, 12)
def where_and_compare(b: Builder, x: str) -> str:
    mask = b.op(b.rng.choice(("Less", "Greater")), x, b.constant(0.0))
    return b.op("Where", mask, x, b.constant(1.0))


@step(7, 12)
def unusual(b: Builder, x: str) -> str:
    op_type = b.rng.choice(
        ("LRN", "InstanceNormalization", "MeanVarianceNormalization", "DepthToSpace", "GlobalLpPool", "Sum", "Mean")
    )
    if op_type == "LRN":
        return b.op("LRN", x, size=3)
    if op_type == "InstanceNormalization":
        return b.op(op_type, x, b.weight(3), b.weight(3))
    if op_type == "MeanVarianceNormalization" and b.opset >= 9:
        return b.op(op_type, x)
    if op_type == "DepthToSpace":
        y = b.op("SpaceToDepth", x, blocksize=2)
        return b.op("DepthToSpace", y, blocksize=2, mode=b.rng.choice((None, "CRD")) if b.opset >= 11 else None)
    if op_type in ("Sum", "Mean") and b.opset >= 8:
        return b.op(op_type, x, b.weight(3, 1, 1), x)
    return b.op("GlobalLpPool", x, p=b.rng.choice((None, 1)))


@step()
def recurrent(b: Builder, x: str) -> str:
    seq = b.op("Reshape", x, b.constant([6, 4, 4], "int64"))
    kind, gates = b.rng.choice((("LSTM", 4), ("GRU", 3), ("RNN", 1)))
    way = b.rng.choice(("forward", "reverse"))
    told = {"linear_before_reset": 1} if kind == "GRU" and b.maybe() else {}
    return b.ops(
        kind, seq, b.weight(1, gates * 3, 4), b.weight(1, gates * 3, 3), outputs=2, hidden_size=3, direction=way, **told
    )[0]


@step(9, 10)
def one_hot(b: Builder, x: str) -> str:
    b.op("OneHot", b.given([0, 2, 1], "int64"), b.constant(3, "int64"), b.constant([0.0, 1.0], "float32"))
    return x


@step(10, 12)
def slice_with_steps(b: Builder, x: str) -> str:
    starts, ends, steps = b.rng.choice(
        (([3], [0], [-1]), ([-1], [-(2**63)], [-1]), ([0], [2**63 - 1], [2]), ([0], [2**31], [1]))
    )
    return b.op("Slice", x, *(b.constant(n, "int64") for n in (starts, ends, [b.rng.choice((2, 3))], steps)))


@step(11, 12)
def padded(b: Builder, x: str) -> str:
    mode = b.rng.choice(("constant", "reflect", "edge"))
    value = [b.constant(1.5)] if mode == "constant" and b.maybe() else []
    return b.op("Pad", x, b.constant([0, 0, 1, 2, 0, 0, 1, -1], "int64"), *value, mode=mode)
