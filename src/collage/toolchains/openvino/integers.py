"""Bounds on integers. OpenVINO's CPU plugin computes them in at most 32 bits, and in many operators in float32.

A bound follows from constants, from shapes, and from guards that a kernel checks when it runs. Values that are only
used as lengths or positions are called lengths. Arithmetic on lengths and small constants alone stays within 32
bits in every model whose tensors fit into memory, so it is never refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from collage.toolchains.sdk.model_files import elem_type

if TYPE_CHECKING:  # Loading a kernel needs the limits, and not the 70 MB of this library.
    import onnx_ir as ir

__all__ = ["LIMITS", "PLACES", "WIDE", "computes_beyond"]

_INT32 = 2**31
_EXACT = 2**24
"""Integers up to this are exact in float32."""
_LENGTH = 2**29
_SMALL = 2**16
"""Constants up to this are lengths: paddings, strides, divisors."""
_PADDED_WITH = 2
"""Index of the input of Pad that holds the padding value."""
_STEPS = 4
"""The place of Slice's steps."""
_BOOL = 9
"""ONNX's number of the type."""
_DEPTH = 48
"""Operators that are looked through."""
_ROUNDS_FAR = 2**25
"""Constants from here on are beyond every integer up to ``_EXACT``, even when rounded to float32."""
_WIDEST_SUM = _INT32 // 2 - 1
LIMITS = (_INT32 - 1, _WIDEST_SUM, _EXACT - 1)
"""Magnitudes that inputs of a kernel may be held to when it runs: the first one that no operator of it goes beyond.

The last one is for kernels that only compare and move integers, such as tokens. Arithmetic that needs it is refused, since its
numbers may be larger in the next run.
"""

