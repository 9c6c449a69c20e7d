"""Bounds on integers. OpenVINO's CPU plugin computes them in at most 32 bits, and in many operators in float32.

A bound follows from constants, from shapes, and from guards that a kernel checks when it runs. Values that are only
used as lengths or positions are called lengths. Arithmetic on lengths and small constants alone stays within 32
bits in every model whose tensors fit into memory, so it is never refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from collage.toolchains.sdk.integer_bounds import ARITHMETIC, BYTE_PRODUCTS, PRODUCTS, Bounds, IntegerBounds
from collage.toolchains.sdk.model_files import elem_type

if TYPE_CHECKING:  # Loading a kernel needs the limits, and not the 70 MB of this library.
    import onnx_ir as ir

__all__ = ["LIMITS", "PLACES", "WIDE", "computes_beyond", "has_32_bits", "is_place"]

_INT32 = 2**31
_EXACT = 2**24
"""Integers up to this are exact in float32."""
_PADDED_WITH = 2
"""Index of the input of Pad that holds the padding value."""
_STEPS = 4
"""The place of Slice's steps."""
_BOOL = 9
"""ONNX's number of the type."""
_ROUNDS_FAR = 2**25
"""Constants from here on are beyond every integer up to ``_EXACT``, even when rounded to float32."""
LIMITS = (_INT32 - 1, _INT32 // 2 - 1, _EXACT - 1, _EXACT // 4 - 1, 2**15 - 1)
"""Magnitudes that inputs of a kernel may be held to when it runs: the first one that no operator of it goes beyond.

The third is for kernels that compare and move integers, such as tokens, and the fourth for those that also add a few.
The last one lets two inputs be multiplied, such as masks.
"""

WIDE = frozenset({"INT64", "UINT64", "UINT32"})
"""Names of types that the plugin computes in 32-bit signed integers, without a word where they do not fit."""
PLACES = {"Gather": 1, "GatherElements": 1, "GatherND": 1, "ScatterElements": 1, "ScatterND": 1}
"""Operators that read an index, and where."""
_COMPARISONS = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
_GROWS_IN_FLOAT = PRODUCTS | BYTE_PRODUCTS | {"PRelu", "ReduceL1", "ReduceL2", "ReduceSum", "ReduceSumSquare"}
_IN_FLOAT = (
    _GROWS_IN_FLOAT
    | _COMPARISONS
    | {"Clip", "Div", "Mod", "Pad", "Pow", "ReduceMax", "ReduceMean", "ReduceMin", "Relu", "Resize"}
    | {"ReverseSequence", "Trilu"}
)
"""Operators that are computed in float32, also of int32. ``Pad`` only rounds its padding value."""
_OF_LARGE_NUMBERS = frozenset({"Div", "Mod"})
"""Operators of hashes and times: a kernel that holds its inputs to a small limit would leave most runs to the host."""


def computes_beyond(node: ir.Node, limit: int, given: Mapping[ir.Value, int] = MappingProxyType({})) -> str | None:
    """Return the reason why an operator's integers may not fit the type in which the plugin computes them; None if they do.

    Args:
        node: The operator; operators before it, in its graph, are looked at.
        limit: Largest magnitude of the integers that a kernel is given.
        given: The same for some inputs of the kernel, in place of ``limit``.
    """
    least = LIMITS[1] if node.op_type in _OF_LARGE_NUMBERS else 0
    known = IntegerBounds(max(limit, least), {value: max(one, least) for value, one in given.items()})
    for place, value in enumerate(node.inputs):
        if value is None or value.const_value is not None or _type_name(value) not in WIDE:
            continue
        if PLACES.get(node.op_type) != place and not _fits(value, known.of(value)):
            return _reason(node, value)
    for value in node.outputs:
        if node.op_type not in ARITHMETIC or _type_name(value) not in WIDE or is_place(value):
            continue
        if not _fits(value, known.of(value)):
            return _reason(node, value)
    if node.op_type in ("Loop", "Scan"):
        grown = [known.grown_state(node, has_lengths) for has_lengths in (False, True)]
        if (first := grown[0]) is not None and grown[1] is not None:
            return f"openvino's CPU plugin computes integers in 32 bits, and {first.name!r} may grow in {node.op_type}"
    if node.op_type in _IN_FLOAT and (rounded := _rounded(node, known)) is not None:
        name = rounded.name
        return f"openvino's CPU plugin computes {node.op_type} of integers in float32 ({name!r} may be large)"
    if (lowest := _least(node)) is not None and known.of(lowest).low <= -_INT32:
        return (
            f"openvino's CPU plugin computes {node.op_type} wrongly if {lowest.name!r} is the least integer of 32 bits"
        )
    return None


def _rounded(node: ir.Node, known: IntegerBounds) -> ir.Value | None:
    """Return an integer of an operator that float32 may not hold; None if there is none.

    One constant that is too large does no harm where all that happens to it is that others are compared with it.
    """
    operands = [
        (place, value, known.of(value))
        for place, value in enumerate(node.inputs)
        if value is not None and has_32_bits(value) and (node.op_type != "Pad" or place == _PADDED_WITH)
    ]
    large = [each for each in operands if not _is_exact(each[2])]
    if len(large) == 1 and _is_only_compared(node.op_type, large[0][0], large[0][2]):
        large = []
    if large:
        return large[0][1]
    made = node.outputs[0]
    grows = node.op_type in _GROWS_IN_FLOAT and has_32_bits(made)
    grows = grows and not (operands and all(each.is_length for *_, each in operands))
    if node.op_type in BYTE_PRODUCTS and _is_made_float(made):
        grows = False
    return made if grows and not _is_exact(known.of(made)) else None


def _is_made_float(value: ir.Value) -> bool:
    """Return True if a value is only cast to floats, which round it as the plugin does."""
    made = [None if node.op_type != "Cast" else elem_type(node.outputs[0]) for node, _ in value.uses()]
    return not value.is_graph_output() and all(dtype is not None and dtype.is_floating_point() for dtype in made)


def has_32_bits(value: ir.Value) -> bool:
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
        return node.inputs[0] if has_32_bits(node.inputs[0]) else None
    return None


def _reason(node: ir.Node, value: ir.Value) -> str:
    dtype = elem_type(value)
    kind = "integers" if dtype is None else dtype.name.lower()
    return f"openvino's CPU plugin computes {kind} in 32 bits, and {value.name!r} ({node.op_type}) may not fit them"


def _fits(value: ir.Value, bounds: Bounds) -> bool:
    lowest = -_INT32 if _type_name(value) == "INT64" else 0
    return bounds.is_length or lowest <= bounds.low <= bounds.high < _INT32


def is_place(value: ir.Value) -> bool:
    """Return True if a value is only an index. A number beyond 32 bits cannot be an index into any tensor."""
    uses = value.uses()
    return bool(uses) and not value.is_graph_output() and all(PLACES.get(node.op_type) == i for node, i in uses)
