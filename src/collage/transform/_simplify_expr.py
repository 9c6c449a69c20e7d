"""SimplifyExpr: remove redundant nodes of exporters; results stay equal to the bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from collage.frontend import name_everything
from collage.graph import constant_tensor
from collage.transform._context import PassContext
from collage.transform._draft import has_operator
from collage.transform._info import PassInfo
from collage.transform._linear import add_constant
from collage.transform._pass_kinds import FunctionLike, FunctionPass

if TYPE_CHECKING:
    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["SimplifyExpr"]

_LARGEST_BYTES = 64 * 1024
"""Larger constants are not looked into: that would load them."""

_INT64_MAX = 2**63 - 1

_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})

_REDUCTIONS = (
    *("ArgMax", "ArgMin", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean"),
    *("ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"),
)

_NEUTRAL = {"Add": (-0.0, True), "Sub": (0.0, False), "Mul": (1.0, True), "Div": (1.0, False)}
"""The number that changes no bit of the other operand, and if it may be the first operand too.

``x + 0.0`` turns -0.0 into 0.0, so of floating-point zeros only -0.0 may be added, and only 0.0 be subtracted.
"""


class SimplifyExpr(FunctionPass):
    """Collapses chains of Reshape, Transpose and Unsqueeze, whole Slices, arithmetic with neutral numbers; counts axes.

    Every rule is exact: each output keeps each bit, signs of zeros included. Only a signalling NaN stays signalling,
    where arithmetic would quiet it.

    | rule | applies where |
    |---|---|
    | arithmetic with a constant | it is the neutral number to the bit, and has no more axes than ``x`` |
    | ``Transpose`` | the permutation is the identity |
    | ``Transpose(Transpose(x))`` | only the second reads the first, or both cancel |
    | ``Unsqueeze(Unsqueeze(x))`` | the axes are constants and count from the front |
    | ``Reshape(Reshape(x))`` | the second shape is a constant, and its zeros stand for lengths that are known |
    | ``Slice`` | every start is 0, every step 1, and every end at or behind the end of its axis |
    | reduction over axes that count from the end | the rank is known, and a length may be 0 |

    Axes of reductions count from the front afterwards. ONNX Runtime does not reduce tensors of no elements over other axes.

    Shapes are those of ``InferType``: claims of the file count only if nothing is inferred from the inputs.
    """

    def __init__(self) -> None:
        super().__init__(PassInfo("SimplifyExpr", opt_level=2))

    def transform_function(self, function: FunctionLike, model: ir.Model, context: PassContext) -> FunctionLike:
        """Rewrites in place."""
        if not has_operator(function, tuple(_RULES)):
            return function
        constants = len(function.initializers) if isinstance(function, ir.Graph) else 0
        for node in list(function):
            rule = _RULES.get(node.op_type) if node.domain == "" else None
            if rule is not None and not any(attribute.is_ref() for attribute in node.attributes.values()):
                rule(function, node)
        if isinstance(function, ir.Graph) and len(function.initializers) > constants:
            name_everything(model)
        return function


def _arithmetic(function: FunctionLike, node: ir.Node) -> None:
    neutral, commutes = _NEUTRAL[node.op_type]
    if len(node.inputs) != 2 or node.attributes:
        return  # before operator set 7, attributes told which axes are repeated
    for kept, other in ((0, 1), (1, 0)) if commutes else ((0, 1),):
        x, operand = node.inputs[kept], node.inputs[other]
        if x is not None and operand is not None and _is_one(operand, neutral) and not _widens(operand, x):
            _become_identity(node, x)
            return


def _is_one(value: ir.Value, number: float) -> bool:
    """If a constant is one number, to the bit.

    Several ones stay: the norms of untrained networks have them, and should be treated as those of trained networks.
    """
    tensor = constant_tensor(value)
    if tensor is None or tensor.size != 1 or not (tensor.dtype in _FLOATS or tensor.dtype.is_integer()):
        return False
    array = tensor.numpy()
    return array.tobytes() == np.full(array.shape, number).astype(array.dtype).tobytes()


def _widens(constant: ir.Value, x: ir.Value) -> bool:
    """If a constant of one element may have more axes than ``x``."""
    tensor = constant_tensor(constant)
    rank = 0 if tensor is None else len(tensor.shape)
    return rank > 0 and (x.shape is None or len(x.shape) < rank)


def _transpose(function: FunctionLike, node: ir.Node) -> None:
    x, perm = node.inputs[0], _perm(node)
    if x is None or ("perm" in node.attributes and perm is None):
        return
    if perm is not None and perm == sorted(perm):
        _become_identity(node, x)
        return
    inner = _producer(x, "Transpose")
    if inner is None or inner.inputs[0] is None:
        return
    first = _perm(inner)
    if first is None and "perm" in inner.attributes:
        return
    if first is None and perm is None:
        _become_identity(node, inner.inputs[0])
        return
    rank = len(first if first is not None else perm or ())
    first, perm = (list(range(rank))[::-1] if axes is None else axes for axes in (first, perm))
    if sorted(first) != list(range(rank)) or sorted(perm) != list(range(rank)):
        return
    both = [first[axis] for axis in perm]
    if both == list(range(rank)):
        _become_identity(node, inner.inputs[0])
    elif len(inner.outputs[0].uses()) == 1 and not inner.outputs[0].is_graph_output():
        node.replace_input_with(0, inner.inputs[0])
        node.attributes["perm"] = ir.AttrInt64s("perm", both)


def _perm(node: ir.Node) -> list[int] | None:
    attribute = node.attributes.get("perm")
    return None if attribute is None or attribute.is_ref() else list(attribute.as_ints())


def _unsqueeze(function: FunctionLike, node: ir.Node) -> None:
    inner = _producer(node.inputs[0], "Unsqueeze")
    if inner is None or len(node.inputs) != 2 or len(inner.inputs) != 2 or inner.inputs[0] is None:
        return
    first, second = _ints(inner.inputs[1]), _ints(node.inputs[1])
    if first is None or second is None or min([*first, *second], default=-1) < 0:
        return
    # The axes of the first count without those that the second adds before or between them.
    added = sorted(second)
    for axis in sorted(first):
        place = axis
        for other in sorted(second):
            place += other <= place
        added.append(place)
    if len(set(added)) != len(first) + len(second):
        return
    node.replace_input_with(0, inner.inputs[0])
    node.replace_input_with(1, _new_ints(function, node, "axes", sorted(added)))


def _reshape(function: FunctionLike, node: ir.Node) -> None:
    inner = _producer(node.inputs[0], "Reshape")
    if inner is None or inner.inputs[0] is None or len(node.inputs) != 2:
        return
    lengths, value = _ints(node.inputs[1]), node.inputs[0]
    if lengths is None or value is None or any(length < -1 for length in lengths):
        return
    shape = lengths
    if not node.attributes.get_int("allowzero", 0):
        # A 0 stands for the length that the first result has there.
        known = () if value.shape is None else tuple(value.shape)
        shape = [
            dim if length == 0 and isinstance(dim, int) else length
            for length, dim in zip_longest(lengths, known[: len(lengths)])
        ]
        if any(length == 0 for length in shape):
            if -1 in shape or shape.count(0) > 1 or any(dim == 0 for dim in known):
                return
            shape = [length or -1 for length in shape]
    if shape != lengths:
        node.replace_input_with(1, _new_ints(function, node, "shape", shape))
    node.replace_input_with(0, inner.inputs[0])


def _slice(function: FunctionLike, node: ir.Node) -> None:
    x, starts, ends = (*node.inputs, None, None, None)[:3]
    if x is None or any(value is not None and _ints(value) is None for value in node.inputs[1:]):
        return
    begin, end = _ints(starts), _ints(ends)
    if begin is None or end is None or len(begin) != len(end):
        return
    axes = _ints(node.inputs[3]) if len(node.inputs) > 3 and node.inputs[3] is not None else list(range(len(begin)))
    steps = _ints(node.inputs[4]) if len(node.inputs) > 4 and node.inputs[4] is not None else [1] * len(begin)
    if axes is None or steps is None or any(begin) or any(step != 1 for step in steps) or len(axes) != len(end):
        return
    if all(_is_behind(last, x, axis) for last, axis in zip(end, axes, strict=True)):
        _become_identity(node, x)


def _is_behind(end: int, x: ir.Value, axis: int) -> bool:
    """If an axis ends at ``end`` or before."""
    if end == _INT64_MAX:
        return True
    if x.shape is None or not -len(x.shape) <= axis < len(x.shape):
        return False
    length = x.shape[axis]
    return isinstance(length, int) and end >= length


def _reduction(function: FunctionLike, node: ir.Node) -> None:
    x = node.inputs[0] if node.inputs else None
    if x is None or x.shape is None or all(isinstance(length, int) and length for length in x.shape):
        return
    rank, told = len(x.shape), node.inputs[1] if len(node.inputs) > 1 else None
    if (axis := node.attributes.get_int("axis")) is not None:
        axes: Sequence[int] = [axis]
    else:
        axes = (_ints(told) if told is not None else node.attributes.get_ints("axes")) or []
    if min(axes, default=0) >= 0 or not all(-rank <= axis < rank for axis in axes):
        return
    counted = [axis % rank for axis in axes]
    if axis is not None:
        node.attributes["axis"] = ir.AttrInt64("axis", counted[0])
    elif told is not None:
        node.replace_input_with(1, _new_ints(function, node, "axes", counted))
    else:
        node.attributes["axes"] = ir.AttrInt64s("axes", counted)


def _become_identity(node: ir.Node, x: ir.Value) -> None:
    node.op_type = "Identity"
    node.attributes.clear()
    node.resize_inputs(1)
    node.replace_input_with(0, x)


def _producer(value: ir.Value | None, op_type: str) -> ir.Node | None:
    """The operator of that type that makes a value, seen through Identities."""
    node = value.producer() if value is not None else None
    while node is not None and node.op_type == "Identity" and node.domain == "" and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node if node is not None and node.op_type == op_type and node.domain == "" and node.inputs else None


def _ints(value: ir.Value | None) -> list[int] | None:
    tensor = constant_tensor(value) if value is not None else None
    if tensor is None or tensor.nbytes > _LARGEST_BYTES or len(tensor.shape) != 1 or not tensor.dtype.is_integer():
        return None
    return [int(number) for number in tensor.numpy()]


def _new_ints(function: FunctionLike, node: ir.Node, name: str, numbers: Sequence[int]) -> ir.Value:
    """A new constant; a function has no initializers, so there a node makes it."""
    array = np.asarray(numbers, np.int64)
    stem = f"{node.outputs[0].name or node.name or node.op_type}_{name}"
    if isinstance(function, ir.Graph):
        return add_constant(function, stem, array)
    constant = ir.node("Constant", [], {"value": ir.tensor(array, name=stem)})
    function.insert_before(node, constant)
    (value,) = constant.outputs
    value.type, value.shape = ir.TensorType(ir.DataType.INT64), ir.Shape(array.shape)
    return value


_RULES: dict[str, Callable[[FunctionLike, ir.Node], None]] = {
    **dict.fromkeys(_NEUTRAL, _arithmetic),
    **dict.fromkeys(_REDUCTIONS, _reduction),
    "Reshape": _reshape,
    "Slice": _slice,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
