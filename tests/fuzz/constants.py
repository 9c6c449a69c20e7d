"""Models of constants that rewriting likes to round, join or drop, and of numbers that arithmetic is not used to."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
from onnx import TensorProto, helper

from tests.fuzz.building import Builder
from tests.fuzz.draft import Sample

OPSETS = (9, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22)
FLOATS = ("float32", "float32", "float32", "float64", "float16")
INTEGERS = ("int64", "int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64")
TINY = (1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-12, 1e-20, 1e-30, 1e-38, 1e-42)
TEMPLATES: list[Callable[[Builder], object]] = []


def template(write: Callable[[Builder], object]) -> Callable[[Builder], object]:
    """Register a template."""
    TEMPLATES.append(write)
    return write


def draw(number: int) -> Sample:
    """Return the model of a number: a template, filled in."""
    rng = random.Random(number)
    built = Builder(rng, rng.choice(OPSETS), rng.choice(FLOATS))
    TEMPLATES[number % len(TEMPLATES)](built)
    return built.sample()


def swapped(b: Builder, op_type: str, x: str, y: str) -> str:
    """Append an operator with its inputs in any order."""
    return b.op(op_type, *((y, x) if b.maybe(0.3) else (x, y)))


def start(b: Builder) -> str:
    """Return a graph input, or something made of one."""
    x = b.floats(*b.rng.choice(((), (1,), (4,), (2, 3), (3, 8), (1, 2, 5), (2, 3, 4, 4))))
    return b.op(b.rng.choice(("Relu", "Abs", "Neg", "Identity", "Tanh")), x) if b.maybe(0.4) else x


@template
def epsilons(b: Builder) -> None:
    x = start(b)
    if b.maybe():
        x = b.op("Mul", x, x)
    elif b.maybe():
        x = b.op("Relu", x)
    tiny = b.rng.choice(TINY)
    how = b.rng.choice(("Add", "Add", "Add", "Max", "Clip", "Sub", "Sum"))
    if how == "Clip":
        x = b.clip(x, tiny, None)
    elif how == "Sub":
        x = b.op("Sub", x, b.constant(-tiny))
    else:
        x = swapped(b, how, x, b.constant(tiny))
    if b.maybe(0.3):
        x = swapped(b, "Add", x, b.constant(b.rng.choice(TINY)))
    end = b.rng.choice(("Log", "Sqrt", "Reciprocal", "Div", "Div", "Pow", "Mul"))
    if end == "Div":
        b.op("Div", b.constant(1.0) if b.maybe() else start(b) if b.maybe(0) else b.constant([2.0]), x)
    elif end == "Pow":
        b.op("Pow", x, b.constant(b.rng.choice((-0.5, 0.5, -1.0, 0.25))))
    elif end == "Mul":
        b.op("Mul", x, b.constant(1 / tiny))
    else:
        b.op(end, x)


@template
def near_one(b: Builder) -> None:
    x = start(b)
    gap = b.rng.choice((1e-3, 1e-4, 1e-5, 3e-6, 1e-6, 2e-7)) * b.rng.choice((1, -1))
    made = swapped(b, b.rng.choice(("Mul", "Mul", "Div", "Pow")), x, b.constant(1 + gap))
    if b.maybe(0.7):
        made = b.op("Mul", b.op("Sub", made, x), b.constant(1 / abs(gap)))
    if b.maybe(0.3):
        b.op("Mul", made, b.constant(b.rng.choice((1 - gap, 1.0))))


@template
def clamps(b: Builder) -> None:
    x = start(b)
    ends = (0.0, -0.0, 1.0, -1.0, 6.0, 1e-7, -1e-7, 1e30, -1e30, float("inf"), float("-inf"), float("nan"))
    for _ in range(b.rng.randint(1, 3)):
        how = b.rng.choice(("Clip", "Clip", "Max", "Min", "Relu", "Relu"))
        if how == "Clip":
            low, high = (b.rng.choice((None, *ends[:11])) for _ in range(2))
            x = b.clip(x, low, high)
        elif how == "Relu":
            x = b.op("Relu", x)
        else:
            x = swapped(b, how, x, b.constant(b.rng.choice(ends)))
    if b.maybe(0.3):
        b.op("Reciprocal", x)


@template
def integers(b: Builder) -> None:
    dtype = b.rng.choice(INTEGERS)
    x = b.integers(*b.rng.choice(((4,), (2, 3), (1, 2, 5), ())), dtype=dtype)
    known = np.iinfo(dtype)
    numbers = [1, 2, 3, 7, 8, 10, known.max, known.max // 2 + 1, *([-1, -2, -3, known.min] if known.min else [])]
    numbers += [2**31, 2**32 + 1, 2**33, 3_000_000_000] if dtype in ("int64", "uint64") else []
    for _ in range(b.rng.randint(1, 3)):
        number = b.rng.choice(numbers)
        how = b.rng.choice(("Add", "Sub", "Mul", "Div", "Mod", "fmod", "Max", "Min", "Again"))
        if how == "Again":
            c = b.constant(number, dtype)
            pair = b.rng.choice((("Mul", "Div"), ("Div", "Mul"), ("Add", "Sub"), ("Sub", "Add")))
            x = b.op(pair[1], b.op(pair[0], x, c), c)
        elif how == "fmod":
            x = b.op("Mod", x, b.constant(number, dtype), fmod=1)
        elif how in ("Add", "Mul", "Max", "Min"):
            x = swapped(b, how, x, b.constant(number, dtype))
        else:
            x = b.op(how, x, b.constant(number, dtype))
    if b.maybe(0.3):
        b.cast(x, b.rng.choice(("float32", "int32", "bool", "float64")))


@template
def integer_reductions(b: Builder) -> None:
    dtype = b.rng.choice(("int64", "int32", "int64", "uint8", "int8"))
    x = b.integers(2, 5, dtype=dtype)
    if b.maybe() and dtype == "int64":
        x = b.op("Mul", x, b.constant(b.rng.choice((2**31, 2**40, 3_000_000_001)), dtype))
    how = b.rng.choice(
        ("Sum", "Prod", "Max", "Min", "Mean", "CumSum", "ArgMax", "TopK", "Abs", "Sign", "Neg", "MatMul")
    )
    if how == "CumSum" and b.opset >= 11:
        b.op("CumSum", x, b.constant(1, "int64"))
    elif how == "ArgMax":
        b.op("ArgMax", x, axis=b.rng.choice((0, 1, -1)), select_last_index=1 if b.opset >= 12 and b.maybe() else None)
    elif how == "TopK" and b.opset >= 11:
        b.ops("TopK", x, b.constant([3], "int64"), outputs=2)
    elif how in ("Abs", "Sign", "Neg"):
        b.op(how, x)
    elif how == "MatMul":
        b.op("MatMul", x, b.constant(np.arange(10).reshape(5, 2) * 3, dtype))
    else:
        b.reduce(how if how in ("Sum", "Prod", "Max", "Min", "Mean") else "Sum", x, [b.rng.choice((0, 1, -1))])


@template
def casts(b: Builder) -> None:
    kinds = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "uint32", "bool")
    first = b.rng.choice([kind for kind in kinds if kind not in ("bfloat16", "bool")])
    x = b.floats(2, 4, dtype=first) if "float" in first else b.integers(2, 4, dtype=first)
    if b.maybe(0.4):
        x = b.op("Mul", x, b.constant(b.rng.choice((0.3, 100, 1000, 70000, 1e-7, 3, 127)), first))
    for _ in range(b.rng.randint(1, 3)):
        x = b.cast(x, b.rng.choice([kind for kind in kinds if b.opset >= 13 or kind != "bfloat16"]))
    b.cast(x, b.rng.choice(("float32", "float64", "int64", "int32")))


@template
def normalised_in_pieces(b: Builder) -> None:
    x = b.floats(*b.rng.choice(((2, 8), (1, 3, 8), (2, 4, 5), (1, 2, 4, 4), (3, 1), (2, 6))))
    axes = [-1]
    eps = b.constant(b.rng.choice((1e-5, 1e-6, 1e-12, 1e-12, 1e-20, 0.0)))
    centred = x
    if b.maybe(0.8):
        centred = b.op("Sub", x, b.reduce("Mean", x, axes))
    square = b.op("Mul", centred, centred) if b.maybe() else b.op("Pow", centred, b.constant(2.0))
    variance = b.reduce("Mean", square, axes)
    raised = b.op("Add", variance, eps)
    how = b.rng.choice(("Div", "Mul", "Pow"))
    if how == "Div":
        y = b.op("Div", centred, b.op("Sqrt", raised))
    elif how == "Mul":
        y = b.op("Mul", centred, b.op("Reciprocal", b.op("Sqrt", raised)))
    else:
        y = b.op("Mul", centred, b.op("Pow", raised, b.constant(-0.5)))
    width = b.numbers.uniform(0.5, 1.5, (1,))
    if b.maybe(0.7):
        y = b.op("Mul", y, b.constant(width))
        if b.maybe(0.7):
            b.op("Add", y, b.weight(1))


@template
def batch_normalised(b: Builder) -> None:
    x, channels = b.floats(2, 3, 4, 4), 3
    before = b.rng.choice(("Conv", "Conv", "ConvTranspose", None, "Relu", "Mul"))
    if before in ("Conv", "ConvTranspose"):
        x = b.op(before, x, b.weight(3, 3, 1, 1), *([b.weight(3)] if b.maybe() else []))
    elif before == "Relu":
        x = b.op("Relu", x)
    elif before == "Mul":
        x = b.op("Mul", x, b.constant(b.rng.choice((1e-4, 0.0, 1e4))))
    scale = b.constant(b.rng.choice(([1, 1, 1], [0, 1, -1], [1e-6, 1, 1e6])))
    variance = b.constant(b.rng.choice(([1, 2, 3], [1e-12, 1, 1e-7], [0, 1, 0], [1e10, 1e-10, 1])))
    told = [scale, b.weight(channels), b.weight(channels), variance]
    y = b.op("BatchNormalization", x, *told, epsilon=b.rng.choice((None, 1e-5, 1e-3, 1e-12, 1e-7)))
    if b.maybe():
        y = b.op("Relu", y)
    if b.maybe(0.4):
        b.op("Mul", y, b.constant(b.numbers.uniform(-1, 1, (3, 1, 1))))


@template
def soft_max(b: Builder) -> None:
    x = b.floats(2, 3, 5)
    if b.maybe():
        x = b.op("Mul", x, b.constant(b.rng.choice((1e3, 1e-3, 0.125, 60000.0))))
    if b.maybe(0.6):
        mask = np.where(b.numbers.random((3, 5)) < 0.5, 0, b.rng.choice((-1e9, -65504.0, -1e4, float("-inf"))))
        mask[0] = b.rng.choice((0, mask[0].min()))
        x = b.op("Add", x, b.constant(mask))
    how = b.rng.choice(("Softmax", "LogSoftmax", "Log", "pieces", "raw", "lse"))
    if how in ("Softmax", "LogSoftmax"):
        b.op(how, x, axis=b.rng.choice((-1, 1, 2, None)))
    elif how == "Log":
        b.op("Log", b.op("Softmax", x, axis=-1))
    elif how == "lse":
        b.reduce("LogSumExp", x, [-1])
    else:
        if how == "pieces":
            x = b.op("Sub", x, b.reduce("Max", x, [-1]))
        e = b.op("Exp", x)
        y = b.op("Div", e, b.reduce("Sum", e, [-1]))
        if b.maybe(0.4):
            b.op("MatMul", y, b.weight(5, 2))


@template
def identities(b: Builder) -> None:
    x, zero, one = start(b), b.constant(0.0), b.constant(1.0)
    makes: list[Callable[[], str]] = [
        lambda: swapped(b, "Mul", x, zero),
        lambda: b.op("Sub", x, x),
        lambda: b.op("Div", x, x),
        lambda: b.op("Add", b.op("Mul", x, zero), one),
        lambda: b.op("Pow", x, b.constant(b.rng.choice((0.0, 1.0, 2.0, 0.5, -1.0, 3.0, -0.5)))),
        lambda: b.op("Mul", b.op("Sqrt", x), b.op("Sqrt", x)),
        lambda: b.op("Exp", b.op("Log", x)),
        lambda: b.op("Log", b.op("Exp", x)),
        lambda: b.op("Reciprocal", b.op("Reciprocal", x)),
        lambda: b.op("Reciprocal", b.op("Sub", zero, x)),
        lambda: b.op("Reciprocal", swapped(b, "Add", x, b.constant(b.rng.choice((0.0, -0.0))))),
        lambda: b.op("Reciprocal", b.op("Mul", x, b.constant(-1.0))),
        lambda: b.op("Reciprocal", b.op("Abs", b.op("Neg", x))),
        lambda: b.op("Div", one, b.op("Sign", x)),
        lambda: b.op("Div", x, zero),
        lambda: b.op("Sqrt", b.op("Mul", x, x)),
        lambda: b.op("Max", x, b.op("Neg", x)),
        lambda: b.op("Min", x, zero),
        lambda: b.op("Tanh", b.op("Mul", x, b.constant(1e5))),
        lambda: b.op("Div", one, b.op("Add", one, b.op("Exp", b.op("Neg", x)))),
        lambda: b.op("Mul", x, b.op("Sigmoid", x)),
        lambda: b.op("Mul", x, b.op("Tanh", b.op("Softplus", x))),
        lambda: b.op("Log", b.op("Add", one, b.op("Exp", x))),
        lambda: b.op(
            "Mul", b.op("Mul", x, b.constant(0.5)), b.op("Add", one, b.op("Erf", b.op("Div", x, b.constant(2**0.5))))
        ),
        lambda: b.op("Mul", x, b.clip(b.op("Add", x, b.constant(3.0)), 0.0, 6.0)),
    ]
    y = b.rng.choice(makes)()
    if b.maybe(0.3):
        b.op("Add", y, x)


@template
def chains_of_constants(b: Builder) -> None:
    x = start(b)
    numbers = (1e30, 1e-30, 1e20, 1e-20, 1e8, 1e-8, 3.0, 1 / 3, 0.1, -1.0, 0.0, 1e4, 65504.0, 1e-7, 1e38, 1e-38)
    for _ in range(b.rng.randint(2, 4)):
        number = b.rng.choice(numbers)
        how = b.rng.choice(("Mul", "Mul", "Add", "Sub", "Div"))
        x = swapped(b, how, x, b.constant(number if how != "Div" else number or 1.0))


@template
def around_products(b: Builder) -> None:
    numbers = (1e-30, 1e30, 0.0, -1.0, 1.0, 1e-8, 2.0)
    if b.maybe():
        x, wide, ends = b.floats(1, 3, 5, 5), 4, (4, 1, 1)
        if b.maybe(0.4):
            x = b.op(b.rng.choice(("Mul", "Add", "Sub")), x, b.constant(b.numbers.uniform(-1, 1, (3, 1, 1))))
        y = b.op(
            "Conv", x, b.weight(4, 3, 3, 3), *([b.weight(4)] if b.maybe() else []), pads=b.rng.choice((None, [1] * 4))
        )
    else:
        x, wide, ends = b.floats(3, 6), 4, (4,)
        if b.maybe(0.4):
            x = b.op(b.rng.choice(("Mul", "Add", "Sub")), x, b.constant(b.numbers.uniform(-1, 1, (6,))))
        if b.maybe():
            y = b.op(
                "Gemm",
                x,
                b.weight(6, 4),
                b.weight(4),
                alpha=b.rng.choice((None, 0.0, 0.5)),
                beta=b.rng.choice((None, 0.0, 2.0)),
            )
        else:
            y = b.op("MatMul", x, b.weight(6, 4))
    for _ in range(b.rng.randint(1, 3)):
        shape = b.rng.choice(((), (1,), ends))
        array = (
            np.broadcast_to(b.numbers.choice(numbers, ends), ends)
            if shape == ends
            else np.full(shape, b.rng.choice(numbers))
        )
        y = b.op(b.rng.choice(("Mul", "Add", "Sub")), y, b.constant(array))
        if b.maybe(0.3):
            y = b.op("Relu", y)
    del wide


@template
def boundary_places(b: Builder) -> None:
    x, far = b.floats(4, 5), 2**63 - 1
    how = b.rng.choice(
        ("Gather", "Slice", "Slice", "GatherElements", "GatherND", "ScatterND", "OneHot", "Range", "Trilu")
    )
    if how == "Gather":
        b.op("Gather", x, b.given(b.numbers.integers(-4, 4, (3,))), axis=0)
    elif how == "Slice" and b.opset >= 10:
        step = b.rng.choice((1, 2, -1, -2, far, -far))
        ends = (b.rng.choice((0, -1, 3, -far, far)), b.rng.choice((far, -far, -1, 0, 2**31, -(2**31))))
        b.op("Slice", x, *(b.constant([end], "int64") for end in (*ends, b.rng.choice((0, 1, -1)), step)))
    elif how == "GatherElements" and b.opset >= 11:
        b.op("GatherElements", x, b.given(b.numbers.integers(-4, 4, (2, 5))), axis=0)
    elif how == "GatherND" and b.opset >= 12:
        b.op("GatherND", x, b.given(b.numbers.integers(-4, 4, (3, 1))))
    elif how == "ScatterND" and b.opset >= 11:
        b.op("ScatterND", x, b.given([[0], [-1]], "int64"), b.floats(2, 5))
    elif how == "OneHot":
        b.op("OneHot", b.given([0, -1, 4, 5, -6, -5], "int64"), b.constant(5, "int64"), b.constant([0.5, 2.0]))
    elif how == "Range" and b.opset >= 11 and b.dtype == "float32":
        b.op("Range", b.given(0.0, "float32"), b.given(1.0, "float32"), b.constant(0.1))
    elif how == "Trilu" and b.opset >= 14:
        b.op("Trilu", x, b.constant(b.rng.choice((0, 7, -7, far, -far)), "int64"), upper=b.rng.choice((0, 1)))
    else:
        b.op("Neg", b.op("Gather", x, b.integers(2), axis=1))


@template
def chosen_by_comparison(b: Builder) -> None:
    x = start(b)
    other = b.constant(b.rng.choice((0.0, 1.0, -0.0, float("nan"), float("inf"))))
    test = b.rng.choice(("Equal", "Less", "Greater", "IsNaN", "IsInf", "self", "not"))
    if test in ("Equal", "Less", "Greater"):
        mask = swapped(b, test, x, other)
    elif test == "IsInf" and b.opset >= 10 and b.dtype != "float16":
        mask = b.op("IsInf", x, detect_negative=b.rng.choice((None, 0)), detect_positive=b.rng.choice((None, 0, 1)))
    elif test == "self":
        mask = b.op("Equal", x, x)
    elif test == "not":
        mask = b.op("Not", b.op(b.rng.choice(("Less", "Greater")), x, other))
    else:
        mask = b.op("IsNaN", x)
    y = b.rng.choice((lambda: b.op("Log", x), lambda: b.op("Sqrt", x), lambda: b.op("Reciprocal", x), lambda: x))()
    if b.maybe(0.8):
        b.op("Where", mask, *b.rng.choice(((y, b.constant(0.0)), (b.constant(0.0), y), (x, y))))


@template
def quantised(b: Builder) -> None:
    if b.opset < 13:
        b.opset = 13
    b.dtype = "float32"
    x = b.floats(2, 3, 4)
    dtype = b.rng.choice(("uint8", "int8", *(("uint16", "int16") if b.opset >= 21 else ())))
    known = np.iinfo(dtype)
    how = b.rng.choice(("pair", "pair", "axis", "dynamic", "only"))
    if how == "dynamic" and b.opset >= 11:
        q, scale, zero = b.ops("DynamicQuantizeLinear", x, outputs=3)
        b.op("DequantizeLinear", q, scale, zero)
        return
    size = (3,) if how == "axis" else ()
    scale = b.constant(np.broadcast_to(np.asarray(b.rng.choice((0.5, 1.0, 1e-3, 1e-10, 1e10, 0.1))), size))
    zero = b.constant(np.full(size, b.rng.choice((0, known.min, known.max, (known.min + known.max) // 2))), dtype)
    axis = 1 if how == "axis" else None
    q = b.op("QuantizeLinear", x, scale, zero, axis=axis)
    if how != "only":
        y = b.op("DequantizeLinear", q, scale, zero, axis=axis)
        if b.maybe(0.4):
            b.op("QuantizeLinear", b.op("Relu", y), scale, zero, axis=axis)


@template
def within_bodies(b: Builder) -> None:
    b.dtype = "float32"
    x = b.floats(3, 4)
    eps, zero = b.constant(b.rng.choice(TINY)), b.constant(0.0)
    info = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, None)  # noqa: E731
    inner = [
        helper.make_node("Add", [x, eps], ["inner_a"], name="inner0"),
        helper.make_node(b.rng.choice(("Log", "Sqrt", "Reciprocal")), ["inner_a"], ["inner_y"], name="inner1"),
    ]
    how = b.rng.choice(("If", "Loop", "Scan"))
    if how == "If":
        other = [helper.make_node("Mul", [x, zero], ["else_y"], name="inner2")]
        cond = b.op("Greater", b.reduce("Sum", x, [0, 1], keepdims=0), zero)
        b.op(
            "If",
            cond,
            then_branch=b.body(inner, [], [info("inner_y")]),
            else_branch=b.body(other, [], [info("else_y")]),
        )
    elif how == "Loop":
        steps = [
            *inner,
            helper.make_node("Add", ["state", "inner_y"], ["next"], name="inner3"),
            helper.make_node("Identity", ["go"], ["still"], name="inner4"),
        ]
        scalar = helper.make_tensor_value_info("i", TensorProto.INT64, [])
        flag = helper.make_tensor_value_info("go", TensorProto.BOOL, [])
        state = helper.make_tensor_value_info("state", TensorProto.FLOAT, [3, 4])
        after = [
            helper.make_tensor_value_info("still", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, [3, 4]),
        ]
        body = b.body(steps, [scalar, flag, state], [*after, *([info("inner_y")] if b.maybe() else [])])
        b.ops("Loop", b.given(b.rng.choice((0, 1, 3)), "int64"), "", x, outputs=len(body.output) - 1, body=body)
    else:
        row = helper.make_tensor_value_info("row", TensorProto.FLOAT, [4])
        held = helper.make_tensor_value_info("held", TensorProto.FLOAT, [4])
        steps = [
            helper.make_node("Add", ["row", eps], ["inner_a"], name="inner0"),
            helper.make_node("Log", ["inner_a"], ["inner_y"], name="inner1"),
            helper.make_node("Add", ["held", "inner_y"], ["inner_h"], name="inner2"),
        ]
        outs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("inner_h", "inner_y")]
        body = b.body(steps, [held, row], outs)
        b.ops("Scan", b.floats(4), x, outputs=2, body=body, num_scan_inputs=1)
