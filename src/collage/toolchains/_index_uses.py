"""The operands of operators that hold indices, sizes and axes: which are proven to be in range, and which cannot be checked."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, NamedTuple

import onnx_ir as ir

from collage._errors import Unsupported
from collage.graph import constant_tensor, follows_from_lengths
from collage.toolchains.sdk.integer_bounds import Bounds, IntegerBounds
from collage.toolchains.sdk.model_files import refuse_operators

__all__ = ["Axis", "Use", "bounds_of", "constant_of", "range_of", "ranges_of", "refusal", "shown", "uses_of"]


class _Takes(NamedTuple):
    """An operand that holds indices.

    Attributes:
        indices: Place of the operand.
        data: Place of the tensor that they point into.
        axis: The attribute that names its axis, or the axis itself.
        default: The axis if there is no such attribute.
        counts_back: True if negative indices count from the end.
        is_count: True for numbers of elements.
    """

    indices: int
    data: int = 0
    axis: str | int = "axis"
    default: int = 0
    counts_back: bool = True
    is_count: bool = False


_LENGTHS = (_Takes(4, 0, "layout", counts_back=False, is_count=True),)
_TAKES: Mapping[str, tuple[_Takes, ...]] = {
    "Gather": (_Takes(1),),
    "GatherElements": (_Takes(1),),
    "Scatter": (_Takes(1),),
    "ScatterElements": (_Takes(1),),
    "ArrayFeatureExtractor": (_Takes(1, 0, -1, counts_back=False),),
    "RoiAlign": (_Takes(2, 0, 0, counts_back=False),),
    "RotaryEmbedding": (_Takes(3, 1, 0, counts_back=False),),
    "ReverseSequence": (_Takes(1, 0, "time_axis", counts_back=False, is_count=True),),
    "RNN": _LENGTHS,
    "GRU": _LENGTHS,
    "LSTM": _LENGTHS,
}
"""Operators whose indices point along one axis. Of ``layout``, the numbers happen to be those of the axis of time."""
_TAKES_POINTS = ("GatherND", "ScatterND")
"""Operators whose indices are points: each has an entry for several axes."""
_ON_OTHER_AXES = ("GatherElements", "Scatter", "ScatterElements")
"""Operators whose indices must not be longer than the data on the axes that they do not point along.

