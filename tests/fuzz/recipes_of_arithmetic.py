"""Recipes of ``draft.py``: arithmetic, reductions and products."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import helper

from tests.fuzz.draft import INTEGERS, Draft, Rejected, recipe

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
    wide = d.width(1, 2, 4, 7)
    shape = d.rng.choice(((*batch, inner, wide), (inner, wide), (inner,)))
    d.node("MatMul", [x, d.weight(shape)])


@recipe(times=2)
def gemm(d: Draft) -> None:
    x = d.pick(2)
    across, along = int(d.maybe()), int(d.maybe())
    rows, inner = reversed(d.shape(x)) if across else d.shape(x)
    wide = d.width(1, 3, 5)
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
