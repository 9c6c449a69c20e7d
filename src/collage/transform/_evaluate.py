"""The operators that constant folding computes, and the accuracy of their results.

ONNX leaves a lot to the runtime: division by zero, numbers that a type cannot hold, the order of a sum. What is folded must
not depend on it. So an operator is computed here in one of two ways, or not at all.

| operators | how | differ from a runtime by |
|---|---|---|
| those that move or compare elements | as they are | nothing |
| integer arithmetic | wrapping around; not by zero, no shift beyond the width, no sum beyond 2^53 | nothing |
| ``+ - * /``, roots, roundings, minima of floats | IEEE 754, in the operand's type | nothing |
| functions such as ``Exp``, and sums | in double precision, rounded once | its own error, and half a unit in the last place |
| all others, such as ``Resize`` or ``Conv`` | not folded | nothing |

Among all are operands on which runtimes differ: a NaN or -0.0 in a minimum, a number out of range in a Cast, a scalar in
NonZero. With these nothing is folded either.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import onnx.reference.ops
import onnx_ir as ir

if TYPE_CHECKING:
    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["evaluate"]

_logger = logging.getLogger(__name__)

_Guard = Callable[[ir.Node, Sequence["Array"]], bool]
"""If an operator's result on these operands is the same everywhere."""

