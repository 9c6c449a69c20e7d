"""Integers that follow from lengths: each element of a small tensor of them as a polynomial of the model's lengths."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import onnx_ir as ir
import sympy

from collage._expressions import polynomial
from collage.graph import OpKind, constant_tensor, declared_kind

__all__ = ["ONE", "Elements", "LengthValues", "Number", "is_certain", "is_natural", "place_on_axis"]

Number: TypeAlias = sympy.Expr
Elements: TypeAlias = tuple[Number | None, ...]
"""The elements of a scalar, or of a tensor with one axis; None for each that is not known."""

_MOST_ELEMENTS = 64
"""NumPy has at most 64 axes, so no shape has more."""
_FAR = 1 << 31
"""Larger numbers are ends of slices. Sums of them might wrap around."""
ONE = sympy.Integer(1)

_INTEGERS = frozenset({ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL})
_MOVES = frozenset({"Identity", "Reshape", "Squeeze", "Unsqueeze"})
"""Operators that keep all elements in order."""
_MOST_TERMS = 16
_MOST_FACTORS = 8
"""Limits of a polynomial, and of its terms. Files are not trusted, and products of sums grow."""


class LengthValues:
    """Follows lengths through a graph, node by node in the order in which they run.

    A symbol of an input is a length wherever it stands. A length that has no symbol there has one of its own for each
    value and axis, so nothing is said of two of them.

    Args:
        graph: The graph whose inputs' lengths are followed.
    """

    def __init__(self, graph: ir.Graph) -> None:
        dims = [dim for value in graph.inputs for dim in value.shape or () if not isinstance(dim, int)]
        names = {dim.value for dim in dims if dim.value is not None}
        self._symbols = {name: sympy.Symbol(name, integer=True, nonnegative=True) for name in sorted(names)}
        self._unnamed: dict[tuple[ir.Value, int], Number] = {}
        self._elements: dict[ir.Value, Elements | None] = {}
        self._shapes: dict[ir.Value, tuple[Number, ...]] = {}
        ports = [*graph.inputs, *graph.outputs]
        written = {str(dim) for value in ports for dim in value.shape or () if not isinstance(dim, int)}
        self._texts = {number: text for text in sorted(written) if (number := self._number(text)) is not None}

    def visit(self, node: ir.Node) -> None:
        """Note what is known of a node's results."""
        if node.domain != "" or len(node.outputs) != 1:
            return
        (y,) = node.outputs
        rule = _SHAPES.get(node.op_type) or _BY_KIND.get(declared_kind("", node.op_type))
        shape = rule(self, node) if rule is not None else None
        if shape is not None and (y.shape is None or len(y.shape) == len(shape)):
            self._shapes[y] = tuple(
                found if found is not None else self._length(y, axis) for axis, found in enumerate(shape)
            )
        if y.dtype not in _INTEGERS or not _is_small(y):
            return
        compute = _ELEMENTS.get(node.op_type)
        found = compute(self, node) if compute is not None else None
        if found is not None and len(found) <= _MOST_ELEMENTS:
            self._elements[y] = found

    def elements(self, value: ir.Value | None) -> Elements | None:
        """Return the elements of a scalar or a list of numbers; None if nothing is known of it."""
        if value is None:
            return None
        if value not in self._elements:
            self._elements[value] = _constants(value)
        return self._elements[value]

    def shape(self, value: ir.Value | None) -> tuple[Number, ...] | None:
        """Return the lengths of a value; None if its rank is not known."""
        if value is None:
            return None
        if value not in self._shapes and value.shape is not None:
            self._shapes[value] = tuple(self._length(value, axis) for axis in range(len(value.shape)))
        return self._shapes.get(value)

    def as_dim(self, number: Number) -> int | str | None:
        """Return a length as shapes give it; None for one that depends on more than symbols of the inputs."""
        if number.is_Integer:
            return int(number)
        if number.free_symbols <= set(self._symbols.values()) and not number.has(sympy.Min):
            return self._texts.get(number, str(number))
        return None

    def numbers(self, value: ir.Value | None) -> list[int] | None:
        """Return the elements of a value if all of them are known numbers."""
        found = self.elements(value)
        return [int(n) for n in found if n is not None] if found is not None and all(map(is_certain, found)) else None

    def _number(self, text: str) -> Number | None:
        found = polynomial(text, self._symbols)
        return None if found is None else sympy.expand(sympy.sympify(found))

    def _length(self, value: ir.Value, axis: int) -> Number:
        dim = value.shape[axis] if value.shape is not None else None
        if isinstance(dim, int):
            return sympy.Integer(dim)
        text = dim.value if dim is not None else None
        found = self._number(text) if text is not None else None
        if found is None:
            found = self._unnamed.setdefault((value, axis), sympy.Dummy(integer=True, nonnegative=True))
        return found


