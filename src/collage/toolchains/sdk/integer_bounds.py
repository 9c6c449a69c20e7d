"""Bounds on integers, as far as a graph proves them: from constants, lengths, types and operators.

Values that are only used as lengths or positions are called lengths. Arithmetic on lengths and small constants alone stays
within 32 bits in every model whose tensors fit into memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from collage.toolchains.sdk.model_files import elem_type

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["ARITHMETIC", "BYTE_PRODUCTS", "PRODUCTS", "Bounds", "IntegerBounds"]

_MOST_ELEMENTS = 2**24
"""Elements that a tensor of unknown lengths is taken to hold at most."""
_LENGTH = 2**29
_SMALL = 2**16
"""Constants up to this are lengths: paddings, strides, divisors."""
_DEPTH = 48
"""Operators that are looked through."""
_FIRST = frozenset(
    {"Cast", "CastLike", "CenterCropPad", "Compress", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements"}
    | {"GatherND", "Identity", "Pad", "ReduceMax", "ReduceMin", "Relu", "Reshape", "ReverseSequence"}
    | {"ScatterElements", "ScatterND", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "TopK", "Transpose"}
    | {"Trilu", "Unique", "Unsqueeze", "Ceil", "Floor", "Round"}
)
"""Operators that make numbers of their first operand, moved or rounded, and those of a third where there is one to put in."""
_PUT_IN = ("Pad", "ScatterElements", "ScatterND")
_INDICES = frozenset({"ArgMax", "ArgMin", "NonMaxSuppression", "NonZero"})
_SUMS = frozenset({"CumSum", "ReduceL1", "ReduceMean", "ReduceSum"})
PRODUCTS = frozenset({"Einsum", "Gemm", "MatMul"})
BYTE_PRODUCTS = frozenset({"ConvInteger", "MatMulInteger"})
_ADDED = frozenset({"Add", "Sub", "Sum", "Mul", "Div", "Mod", "Neg", "Abs", "Range", "Sqrt", "ReduceProd"})
_UNKNOWN = frozenset({"Pow", "BitShift", "ReduceL2", "ReduceSumSquare"})
ARITHMETIC = _ADDED | _SUMS | PRODUCTS | BYTE_PRODUCTS | _UNKNOWN | {"Cast", "CastLike", "ScatterElements", "ScatterND"}
_BITWISE = frozenset({"BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor"})
_CHOSEN = frozenset({"Clip", "Concat", "Max", "Min", "Where"})
_SMALL_RESULTS = {"EyeLike": (0, 1), "Sign": (-1, 1)}


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


class IntegerBounds:
    """Bounds of values, found by looking back.

    Args:
        limit: The largest magnitude of integers that the graph is given.
        given: The same for some inputs, in place of ``limit``.
        trusts_floats: Floats are taken to be numbers. Otherwise an integer made of a float may be any of its type.
    """

    def __init__(
        self, limit: int, given: Mapping[ir.Value, int] = MappingProxyType({}), *, trusts_floats: bool = True
    ) -> None:
        self._limit = limit
        self._limits = given
        self._trusts_floats = trusts_floats
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
        if node is None:
            return self._given(value)
        if depth == _DEPTH or not node.inputs:
            return self._any(value)
        if op == "If":
            return _union([self.of(body.outputs[value.index() or 0], depth + 1) for body in _bodies(node)])
        if op in ("Loop", "Scan"):
            return self._repeated(node, value, depth)
        if op in ("Shape", "Size"):
            return _of_lengths(node)
        if op in _INDICES or (op in ("MaxPool", "TopK", "Unique") and value is not node.outputs[0]):
            # The last output of Unique holds numbers of equal elements, which may be all.
            is_count = op == "Unique" and value.index() == 3
            return Bounds(0, max(0, _places(node) - (not is_count)), True)
        if op in ("Cast", "CastLike") and not self._trusts_floats and not _is_integer(node.inputs[0]):
            return self._any(value)
        if op in _SMALL_RESULTS:
            return Bounds(*_SMALL_RESULTS[op])
        if op not in _FIRST | ARITHMETIC | _BITWISE | _CHOSEN | {"ConstantOfShape", "OneHot"}:
            return self._any(value)
        given = [None if each is None else self.of(each, depth + 1) for each in node.inputs]
        made = _made(node, given)
        told = [each for each in given if each is not None]
        of_lengths = op in _ADDED | _SUMS and told and all(each.is_length for each in told)
        # A product of constants may be longer than any length.
        if of_lengths and made.low <= _LENGTH and made.high >= -_LENGTH:
            return Bounds(max(made.low, -_LENGTH), min(made.high, _LENGTH), True)
        return self._wrapped(value, made)

    def _repeated(self, node: ir.Node, value: ir.Value, depth: int) -> Bounds:
        """Bounds of a result of Loop or Scan. A state is taken to stay as small as inputs are."""
        (body,) = _bodies(node)
        place = value.index() or 0
        if place < len(_states(node)):
            return self._given(value)
        return self.of(body.outputs[place + (node.op_type == "Loop")], depth + 1)

    def grown_state(self, node: ir.Node, has_lengths: bool) -> ir.Value | None:
        """Return an integer of a body of Loop or Scan that may outgrow what is taken of it; None if there is none.

        Args:
            node: The operator.
            has_lengths: States that start as lengths are taken to stay lengths, rather than as small as inputs are.
        """
        if len(_bodies(node)) != 1:
            return None  # It is no valid node, which others say.
        (body,) = _bodies(node)
        states = _states(node)
        if node.op_type == "Loop" and body.inputs:
            self._found[body.inputs[0]] = Bounds(0, _LENGTH, True)
        for start, state, _ in states if has_lengths else ():
            if start is not None and self.of(start).is_length:
                self._found[state] = Bounds(-_LENGTH, _LENGTH, True)
        fed = [(value, state) for start, state, end in states for value in (start, end)]
        if node.op_type == "Scan":
            fed += zip(node.inputs[len(states) :], body.inputs[len(states) :], strict=False)
        for value, inside in fed:
            if value is None or not _is_integer(inside):
                continue
            found, taken = self.of(value), self.of(inside)
            is_within = not taken.is_length and taken.low <= found.low <= found.high <= taken.high
            if not (found.is_length or is_within):
                return value
        return None

    def _any(self, value: ir.Value) -> Bounds:
        """Return the bounds that follow from the type of a value that a kernel makes: no check is made of it."""
        from collage.graph import FROM_LENGTHS  # Late for the same reason as below.

        dtype = elem_type(value)
        if dtype is None or not dtype.is_integer() or FROM_LENGTHS in value.metadata_props:
            return self._given(value)
        return Bounds(int(dtype.min), int(dtype.max))

    @staticmethod
    def _wrapped(value: ir.Value, made: Bounds) -> Bounds:
        """Bounds after integers that do not fit their type have wrapped around."""
        dtype = elem_type(value)
        if dtype is not None and dtype.name == "BOOL":
            return Bounds(0, 1, made.is_length)
        if dtype is None or not dtype.is_integer() or int(dtype.min) <= made.low <= made.high <= int(dtype.max):
            return made
        return Bounds(int(dtype.min), int(dtype.max))

    def _given(self, value: ir.Value) -> Bounds:
        """Return the bounds that follow from a value's type, and from the checks when a kernel runs."""
        # Late: programs that only load kernels import this module too.
        from collage.graph import FROM_LENGTHS

        dtype = elem_type(value)
        if dtype is not None and dtype.name == "BOOL":
            return Bounds(0, 1)
        if dtype is None or not dtype.is_integer():
            return _UNBOUNDED
        high = min(self._limits.get(value, self._limit), int(dtype.max))
        is_negative = dtype.is_signed() and value.metadata_props.get(FROM_LENGTHS) != "+"
        return Bounds(~high if is_negative else 0, high)


