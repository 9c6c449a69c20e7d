"""Lengths that are free: what TVM takes for granted of them, without looking, and the numbers that it makes of them.

Lengths that ONNX demands to be equal are compared when a kernel runs. Where TVM, or the code that it makes, would end the
process, a kernel is refused.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, sym, tirx
from tvm.relax.frontend.onnx.onnx_frontend import onnx_input

from collage._errors import Unsupported
from collage.toolchains.tvm.length_numbers import has_lengths, is_number, of_any_lengths

__all__ = [
    "CONVOLUTIONS",
    "OF_IMAGES",
    "WINDOWS",
    "expanded",
    "may_be_cut",
    "of_as_many",
    "of_lengths",
    "refuse_equal_lengths",
    "refuse_unlike_lengths",
    "resized",
    "resized_to",
    "with_all_lengths",
    "with_common_lengths",
    "with_equal_lengths",
    "with_pads",
    "with_sides",
]

CONVOLUTIONS = frozenset(("Conv", "ConvTranspose"))
WINDOWS = frozenset(("AveragePool", "Conv", "LpPool", "MaxPool"))
OF_IMAGES = frozenset(("GroupNormalization", "InstanceNormalization"))
"""Normalisations over the channels of images."""
_RECURRENT = ("GRU", "LSTM", "RNN")
_AXES = 4
"""Axes of pictures."""

_TO_AGREE = {
    **{"Conv": 2, "ConvTranspose": 2, "Gemm": 2, "MatMul": 2, "MatMulInteger": 2, "ScatterElements": 3, "ScatterND": 3},
    **{"AffineGrid": 1, "Concat": 2, "GatherND": 2, "GridSample": 2, "NonMaxSuppression": 2},
    **dict.fromkeys(_RECURRENT, 3),
    **{"DepthToSpace": 1, "GroupNormalization": 3, "InstanceNormalization": 3, "SpaceToDepth": 1, "TopK": 1},
}
"""Operators that demand lengths, and the number of operands that have these."""


_PAIR = 2
_REPEATED = frozenset(
    (
        *("Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min", "Mod"),
        *("Mul", "Or", "Pow", "PRelu", "Sub", "Where", "Xor"),
    )
)
"""Operators whose operands are repeated along axes of length 1."""


def with_equal_lengths(bb: Any, op_name: str, inputs: list[Any], attrs: Mapping[str, Any]) -> list[Any]:
    """Return operands of an operator, some of them with the lengths that others demand. Both are compared at run time."""
    count = _TO_AGREE.get(op_name, 0)
    if not count or not all(x is not None and has_lengths(x) for x in inputs[:count]):
        return inputs
    given = list(inputs)
    for place, axis, lengths in _demanded(op_name, inputs, attrs):
        x = given[place]
        if x is None or not has_lengths(x):
            continue
        shape = list(x.ty.shape.values)
        shape[axis : axis + len(lengths)] = lengths
        if not all(map(sym.Analyzer().can_prove_equal, shape, x.ty.shape.values)):
            given[place] = of_lengths(bb, x, shape)
    return onnx_input(given)  # type: ignore[no-any-return]


def with_common_lengths(bb: Any, op_name: str, inputs: list[Any]) -> list[Any]:
    """Return operands that are repeated along axes of length 1, with the lengths that they have together.

    Of two lengths that are not known to be equal either may be 1. They are taken for equal, which is compared at run time.
    """
    tensors = [x for x in inputs if x is not None and not is_number(x)]
    if op_name not in _REPEATED or len(tensors) < _PAIR or not all(map(has_lengths, tensors)):
        return inputs
    shapes = [list(x.ty.shape.values) for x in tensors]
    rank = max(map(len, shapes))
    common = [_common([shape[i - rank] for shape in shapes if len(shape) >= rank - i]) for i in range(rank)]
    given = []
    for x in inputs:
        have = list(x.ty.shape.values) if x is not None and has_lengths(x) else []
        wanted = [n if _is_one(n) else common[rank - len(have) + i] for i, n in enumerate(have)]
        is_other = not all(map(sym.Analyzer().can_prove_equal, have, wanted))
        given.append(of_lengths(bb, x, wanted) if is_other else x)
    return onnx_input(given)  # type: ignore[no-any-return]


def may_be_cut(x: Any) -> bool:
    """True for a tensor with an axis as long as the lesser of two lengths, as the first rows of a table are."""
    return has_lengths(x) and any(isinstance(n, tirx.Min) for n in x.ty.shape.values)


def _common(lengths: Sequence[Any]) -> Any:
    """Return the length that operands have together along an axis: a number, or the longest."""
    longer = [n for n in lengths if not _is_one(n)] or list(lengths)
    known = next((n for n in longer if isinstance(n, tirx.IntImm)), longer[0])
    for n in longer:
        if not isinstance(known, tirx.IntImm) and of_any_lengths(n - known).can_prove(n >= known):
            known = n
    return known


def _is_one(length: Any) -> bool:
    return isinstance(length, tirx.IntImm) and int(length) == 1


def of_lengths(bb: Any, x: Any, lengths: Sequence[Any]) -> Any:
    """Return a tensor that has these lengths, which is checked at run time."""
    if any(map(_defines, x.ty.shape.values, lengths)):
        return of_as_many(bb, x, lengths)
    # TVM's pass for layouts fails on a module that checks something other than a variable.
    variable = x if isinstance(x, relax.Var) else bb.emit(x)
    return bb.match_cast(variable, relax.TensorType(relax.ShapeExpr(list(lengths)), x.ty.dtype))


def of_as_many(bb: Any, x: Any, lengths: Sequence[Any]) -> Any:
    """Return a tensor reshaped to lengths that have as many elements, which is checked at run time if it is not certain.

    Raises:
        Unsupported: TVM would take the number of elements for the definition of one of the lengths in it, without end.
    """
    have, made = map(_product, (x.ty.shape.values, lengths))
    if sym.Analyzer().can_prove_equal(have, made):
        return bb.normalize(relax.op.reshape(x, relax.ShapeExpr(list(lengths))))
    if _defines(have, made):
        raise Unsupported(f"tvm cannot compare {have} with {made}")
    flat = bb.normalize(relax.op.reshape(x, relax.ShapeExpr([have])))
    return bb.normalize(relax.op.reshape(of_lengths(bb, flat, [made]), relax.ShapeExpr(list(lengths))))


def with_all_lengths(x: Any, shape: Any) -> Any:
    """Return the shape of a Reshape with the length that it leaves to be computed (-1), if the others divide ``x`` exactly.

    TVM writes the quotient of both numbers of elements, and cannot reduce it if one of the lengths is a sum.
    """
    if not (isinstance(shape, relax.ShapeExpr) and has_lengths(x)):
        return shape
    wanted, have = list(shape.values), list(x.ty.shape.values)
    left = [axis for axis, n in enumerate(wanted) if isinstance(n, tirx.IntImm) and int(n) == -1]
    if len(left) != 1 or any(isinstance(n, tirx.IntImm) and int(n) == 0 for n in wanted):
        return shape
    size, factors = _factors(have)
    divisor, others = _factors(n for axis, n in enumerate(wanted) if axis != left[0])
    for other in others:
        same = next((place for place, n in enumerate(factors) if sym.Analyzer().can_prove_equal(n, other)), None)
        if same is None:
            return shape
        del factors[same]
    if size % divisor:
        return shape
    wanted[left[0]] = _product([tirx.IntImm("int64", size // divisor), *factors])
    return relax.ShapeExpr(wanted)


def _factors(lengths: Iterable[Any]) -> tuple[int, list[Any]]:
    """Return the number and the expressions whose product is that of lengths."""
    number, left, factors = 1, list(lengths), []
    while left:
        n = left.pop()
        if isinstance(n, tirx.Mul):
            left += [n.a, n.b]
        elif isinstance(n, tirx.IntImm):
            number *= int(n)
        else:
            factors.append(n)
    return number, factors


def _defines(have: Any, wanted: Any) -> bool:
    """Return True if TVM would replace a length by an expression that may hold it: its process would end."""
    return isinstance(wanted, tirx.Var) and not isinstance(have, tirx.Var | tirx.IntImm)


def _product(lengths: Iterable[Any]) -> Any:
    return functools.reduce(operator.mul, lengths, tirx.IntImm("int64", 1))


def with_sides(inputs: Sequence[Any], attrs: Mapping[str, Any]) -> tuple[Sequence[Any], list[Any] | None]:
    """Return operands of a Resize that TVM takes, and sides that they do not tell, since they follow from lengths.

    Raises:
        Unsupported: TVM may take another element for the nearest one, or the image has other samples or channels afterwards.
    """
    x, sizes = inputs[0], [*inputs, None, None, None][3]
    if not isinstance(sizes, relax.ShapeExpr) or all(isinstance(n, tirx.IntImm) for n in sizes.values):
        return inputs, None
    lengths = list(sizes.values)
    is_same = has_lengths(x) and all(map(sym.Analyzer().can_prove_equal, lengths[:2], x.ty.shape.values[:2]))
    is_exact = attrs.get("mode", b"nearest") != b"nearest" or (
        attrs.get("nearest_mode") == b"floor"
        and has_lengths(x)
        and all(isinstance(n, tirx.IntImm) for n in (*lengths[2:], *x.ty.shape.values[2:]))
    )
    if not is_exact or not is_same or len(lengths) != _AXES:
        raise Unsupported(
            "tvm's Resize to sizes that follow from lengths may round otherwise, or change samples and channels"
        )
    ones = relax.const(np.ones(len(lengths), np.int64))
    return onnx_input([*inputs[:3], ones]), lengths[2:]


def resized(x: Any, call: Any, scales: Any) -> Any:
    """Return a Resize of TVM's by known scales with whole lengths where these are whole. TVM computes them as floats."""
    is_scaled = isinstance(scales, tvm.ir.GenericConst) and isinstance(call, relax.Call) and has_lengths(x)
    if not is_scaled or len(call.args) < 2 or not isinstance(call.args[1], relax.ShapeExpr):
        return call
    sides, sizes = list(x.ty.shape.values)[2:], call.args[1].values
    factors = scales.value.numpy().tolist()[2:]
    if not len(sides) == len(sizes) == len(factors):
        return call
    whole = [n * int(k) if k == int(k) else size for n, k, size in zip(sides, factors, sizes, strict=True)]
    return resized_to(call, whole)