WIDE = frozenset({"INT64", "UINT64", "UINT32"})
"""Names of types that the plugin computes in 32-bit signed integers, without a word where they do not fit."""
PLACES = {"Gather": 1, "GatherElements": 1, "GatherND": 1, "ScatterElements": 1, "ScatterND": 1}
"""Operators that read an index, and where."""
_FIRST = frozenset(
    {"Cast", "Compress", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Pad", "ReduceMax"}
    | {"ReduceMin", "Reshape", "ScatterElements", "ScatterND", "Slice", "Split", "Squeeze", "Tile", "Transpose"}
    | {"Trilu", "Unsqueeze", "Ceil", "Floor", "Round"}
)
"""Operators that make numbers of their first operand, moved or rounded, and those of a third where there is one to put in."""
_PUT_IN = ("Pad", "ScatterElements", "ScatterND")
_INDICES = frozenset({"ArgMax", "ArgMin", "NonMaxSuppression", "NonZero"})
_SUMS = frozenset({"CumSum", "ReduceL1", "ReduceMean", "ReduceSum"})
_PRODUCTS = frozenset({"Einsum", "Gemm", "MatMul"})
_COMPARISONS = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
_GROWS_IN_FLOAT = _PRODUCTS | {"ReduceL1", "ReduceL2", "ReduceSum", "ReduceSumSquare"}
_IN_FLOAT = (
    _GROWS_IN_FLOAT
    | _COMPARISONS
    | {"Clip", "Div", "Mod", "PRelu", "Pad", "Pow", "ReduceMax", "ReduceMean", "ReduceMin", "Relu", "Resize"}
    | {"ReverseSequence", "Trilu"}
)
"""Operators that are computed in float32, also of int32. ``Pad`` only rounds its padding value."""
_ADDED = frozenset({"Add", "Sub", "Sum", "Mul", "Div", "Mod", "Neg", "Abs", "Range", "Sqrt", "ReduceProd"})
_UNKNOWN = frozenset({"Pow", "BitShift", "ReduceL2", "ReduceSumSquare"})
_ARITHMETIC = _ADDED | _SUMS | _PRODUCTS | _UNKNOWN | {"Cast", "ScatterElements", "ScatterND"}
_CHOSEN = frozenset({"Clip", "Concat", "Max", "Min", "Where"})


class Bounds(NamedTuple):
    """Bounds of a value's elements.

    Attributes:
        low: No element is smaller.
        high: No element is larger.
        is_length: The value is only used as a length or a position.
    """

    low: float
    high: float
    is_length: bool = False

    @property
    def magnitude(self) -> float:
        """No element is further from zero."""
        return max(abs(self.low), abs(self.high))


_UNBOUNDED = Bounds(-math.inf, math.inf)


def computes_beyond(node: ir.Node, limit: int) -> str | None:
    """Return the reason why an operator's integers may not fit the type in which the plugin computes them; None if they do.

    Args:
        node: The operator; operators before it, in its graph, are looked at.
        limit: Largest magnitude of the integers that a kernel is given.
    """
    known = _Known(max(limit, _WIDEST_SUM))
    for place, value in enumerate(node.inputs):
        if value is None or value.const_value is not None or _type_name(value) not in WIDE:
            continue
        if PLACES.get(node.op_type) != place and not _fits(value, known.of(value)):
            return _reason(node, value)
    for value in node.outputs:
        if node.op_type not in _ARITHMETIC or _type_name(value) not in WIDE or _is_place(value):
            continue
        if not _fits(value, known.of(value)):
            return _reason(node, value)
    exact = known if node.op_type in _ARITHMETIC else _Known(limit)
    if node.op_type in _IN_FLOAT and (rounded := _rounded(node, exact)) is not None:
        name = rounded.name
        return f"openvino's CPU plugin computes {node.op_type} of integers in float32 ({name!r} may be large)"
    if (least := _least(node)) is not None and known.of(least).low <= -_INT32:
        return (
            f"openvino's CPU plugin computes {node.op_type} wrongly if {least.name!r} is the least integer of 32 bits"
        )
    return None


def _rounded(node: ir.Node, known: _Known) -> ir.Value | None:
    """Return an integer of an operator that float32 may not hold; None if there is none.

    One constant that is too large does no harm where all that happens to it is that others are compared with it.
    """
    operands = [
        (place, value, known.of(value))
        for place, value in enumerate(node.inputs)
        if value is not None and _has_32_bits(value) and (node.op_type != "Pad" or place == _PADDED_WITH)
    ]
    large = [each for each in operands if not _is_exact(each[2])]
    if len(large) == 1 and _is_only_compared(node.op_type, large[0][0], large[0][2]):
        large = []
    if large:
        return large[0][1]
    made = node.outputs[0]
    grows = node.op_type in _GROWS_IN_FLOAT and _has_32_bits(made) and not all(each.is_length for *_, each in operands)
    return made if grows and not _is_exact(known.of(made)) else None


def _has_32_bits(value: ir.Value) -> bool:
    """Return True if a value holds integers that float32 may not hold."""
    return _type_name(value) in WIDE | {"INT32"}


def _type_name(value: ir.Value) -> str | None:
    dtype = elem_type(value)
    return None if dtype is None else dtype.name


def _is_exact(bounds: Bounds) -> bool:
    return bounds.is_length or bounds.magnitude <= _EXACT


def _is_only_compared(op: str, place: int, bounds: Bounds) -> bool:
    """Return True if an operand is one number far beyond all others: a comparison or Clip then gives the same after rounding."""
    if bounds.low != bounds.high or bounds.magnitude < _ROUNDS_FAR:
        return False
    return op in _COMPARISONS or (op == "Clip" and place > 0 and (bounds.low < 0) == (place == 1))


def _least(node: ir.Node) -> ir.Value | None:
    """Return the inputs of an operator that must not hold the least integer of 32 bits: Cast to bool says False of it.

    Slice divides by its size where it is a step, which ends the process.
    """
    if node.op_type == "Slice" and len(node.inputs) > _STEPS:
        return node.inputs[_STEPS]
    if node.op_type == "Cast" and node.attributes.get_int("to") == _BOOL and node.inputs[0] is not None:
        return node.inputs[0] if _has_32_bits(node.inputs[0]) else None
    return None


def _reason(node: ir.Node, value: ir.Value) -> str:
    dtype = elem_type(value)
    kind = "integers" if dtype is None else dtype.name.lower()
    return f"openvino's CPU plugin computes {kind} in 32 bits, and {value.name!r} ({node.op_type}) may not fit them"


def _fits(value: ir.Value, bounds: Bounds) -> bool:
    lowest = -_INT32 if _type_name(value) == "INT64" else 0
    return bounds.is_length or lowest <= bounds.low <= bounds.high < _INT32


def _is_place(value: ir.Value) -> bool:
    """Return True if a value is only an index. A number beyond 32 bits cannot be an index into any tensor."""
    uses = value.uses()
    return bool(uses) and not value.is_graph_output() and all(PLACES.get(node.op_type) == i for node, i in uses)


class _Known:
    """Bounds of values, found by looking back."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._found: dict[ir.Value, Bounds] = {}

    def of(self, value: ir.Value, depth: int = 0) -> Bounds:
        """The bounds of a value."""
        found = self._found.get(value)
        if found is None:
            found = self._found[value] = self._look(value, depth)
        return found

    def _look(self, value: ir.Value, depth: int) -> Bounds:
        if value.const_value is not None and not value.is_graph_input():
            return _of_constant(value.const_value)
        node = value.producer()
        op = "" if node is None or node.domain else node.op_type
        if node is None or depth == _DEPTH or not node.inputs:
            return self._given(value)
        if op in ("Shape", "Size"):
            return _of_lengths(node)
        if op in _INDICES or (op in ("TopK", "Unique") and value is not node.outputs[0]):
            return Bounds(0, _count(node.inputs[0]), True)
        if op not in _FIRST | _ARITHMETIC | _CHOSEN:
            return self._given(value)
        given = [None if each is None else self.of(each, depth + 1) for each in node.inputs]
        made = _made(node, given)
        told = [each for each in given if each is not None]
        if op in _ADDED | _SUMS and told and all(each.is_length for each in told):
            return Bounds(max(made.low, -_LENGTH), min(made.high, _LENGTH), True)
        return self._wrapped(value, made)

    @staticmethod
    def _wrapped(value: ir.Value, made: Bounds) -> Bounds:
        """Bounds after integers that do not fit their type have wrapped around."""
        dtype = elem_type(value)
        if dtype is None or not dtype.is_integer() or int(dtype.min) <= made.low <= made.high <= int(dtype.max):
            return made
        return Bounds(int(dtype.min), int(dtype.max))

    def _given(self, value: ir.Value) -> Bounds:
        """Return the bounds that follow from a value's type, and from the checks when a kernel runs."""
        dtype = elem_type(value)
        if dtype is not None and dtype.name == "BOOL":
            return Bounds(0, 1)
        if dtype is None or not dtype.is_integer():
            return _UNBOUNDED
        high = min(self._limit, int(dtype.max))
        return Bounds(~high if dtype.is_signed() else 0, high)


def _of_constant(tensor: ir.TensorProtocol) -> Bounds:
    dtype = tensor.dtype
    if tensor.size == 0:
        return Bounds(0, 0, True)
    if not (dtype.is_integer() or dtype.is_floating_point() or dtype.name == "BOOL"):
        return _UNBOUNDED
    array = tensor.numpy()
    low, high = float(array.min()), float(array.max())
    if math.isnan(low) or math.isnan(high):
        return _UNBOUNDED
    return Bounds(low, high, low >= -_SMALL and high <= _SMALL)


def _of_lengths(node: ir.Node) -> Bounds:
    x = node.inputs[0]
    sizes = () if x is None or x.shape is None else tuple(size for size in x.shape if isinstance(size, int))
    if x is None or x.shape is None or len(sizes) < len(x.shape):
        return Bounds(0, _LENGTH, True)
    return Bounds(0, math.prod(sizes) if node.op_type == "Size" else max(sizes, default=0), True)


def _count(value: ir.Value | None) -> int:
    """Number of elements; a large one if it is not known."""
    shape = None if value is None or value.shape is None else tuple(value.shape)
    if shape is None or not all(isinstance(size, int) for size in shape):
        return _EXACT
    return max(1, math.prod(size for size in shape if isinstance(size, int)))


def _union(given: Sequence[Bounds]) -> Bounds:
    lows, highs, are_lengths = zip(*given, strict=True)
    return Bounds(min(lows), max(highs), all(are_lengths))


def _sum(given: Sequence[Bounds]) -> Bounds:
    return Bounds(sum(each.low for each in given), sum(each.high for each in given))


def _product(a: Bounds, b: Bounds) -> Bounds:
    ends = [0 if 0 in (x, y) else x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    return Bounds(min(ends), max(ends))


def _made(node: ir.Node, operands: Sequence[Bounds | None]) -> Bounds:
    """Bounds of an operator's results."""
    op, given = node.op_type, [each for each in operands if each is not None]
    first, second = given[0], given[1] if len(given) > 1 else Bounds(0, 0, True)
    if op == "Where":
        return _union(given[1:])
    if op == "Concat":
        return _union(given)
    if op in ("Min", "Max", "Clip"):
        return _chosen(op, operands)
    if op in _FIRST:
        return _moved(node, given)
    if op in ("Add", "Sum"):
        return _sum(given)
    if op == "Sub":
        return Bounds(first.low - second.high, first.high - second.low)
    if op == "Mul":
        return _product(first, second)
    if op in ("Neg", "Abs"):
        return Bounds(-first.high, -first.low) if op == "Neg" else Bounds(0, first.magnitude)
    if op == "Div":
        # What is divided by a fraction grows.
        made = elem_type(node.outputs[0])
        whole = (made is not None and made.is_integer()) or second.low >= 1
        return (
            Bounds(-first.magnitude if min(first.low, second.low) < 0 else 0, first.magnitude) if whole else _UNBOUNDED
        )
    if op == "Mod":
        of_divisor = second.low < 0 or (first.low < 0 and bool(node.attributes.get_int("fmod", 0)))
        return Bounds(-second.magnitude if of_divisor else 0, second.magnitude)
    if op == "Sqrt":
        return Bounds(0, max(1, first.high))
    if op == "Range":
        return _union(given[:2])
    return _reduced(node, first, second)


def _chosen(op: str, operands: Sequence[Bounds | None]) -> Bounds:
    given = [each for each in operands if each is not None]
    is_length = all(each.is_length for each in given)
    if op == "Clip":
        x, low, high = (*operands, None, None)[:3]
        assert x is not None
        low, high = low or Bounds(-math.inf, -math.inf), high or Bounds(math.inf, math.inf)
        return Bounds(min(max(x.low, low.low), high.low), min(max(x.high, low.high), high.high), is_length)
    pick = min if op == "Min" else max
    return Bounds(pick(each.low for each in given), pick(each.high for each in given), is_length)


def _moved(node: ir.Node, given: Sequence[Bounds]) -> Bounds:
    op, made = node.op_type, given[0]
    reduction = node.attributes.get("reduction")
    if op in ("ScatterElements", "ScatterND") and reduction is not None and reduction.as_string() in ("add", "mul"):
        if reduction.as_string() == "mul":
            return _UNBOUNDED
        return _sum([made, _product(given[2], Bounds(0, _count(node.inputs[2])))])
    if op in _PUT_IN and len(given) > 2:
        made = _union([made, given[2]])
    if op in ("Pad", "Trilu"):
        made = _union([made, Bounds(0, 0, True)])
    if op in ("Ceil", "Floor", "Round"):
        made = Bounds(made.low - 1, made.high + 1, made.is_length)
    return made


def _reduced(node: ir.Node, first: Bounds, second: Bounds) -> Bounds:
    count = Bounds(1, _count(node.inputs[0]))
    if node.op_type == "ReduceMean":
        return first
    if node.op_type == "ReduceL1":
        return Bounds(0, first.magnitude * count.high)
    if node.op_type in _SUMS:
        return _product(first, count)
    if node.op_type in _PRODUCTS and len(node.inputs) == 2:
        return _product(_product(first, second), count)
    if node.op_type == "ReduceProd" and first.magnitude <= 1:
        return Bounds(-1, 1)
    return _UNBOUNDED