def is_certain(number: Number | None) -> bool:
    """Return True for a number that depends on no length."""
    return number is not None and bool(number.is_Integer)


def is_natural(number: Number) -> bool:
    """Return True if it is plain that a number is never negative."""
    return bool(number.is_nonnegative)


def _is_small(value: ir.Value) -> bool:
    shape = value.shape
    return shape is not None and len(shape) <= 1 and all(isinstance(n, int) and n <= _MOST_ELEMENTS for n in shape)


def _constants(value: ir.Value) -> Elements | None:
    tensor = constant_tensor(value)
    if tensor is None or tensor.dtype not in _INTEGERS or tensor.size > _MOST_ELEMENTS or len(tensor.shape) > 1:
        return None
    return tuple(sympy.Integer(int(number)) for number in tensor.numpy().ravel())


def _is_near(number: Number | None) -> bool:
    """Return True for a small polynomial that does not wrap around, as long as lengths are usual."""
    if number is None:
        return False
    terms = number.as_coefficients_dict()
    return len(terms) <= _MOST_TERMS and all(
        abs(factor) < _FAR and sum(int(power) for power in term.as_powers_dict().values()) <= _MOST_FACTORS
        for term, factor in terms.items()
    )


def _plus(n: Number | None, m: Number | None) -> Number | None:
    return n + m if n is not None and m is not None and _is_near(n) and _is_near(m) else None


def _minus(n: Number | None, m: Number | None) -> Number | None:
    return n - m if n is not None and m is not None and _is_near(n) and _is_near(m) else None


def _times(n: Number | None, m: Number | None) -> Number | None:
    return sympy.expand(n * m) if n is not None and m is not None and _is_near(n) and _is_near(m) else None


def _product(numbers: Iterable[Number | None]) -> Number | None:
    return functools.reduce(_times, numbers, ONE)


def _of_shape(lengths: LengthValues, node: ir.Node) -> Elements | None:
    shape = lengths.shape(node.inputs[0])
    if shape is None:
        return None
    return shape[slice(node.attributes.get_int("start", 0), node.attributes.get_int("end"))]


def _of_size(lengths: LengthValues, node: ir.Node) -> Elements | None:
    shape = lengths.shape(node.inputs[0])
    return None if shape is None else (_product(shape),)


def _moved(lengths: LengthValues, node: ir.Node) -> Elements | None:
    return lengths.elements(node.inputs[0])


def _gathered(lengths: LengthValues, node: ir.Node) -> Elements | None:
    data, places = lengths.elements(node.inputs[0]), lengths.numbers(node.inputs[1])
    if data is None or places is None or not all(-len(data) <= place < len(data) for place in places):
        return None
    return tuple(data[place] for place in places)


def _joined(lengths: LengthValues, node: ir.Node) -> Elements | None:
    parts: list[Number | None] = []
    for value in node.inputs:
        found = lengths.elements(value)
        if found is None:
            length = value.shape[0] if value is not None and value.shape is not None and len(value.shape) == 1 else None
            if not isinstance(length, int) or length > _MOST_ELEMENTS:
                return None
            found = (None,) * length
        parts += found
    return tuple(parts)


def _sliced(lengths: LengthValues, node: ir.Node) -> Elements | None:
    data = lengths.elements(node.inputs[0])
    begin, end, axes, step = map(lengths.numbers, (*node.inputs[1:], None, None)[:4])
    if data is None or begin is None or end is None or len(begin) != 1 or len(end) != 1:
        return None
    if (len(node.inputs) > 3 and axes not in ([0], [-1])) or (len(node.inputs) > 4 and step is None):
        return None
    (by,) = step or (1,)
    return data[begin[0] : end[0] : by] if by > 0 else None


def _pairwise(compute: Callable[[Number, Number], Number | None]) -> _Rule:
    def rule(lengths: LengthValues, node: ir.Node) -> Elements | None:
        given = [lengths.elements(value) for value in node.inputs]
        return None if len(given) != 2 else _paired(compute, *given)

    return rule


