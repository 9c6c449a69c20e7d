"""Checks of what the standard forms of operators assume: that operands hold sums of lengths.

Attention with a cache is a few operators of ONNX's own where no sequence is padded. Masks and lengths tell if that is so before
the kernel runs. Where it is not, the kernel declines, and the host stands in for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from collage._errors import Unsupported
from collage.frontend.contrib_ops import ASSUMPTIONS, CONTRIBUTED, Assumption
from collage.graph import copy_model
from collage.toolchains._checked_kernel import Reading, SumCheck
from collage.toolchains._index_checks import CheckedModel, Writer
from collage.toolchains._index_uses import Axis, constant_of, shown

__all__ = ["with_sum_checks"]

_SAME_NUMBERS = frozenset(("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"))
"""Operators whose result holds the elements of their first operand. A number that a cast wraps is not what is expected."""


def with_sum_checks(kernel: ir.Model) -> CheckedModel:
    """Return a kernel whose operators may be written out although their standard form assumes something of its operands.

    Raises:
        Unsupported: Such an operator is in a body, so its operands cannot be checked.
    """
    if not _assuming(kernel):
        return CheckedModel(kernel)
    kernel = copy_model(kernel)
    writer = Writer(kernel.graph)
    sums = [
        _check(kernel.graph, writer, node, each) for node in _assuming(kernel) for each in ASSUMPTIONS[node.op_type]
    ]
    return CheckedModel(kernel, sums=tuple(dict.fromkeys(sums)), outputs=writer.outputs)


def _assuming(kernel: ir.Model) -> Sequence[ir.Node]:
    return [n for n in kernel.graph.all_nodes() if n.domain == CONTRIBUTED and n.op_type in ASSUMPTIONS]


def _check(graph: ir.Graph, writer: Writer, node: ir.Node, assumption: Assumption) -> SumCheck:
    """Return the check of what the standard form of an operator assumes.

    Raises:
        Unsupported: It cannot be checked.
    """
    operands = dict(enumerate(node.inputs))
    value = operands.get(assumption.operand)
    if value is None or node.graph is not graph:
        raise Unsupported(f"the lengths of {shown(node)} cannot be checked")
    lengths = []
    for place, axis in assumption.lengths:
        tensor = operands.get(place)
        if tensor is None:
            continue
        if tensor.shape is None or len(tensor.shape) <= axis:
            raise Unsupported(f"a rank of {shown(node)} is not known, or too small")
        length = tensor.shape[axis]
        lengths.append(writer.length(length if isinstance(length, int) else _first_of(graph, tensor, axis)))
    origin = _origin(graph, value) or _Origin(value)
    position = graph.inputs.index(origin.value) if origin.value.is_graph_input() else writer.output(origin.value)
    offset = assumption.offset - origin.offset
    return SumCheck(node.op_type, position, origin.reading, tuple(lengths), offset, origin.axis)


def _first_of(graph: ir.Graph, tensor: ir.Value, axis: int) -> Axis:
    """Return the first axis of an input that has the name of a length; the one that is asked for if none has it."""
    assert tensor.shape is not None
    name = tensor.shape[axis]
    if getattr(name, "value", None) is not None:
        for value in graph.inputs:
            for i, length in enumerate(value.shape or ()):
                if length == name:
                    return Axis(value, i)
    return Axis(tensor, axis)


@dataclass(frozen=True, slots=True)
class _Origin:
    """An input of which a value is made.

    Attributes:
        value: The input.
        reading: See ``SumCheck``.
        axis: The same.
        offset: A number that is added.
    """

    value: ir.Value
    reading: Reading = "elements"
    axis: int = 0
    offset: int = 0


def _origin(graph: ir.Graph, value: ir.Value) -> _Origin | None:
    """Return the input of which a value is made by what a check can read; None if there is none."""
    offset = 0
    while not value.is_graph_input():
        node = value.producer()
        first = None if node is None or node.domain or not node.inputs else node.inputs[0]
        if node is None or first is None:
            return None
        number = _integer(node.inputs[1]) if len(node.inputs) > 1 else None
        if number is not None and node.op_type in ("Add", "Sub"):
            offset += number if node.op_type == "Add" else -number
        elif number is not None and node.op_type == "ReduceSum":
            is_read = first.is_graph_input() and first.dtype is not None and first.dtype.is_integer()
            return _Origin(first, "sums", number, offset) if is_read else None
        elif number is not None and node.op_type == "Gather":
            shape = first.producer()
            is_whole = shape is not None and shape.op_type == "Shape" and not shape.attributes
            tensor = shape.inputs[0] if shape is not None and is_whole else None
            return _Origin(tensor, "length", number, offset) if tensor is not None and tensor.is_graph_input() else None
        elif node.op_type not in _SAME_NUMBERS:
            return None
        value = first
    return _Origin(value, offset=offset) if any(value is each for each in graph.inputs) else None


def _integer(value: ir.Value | None) -> int | None:
    """Return the only element of a constant; None for any other value."""
    array = None if value is None else constant_of(value)
    return int(array.item()) if array is not None and array.size == 1 and array.dtype.kind in "iu" else None