def _bodies(node: ir.Node) -> list[ir.Graph]:
    return [attribute.as_graph() for attribute in node.attributes.values() if attribute.type.name == "GRAPH"]


def _states(node: ir.Node) -> list[tuple[ir.Value | None, ir.Value, ir.Value]]:
    """Return the states of a Loop or a Scan: where each starts, and what the body takes and returns."""
    (body,) = _bodies(node)
    if node.op_type == "Loop":
        return list(zip(node.inputs[2:], body.inputs[2:], body.outputs[1:], strict=False))
    count = len(node.inputs) - (node.attributes.get_int("num_scan_inputs", 0) or 0)
    return list(zip(node.inputs[:count], body.inputs, body.outputs, strict=False))


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
        return _MOST_ELEMENTS
    return max(1, math.prod(size for size in shape if isinstance(size, int)))


def _places(node: ir.Node) -> int:
    """Number of positions from which an operator returns some: those of one axis, if it searches one."""
    x, attributes = node.inputs[0], node.attributes
    shape = None if x is None or x.shape is None else tuple(x.shape)
    if shape is None or not all(isinstance(size, int) for size in shape):
        return _LENGTH
    sizes = [int(size) for size in shape if isinstance(size, int)]
    if node.op_type in ("ArgMax", "ArgMin", "TopK"):
        axis = attributes.get_int("axis", -1 if node.op_type == "TopK" else 0) or 0
        return sizes[axis] if -len(sizes) <= axis < len(sizes) else _count(x)
    if node.op_type == "NonZero":
        return max(sizes, default=1)
    if (
        node.op_type == "NonMaxSuppression"
    ):  # It returns numbers of batches, of boxes, and of classes, which scores have.
        return max(_count(x), _count(node.inputs[1]))
    return _count(x)


