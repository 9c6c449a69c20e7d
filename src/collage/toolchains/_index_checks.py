"""Checks of the indices of a kernel, and the kernel that makes them possible.

ONNX demands an error where an index is beyond its tensor. Most toolchains read and write wherever it points. So for each operator
that takes indices:

* Indices that are proven to be in range need nothing: constants, positions that other operators find, remainders.
* Indices that the kernel is given are checked before it runs.
* Indices that it computes are kept in range where they are used, so that memory is safe. Their values as computed become
  one more output. They are checked after the kernel ran, and its results are dropped where one is beyond.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from collage._errors import Unsupported
from collage.graph import NameSupply, constant_tensor, copy_model, follows_from_lengths
from collage.toolchains._checked_kernel import IndexCheck, Length
from collage.toolchains.sdk.integer_bounds import Bounds, IntegerBounds
from collage.toolchains.sdk.model_files import elem_type, refuse_operators, values_of

__all__ = ["refusal", "with_index_checks"]


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
_MOVES = frozenset({"Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
"""Operators that leave the elements of their first operand as they are."""


_BOUNDS_INTEGERS = 12
"""The first operator set in which Max and Min take integers."""


class _Axis(NamedTuple):
    """A length that is not a number: that of a tensor, on an axis."""

    tensor: ir.Value
    axis: int


class _Use(NamedTuple):
    """An operand of an operator whose indices are not proven to be in range."""

    node: ir.Node
    place: int
    lengths: tuple[int | _Axis, ...]
    counts_back: bool
    is_count: bool

    @property
    def operand(self) -> ir.Value:
        """The indices."""
        value = self.node.inputs[self.place]
        assert value is not None
        return value


class CheckedModel(NamedTuple):
    """A kernel as its toolchain is given it.

    Attributes:
        model: The kernel, with checked indices as outputs where it computes some.
        checks: The checks.
        outputs: Names of the outputs that only checks read.
        added: Positions of the operators that were added.
    """

    model: ir.Model
    checks: Sequence[IndexCheck]
    outputs: Sequence[str]
    added: Sequence[int]


def with_index_checks(kernel: ir.Model, checks_sizes_of: Collection[str] = ()) -> CheckedModel:
    """Return a kernel whose indices can be checked when it runs.

    Args:
        kernel: The kernel.
        checks_sizes_of: Operators whose sizes, and lengths of indices, the toolchain itself checks.

    Raises:
        Unsupported: An index that is computed in the kernel cannot be checked.
    """
    uses, ranges = _uses(kernel.graph, checks_sizes_of), _ranges(kernel.graph)
    if not uses and not ranges:
        return CheckedModel(kernel, (), (), ())
    made = [*ranges, *(use.node for use in uses if not _is_given(kernel.graph, use))]
    if made:
        # Max and Min of integers, which keep indices in range.
        if kernel.opset_imports.get("", 0) < _BOUNDS_INTEGERS:
            raise Unsupported(f"the indices of {_shown(made[0])} cannot be checked before operator set 12")
        kernel = copy_model(kernel)
        uses, ranges = _uses(kernel.graph, checks_sizes_of), _ranges(kernel.graph)
    before = set(kernel.graph)
    writer = _Writer(kernel.graph)
    checks = [writer.check(use) for use in uses]
    for node in ranges:
        writer.end_at_start(node)
    added = [i for i, node in enumerate(kernel.graph) if node not in before]
    return CheckedModel(kernel, tuple(dict.fromkeys(checks)), writer.outputs, added)


def refusal(node: ir.Node, checks_sizes_of: Collection[str] = ()) -> str | None:
    """Return the reason why an operator takes what cannot be checked: indices, sizes or axes; None if it does not.

    Sizes are trusted if they follow from lengths of tensors and from constants alone, and for operators whose sizes the
    toolchain itself checks.
    """
    refused = _REFUSED.get(node.op_type)
    if refused is not None and _varies(node, refused):
        return f"the toolchain does not check the indices that {_shown(node)} takes"
    if node.domain not in _ONNX:
        is_rotary = node.op_type == "RotaryEmbedding"
        return f"the toolchain does not check the positions that {_shown(node)} takes" if is_rotary else None
    places = (1,) if node.op_type.startswith("Reduce") else _PARAMETERS.get(node.op_type, ())
    for place in () if node.op_type in checks_sizes_of else places:
        value = node.inputs[place] if len(node.inputs) > place else None
        if value is not None and not follows_from_lengths(value):
            return f"the toolchain does not check the sizes, axes or steps that {_shown(node)} takes ({value.name!r})"
    if node.op_type == "Tile" and _bounds(node, 1).low < 0:
        return f"the toolchain does not check that {_shown(node)} repeats no negative number of times"
    if node.op_type == "Range" and _bounds(node, 2).low <= 0 <= _bounds(node, 2).high:
        return f"the toolchain does not check the step of {_shown(node)}"
    return None


def _bounds(node: ir.Node, place: int) -> Bounds:
    value = node.inputs[place]
    return Bounds(0, 0) if value is None else IntegerBounds(2**63 - 1, trusts_floats=False).of(value)


def _ranges(graph: ir.Graph) -> list[ir.Node]:
    """Return the ranges that may end before they start: empty in ONNX, a crash or nonsense in toolchains."""
    ranges = [node for node in graph.all_nodes() if node.op_type == "Range" and not node.domain]
    return [node for node in ranges if not _is_forward(node)]


def _is_forward(node: ir.Node) -> bool:
    start, end, step = (_bounds(node, place) for place in range(3))
    return (step.low > 0 and start.high <= end.low) or (step.high < 0 and end.high <= start.low)


def _uses(graph: ir.Graph, checks_sizes_of: Collection[str]) -> list[_Use]:
    refuse_operators(partial(refusal, checks_sizes_of=checks_sizes_of), graph)
    proofs = IntegerBounds(2**63 - 1, trusts_floats=False)
    return [use for node in graph.all_nodes() for use in _of_node(node, checks_sizes_of) if not _is_proven(use, proofs)]


def _of_node(node: ir.Node, checks_sizes_of: Collection[str]) -> list[_Use]:
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
            uses.append(_Use(node, takes.indices, lengths, takes.counts_back, takes.is_count))
    return uses


def _points(node: ir.Node) -> _Use:
    indices = node.inputs[1]
    count = None if indices is None or indices.shape is None or not len(indices.shape) else indices.shape[-1]
    if not isinstance(count, int):
        raise Unsupported(f"the number of axes that the indices of {_shown(node)} point along is not fixed")
    first = node.attributes.get_int("batch_dims", 0) or 0
    return _Use(node, 1, _lengths(node, node.inputs[0], first, count), True, False)


def _lengths(node: ir.Node, data: ir.Value | None, first: int, count: int) -> tuple[int | _Axis, ...]:
    if data is None or data.shape is None or not -len(data.shape) <= first <= len(data.shape) - count:
        raise Unsupported(f"the tensor that the indices of {_shown(node)} point into has no fixed rank")
    axes = range(first % max(1, len(data.shape)), len(data.shape))[:count]
    return tuple(n if isinstance(n := data.shape[axis], int) else _Axis(data, axis) for axis in axes)


def _refuse_longer(node: ir.Node, axis: int) -> None:
    data, indices = node.inputs[:2]
    shape = None if indices is None else indices.shape
    if data is None or data.shape is None or shape is None or len(shape) != len(data.shape):
        raise Unsupported(f"the indices of {_shown(node)} have no fixed rank")
    for i, (n, m) in enumerate(zip(data.shape, shape, strict=True)):
        is_within = (
            m <= n if isinstance(m, int) and isinstance(n, int) else m == n and getattr(m, "value", m) is not None
        )
        if i != axis and not is_within:
            raise Unsupported(f"the indices of {_shown(node)} may be longer than the data")


def _is_proven(use: _Use, proofs: IntegerBounds) -> bool:
    """Return True if all indices are in range, in every run.

    A tensor of a length that is not fixed has one element at least: the host runs what is given empty tensors.

    Raises:
        Unsupported: A constant index is beyond.
    """
    if (constant := _constant(use.operand)) is not None:
        ranges = zip(_range(constant, len(use.lengths)), use.lengths, strict=True)
        beyond = [
            n for (low, high), n in ranges if not _is_within(use, Bounds(low, high), n if isinstance(n, int) else 1)
        ]
        if any(isinstance(n, int) for n in beyond):
            raise Unsupported(f"a constant index of {_shown(use.node)} is beyond its tensor")
        return not beyond
    bounds = proofs.of(use.operand)
    shortest = min((n if isinstance(n, int) else 1 for n in use.lengths), default=1)
    return _is_within(use, bounds, shortest)


def _is_within(use: _Use, bounds: Bounds, length: int) -> bool:
    is_empty = bounds.low > bounds.high
    return is_empty or (-length * use.counts_back <= bounds.low and bounds.high <= length - (not use.is_count))


def _constant(value: ir.Value) -> Any:
    tensor = None if value.is_graph_input() else constant_tensor(value)
    return None if tensor is None else tensor.numpy()


def _is_given(graph: ir.Graph, use: _Use) -> bool:
    """Return True if nothing is to be added to the kernel: indices and lengths are those of its inputs, or constant."""
    is_known = _constant(use.operand) is not None or _source(graph, use.operand) is not None
    return is_known and all(isinstance(n, int) or _is_input(graph, n.tensor) for n in use.lengths)


def _source(graph: ir.Graph, value: ir.Value) -> ir.Value | None:
    """Return the input of a graph whose elements a value has, and no others; None if it has none."""
    while not _is_input(graph, value):
        node = value.producer()
        if node is None or node.domain or node.op_type not in _MOVES | {"Cast"} or node.inputs[0] is None:
            return None
        source = node.inputs[0]
        if node.op_type == "Cast" and not (_is_signed(source) and _is_signed(value)):
            return None
        value = source
    return value


def _is_input(graph: ir.Graph, value: ir.Value) -> bool:
    return value.is_graph_input() and any(value is each for each in graph.inputs)


def _is_signed(value: ir.Value) -> bool:
    dtype = elem_type(value)
    return dtype is not None and dtype.is_integer() and dtype.is_signed()


def _bits(value: ir.Value) -> int:
    dtype = elem_type(value)
    return 0 if dtype is None else int(dtype.bitwidth)


def _varies(node: ir.Node, place: int) -> bool:
    value = node.inputs[place] if len(node.inputs) > place else None
    return value is not None and _constant(value) is None


def _shown(node: ir.Node) -> str:
    """An operator, for people, in a form that is not a path."""
    name = (node.name or "").replace("\\", "/").strip("/").replace("/", ".")
    return f"{node.op_type} ({name})" if name else node.op_type


class _Writer:
    """Adds to a graph what its checks read.

    Attributes:
        outputs: Names of the outputs that only checks read.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self.outputs: list[str] = []
        self._graph = graph
        self._names = NameSupply("collage", [str(value.name) for value in values_of(graph)])
        self._inputs = {value: position for position, value in enumerate(graph.inputs)}
        self._values: dict[ir.Value, int] = {}
        self._shapes: dict[ir.Value, ir.Value] = {}
        self._kept: dict[Any, ir.Value] = {}

    def check(self, use: _Use) -> IndexCheck:
        """Return the check of a use.

        Raises:
            Unsupported: It is in a body, and cannot be checked.
        """
        constant, source = _constant(use.operand), _source(self._graph, use.operand)
        is_given = _is_given(self._graph, use)
        always_runs = use.node.graph is self._graph
        if not is_given and not always_runs:
            raise Unsupported(f"an index of {_shown(use.node)}, in a body, cannot be checked")
        index: int | tuple[tuple[int, int], ...]
        if constant is not None:
            index = _range(constant, len(use.lengths))
        elif source is not None:
            index = self._inputs[source]
        else:
            index = self._output(use.operand)
        lengths = tuple(map(self._length, use.lengths))
        if not is_given:
            use.node.replace_input_with(use.place, self._within(use))
        # The library and ONNX Runtime may wrap in other ways, so what a cast wraps is left to the host.
        is_certain = always_runs and (source is None or _bits(source) <= _bits(use.operand))
        return IndexCheck(_shown(use.node), index, lengths, use.counts_back, use.is_count, is_certain)

    def end_at_start(self, node: ir.Node) -> None:
        """Have a range end where it starts if it would end before."""
        start, end = node.inputs[:2]
        dtype = None if start is None else elem_type(start)
        if start is None or end is None or dtype is None or node.graph is None:
            raise Unsupported(f"the bounds of {_shown(node)} are not known")
        bounded = self._made("Max" if _bounds(node, 2).low > 0 else "Min", [end, start], dtype, end.shape)
        producer = bounded.producer()
        assert producer is not None
        node.graph.insert_before(node, producer)
        node.replace_input_with(1, bounded)

    def _length(self, length: int | _Axis) -> Length:
        if isinstance(length, int):
            return length
        if length.tensor in self._inputs:
            return self._inputs[length.tensor], length.axis
        return self._output(self._shape(length.tensor)), length.axis

    def _output(self, value: ir.Value) -> int:
        if value not in self._values:
            output = value
            # Under another name, since it may be an output itself.
            if value not in self._shapes.values():
                output = ir.Value(name=self._names.fresh("index"), type=value.type, shape=value.shape)
                node = ir.Node("", "Identity", [value], outputs=[output], name=str(output.name))
                producer = value.producer()
                assert producer is not None
                self._graph.insert_after(producer, node)
            self._graph.outputs.append(output)
            self._values[value] = len(self._inputs) + len(self.outputs)
            self.outputs.append(str(output.name))
        return self._values[value]

    def _shape(self, tensor: ir.Value) -> ir.Value:
        if tensor not in self._shapes:
            assert tensor.shape is not None
            made = self._made("Shape", [tensor], ir.DataType.INT64, (len(tensor.shape),))
            producer, node = tensor.producer(), made.producer()
            assert node is not None
            if producer is None:
                self._graph.insert_before(self._graph[0], node)
            else:
                self._graph.insert_after(producer, node)
            self._shapes[tensor] = made
        return self._shapes[tensor]

    def _within(self, use: _Use) -> ir.Value:
        """Return the indices of a use, brought into range. They are the same unless one is beyond."""
        key = use.operand, use.lengths, use.counts_back, use.is_count
        if key not in self._kept:
            dtype = elem_type(use.operand)
            if dtype is None:
                raise Unsupported(f"the type of the indices of {_shown(use.node)} is not known")
            if all(isinstance(n, int) for n in use.lengths):
                most = np.array(use.lengths, dtype.numpy()) - (not use.is_count)
                least = -most - 1 if use.counts_back else np.zeros_like(most)
                high, low = self._new(most), self._new(least)
            else:
                high, low = self._computed(use, dtype)
            shape = use.operand.shape
            lifted = self._before(use, "Max", [use.operand, low], dtype, shape)
            self._kept[key] = self._before(use, "Min", [lifted, high], dtype, shape)
        return self._kept[key]

    def _computed(self, use: _Use, dtype: ir.DataType) -> tuple[ir.Value, ir.Value]:
        """Return the largest and the least index, computed from lengths that are known when the kernel runs."""
        shape = (len(use.lengths),)
        parts = []
        for n in use.lengths:
            if isinstance(n, int):
                parts.append(self._new(np.array([n])))
            else:
                axis = self._new(np.array([n.axis]))
                parts.append(self._before(use, "Gather", [self._shape(n.tensor), axis], ir.DataType.INT64, (1,)))
        joined = parts[0] if len(parts) == 1 else self._before(use, "Concat", parts, ir.DataType.INT64, shape, axis=0)
        whole = (
            joined if dtype == ir.DataType.INT64 else self._before(use, "Cast", [joined], dtype, shape, to=int(dtype))
        )
        one, none = self._new(np.array([1], dtype.numpy())), self._new(np.array([0], dtype.numpy()))
        most = whole if use.is_count else self._before(use, "Sub", [whole, one], dtype, shape)
        return most, self._before(use, "Sub", [none, whole], dtype, shape) if use.counts_back else none

    def _before(
        self, use: _Use, op: str, inputs: Sequence[ir.Value], dtype: ir.DataType, shape: Any, **ints: int
    ) -> ir.Value:
        made = self._made(op, inputs, dtype, shape, **ints)
        node = made.producer()
        assert node is not None
        self._graph.insert_before(use.node, node)
        return made

    def _made(self, op: str, inputs: Sequence[ir.Value], dtype: ir.DataType, shape: Any, **ints: int) -> ir.Value:
        attributes = [ir.AttrInt64(name, value) for name, value in ints.items()]
        made = ir.Value(
            name=self._names.fresh("bound"),
            type=ir.TensorType(dtype),
            shape=ir.Shape(shape) if shape is not None else None,
        )
        ir.Node("", op, inputs, attributes, outputs=[made], name=str(made.name))
        return made

    def _new(self, array: Any) -> ir.Value:
        tensor = ir.tensor(array)
        value = ir.Value(
            name=self._names.fresh("bound"),
            type=ir.TensorType(tensor.dtype),
            shape=ir.Shape(array.shape),
            const_value=tensor,
        )
        self._graph.register_initializer(value)
        return value


def _range(constant: Any, lengths: int) -> tuple[tuple[int, int], ...]:
    if not constant.size:
        return ((0, -1),) * lengths
    parts = [constant] if lengths == 1 else [constant[..., i] for i in range(lengths)]
    return tuple((int(part.min()), int(part.max())) for part in parts)