def resized_to(call: Any, sides: Sequence[Any]) -> Any:
    """Return a Resize of TVM's to other sides."""
    return relax.Call(call.op, [call.args[0], relax.ShapeExpr(list(sides)), *call.args[2:]], call.attrs, call.ty_args)


def with_pads(inputs: Sequence[Any], attrs: dict[str, Any]) -> dict[str, Any]:
    """Return attributes of windows with padding in numbers, where it is the same for all lengths and TVM asks for known ones."""
    x, mode = inputs[0], attrs.get("auto_pad", b"")
    if mode not in (b"SAME_LOWER", b"SAME_UPPER") or not has_lengths(x):
        return attrs
    sides = list(x.ty.shape.values)[2:]
    if all(isinstance(n, tirx.IntImm) for n in sides):
        return attrs
    kernel = attrs.get("kernel_shape") or [int(n) for n in inputs[1].ty.shape.values[2:]]
    strides, dilations = (attrs.get(name) or [1] * len(sides) for name in ("strides", "dilations"))
    if not all(sym.Analyzer().can_prove_equal(tirx.floormod(n, s), 0) for n, s in zip(sides, strides, strict=True)):
        return attrs
    total = [max((k - 1) * d + 1 - s, 0) for k, d, s in zip(kernel, dilations, strides, strict=True)]
    less, more = [n // 2 for n in total], [n - n // 2 for n in total]
    pads = [*less, *more] if mode == b"SAME_UPPER" else [*more, *less]
    return {**{name: value for name, value in attrs.items() if name != "auto_pad"}, "pads": pads}


def _demanded(op_name: str, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> list[tuple[int, int, list[Any]]]:
    """Return places of operands, one of the axes of each, and the lengths that it must have from there on."""
    x, y = (list(z.ty.shape.values) if z is not None else [] for z in [*inputs, None][:2])
    if op_name in ("Gemm", "MatMul", "MatMulInteger"):
        axes = len(x) - 1, max(len(y) - 2, 0)
        if op_name == "Gemm":
            axes = 1 - attrs.get("transA", 0), attrs.get("transB", 0)
        place = int(isinstance(inputs[0], tvm.ir.GenericConst))  # A constant stays one.
        return [(place, axes[place], [(y, x)[place][axes[1 - place]]])]
    if op_name == "TopK":
        axis = attrs.get("axis", -1) % len(x)
        return [(0, axis, [tirx.max(x[axis], int(inputs[1].value.numpy().item()))])]
    if op_name in ("DepthToSpace", "SpaceToDepth"):
        block = attrs["blocksize"]
        axis, size, end = (1, block**2, 2) if op_name == "DepthToSpace" else (2, block, 4)
        return [(0, axis, [n // size * size for n in x[axis:end]])]
    if op_name in CONVOLUTIONS:
        groups = attrs.get("group", 1)
        read, made = (y[1] * groups, y[0]) if op_name == "Conv" else (y[0], y[1] * groups)
        return [(0, 1, [read]), *((place, 0, [made]) for place in range(2, len(inputs)))]
    if op_name in _RECURRENT:
        hidden = inputs[2].ty.shape.values[-1]
        return [(0, 2, [y[2]]), *((place, 0, [y[0], x[1], hidden]) for place in range(5, len(inputs)))]
    if op_name in OF_IMAGES:
        # Before operator set 21 a scale has a length for each group, and TVM takes only a known number of channels.
        is_known, groups = isinstance(x[1], tirx.IntImm), attrs.get("num_groups", 1)
        channels = x[1] if is_known else y[0] // groups * groups
        lengths = [(place, inputs[place].ty.shape.values[0]) for place in (1, 2)]
        told = [(place, 0, [channels]) for place, n in lengths if not (is_known and isinstance(n, tirx.IntImm))]
        return [(0, 1, [channels]), *told]
    if op_name == "AffineGrid":
        sizes = inputs[1].value.numpy().tolist() if isinstance(inputs[1], tvm.ir.GenericConst) else []
        return [(0, 0, sizes[:1])]
    if op_name == "Concat":
        return _as_joined([z.ty.shape.values if has_lengths(z) else [] for z in inputs], attrs["axis"])
    if op_name == "GatherND":
        return [(0, 0, y[: attrs.get("batch_dims", 0)])]
    if op_name == "GridSample":
        return [(1, 0, x[:1]), (1, len(y) - 1, [tirx.IntImm("int64", len(x) - 2)])]
    if op_name == "NonMaxSuppression":
        return [(1, 0, x[:1]), (1, 2, x[1:2]), (0, 2, [tirx.IntImm("int64", 4)])]
    return [(2, 0, y if op_name == "ScatterElements" else [*y[:-1], *x[int(y[-1]) :]])]


def _as_joined(shapes: Sequence[Sequence[Any]], axis: int) -> list[tuple[int, int, list[Any]]]:
    """Return the demands on operands that are joined: free lengths beside the axis are those that others have in numbers."""
    rank = len(shapes[0])
    if any(len(shape) != rank for shape in shapes):
        return []
    others = [i for i in range(rank) if i != axis % rank]
    known = {i: n for shape in shapes for i in others if isinstance(n := shape[i], tirx.IntImm)}
    return [
        (place, i, [n]) for i, n in known.items() for place, s in enumerate(shapes) if not isinstance(s[i], tirx.IntImm)
    ]


def refuse_equal_lengths(x: Any, y: Any) -> None:
    """Refuse to compare shapes if that is not certain before lengths are known: TVM compares their expressions."""
    if not any(isinstance(z, relax.ShapeExpr) for z in (x, y)):
        return
    for n, m in zip(*map(_numbers_of, (x, y)), strict=False):
        analyzer = of_any_lengths(n - m)
        if not (analyzer.can_prove_equal(n, m) or analyzer.can_prove(tirx.NE(n, m))):
            raise Unsupported(f"tvm cannot decide if {n} and {m} are equal before lengths are known")


def _numbers_of(shape: Any) -> Sequence[Any]:
    """Return the numbers of a shape of TVM's, or of a constant; none of another value."""
    if isinstance(shape, relax.ShapeExpr):
        return list(shape.values)
    is_constant = isinstance(shape, tvm.ir.GenericConst)
    return [tirx.IntImm("int64", n) for n in shape.value.numpy().ravel().tolist()] if is_constant else []


def expanded(bb: Any, x: Any, shape: Any) -> Any:
    """``x`` repeated along dimensions of length 1, to where it has all lengths of ``shape`` that are not 1."""
    if isinstance(shape, relax.ShapeExpr):
        wanted = list(shape.values)
    elif isinstance(shape, tvm.ir.GenericConst):
        wanted = [tirx.IntImm("int64", length) for length in shape.value.numpy().tolist()]
    else:
        raise Unsupported("tvm does not keep lengths if a computed shape contains 1")
    have = list(x.ty.shape.values)
    one = tirx.IntImm("int64", 1)
    rank = max(len(have), len(wanted))
    beside = ([one] * (rank - len(wanted)) + wanted)[rank - len(have) :]
    are_at_most = list(map(_is_at_most, have, beside))
    fitting = [m if is_at_most else n for n, m, is_at_most in zip(have, beside, are_at_most, strict=True)]
    if any(are_at_most) and not _defines(_product(have), _product(fitting)):
        x, have = of_lengths(bb, x, fitting), fitting
    pairs = zip([one] * (rank - len(have)) + have, [one] * (rank - len(wanted)) + wanted, strict=True)
    made = [_broadcast(*pair) for pair in pairs]
    if len(have) == rank and all(map(sym.Analyzer().can_prove_equal, have, made)):
        return x
    return relax.op.broadcast_to(x, relax.ShapeExpr(made))


def _broadcast(length: Any, wanted: Any) -> Any:
    """Return the length of a dimension after ``Expand``."""
    known, target = (int(n) if isinstance(n, tirx.IntImm) else None for n in (length, wanted))
    if known == 1:
        return wanted
    if (
        target == 1
        or known is not None
        or sym.Analyzer().can_prove_equal(length, wanted)
        or _is_at_most(length, wanted)
    ):
        return length  # A length that is known and not 1 is what is wanted, or 1 is.
    raise Unsupported(f"tvm cannot decide if a length of {length} is kept or broadcast to {wanted}")


def _is_at_most(length: Any, wanted: Any) -> bool:
    """Return True for the least of what is wanted and a number: where it is 1, 1 is wanted."""
    parts = (length.a, length.b) if isinstance(length, tirx.Min) else ()
    return any(isinstance(n, tirx.IntImm) and int(n) > 1 for n in parts) and any(
        not isinstance(n, tirx.IntImm) and sym.Analyzer().can_prove_equal(n, wanted) for n in parts
    )


def refuse_unlike_lengths(equation: str, inputs: Sequence[Any]) -> None:
    """Refuse an Einsum in which a letter has several lengths, one of which may be 1 at run time."""
    lengths: dict[str, list[Any]] = {}
    for term, x in zip(equation.replace(" ", "").partition("->")[0].split(","), inputs, strict=True):
        before, dots, after = term.partition("...")
        shape = list(x.ty.shape.values)
        rank = len(shape) - len(before) - len(after)
        letters = [*before, *(f"...{i - rank}" for i in range(rank if dots else 0)), *after]
        for letter, length in zip(letters, shape, strict=True):
            lengths.setdefault(letter, []).append(length)
    for first, *others in lengths.values():
        for other in others:
            are_known = isinstance(first, tirx.IntImm) and isinstance(other, tirx.IntImm)
            if not are_known and not sym.Analyzer().can_prove_equal(first, other):
                raise Unsupported(f"tvm cannot decide which of {first} and {other} is the length, as either may be 1")
