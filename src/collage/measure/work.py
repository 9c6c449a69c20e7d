"""The work of operators: the floating-point operations of products, and the bytes that a kernel reads and writes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from collage.graph import DataflowGraph, SubGraph, bodies, constant_tensor, is_shape_operand, is_view, value_nbytes
from collage.measure.machine_rates import MachineRates
from collage.numerics.value_store import ValueStore

__all__ = ["ShapeOf", "Work", "Workload", "product_flops", "shape_in", "stated_shape"]

ShapeOf = Callable[[ir.Value], Sequence[int] | None]
"""Returns the shape of a value, or None if it is unknown."""

_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_PICKS = frozenset({"Compress", "Gather", "GatherElements", "GatherND", "Resize", "Slice", "Upsample"})
"""Operators that read no more of their first operand than they write."""


def shape_in(values: ValueStore, value: ir.Value) -> Sequence[int] | None:
    """Return the shape that a value had in a reference run, or that the model states."""
    return values.shape(str(value.name)) if str(value.name) in values else stated_shape(value)


def stated_shape(value: ir.Value) -> Sequence[int] | None:
    """Return the shape that a model states for a value; None if a length of it is open."""
    shape = value.const_value.shape if value.const_value is not None else value.shape
    axes = (None,) if shape is None else tuple(shape)
    return tuple(axis for axis in axes if isinstance(axis, int)) if all(isinstance(a, int) for a in axes) else None


def product_flops(node: ir.Node, shape_of: ShapeOf) -> float:
    """Multiplications and additions of a product, convolution or recurrent layer as it is defined; 0 for all others."""
    inputs = [shape_of(value) if value is not None else None for value in node.inputs]
    output = shape_of(node.outputs[0]) if node.outputs else None
    if node.domain or len(inputs) < 2 or inputs[0] is None or inputs[1] is None or output is None:
        return 0.0
    first, second = inputs[0], inputs[1]
    match node.op_type:
        case "Conv" | "DeformConv" if len(second) > 2:
            return 2.0 * math.prod(output) * math.prod(second[1:])
        case "ConvTranspose" if len(second) > 2:
            return 2.0 * math.prod(first) * math.prod(second[1:])
        case "MatMul" if first:
            return 2.0 * math.prod(output) * first[-1]
        case "Gemm" if len(first) == 2:
            return 2.0 * math.prod(output) * math.prod(first) / max(output[0], 1)
        case "RNN" | "GRU" | "LSTM" if len(first) == 3 and len(second) == 3:
            hidden = second[1] // _GATES[node.op_type]
            return 2.0 * first[0] * first[1] * second[0] * second[1] * (second[2] + hidden)
        case "Einsum" if len(inputs) == 2:
            return 2.0 * math.prod(output) * _summed(node.attributes.get_string("equation", ""), first, second)
        case "Attention" if len(second) > 2:
            past = inputs[4] if len(inputs) > 4 else None
            length = second[-2] + (past[-2] if past else 0)
            return 2.0 * length * (math.prod(first) + math.prod(output))
    return 0.0


def _summed(equation: str, *shapes: Sequence[int]) -> int:
    """Return the product of the lengths that an Einsum sums over; 0 if it cannot be read."""
    terms, arrow, result = equation.replace(" ", "").partition("->")
    lengths: dict[str, int] = {}
    for term, shape in zip(terms.split(","), shapes, strict=False):
        before, _, after = term.partition("...")
        if len(before) + len(after) > len(shape):
            return 0
        lengths |= dict(zip(before, shape, strict=False))
        lengths |= dict(zip(reversed(after), reversed(shape), strict=False))
    kept = result if arrow else {letter for letter in lengths if terms.count(letter) == 1}
    return math.prod(length for letter, length in lengths.items() if letter not in kept)


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one kernel.

    Attributes:
        flops: Floating-point operations of its products, in units of float32: one of 64 bits counts as two.
        weight_bytes: Bytes of constants that it reads.
        other_bytes: Bytes of all else that it reads and writes.
    """

    flops: float
    weight_bytes: float
    other_bytes: float

    def limit_s(self, rates: MachineRates, all_weight_bytes: float) -> float:
        """Return seconds that the kernel takes at the machine's rates, with arithmetic and memory side by side.

        Args:
            rates: The rates.
            all_weight_bytes: Bytes of the constants of the whole model. Each run reads them once, so that they come from
                where all of them fit. All else is as near as the kernel's own values fit.
        """
        weights_s = self.weight_bytes / rates.bandwidth(all_weight_bytes)
        return max(self.flops / rates.flops_per_s, weights_s + self.other_bytes / rates.bandwidth(self.other_bytes))


