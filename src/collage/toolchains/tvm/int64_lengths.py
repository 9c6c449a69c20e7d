"""Lengths computed in 64 bits, as ``Shape`` tells them, where an exporter computes them in 32.

TVM follows what becomes of lengths while they are numbers of 64 bits. A cast makes a tensor of them, of which it knows nothing
until it runs, and refuses to reshape by it. Lengths fit in 32 bits, so both are the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["compute_lengths_in_64_bits"]

_MOVES = frozenset(("Gather", "Slice", "Squeeze"))
"""Operators that move the numbers of their first operand, and are followed by TVM."""
_OF_NUMBERS = frozenset(("Add", "Mul", "Sub", "Unsqueeze"))
"""Operators that TVM follows if they compute with single numbers."""


def compute_lengths_in_64_bits(graph: ir.Graph) -> None:
    """Give operators on lengths in 32 bits a second copy in 64 bits, which is read in place of casts back to 64 bits."""
    import onnx_ir as ir

    lengths = set[Any]()
    wide: dict[Any, Any] = {}
    for node in list(graph):
        first = node.inputs[0] if node.inputs else None
        if node.op_type == "Shape" or (node.op_type in _MOVES and first in lengths):
            lengths.add(node.outputs[0])
        elif node.op_type == "Cast" and first in lengths and node.attributes.get_int("to") == ir.DataType.INT32:
            wide[node.outputs[0]] = first
        elif node.op_type == "Cast" and first in wide:
            node.replace_input_with(0, wide[first])
            if node.attributes.get_int("to") == ir.DataType.INT64 and not node.outputs[0].is_graph_output():
                node.outputs[0].replace_all_uses_with(wide[first])
                lengths.add(wide[first])
                graph.remove(node, safe=True)
        elif (inputs := _in_64_bits(graph, node, wide)) is not None:
            copy = ir.node(node.op_type, inputs, node.attributes, domain=node.domain, version=node.version)
            copy.outputs[0].name = f"{node.outputs[0].name}.int64"
            copy.outputs[0].shape, copy.outputs[0].type = node.outputs[0].shape, ir.TensorType(ir.DataType.INT64)
            graph.insert_after(node, copy)
            wide[node.outputs[0]] = copy.outputs[0]
    for value in reversed(wide):
        if not value.uses() and not value.is_graph_output():
            graph.remove(value.producer(), safe=True)


def _in_64_bits(graph: ir.Graph, node: ir.Node, wide: Mapping[Any, Any]) -> Sequence[Any] | None:
    """Return operands of an operator in 64 bits; None if it does not compute with lengths, or also with other numbers."""
    if node.op_type in _MOVES and node.inputs[0] in wide:
        return [wide[node.inputs[0]], *node.inputs[1:]]
    read = [x for x in node.inputs if x in wide]
    if not read or not (node.op_type == "Concat" or (node.op_type in _OF_NUMBERS and all(map(_is_scalar, read)))):
        return None
    if not all(x in wide or (x is not None and x.const_value is not None) for x in node.inputs):
        return None
    return [wide[x] if x in wide else _constant_in_64_bits(graph, x) for x in node.inputs]


def _is_scalar(x: ir.Value | None) -> bool:
    return x is not None and x.shape is not None and len(x.shape) == 0


def _constant_in_64_bits(graph: ir.Graph, x: Any) -> ir.Value:
    import onnx_ir as ir

    name = f"{x.name}.int64"
    if name not in graph.initializers:
        tensor = ir.tensor(x.const_value.numpy().astype("int64"), name=name)
        graph.register_initializer(
            ir.Value(
                name=name, shape=ir.Shape(tensor.shape.numpy()), type=ir.TensorType(tensor.dtype), const_value=tensor
            )
        )
    return graph.initializers[name]