def _is_integer(value: ir.Value | None) -> bool:
    dtype = None if value is None else elem_type(value)
    return dtype is not None and (dtype.is_integer() or dtype.name == "BOOL")


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
    if op == "ConstantOfShape":
        filled = node.attributes.get("value")
        return Bounds(0, 0, True) if filled is None else _of_constant(filled.as_tensor())
    if op == "OneHot":
        return given[2]
    if op in _BITWISE:
        return _of_bits(op, given)
    if op in BYTE_PRODUCTS:
        return _of_bytes(node, operands)
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
        largest = max(0, second.magnitude - 1) if _is_integer(node.outputs[0]) else second.magnitude
        return Bounds(-largest if of_divisor else 0, largest)
    if op == "Sqrt":
        return Bounds(0, max(1, first.high))
    if op == "Range":
        return _union(given[:2])
    return _reduced(node, first, second)


def _of_bits(op: str, given: Sequence[Bounds]) -> Bounds:
    """Bounds of numbers of as many bits as the operands have."""
    largest = max(each.magnitude for each in given)
    high = math.inf if largest == math.inf else 2.0 ** int(largest).bit_length() - 1
    return Bounds(0 if op != "BitwiseNot" and min(each.low for each in given) >= 0 else -high - 1, high)


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
    if op in ("CenterCropPad", "Pad", "Relu", "Trilu"):
        made = _union([made, Bounds(0, 0, True)])
    if op in ("Ceil", "Floor", "Round"):
        made = Bounds(made.low - 1, made.high + 1, made.is_length)
    return made


def _of_bytes(node: ir.Node, operands: Sequence[Bounds | None]) -> Bounds:
    """Bounds of sums of products of bytes less their zero points."""
    x, w, x_zero, w_zero = (*(each or Bounds(0, 0) for each in operands), Bounds(0, 0), Bounds(0, 0))[:4]
    product = _product(*(Bounds(a.low - zero.high, a.high - zero.low) for a, zero in ((x, x_zero), (w, w_zero))))
    count = _count(node.inputs[1])
    if (weights := node.inputs[1]) is not None and weights.shape is not None and count != _MOST_ELEMENTS:
        sizes = [int(size) for size in weights.shape if isinstance(size, int)]
        count = math.prod(sizes[1:]) if node.op_type == "ConvInteger" else sizes[-2] if len(sizes) > 1 else count
    return _union([Bounds(0, 0), _product(product, Bounds(1, max(1, count)))])


def _reduced(node: ir.Node, first: Bounds, second: Bounds) -> Bounds:
    count = Bounds(1, _count(node.inputs[0]))
    if node.op_type == "ReduceMean":
        return first
    if node.op_type == "ReduceL1":
        return Bounds(0, first.magnitude * count.high)
    if node.op_type in _SUMS:
        return _product(first, count)
    if node.op_type in PRODUCTS and len(node.inputs) == 2 and node.attributes.get_float("alpha", 1.0) == 1.0:
        summed = _product(_product(first, second), count)
        # It may sum over axes of both.
        return _product(summed, Bounds(1, _count(node.inputs[1]))) if node.op_type == "Einsum" else summed
    if node.op_type == "ReduceProd" and first.magnitude <= 1:
        return Bounds(-1, 1)
    return _UNBOUNDED