def _paired(
    compute: Callable[[Number, Number], Number | None], x: Elements | None, y: Elements | None
) -> Elements | None:
    if not x or not y or (len(x) != len(y) and 1 not in (len(x), len(y))):
        return None
    length = max(len(x), len(y))
    pairs = zip(x * (length // len(x)), y * (length // len(y)), strict=True)
    return tuple(None if n is None or m is None else compute(n, m) for n, m in pairs)


def _quotient(n: Number, m: Number) -> Number | None:
    """Return a quotient that is whole whatever the lengths are, or that of two numbers that are not negative."""
    if m == 0:
        return None
    if n.is_Integer and m.is_Integer:
        return sympy.Integer(int(n) // int(m)) if n >= 0 and m > 0 else None
    if not (_is_near(n) and _is_near(m)):
        return None
    found = sympy.expand(sympy.cancel(n / m))
    return found if _is_whole(found) else None


def _is_whole(number: Number) -> bool:
    """Return True for a polynomial of lengths with whole coefficients."""
    symbols = number.free_symbols
    if not number.is_polynomial(*symbols):
        return False
    return all(coefficient.is_Integer for coefficient in number.as_coefficients_dict().values())


def _greatest(n: Number, m: Number) -> Number | None:
    return n if is_natural(n - m) else m if is_natural(m - n) else None


def _least(n: Number, m: Number) -> Number | None:
    return n if is_natural(m - n) else m if is_natural(n - m) else None


def _are_equal(n: Number, m: Number) -> Number | None:
    difference = n - m
    if difference == 0:
        return ONE
    return sympy.Integer(0) if difference.is_positive or difference.is_negative else None


def _negated(lengths: LengthValues, node: ir.Node) -> Elements | None:
    found = lengths.elements(node.inputs[0])
    return None if found is None else tuple(_times(n, -ONE) for n in found)


def _inverted(lengths: LengthValues, node: ir.Node) -> Elements | None:
    found = lengths.elements(node.inputs[0])
    return None if found is None else tuple(1 - n if n is not None else None for n in found)


def _chosen(lengths: LengthValues, node: ir.Node) -> Elements | None:
    which, x, y = (lengths.elements(value) for value in node.inputs)
    lengths_ = [len(found) for found in (which, x, y) if found]
    length = max(lengths_, default=0)
    if not which or not x or not y or any(n not in (1, length) for n in lengths_):
        return None
    repeated = (found * (length // len(found)) for found in (which, x, y))
    return tuple(n if n == m or is_x == 1 else m if is_x == 0 else None for is_x, n, m in zip(*repeated, strict=True))


def _multiplied(lengths: LengthValues, node: ir.Node) -> Elements | None:
    found, (y,) = lengths.elements(node.inputs[0]), node.outputs
    is_single = y.shape is not None and all(n == 1 for n in y.shape)
    return (_product(found),) if found is not None and is_single else None


def _cast(lengths: LengthValues, node: ir.Node) -> Elements | None:
    found, (x, *_), (y,) = lengths.elements(node.inputs[0]), node.inputs, node.outputs
    if found is None or x is None or (y.dtype == ir.DataType.BOOL) != (x.dtype == ir.DataType.BOOL):
        return None
    return tuple(n if _is_near(n) else None for n in found)


def _filled(lengths: LengthValues, node: ir.Node) -> Elements | None:
    shape = lengths.numbers(node.inputs[0])
    filler = node.attributes.get_tensor("value")
    number = sympy.Integer(0 if filler is None else int(filler.numpy().item()))
    return None if shape is None or math.prod(shape) > _MOST_ELEMENTS else (number,) * math.prod(shape)


def _shape_reshaped(lengths: LengthValues, node: ir.Node) -> Elements | None:
    x, target = lengths.shape(node.inputs[0]), lengths.elements(node.inputs[1])
    if x is None or target is None:
        return None
    keeps_zeros = bool(node.attributes.get_int("allowzero", 0))
    made = [n if n != 0 or keeps_zeros else x[axis] if axis < len(x) else None for axis, n in enumerate(target)]
    if -1 in made:
        rest = [n for n in made if n != -1]
        all_of, others = _product(x), _product(rest)
        made[made.index(-1)] = _quotient(all_of, others) if all_of is not None and others is not None else None
    return tuple(n if n is not None and is_natural(n) else None for n in made)


def _shape_expanded(lengths: LengthValues, node: ir.Node) -> Elements | None:
    x, target = lengths.shape(node.inputs[0]), lengths.elements(node.inputs[1])
    if x is None or target is None:
        return None
    rank = max(len(x), len(target))
    one = (ONE,)
    pairs = zip(one * (rank - len(x)) + x, one * (rank - len(target)) + target, strict=True)
    return tuple(_broadcast(n, m) for n, m in pairs)


def _broadcast(n: Number | None, m: Number | None) -> Number | None:
    if n == 1 or m == 1:
        return m if n == 1 else n
    if n == m or is_certain(n):
        return n
    # The least of a length and a number fits the length only if it is that length.
    if is_certain(m) or (m is not None and isinstance(n, sympy.Min) and m in n.args):
        return m
    return n if n is not None and isinstance(m, sympy.Min) and n in m.args else None


def _shape_filled(lengths: LengthValues, node: ir.Node) -> Elements | None:
    return lengths.elements(node.inputs[0])


def _shape_counted(lengths: LengthValues, node: ir.Node) -> Elements | None:
    start, limit, step = map(lengths.elements, node.inputs)
    count = _minus(limit[0], start[0]) if start and limit and step == (1,) else None
    return (count if count is not None and is_natural(count) else None,)


def _shape_sliced(lengths: LengthValues, node: ir.Node) -> Elements | None:
    x, (begin, end) = lengths.shape(node.inputs[0]), map(lengths.elements, node.inputs[1:3])
    axes, steps = map(lengths.numbers, (*node.inputs[3:], None, None)[:2])
    if x is None or begin is None or end is None or (len(node.inputs) > 3 and axes is None):
        return None
    if len(node.inputs) > 4 and steps is None:
        return None
    made: list[Number | None] = list(x)
    for i, (first, last) in enumerate(zip(begin, end, strict=True)):
        axis = axes[i] if axes is not None else i
        is_usual = steps is None or steps[i] == 1
        made[axis] = _extent(x[axis], first, last) if is_usual and first is not None and last is not None else None
    return tuple(made)


def _extent(length: Number, first: Number, last: Number) -> Number | None:
    """Return how many elements a slice takes of an axis."""
    begin, end = (place_on_axis(length, place) for place in (first, last))
    if begin is None or end is None:
        return None
    count = _minus(end, begin)
    return count if count is not None and is_natural(count) else None


def place_on_axis(length: Number, place: Number) -> Number | None:
    """Return a place on an axis, counted from its front and within it."""
    if place.is_negative or place + length == 0:  # Of length 0, all places are its front.
        from_front = _plus(length, place)
        return from_front if from_front is not None and is_natural(from_front) else None
    if is_natural(place - length) or (place.is_Integer and place >= _FAR - 1):
        return length
    if not is_natural(place):
        return None  # Counted from the end for some lengths only.
    return place if is_natural(length - place) else sympy.Min(length, place)


def _shape_joined(lengths: LengthValues, node: ir.Node) -> Elements | None:
    shapes = [lengths.shape(value) for value in node.inputs]
    known = [shape for shape in shapes if shape is not None]
    rank = len(known[0]) if known else 0
    axis = node.attributes.get_int("axis", 0)
    if not rank or len(known) < len(shapes) or any(len(shape) != rank for shape in known) or not -rank <= axis < rank:
        return None
    axis %= rank
    made: list[Number | None] = [None] * rank
    made[axis] = functools.reduce(_plus, (shape[axis] for shape in known))
    for other in range(rank):
        if other != axis:
            lengths_ = [shape[other] for shape in known]
            made[other] = next((n for n in lengths_ if n.is_Integer), lengths_[0])
    return tuple(made)


def _shape_tiled(lengths: LengthValues, node: ir.Node) -> Elements | None:
    x, repeats = lengths.shape(node.inputs[0]), lengths.elements(node.inputs[1])
    if x is None or repeats is None or len(x) != len(repeats):
        return None
    return tuple(_times(n, m) for n, m in zip(x, repeats, strict=True))


def _shape_of_all(lengths: LengthValues, node: ir.Node) -> Elements | None:
    """Return the shape that operands have together."""
    shapes = [lengths.shape(value) for value in node.inputs]
    if not shapes or any(shape is None for shape in shapes):
        return None
    rank = max(len(shape) for shape in shapes if shape is not None)
    made: Elements = (ONE,) * rank
    for shape in shapes:
        whole = (ONE,) * (rank - len(shape or ())) + (shape or ())
        made = tuple(_broadcast(n, m) for n, m in zip(made, whole, strict=True))
    return made


def _shape_of_first(lengths: LengthValues, node: ir.Node) -> Elements | None:
    return lengths.shape(node.inputs[0])


def _shape_unsqueezed(lengths: LengthValues, node: ir.Node) -> Elements | None:
    x = lengths.shape(node.inputs[0])
    axes = lengths.numbers(node.inputs[1]) if len(node.inputs) > 1 else node.attributes.get_ints("axes")
    if x is None or axes is None:
        return None
    made, rank = list(x), len(x) + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        made.insert(axis, ONE)
    return tuple(made)


def _shape_transposed(lengths: LengthValues, node: ir.Node) -> Elements | None:
    x = lengths.shape(node.inputs[0])
    perm = node.attributes.get_ints("perm")
    if x is None or (perm is not None and sorted(perm) != list(range(len(x)))):
        return None
    return x[::-1] if perm is None else tuple(x[axis] for axis in perm)


def _shape_gathered(lengths: LengthValues, node: ir.Node) -> Elements | None:
    x, places = map(lengths.shape, node.inputs)
    axis = node.attributes.get_int("axis", 0)
    if x is None or places is None or not -len(x) <= axis < len(x):
        return None
    axis %= len(x)
    return (*x[:axis], *places, *x[axis + 1 :])


def _shape_reduced(lengths: LengthValues, node: ir.Node) -> Elements | None:
    x, kept = lengths.shape(node.inputs[0]), node.attributes.get_int("keepdims", 1)
    if "axis" in node.attributes or node.op_type in ("ArgMax", "ArgMin"):
        axes: Sequence[int] | None = [node.attributes.get_int("axis", 0)]
    else:
        axes = lengths.numbers(node.inputs[1]) if len(node.inputs) > 1 else node.attributes.get_ints("axes")
    if x is None or not axes or any(not -len(x) <= axis < len(x) for axis in axes):
        return None
    gone = {axis % len(x) for axis in axes}
    return tuple(ONE if axis in gone else n for axis, n in enumerate(x) if kept or axis not in gone)


def _shape_of_product(lengths: LengthValues, node: ir.Node) -> Elements | None:
    x, y = map(lengths.shape, node.inputs)
    if x is None or y is None or min(len(x), len(y)) < 2:
        return None
    rank = max(len(x), len(y))
    whole = [(ONE,) * (rank - len(shape)) + shape for shape in (x, y)]
    return (*(_broadcast(n, m) for n, m in zip(*(shape[:-2] for shape in whole), strict=True)), x[-2], y[-1])


_Rule: TypeAlias = Callable[[LengthValues, ir.Node], Elements | None]

_ELEMENTS: Mapping[str, _Rule] = {
    **dict.fromkeys(_MOVES, _moved),
    "Add": _pairwise(_plus),
    "Cast": _cast,
    "Concat": _joined,
    "ConstantOfShape": _filled,
    "Div": _pairwise(_quotient),
    "Equal": _pairwise(_are_equal),
    "Gather": _gathered,
    "Max": _pairwise(_greatest),
    "Min": _pairwise(_least),
    "Mul": _pairwise(_times),
    "Neg": _negated,
    "Not": _inverted,
    "ReduceProd": _multiplied,
    "Shape": _of_shape,
    "Size": _of_size,
    "Slice": _sliced,
    "Sub": _pairwise(_minus),
    "Where": _chosen,
}
_SHAPES: Mapping[str, _Rule] = {
    **dict.fromkeys(("LayerNormalization", "LogSoftmax", "RMSNormalization", "Softmax"), _shape_of_first),
    # Their other operands decide no length.
    **dict.fromkeys(("CastLike", "DequantizeLinear", "PRelu", "QuantizeLinear", "RotaryEmbedding"), _shape_of_first),
    "Concat": _shape_joined,
    "ConstantOfShape": _shape_filled,
    "Expand": _shape_expanded,
    "Gather": _shape_gathered,
    "MatMul": _shape_of_product,
    "Range": _shape_counted,
    "Reshape": _shape_reshaped,
    "Slice": _shape_sliced,
    "SwiGLU": lambda *_: None,
    "Tile": _shape_tiled,
    "Transpose": _shape_transposed,
    "Unsqueeze": _shape_unsqueezed,
}
_BY_KIND: Mapping[OpKind, _Rule] = {
    OpKind.ELEMWISE: _shape_of_first,
    OpKind.BROADCAST: _shape_of_all,
    OpKind.COMM_REDUCE: _shape_reduced,
}
