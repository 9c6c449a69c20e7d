"""Checks of the indices of a kernel, and the kernel that makes them possible.

ONNX demands an error where an index is beyond its tensor. Most toolchains read and write wherever it points. So for each operator
that takes indices:

* Indices that are proven to be in range need nothing: constants, positions that other operators find, remainders.
* Indices that the kernel is given are checked before it runs.
* Indices that it computes are kept in range where they are used, so that memory is safe. Their values as computed become
  one more output. They are checked after the kernel ran, and its results are dropped where one is beyond.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from collage._errors import Unsupported
from collage.graph import NameSupply, copy_model
from collage.toolchains._checked_kernel import IndexCheck, Length, SumCheck
from collage.toolchains._index_uses import Axis, Use, bounds_of, constant_of, range_of, ranges_of, shown, uses_of
from collage.toolchains.sdk.model_files import elem_type, values_of

__all__ = ["CheckedModel", "Writer", "with_index_checks"]

_MOVES = frozenset({"Expand", "Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
"""Operators that leave the elements of their first operand as they are."""
_LARGEST_OFFSET = 2**16
"""Constants up to this may be added to indices of 32 bits or more. A sum that wraps then is still beyond every tensor."""
_LEAST_BITS = 32
_BOUNDS_INTEGERS = 12
"""The first operator set in which Max and Min take integers."""


class CheckedModel(NamedTuple):
    """A kernel as its toolchain is given it.

    Attributes:
        model: The kernel, with checked values as outputs where it computes some.
        checks: The checks of indices.
        sums: The checks of values that must be sums of lengths.
        outputs: Names of the outputs that only checks read.
        added: Positions of the operators that were added for indices.
    """

    model: ir.Model
    checks: Sequence[IndexCheck] = ()
    sums: Sequence[SumCheck] = ()
    outputs: Sequence[str] = ()
    added: Sequence[int] = ()


def with_index_checks(before: CheckedModel, checks_sizes_of: Collection[str] = ()) -> CheckedModel:
    """Return a kernel whose indices can be checked when it runs.

    Args:
        before: The kernel, maybe with checks of sums.
        checks_sizes_of: Operators whose sizes, and lengths of indices, the toolchain itself checks.

    Raises:
        Unsupported: An index that is computed in the kernel cannot be checked.
    """
    kernel = before.model
    uses, ranges = uses_of(kernel.graph, checks_sizes_of), ranges_of(kernel.graph)
    if not uses and not ranges:
        return before
    made = [*ranges, *(use.node for use in uses if not _is_given(kernel.graph, use))]
    if made:
        # Max and Min of integers, which keep indices in range.
        if kernel.opset_imports.get("", 0) < _BOUNDS_INTEGERS:
            raise Unsupported(f"the indices of {shown(made[0])} cannot be checked before operator set 12")
        kernel = copy_model(kernel)
        uses, ranges = uses_of(kernel.graph, checks_sizes_of), ranges_of(kernel.graph)
    nodes = set(kernel.graph)
    writer = Writer(kernel.graph, before.outputs)
    checks = [writer.check(use) for use in uses]
    for node in ranges:
        writer.end_at_start(node)
    added = [i for i, node in enumerate(kernel.graph) if node not in nodes]
    return CheckedModel(kernel, tuple(dict.fromkeys(checks)), before.sums, writer.outputs, added)


def _is_given(graph: ir.Graph, use: Use) -> bool:
    """Return True if nothing is to be added to the kernel: indices and lengths are those of its inputs, or constant."""
    is_known = constant_of(use.operand) is not None or _source(graph, use) is not None
    return is_known and all(isinstance(n, int) or _is_input(graph, n.tensor) for n in use.lengths)


class _Source(NamedTuple):
    """An input that indices are made of: they are its elements, plus an offset.

    Attributes:
        value: The input.
        offset: The number that is added to each element.
        may_wrap: True if a cast to fewer bits lies between.
    """

    value: ir.Value
    offset: int
    may_wrap: bool


def _source(graph: ir.Graph, use: Use) -> _Source | None:
    """Return the input that the indices of a use are made of, or None if there is none."""
    value, offset, may_wrap = use.operand, 0, False
    # Entries of points are told apart by their place, so they must not be moved.
    moves = _MOVES if len(use.lengths) == 1 else ()
    while not _is_input(graph, value):
        node = value.producer()
        if node is None or node.domain or not node.inputs or node.inputs[0] is None:
            return None
        source = node.inputs[0]
        if node.op_type in ("Add", "Sub") and (shift := _shift(node)) is not None:
            source, more = shift
            offset += more
        elif node.op_type == "Cast" and _is_signed(source) and _is_signed(value) and _bits(value) >= _LEAST_BITS:
            # Fewer bits could turn an index within a tensor into one that is beyond it, once an offset is added.
            may_wrap = may_wrap or _bits(source) > _bits(value)
        elif node.op_type not in moves and node.op_type != "Identity":
            return None
        value = source
    return _Source(value, offset, may_wrap) if abs(offset) <= _LARGEST_OFFSET else None


def _before_repeats(use: Use) -> tuple[ir.Value, Sequence[ir.Node]]:
    """Return the indices of a use before the first ``Expand`` that repeats them, and what moves them from there to their use."""
    source, moves, passed = use.operand, list[ir.Node](), list[ir.Node]()
    value, node = source, source.producer()
    while len(use.lengths) == 1 and node is not None and not node.domain and node.op_type in _MOVES:
        if node.inputs[0] is None:
            break
        value = node.inputs[0]
        passed.insert(0, node)
        if node.op_type == "Expand":
            source, moves = value, [*passed]
        node = value.producer()
    return source, moves


def _shift(node: ir.Node) -> tuple[ir.Value, int] | None:
    """Return the operand to which an operator adds a constant, and the constant; None if it does not."""
    first, second = node.inputs
    if first is None or second is None or not _is_signed(first) or _bits(first) < _LEAST_BITS:
        return None
    for operand, other in ((first, second), (second, first)):
        constant = constant_of(other)
        if constant is not None and constant.size == 1 and (node.op_type == "Add" or other is second):
            return operand, int(constant.item()) * (-1 if node.op_type == "Sub" else 1)
    return None


def _is_input(graph: ir.Graph, value: ir.Value) -> bool:
    return value.is_graph_input() and any(value is each for each in graph.inputs)


def _is_signed(value: ir.Value) -> bool:
    dtype = elem_type(value)
    return dtype is not None and dtype.is_integer() and dtype.is_signed()


def _bits(value: ir.Value) -> int:
    dtype = elem_type(value)
    return 0 if dtype is None else int(dtype.bitwidth)


class Writer:
    """Adds to a graph what its checks read.

    Args:
        graph: The graph.
        outputs: Names of the outputs that only earlier checks read.

    Attributes:
        outputs: Names of the outputs that only checks read.
    """

    def __init__(self, graph: ir.Graph, outputs: Sequence[str] = ()) -> None:
        self.outputs = [*outputs]
        self._graph = graph
        self._names = NameSupply("collage", [str(value.name) for value in values_of(graph)])
        self._inputs = {value: position for position, value in enumerate(graph.inputs)}
        self._values: dict[ir.Value, int] = {}
        self._shapes: dict[ir.Value, ir.Value] = {}
        self._kept: dict[Any, ir.Value] = {}

    def check(self, use: Use) -> IndexCheck:
        """Return the check of a use.

        Raises:
            Unsupported: It is in a body, and cannot be checked.
        """
        constant, source = constant_of(use.operand), _source(self._graph, use)
        is_given = _is_given(self._graph, use)
        always_runs = use.node.graph is self._graph
        if not is_given and not always_runs:
            raise Unsupported(f"an index of {shown(use.node)}, in a body, cannot be checked")
        index: int | tuple[tuple[int, int], ...]
        if constant is not None:
            index = range_of(constant, len(use.lengths))
        elif source is not None:
            index = self._inputs[source.value]
        else:
            index = self.output(_before_repeats(use)[0])
        lengths = tuple(map(self.length, use.lengths))
        if not is_given:
            use.node.replace_input_with(use.place, self._within(use))
        # The library and ONNX Runtime may wrap in other ways, so what a cast wraps is left to the host.
        is_certain = always_runs and not (source and source.may_wrap)
        offset = source.offset if source and constant is None else 0
        return IndexCheck(shown(use.node), index, lengths, use.counts_back, use.is_count, is_certain, offset)

    def end_at_start(self, node: ir.Node) -> None:
        """Have a range end where it starts if it would end before."""
        start, end = node.inputs[:2]
        dtype = None if start is None else elem_type(start)
        if start is None or end is None or dtype is None or node.graph is None:
            raise Unsupported(f"the bounds of {shown(node)} are not known")
        bounded = self._made("Max" if bounds_of(node, 2).low > 0 else "Min", [end, start], dtype, end.shape)
        producer = bounded.producer()
        assert producer is not None
        node.graph.insert_before(node, producer)
        node.replace_input_with(1, bounded)

    def length(self, length: int | Axis) -> Length:
        """Return a length as a check reads it."""
        if isinstance(length, int):
            return length
        if length.tensor in self._inputs:
            return self._inputs[length.tensor], length.axis
        return self.output(self._shape(length.tensor)), length.axis

    def output(self, value: ir.Value) -> int:
        """Return the position of an output that holds a value, which only checks read."""
        if value not in self._values:
            position = len(self._inputs) + len(self.outputs)
            output = value
            # Under another name, since it may be an output itself.
            if value not in self._shapes.values():
                output = ir.Value(name=self._names.fresh("index"), type=value.type, shape=value.shape)
                node = ir.Node("", "Identity", [value], outputs=[output], name=str(output.name))
                producer = value.producer()
                assert producer is not None
                self._graph.insert_after(producer, node)
            self._graph.outputs.append(output)
            self._values[value] = position
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

    def _within(self, use: Use) -> ir.Value:
        """Return the indices of a use, brought into range. They are the same unless one is beyond."""
        key = use.operand, use.lengths, use.counts_back, use.is_count
        if key not in self._kept:
            dtype = elem_type(use.operand)
            if dtype is None:
                raise Unsupported(f"the type of the indices of {shown(use.node)} is not known")
            if all(isinstance(n, int) for n in use.lengths):
                most = np.array(use.lengths, dtype.numpy()) - (not use.is_count)
                least = -most - 1 if use.counts_back else np.zeros_like(most)
                high, low = self._new(most), self._new(least)
            else:
                high, low = self._computed(use, dtype)
            source, moves = _before_repeats(use)
            lifted = self._before(use, "Max", [source, low], dtype, source.shape)
            kept = self._before(use, "Min", [lifted, high], dtype, source.shape)
            for node in moves:
                made = [kept, *node.inputs[1:]]
                kept = self._before(use, node.op_type, made, dtype, node.outputs[0].shape, node.attributes.values())
            self._kept[key] = kept
        return self._kept[key]

    def _computed(self, use: Use, dtype: ir.DataType) -> tuple[ir.Value, ir.Value]:
        """Return the largest and the least index, computed from lengths that are known when the kernel runs."""
        shape = (len(use.lengths),)
        parts = []
        for n in use.lengths:
            if isinstance(n, int):
                parts.append(self._new(np.array([n])))
            else:
                axis = self._new(np.array([n.axis]))
                parts.append(self._before(use, "Gather", [self._shape(n.tensor), axis], ir.DataType.INT64, (1,)))
        first, to = ir.AttrInt64("axis", 0), ir.AttrInt64("to", int(dtype))
        joined = parts[0] if len(parts) == 1 else self._before(use, "Concat", parts, ir.DataType.INT64, shape, [first])
        whole = joined if dtype == ir.DataType.INT64 else self._before(use, "Cast", [joined], dtype, shape, [to])
        one, none = self._new(np.array([1], dtype.numpy())), self._new(np.array([0], dtype.numpy()))
        most = whole if use.is_count else self._before(use, "Sub", [whole, one], dtype, shape)
        return most, self._before(use, "Sub", [none, whole], dtype, shape) if use.counts_back else none

    def _before(
        self,
        use: Use,
        op: str,
        inputs: Sequence[ir.Value | None],
        dtype: ir.DataType,
        shape: Any,
        attributes: Iterable[ir.Attr] = (),
    ) -> ir.Value:
        made = self._made(op, inputs, dtype, shape, attributes)
        node = made.producer()
        assert node is not None
        self._graph.insert_before(use.node, node)
        return made

    def _made(
        self,
        op: str,
        inputs: Sequence[ir.Value | None],
        dtype: ir.DataType,
        shape: Any,
        attributes: Iterable[ir.Attr] = (),
    ) -> ir.Value:
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