_FLOATS = (np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
_SINGLE_INTEGERS = 2**24
"""Up to here float32 holds every integer, so no detour through it rounds twice."""


def evaluate(node: ir.Node, version: int, operands: Sequence[Array | None]) -> Array | None:
    """Compute the one output of a standard operator.

    Args:
        node: The operator.
        version: Version of its operator set.
        operands: Its inputs; None if one is left out.

    Returns:
        The output; None if its value is not certain, within the module's bounds, or not of the declared type.
    """
    given = [operand for operand in operands if operand is not None]
    guard = _EXACT.get(node.op_type)
    with np.errstate(all="ignore"):
        if guard is not None and guard(node, given):
            result = _by_reference(node, version, operands)
        elif node.op_type in _ROUNDED and given and all(_is_float(each) or _is_int(each) for each in given):
            kept = given[0].dtype if node.op_type not in _WINDOWS else np.dtype(np.float32)
            if kept not in _FLOATS:
                return None
            wide = [each.astype(np.float64) if each is not None and _is_float(each) else each for each in operands]
            result = _by_reference(node, version, wide)
            result = None if result is None else result.astype(kept)
        else:
            return None
    declared = node.outputs[0].dtype
    return result if result is not None and declared is not None and declared.numpy() == result.dtype else None


def _by_reference(node: ir.Node, version: int, operands: Sequence[Array | None]) -> Array | None:
    """The output by ONNX's reference implementation, which is Python and NumPy."""
    attributes = {
        name: ir.serde.serialize_tensor(attribute.as_tensor())
        if attribute.type == ir.AttributeType.TENSOR
        else attribute.value
        for name, attribute in node.attributes.items()
    }
    try:
        found = onnx.reference.ops.load_op("", node.op_type, version).eval(*operands, **attributes)
    except Exception as error:  # whatever it raises, the node is kept as it is
        _logger.debug("node %r is not folded: %s", node.name, error)
        return None
    return None if isinstance(found, (tuple, list)) else np.asarray(found)


def _is_float(array: Array) -> bool:
    return array.dtype in _FLOATS


def _is_int(array: Array) -> bool:
    return array.dtype.kind in "iu"


def _always(node: ir.Node, operands: Sequence[Array]) -> bool:
    return all(array.dtype.kind not in "OSU" for array in operands)


def _numbers(node: ir.Node, operands: Sequence[Array]) -> bool:
    return all(_is_float(array) or _is_int(array) for array in operands)


def _numbers_or_flags(node: ir.Node, operands: Sequence[Array]) -> bool:
    return all(_is_float(array) or array.dtype.kind in "iub" for array in operands)


def _ints(node: ir.Node, operands: Sequence[Array]) -> bool:
    return all(map(_is_int, operands))


def _floats(node: ir.Node, operands: Sequence[Array]) -> bool:
    return all(map(_is_float, operands))


def _flags(node: ir.Node, operands: Sequence[Array]) -> bool:
    return all(array.dtype.kind == "b" for array in operands)


def _ordered(node: ir.Node, operands: Sequence[Array]) -> bool:
    """Integers, or numbers among which the least is the same to all: none is NaN or -0.0."""
    plain = (not (np.isnan(array).any() or (np.signbit(array) & (array == 0)).any()) for array in operands)
    return _numbers(node, operands) and (_ints(node, operands) or all(plain))


def _divisible(node: ir.Node, operands: Sequence[Array]) -> bool:
    """Floating-point numbers, or integers of which no quotient is undefined."""
    as_floats = node.op_type == "Mod" and node.attributes.get_int("fmod", 0) == 1
    if not _ints(node, operands):
        return _floats(node, operands) and (node.op_type != "Mod" or as_floats)
    if as_floats and not _countable(node, operands):
        return False
    dividend, divisor = operands
    overflows = (
        dividend.dtype.kind == "i" and (divisor == -1).any() and (dividend == np.iinfo(dividend.dtype).min).any()
    )
    return not (divisor == 0).any() and not overflows


def _shiftable(node: ir.Node, operands: Sequence[Array]) -> bool:
    number, places = operands
    return _ints(node, operands) and number.dtype.kind == "u" and bool((places < 8 * number.dtype.itemsize).all())


def _holds(size: Any, dtype: np.dtype[Any]) -> bool:
    """If no way to compute integers of such sizes rounds or overflows: ONNX Runtime sums and raises them as doubles."""
    return bool((size < min(2.0**53, float(np.iinfo(dtype).max) + 1)).all())


def _has_power(node: ir.Node, operands: Sequence[Array]) -> bool:
    if not _ints(node, operands):
        return False
    base, exponent = operands
    if (exponent < 0).any():
        return False
    return _holds(np.abs(base.astype(np.float64)) ** exponent.astype(np.float64), base.dtype)


def _has_total(node: ir.Node, operands: Sequence[Array]) -> bool:
    if not _ints(node, operands):
        return False
    sizes = np.abs(operands[0].astype(np.float64))
    if node.op_type == "ReduceProd":
        return _holds(np.prod(np.maximum(sizes, 1)), operands[0].dtype)
    return _holds(np.sum(sizes**2 if node.op_type == "ReduceSumSquare" else sizes), operands[0].dtype)


def _countable(node: ir.Node, operands: Sequence[Array]) -> bool:
    """Integers, also as floating-point numbers: of these a count by adding is the same as one by multiplying."""
    if _ints(node, operands):
        return all(_holds(np.abs(array.astype(np.float64)), array.dtype) for array in operands)
    wide = [array.astype(np.float64) for array in operands if array.dtype in _FLOATS[:2]]
    return len(wide) == 3 and all((each == np.rint(each)).all() and np.abs(each) <= _SINGLE_INTEGERS for each in wide)


def _castable(node: ir.Node, operands: Sequence[Array]) -> bool:
    """Numbers that the target type can hold up to rounding, and that no intermediate type rounds."""
    (array,) = operands
    wanted = ir.DataType(node.attributes.get_int("to", 0)).numpy()
    if not _numbers_or_flags(node, operands) or not (wanted in _FLOATS or wanted.kind in "iub"):
        return False
    if wanted.kind in "iu" and _is_float(array):
        wide = array.astype(np.float64)
        limits = np.iinfo(wanted)
        return bool(
            (np.trunc(wide) >= limits.min).all() and (np.trunc(wide) < 2.0 ** (limits.bits - (limits.min < 0))).all()
        )
    if wanted in _FLOATS[2:] and array.size:
        if array.dtype == _FLOATS[1]:
            return bool((array.astype(np.float32) == array).all())
        return _is_float(array) or max(abs(int(array.min())), abs(int(array.max()))) <= _SINGLE_INTEGERS
    return True


def _clips(node: ir.Node, operands: Sequence[Array]) -> bool:
    """A bound that is left out is the largest number to some runtimes, and infinity to others."""
    return _ordered(node, operands) and (len(operands) == 3 or bool(np.isfinite(operands[0]).all()))


def _has_axes(node: ir.Node, operands: Sequence[Array]) -> bool:
    return _always(node, operands) and operands[0].ndim > 0


def _squeezes(node: ir.Node, operands: Sequence[Array]) -> bool:
    """No axes at all are none to some runtimes, and all of length 1 to others."""
    return _always(node, operands) and all(axes.size for axes in operands[1:])


def _slices(node: ir.Node, operands: Sequence[Array]) -> bool:
    """Not backwards from a start before the first element: to NumPy such a slice is empty, to ONNX it has that element."""
    backwards = len(node.inputs) > 4 and node.inputs[4] is not None and (operands[-1] < 0).any()
    return _always(node, operands) and not (backwards and (operands[1] < -min(operands[0].shape, default=0)).any())


def _overwrites(node: ir.Node, operands: Sequence[Array]) -> bool:
    return _always(node, operands) and node.attributes.get_string("reduction", "none") == "none"


_EXACT: dict[str, _Guard] = {
    **dict.fromkeys(
        (
            *("Compress", "Concat", "ConstantOfShape", "DepthToSpace", "Expand", "EyeLike", "Flatten", "Gather"),
            *("GatherElements", "GatherND", "Identity", "Pad", "Reshape", "ReverseSequence", "Shape"),
            *("Size", "SpaceToDepth", "Tile", "Transpose", "Trilu", "Unsqueeze", "Where"),
        ),
        _always,
    ),
    **dict.fromkeys(("Abs", "Add", "Mul", "Neg", "Sub"), _numbers),
    **dict.fromkeys(("Equal",), _numbers_or_flags),
    **dict.fromkeys(("Greater", "GreaterOrEqual", "Less", "LessOrEqual"), _numbers),
    **dict.fromkeys(("And", "Not", "Or", "Xor"), _flags),
    **dict.fromkeys(("BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor"), _ints),
    **dict.fromkeys(("CumSum", "MatMul"), _ints),
    **dict.fromkeys(("ReduceProd", "ReduceSum", "ReduceSumSquare"), _has_total),
    **dict.fromkeys(("Ceil", "Floor", "IsInf", "IsNaN", "Reciprocal", "Round", "Sqrt"), _floats),
    **dict.fromkeys(("Max", "Min", "ReduceMax", "ReduceMin", "Relu", "Sign"), _ordered),
    **dict.fromkeys(("Div", "Mod"), _divisible),
    **dict.fromkeys(("ScatterElements", "ScatterND"), _overwrites),
    "BitShift": _shiftable,
    "Cast": _castable,
    "Clip": _clips,
    "NonZero": _has_axes,
    "Pow": _has_power,
    "Range": _countable,
    "Slice": _slices,
    "Squeeze": _squeezes,
}
"""Operators that are computed to the bit, and where."""

_WINDOWS = frozenset({"BlackmanWindow", "HammingWindow", "HannWindow"})

_ROUNDED = frozenset(
    {
        *(
            "Acos",
            "Acosh",
            "Asin",
            "Asinh",
            "Atan",
            "Atanh",
            "Cos",
            "Cosh",
            "Erf",
            "Exp",
            "Log",
            "Pow",
            "Sigmoid",
            "Sin",
        ),
        *("Sinh", "Tan", "Tanh"),
        *("CumSum", "MatMul", "ReduceL2", "ReduceMean", "ReduceProd", "ReduceSum", "ReduceSumSquare"),
        *_WINDOWS,
    }
)
"""Operators that are computed in double precision, and then rounded."""
