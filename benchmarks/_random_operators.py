"""Recipes of ``_random_models.py``: arithmetic, reductions, products, and what moves elements about."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from _random_models import INTEGERS, Draft, Rejected, recipe
from onnx import TensorProto, helper

ANY, SMALL, POSITIVE, UNIT, ABOVE_ONE = "any", "small", "positive", "unit", "above one"
UNARY: Mapping[str, tuple[int, str]] = {
    **dict.fromkeys(
        [
            "Abs",
            "Neg",
            "Sin",
            "Cos",
            "Erf",
            "Sigmoid",
            "Tanh",
            "Relu",
            "Softsign",
            "Softplus",
            "HardSwish",
            "Identity",
            "Asinh",
            "Atan",
        ],
        (13, ANY),
    ),
    **dict.fromkeys(
        [
            "Floor",
            "Ceil",
            "Round",
            "Sign",
            "LeakyRelu",
            "Elu",
            "Selu",
            "Celu",
            "HardSigmoid",
            "ThresholdedRelu",
            "Shrink",
        ],
        (13, ANY),
    ),
    **dict.fromkeys(["Exp", "Sinh", "Cosh"], (13, SMALL)),
    **dict.fromkeys(["Sqrt", "Log", "Reciprocal"], (13, POSITIVE)),
    **dict.fromkeys(["Asin", "Acos", "Atanh", "Tan"], (13, UNIT)),
    "Acosh": (13, ABOVE_ONE),
    "Mish": (18, ANY),
    "Gelu": (20, ANY),
    "Swish": (24, ANY),
}
ATTRIBUTES: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "LeakyRelu": {"alpha": (-0.5, 0.5)},
    "Elu": {"alpha": (0.2, 2)},
    "Selu": {"alpha": (0.5, 2), "gamma": (0.5, 2)},
    "Celu": {"alpha": (0.2, 2)},
    "HardSigmoid": {"alpha": (0.05, 0.5), "beta": (0, 1)},
    "ThresholdedRelu": {"alpha": (0.1, 1)},
    "Shrink": {"bias": (-0.5, 0.5), "lambd": (0.1, 1)},
    "Swish": {"alpha": (0.3, 2)},
}


def within(d: Draft, x: str, domain: str) -> str:
    """The value, or one made of it that is in the domain of a function."""
    values = d.array(x).astype(np.float64)
    low, high = values.min(initial=0.0 if values.size == 0 else np.inf), values.max(initial=-np.inf)
    if domain == ANY or values.size == 0:
        return x
    if domain in (SMALL, UNIT):
        if max(-low, high) < (3 if domain == SMALL else 0.95):
            return x
        (x,) = d.node("Tanh", [x])
        return d.node("Mul", [x, d.constant(0.9, d.dtype)])[0]
    least = 0.1 if domain == POSITIVE else 1.1
    if low >= least:
        return x
    (x,) = d.node("Abs", [x])
    return d.node("Add", [x, d.constant(least, d.dtype)])[0]


@recipe(times=9)
def unary(d: Draft) -> None:
    op_type = d.rng.choice([name for name, (since, _) in UNARY.items() if since <= d.opset])
    x = within(d, d.pick(), UNARY[op_type][1])
    ranges = ATTRIBUTES.get(op_type, {})
    attributes = {name: round(d.rng.uniform(*ends), 3) for name, ends in ranges.items() if d.maybe(0.7)}
    if op_type == "Gelu" and d.maybe():
        attributes = {"approximate": "tanh"}
    d.node(op_type, [x], **attributes)


@recipe()
def unary_of_integers(d: Draft) -> None:
    op_type = d.rng.choice(["Abs", "Neg", "Sign", "Relu", *(["BitwiseNot"] if d.opset >= 18 else [])])
    d.node(op_type, [d.pick(dtypes=("int32", "int64", "int8"))])


def partner(d: Draft, x: str, low: float = -2, high: float = 2, dtype: str | None = None) -> str:
    """Something that is broadcast with a value: of its shape, or with axes of one, or with fewer axes, or wider."""
    shape = list(d.shape(x))
    for i in range(len(shape)):
        if d.maybe(0.25):
            shape[i] = 1
        elif shape[i] == 1 and d.maybe(0.2):
            shape[i] = 3
    if d.maybe(0.3):
        shape = shape[d.rng.randint(0, len(shape)) :]
    name = dtype or d.array(x).dtype.name
    others = [n for n, y in d.values.items() if y.dtype.name == name and n not in d.constants and n != x]
    if others and d.maybe(0.4):
        other = d.rng.choice(others)
        try:
            np.broadcast_shapes(d.shape(x), d.shape(other))
        except ValueError:
            pass
        else:
            y = d.array(other)
            if y.size == 0 or (y.min() >= low and y.max() <= high):
                return other
    array = d.made_up(shape, name, low, high)
    return d.constant(array) if d.maybe(0.6) else d.graph_input(array)


def swapped(d: Draft, x: str, y: str) -> list[str]:
    return [y, x] if d.maybe(0.3) else [x, y]


@recipe(times=5)
def binary(d: Draft) -> None:
    x = d.pick()
    op_type = d.rng.choice(("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Mean", "Sum", "Mod", "PRelu"))
    if op_type == "Div":
        d.node("Div", [x, partner(d, x, 0.5, 3)])
    elif op_type == "Pow":
        exponents = d.constant(d.rng.choice((2.0, 0.5, 3.0, -1.0)), d.rng.choice((d.dtype, "float32", "int64")))
        d.node("Pow", [within(d, x, POSITIVE), exponents if d.maybe() else partner(d, x, -2, 2)])
    elif op_type == "Mod":
        d.node("Mod", [x, partner(d, x, 0.5, 3)], fmod=1)
    elif op_type == "PRelu":
        slope = d.rng.choice(((), (1,), d.shape(x)[1:2] + (1,) * (d.rank(x) - 2), d.shape(x)))
        d.node("PRelu", [x, d.weight(slope)])
    elif op_type in ("Add", "Sub", "Mul"):
        d.node(op_type, swapped(d, x, partner(d, x)))
    else:
        d.node(op_type, [x, *(partner(d, x) for _ in range(d.rng.randint(0, 2)))])


@recipe(times=3)
def binary_of_integers(d: Draft) -> None:
    x = d.pick(dtypes=INTEGERS)
    op_type = d.rng.choice(("Add", "Sub", "Mul", "Div", "Mod", "Max", "Min", "Pow"))
    if op_type in ("Div", "Mod"):
        y = d.constant(d.numbers.integers(1, 5, d.shape(x)[-1:]), d.array(x).dtype.name)
        d.node(op_type, [x, y], **({"fmod": 1} if op_type == "Mod" and d.maybe() else {}))
    elif op_type == "Pow":
        d.node(op_type, [x, d.constant(d.rng.choice((0, 1, 2)), d.array(x).dtype.name)])
    else:
        d.node(op_type, swapped(d, x, partner(d, x)))


@recipe(times=2)
def bits(d: Draft) -> None:
    if d.opset >= 18 and d.maybe(0.6):
        x = d.pick(dtypes=INTEGERS)
        d.node(d.rng.choice(("BitwiseAnd", "BitwiseOr", "BitwiseXor")), swapped(d, x, partner(d, x)))
    else:
        x = d.pick(dtypes=("uint8", "uint32", "uint64"))
        amounts = d.constant(d.numbers.integers(0, 4, d.shape(x)[-1:]), d.array(x).dtype.name)
        d.node("BitShift", [x, amounts], direction=d.rng.choice(("LEFT", "RIGHT")))


@recipe(times=3)
def compared(d: Draft) -> None:
    x = d.pick(dtypes=(d.dtype, "int32", "int64"))
    op_type = d.rng.choice(("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual"))
    (mask,) = d.node(op_type, swapped(d, x, partner(d, x)))
    if d.maybe(0.6):
        y = d.pick((0, 1))
        d.node("Where", [mask, *swapped(d, x, y if d.array(y).dtype == d.array(x).dtype else partner(d, x))])


@recipe(times=2)
def logical(d: Draft) -> None:
    x = d.pick(dtypes=("bool",))
    if d.maybe(0.3):
        d.node("Not", [x])
    else:
        d.node(d.rng.choice(("And", "Or", "Xor")), swapped(d, x, partner(d, x)))


@recipe()
def special_numbers(d: Draft) -> None:
    x = d.array(d.pick((1, 2, 3))).copy().reshape(-1)
    if not x.size:
        raise Rejected
    x[:: d.rng.choice((2, 3))] = d.rng.choice((np.nan, np.inf, -np.inf))
    name = d.graph_input(x)
    if d.maybe():
        d.node("IsNaN", [name])
    else:
        d.node("IsInf", [name], **({} if d.maybe() else {"detect_negative": int(d.maybe())}))


@recipe(times=2)
def clip(d: Draft) -> None:
    x = d.pick(dtypes=(d.dtype, d.dtype, d.dtype, "int32", "int64", "int8"))
    dtype = d.array(x).dtype.name
    low, high = (d.constant(end, dtype) for end in sorted(d.rng.sample((-2, -1, 0, 1, 2, 3), 2)))
    d.node("Clip", [x, *d.rng.choice(((low, high), (low,), ("", high), ()))])


@recipe(times=2)
def cast(d: Draft) -> None:
    x = d.pick(dtypes=(d.dtype, "int32", "int64", "bool", "uint8"))
    to = d.rng.choice(("float32", "float16", "float64", "int32", "int64", "int8", "uint8", "bool", "bfloat16", "int16"))
    y = d.array(x).astype(np.float64)
    if "int" in to and y.size and not (np.iinfo(to).min <= y.min() and y.max() <= np.iinfo(to).max):
        raise Rejected  # it is not said what becomes of these
    if to == d.dtype and d.maybe():
        d.node("CastLike", [x, d.weight(())])
        return
    (made,) = d.node("Cast", [x], to=helper.np_dtype_to_tensor_dtype(np.dtype(to)))
    if to == "bfloat16" or d.maybe(0.5):
        d.node("Cast", [made], to=helper.np_dtype_to_tensor_dtype(np.dtype(d.dtype)))


REDUCTIONS = ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp"]


@recipe(times=6)
def reduced(d: Draft) -> None:
    kind = d.rng.choice(REDUCTIONS)
    of_integers = kind in ("Sum", "Max", "Min", "Prod", "SumSquare", "L1") and d.maybe(0.2)
    x = d.pick(dtypes=("int32", "int64") if of_integers else None)
    if kind == "LogSum":
        x = within(d, x, POSITIVE)
    attributes: dict[str, object] = {"keepdims": int(d.maybe())} if d.maybe(0.8) else {}
    axes = d.axes(x) if d.rank(x) and d.maybe(0.8) else []
    inputs = [x]
    if d.opset >= 18 or kind == "Sum":
        if axes or d.maybe():
            inputs.append(d.how(axes))
        if d.maybe(0.3):
            attributes["noop_with_empty_axes"] = int(d.maybe(0.8))
    elif axes:
        attributes["axes"] = axes
    d.node(f"Reduce{kind}", inputs, **attributes)


@recipe(times=2)
def arg_extreme(d: Draft) -> None:
    x = d.pick((1, 2, 3, 4))
    attributes = {"axis": d.axis(x), "keepdims": int(d.maybe()), "select_last_index": int(d.maybe(0.3))}
    given = {name: value for name, value in attributes.items() if d.maybe(0.8)}
    d.node(d.rng.choice(("ArgMax", "ArgMin")), [x], **given)


@recipe()
def top_k(d: Draft) -> None:
    x = d.pick((1, 2, 3), where=lambda x: x.size > 0)
    axis = d.axis(x)
    k = d.how([d.rng.randint(1, d.shape(x)[axis])])
    given = {"axis": axis, "largest": int(d.maybe()), "sorted": 1}
    d.node("TopK", [x, k], 2, **given)


@recipe()
def cumulated(d: Draft) -> None:
    x = d.pick((1, 2, 3), (d.dtype, "int32", "int64"))
    d.node("CumSum", [x, d.how(d.axis(x))], exclusive=int(d.maybe()), reverse=int(d.maybe()))


@recipe()
def one_hot(d: Draft) -> None:
    indices = d.graph_input(d.numbers.integers(-3, 3, d.sizes(d.rng.randint(0, 3))))
    values = d.constant(d.made_up((2,), d.rng.choice((d.dtype, "int64"))))
    depth = d.constant(d.rng.choice((4, 5)), "int64")
    d.node("OneHot", [indices, depth, values], axis=d.rng.choice((None, -1, 0)))


@recipe()
def data_dependent(d: Draft) -> None:
    op_type = d.rng.choice(("NonZero", "Compress", "Unique"))
    d.varies = True
    if op_type == "NonZero":
        d.node("NonZero", [d.pick((1, 2, 3), ("int32", "bool", "int64"))])
    elif op_type == "Compress":
        x = d.pick((1, 2, 3))
        axis = d.axis(x) if d.maybe(0.7) else None
        length = d.array(x).size if axis is None else d.shape(x)[axis]
        d.node("Compress", [x, d.graph_input(d.made_up((length,), "bool"))], axis=axis)
    else:
        d.node("Unique", [d.pick((1, 2), ("int64",))], d.rng.choice((1, 4)), sorted=1)


@recipe(times=3)
def mat_mul(d: Draft) -> None:
    x = d.pick((1, 2, 3, 4))
    inner = d.shape(x)[-1]
    batch = d.shape(x)[:-2]
    batch = tuple(1 if d.maybe(0.2) else size for size in batch[d.rng.randint(0, len(batch)) if d.maybe() else 0 :])
    wide = d.rng.choice((1, 2, 4, 7))
    shape = d.rng.choice(((*batch, inner, wide), (inner, wide), (inner,)))
    d.node("MatMul", [x, d.weight(shape)])


@recipe(times=2)
def gemm(d: Draft) -> None:
    x = d.pick(2)
    across, along = int(d.maybe()), int(d.maybe())
    rows, inner = reversed(d.shape(x)) if across else d.shape(x)
    wide = d.rng.choice((1, 3, 5))
    w = d.weight((wide, inner) if along else (inner, wide))
    bias = d.rng.choice(("", d.weight(d.rng.choice(((), (wide,), (1, wide), (rows, 1), (rows, wide))))))
    attributes = {"transA": across or None, "transB": along or None}
    scales = {name: round(d.rng.uniform(-1.5, 1.5), 2) if d.maybe(0.4) else None for name in ("alpha", "beta")}
    d.node("Gemm", [x, w, bias], **attributes, **scales)


@recipe(times=2)
def einsum(d: Draft) -> None:
    equation, rank, letters = d.rng.choice(
        (
            ("bij,jk->bik", 3, "jk"),
            ("ij,jk", 2, "jk"),
            ("bhid,bhjd->bhij", 4, "bhjd"),
            ("ij,ij->", 2, "ij"),
            ("i,j->ij", 1, "j"),
            ("bij,bik->bjk", 3, "bik"),
            ("...i,ij->...j", 3, "ij"),
            ("ij->ji", 2, ""),
            ("bij->b", 3, ""),
        )
    )
    x = d.pick(rank)
    known = dict(zip(equation.split(",")[0].split("->")[0].replace("...", "yz"), d.shape(x), strict=True))
    others = [d.weight([known.get(letter, 3) for letter in letters])] if letters else []
    d.node("Einsum", [x, *others], equation=equation)


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
        shape[axis] = d.rng.randint(1, 4)
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
        shape[axis] = d.rng.randint(1, 4)
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