A toolchain that raises an error then names them in ``checks_sizes_of``.
"""
_REFUSED: Mapping[str, int] = {
    **{"MaxUnpool": 1, "NegativeLogLikelihoodLoss": 1, "SoftmaxCrossEntropyLoss": 1, "TensorScatter": 2},
    **{"EmbedLayerNormalization": 0, "GatherBlockQuantized": 1, "GroupQueryAttention": 5, "SequenceAt": 1},
}
"""Operators whose indices cannot be checked in this way, and the places of these. Few toolchains take any of them."""
_PARAMETERS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(
        ("CumSum", "Expand", "OneHot", "Pad", "Split", "Squeeze", "Tile", "TopK", "Trilu", "Unsqueeze"), (1,)
    ),
    **{"AffineGrid": (1,), "CenterCropPad": (1,), "Col2Im": (1, 2), "ConstantOfShape": (0,), "Range": (0, 1, 2)},
    **{"Resize": (2, 3), "Slice": (3, 4)},
}
"""Operands that are sizes, axes or steps. Toolchains compute anything, or end the process, if these make no sense."""
_ONNX = ("", "ai.onnx", "ai.onnx.ml")


class Axis(NamedTuple):
    """A length that is not a number: that of a tensor, on an axis."""

    tensor: ir.Value
    axis: int


class Use(NamedTuple):
    """An operand of an operator whose indices are not proven to be in range."""

    node: ir.Node
    place: int
    lengths: tuple[int | Axis, ...]
    counts_back: bool
    is_count: bool

    @property
    def operand(self) -> ir.Value:
        """The indices."""
        value = self.node.inputs[self.place]
        assert value is not None
        return value


def refusal(node: ir.Node, checks_sizes_of: Collection[str] = ()) -> str | None:
    """Return the reason why an operator takes what cannot be checked: indices, sizes or axes; None if it does not.

    Sizes are trusted if they follow from lengths of tensors and from constants alone, and for operators whose sizes the
    toolchain itself checks.
    """
    refused = _REFUSED.get(node.op_type)
    if refused is not None and _varies(node, refused):
        return f"the toolchain does not check the indices that {shown(node)} takes"
    if node.domain not in _ONNX:
        is_rotary = node.op_type == "RotaryEmbedding"
        return f"the toolchain does not check the positions that {shown(node)} takes" if is_rotary else None
    places = (1,) if node.op_type.startswith("Reduce") else _PARAMETERS.get(node.op_type, ())
    for place in () if node.op_type in checks_sizes_of else places:
        value = node.inputs[place] if len(node.inputs) > place else None
        if value is not None and not follows_from_lengths(value):
            return f"the toolchain does not check the sizes, axes or steps that {shown(node)} takes ({value.name!r})"
    if node.op_type == "Compress" and not _has_few_conditions(node):
        return f"the toolchain does not check that {shown(node)} has no more conditions than elements to choose from"
    if node.op_type == "Tile" and bounds_of(node, 1).low < 0:
        return f"the toolchain does not check that {shown(node)} repeats no negative number of times"
    if node.op_type == "Range" and bounds_of(node, 2).low <= 0 <= bounds_of(node, 2).high:
        return f"the toolchain does not check the step of {shown(node)}"
    return None


def _has_few_conditions(node: ir.Node) -> bool:
    """Return True if a Compress has as many conditions as elements on its axis, or in all of its tensor, or fewer."""
    lengths, conditions = (() if x is None or x.shape is None else tuple(x.shape) for x in node.inputs[:2])
    axis = node.attributes.get_int("axis")
    if axis is None and all(isinstance(n, int) for n in lengths):
        lengths, axis = (math.prod(int(n) for n in lengths if isinstance(n, int)),), 0
    if len(conditions) != 1 or not lengths or not -len(lengths) <= (axis or 0) < len(lengths):
        return False
    return (axis is not None or len(lengths) == 1) and _is_at_most(conditions[0], lengths[axis or 0])


def _is_at_most(m: int | ir.SymbolicDim, n: int | ir.SymbolicDim) -> bool:
    """Return True if a length is proven not to be greater than another."""
    return m <= n if isinstance(m, int) and isinstance(n, int) else m == n and getattr(m, "value", m) is not None


def bounds_of(node: ir.Node, place: int) -> Bounds:
    """Return bounds of an operand of integers; of one that is absent, those of 0."""
    value = node.inputs[place]
    return Bounds(0, 0) if value is None else IntegerBounds(2**63 - 1, trusts_floats=False).of(value)


def ranges_of(graph: ir.Graph) -> list[ir.Node]:
    """Return the ranges that may end before they start: empty in ONNX, a crash or nonsense in toolchains."""
    ranges = [node for node in graph.all_nodes() if node.op_type == "Range" and not node.domain]
    return [node for node in ranges if not _is_forward(node)]


def _is_forward(node: ir.Node) -> bool:
    start, end, step = (bounds_of(node, place) for place in range(3))
    return (step.low > 0 and start.high <= end.low) or (step.high < 0 and end.high <= start.low)


def uses_of(graph: ir.Graph, checks_sizes_of: Collection[str]) -> list[Use]:
    """Return the operands of a graph that hold indices which are not proven to be in range.

    Raises:
        Unsupported: An operator takes indices, sizes or axes that cannot be checked, or a constant index is beyond its tensor.
    """
    refuse_operators(partial(refusal, checks_sizes_of=checks_sizes_of), graph)
    proofs = IntegerBounds(2**63 - 1, trusts_floats=False)
    return [use for node in graph.all_nodes() for use in _of_node(node, checks_sizes_of) if not _is_proven(use, proofs)]


def _of_node(node: ir.Node, checks_sizes_of: Collection[str]) -> list[Use]:
    """Return all uses of indices by an operator.

    Raises:
        Unsupported: They cannot be checked.
    """
    if node.domain not in _ONNX:
        return []
    if node.op_type in _TAKES_POINTS:
        return [_points(node)]
    uses = []
    for takes in _TAKES.get(node.op_type, ()):
        if len(node.inputs) > takes.indices and node.inputs[takes.indices] is not None:
            data = node.inputs[takes.data]
            axis = takes.axis if isinstance(takes.axis, int) else node.attributes.get_int(takes.axis, takes.default)
            lengths = _lengths(node, data, axis or 0, 1)
            if node.op_type in _ON_OTHER_AXES and node.op_type not in checks_sizes_of:
                _refuse_longer(node, (axis or 0) % len(data.shape))  # type: ignore[union-attr, arg-type]
            uses.append(Use(node, takes.indices, lengths, takes.counts_back, takes.is_count))
    return uses


def _points(node: ir.Node) -> Use:
    indices = node.inputs[1]
    count = None if indices is None or indices.shape is None or not len(indices.shape) else indices.shape[-1]
    if not isinstance(count, int):
        raise Unsupported(f"the number of axes that the indices of {shown(node)} point along is not fixed")
    if not count:
        raise Unsupported(f"the indices of {shown(node)} point along no axis")
    first = node.attributes.get_int("batch_dims", 0) or 0
    return Use(node, 1, _lengths(node, node.inputs[0], first, count), True, False)


def _lengths(node: ir.Node, data: ir.Value | None, first: int, count: int) -> tuple[int | Axis, ...]:
    if data is None or data.shape is None or not -len(data.shape) <= first <= len(data.shape) - count:
        raise Unsupported(f"the tensor that the indices of {shown(node)} point into has no fixed rank")
    axes = range(first % max(1, len(data.shape)), len(data.shape))[:count]
    return tuple(n if isinstance(n := data.shape[axis], int) else Axis(data, axis) for axis in axes)


def _refuse_longer(node: ir.Node, axis: int) -> None:
    data, indices = node.inputs[:2]
    shape = None if indices is None else indices.shape
    if data is None or data.shape is None or shape is None or len(shape) != len(data.shape):
        raise Unsupported(f"the indices of {shown(node)} have no fixed rank")
    for i, (n, m) in enumerate(zip(data.shape, shape, strict=True)):
        if i != axis and not _is_at_most(m, n):
            raise Unsupported(f"the indices of {shown(node)} may be longer than the data")


def _is_proven(use: Use, proofs: IntegerBounds) -> bool:
    """Return True if all indices are in range, in every run.

    A tensor of a length that is not fixed has one element at least: the host runs what is given empty tensors.

    Raises:
        Unsupported: A constant index is beyond.
    """
    if (constant := constant_of(use.operand)) is not None:
        ranges = zip(range_of(constant, len(use.lengths)), use.lengths, strict=True)
        beyond = [
            n for (low, high), n in ranges if not _is_within(use, Bounds(low, high), n if isinstance(n, int) else 1)
        ]
        if any(isinstance(n, int) for n in beyond):
            raise Unsupported(f"a constant index of {shown(use.node)} is beyond its tensor")
        return not beyond
    bounds = proofs.of(use.operand)
    shortest = min((n if isinstance(n, int) else 1 for n in use.lengths), default=1)
    return _is_within(use, bounds, shortest)


def _is_within(use: Use, bounds: Bounds, length: int) -> bool:
    is_empty = bounds.low > bounds.high
    return is_empty or (-length * use.counts_back <= bounds.low and bounds.high <= length - (not use.is_count))


def constant_of(value: ir.Value) -> Any:
    """Return the array of a constant; None for any other value."""
    tensor = None if value.is_graph_input() else constant_tensor(value)
    return None if tensor is None else tensor.numpy()


def _varies(node: ir.Node, place: int) -> bool:
    value = node.inputs[place] if len(node.inputs) > place else None
    return value is not None and constant_of(value) is None


def shown(node: ir.Node) -> str:
    """An operator, for people, in a form that is not a path."""
    name = (node.name or "").replace("\\", "/").strip("/").replace("/", ".")
    return f"{node.op_type} ({name})" if name else node.op_type


def range_of(constant: Any, lengths: int) -> tuple[tuple[int, int], ...]:
    """Return the least and the largest of constant indices, for each entry of points; (0, -1) if there are none."""
    if not constant.size:
        return ((0, -1),) * lengths
    parts = [constant] if lengths == 1 else [constant[..., i] for i in range(lengths)]
    return tuple((int(part.min()), int(part.max())) for part in parts)