class Workload:
    """The work of the kernels of one model.

    Every tensor is read once, and only what is read outside is written. A view costs nothing, and so do operators on
    constants alone.

    Args:
        graph: The model's dataflow graph.
        shape_of: Shape of a value, or None if it is unknown. Values of unknown size count as nothing.
    """

    def __init__(self, graph: DataflowGraph, shape_of: ShapeOf) -> None:
        self._graph = graph
        self._shape_of = shape_of
        self._free = 0
        self._sources: dict[ir.Value, frozenset[ir.Value]] = {}
        for i, node in enumerate(graph.nodes):
            read = [value for value in node.inputs if value is not None]
            sources = frozenset[ir.Value]().union(*map(self._sources_of, read))
            if read and all(constant_tensor(value) is not None for value in sources) and not any(bodies(node)):
                found = sources
            elif self._is_view(node):
                found = frozenset() if node.op_type in ("Shape", "Size") else self._sources_of(read[0])
            else:
                continue
            self._free |= 1 << i
            self._sources.update(dict.fromkeys(node.outputs, found))

    @property
    def weight_bytes(self) -> float:
        """Bytes of the constants that the whole model reads."""
        return self._reads(range(len(self._graph)))[0]

    def is_free(self, sub_graph: SubGraph) -> bool:
        """Return True if all operators of a kernel are views or compute constants."""
        return not sub_graph.inside.bits & ~self._free

    def of(self, sub_graph: SubGraph) -> Work | None:
        """Return the work of a kernel; None if it holds bodies, or operators that ONNX does not define."""
        nodes = sub_graph.nodes
        if any(node.domain or any(bodies(node)) for node in nodes):
            return None
        weights, others = self._reads(sub_graph)
        written = {source for value in sub_graph.output_values() for source in self._sources_of(value)}
        others += sum(self._bytes(value) for value in written if self._is_made_in(sub_graph, value))
        return Work(sum(map(self._flops, nodes)), weights, others)

    def _reads(self, indices: Iterable[int]) -> tuple[float, float]:
        """Return bytes of constants and of other values that nodes read and do not make."""
        inside = indices if isinstance(indices, SubGraph) else SubGraph(self._graph, indices)
        nbytes: dict[ir.Value, float] = {}
        for i in inside:
            if self._free >> i & 1:
                continue
            node = self._graph.node(i)
            picked = sum(map(self._bytes, node.outputs)) if node.op_type in _PICKS else math.inf
            for position, value in enumerate(node.inputs):
                if value is None or is_shape_operand(node, position):
                    continue
                most = picked if position == 0 else math.inf
                for source in self._sources_of(value):
                    if not self._is_made_in(inside, source):
                        nbytes[source] = max(nbytes.get(source, 0.0), min(self._bytes(source), most))
        weights = sum(size for value, size in nbytes.items() if constant_tensor(value) is not None)
        return weights, sum(nbytes.values()) - weights

    def _sources_of(self, value: ir.Value) -> frozenset[ir.Value]:
        """Return the tensors that hold a value: itself, or those that it is a view of, or is computed of as a constant."""
        return self._sources.get(value, frozenset({value}))

    def _is_made_in(self, sub_graph: SubGraph, value: ir.Value) -> bool:
        producer = value.producer()
        return producer is not None and producer in self._graph and self._graph.index_of(producer) in sub_graph.inside

    def _is_view(self, node: ir.Node) -> bool:
        """Return True for views, and for transpositions that move axes of length 1 only."""
        if node.domain or node.op_type != "Transpose":
            return is_view(node) and node.inputs[0] is not None
        shape = self._shape_of(node.inputs[0]) if node.inputs[0] is not None else None
        if shape is None:
            return False
        order = node.attributes.get_ints("perm", range(len(shape))[::-1])
        long = [axis for axis in order if shape[axis] > 1]
        return long == sorted(long)

    def _flops(self, node: ir.Node) -> float:
        wide = any(value.dtype is ir.DataType.DOUBLE for value in node.outputs)
        return (2.0 if wide else 1.0) * product_flops(node, self._shape_of)

    def _bytes(self, value: ir.Value) -> float:
        shape = self._shape_of(value)
        return 0.0 if shape is None else value_nbytes(value, shape) or 0.0
