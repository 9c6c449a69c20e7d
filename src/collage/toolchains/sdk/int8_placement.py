"""Placement of 8-bit numbers in a kernel: the nodes that compute with them, and the values that are rounded to them.

Matrix products and convolutions with constant weights profit, so they decide. Operators between them stay in 8 bits if
their inputs are in 8 bits already and a reader takes their result in 8 bits. All else stays in float, and reads values
that were not rounded where that costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from collage._errors import Unsupported
from collage.graph import stays_float, value_range

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["Int8Style", "Placement", "Range", "channel_axis", "place", "settled"]

_SMALLEST, _LARGEST = 1e-15, 1e15
"""Largest range: products of larger scales do not fit float32."""
_QUANTISED = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger")

Range = tuple[float, float]


@dataclass(frozen=True)
class Int8Style:
    """The way in which a runtime computes in 8 bits.

    Attributes:
        products: Operators with constant weights, which profit.
        between: Operators whose results have ranges of their own.
        carriers: Operators that only move, pick or repeat elements, so that results have the scale of the first input.
        whole: Operators in 8 bits must read and write 8 bits, products in ``float_results`` excepted. If not, the
            runtime merges rounding into the operator before it.
        float_results: Products that may write floats.
        rounds_biases: Biases are 32-bit integers, in units of the products.
    """

    products: frozenset[str]
    between: frozenset[str]
    carriers: frozenset[str]
    whole: bool
    float_results: frozenset[str] = frozenset()
    rounds_biases: bool = False

    def writes_rounded(self, node: ir.Node) -> bool:
        """Return True if a node that computes in 8 bits must have its results rounded to 8 bits."""
        return self.whole and node.op_type not in self.float_results


@dataclass(frozen=True)
class Placement:
    """The part of a kernel that is computed in 8 bits.

    Attributes:
        products: Nodes whose weights are rounded, in the graph's order.
        nodes: These, and the nodes between them.
        rounded: Values that are rounded, with the range that 8 bits cover; in the graph's order.
        scaled_like: The value whose scale they share, for some of them.
        everywhere: Tensors among them that float nodes read rounded, too.
        implied: Activations that rounding to the range of their result replaces, so that they need not be computed.
    """

    products: tuple[ir.Node, ...]
    nodes: frozenset[ir.Node]
    rounded: Mapping[ir.Value, Range]
    scaled_like: Mapping[ir.Value, ir.Value] = field(default_factory=dict)
    everywhere: frozenset[ir.Value] = frozenset()
    implied: tuple[ir.Node, ...] = ()


def place(graph: ir.Graph, style: Int8Style) -> Placement:
    """Return the part of a kernel that is computed in 8 bits.

    Raises:
        Unsupported: The kernel is quantised already, nothing in it profits, or ranges are not known.
    """
    if found := [node.op_type for node in graph.all_nodes() if _is_quantised(node)]:
        raise Unsupported(f"the kernel is quantised already ({found[0]}), and stays as it is")
    return _Placer(graph, style).place()


def settled(value: ir.Value) -> ir.Value:
    """Return the result of the Relu or Clip that alone reads a value, and lets zeros through; else the value itself."""
    uses = tuple(value.uses())
    if len(uses) != 1 or value.is_graph_output() or uses[0].idx != 0:
        return value
    node = uses[0].node
    result = node.outputs[0]
    same = node.domain == "" and node.graph is _graph_of(value) and not stays_float(node)
    return result if same and _passed(node) is not None and _is_float32(result) else value


class _Placer:
    """Finds the largest set of nodes that keep each other in 8 bits."""

    def __init__(self, graph: ir.Graph, style: Int8Style) -> None:
        self._style = style
        self._order = list(graph)
        self._unknown: dict[str, None] = {}
        self._products = [node for node in self._order if node.op_type in style.products and self._is_product(node)]
        self._nodes = set(self._products)
        self._nodes |= {node for node in self._order if node not in self._nodes and self._may_be_between(node)}

    def place(self) -> Placement:
        if self._unknown:
            name = next(iter(self._unknown))
            raise Unsupported(f"the range of {name!r} is not known: 8 bits need calibrated ranges")
        if not self._products:
            raise Unsupported(f"the kernel has no {', '.join(sorted(self._style.products))} that profits from 8 bits")
        self._drop_unsupported()
        rounded: dict[ir.Value, Range] = {}
        scaled_like: dict[ir.Value, ir.Value] = {}
        for node in self._order:
            if node in self._nodes:
                for value, covered in self._rounded_by(node):
                    rounded.setdefault(value, covered)
                if node.op_type in self._style.carriers and node.inputs[0] is not None:
                    scaled_like |= dict.fromkeys(node.outputs, node.inputs[0])
        everywhere = [value for value in rounded if self._is_written_rounded(value)]
        makers = (value.producer() for value in everywhere)
        implied = tuple(node for node in makers if node is not None and _is_implied(node, node.outputs[0]))
        nodes = frozenset(self._nodes)
        return Placement(tuple(self._products), nodes, rounded, scaled_like, frozenset(everywhere), implied)

    def _is_written_rounded(self, value: ir.Value) -> bool:
        node = _maker(value)
        return node is not None and node in self._nodes and self._style.writes_rounded(node)

    def _drop_unsupported(self) -> None:
        """Drop operators between products until each remaining one reads and is read in 8 bits."""
        changed = True
        while changed:
            before = len(self._nodes)
            for node in (*self._order, *reversed(self._order)):
                if node in self._nodes and node.op_type not in self._style.products and not self._is_kept(node):
                    self._nodes.remove(node)
            changed = len(self._nodes) < before

    def _is_kept(self, node: ir.Node) -> bool:
        made = [value for value in _varying(node) if self._is_in_8_bits(value)]
        given = [value for value in _varying(node) if value.is_graph_input()]
        read = any(use.node in self._nodes for value in node.outputs for use in settled(value).uses())
        return read and bool(made) and len(made) + len(given) == len(_varying(node))

    def _is_in_8_bits(self, value: ir.Value) -> bool:
        """Return True if a value comes from 8 bits, and is rounded to them at no cost to others."""
        node = _maker(value)
        if node is None or node not in self._nodes:
            return False
        if node.op_type not in self._style.products or self._style.writes_rounded(node):
            return True
        return not value.is_graph_output() and all(use.node in self._nodes for use in value.uses())

    def _rounded_by(self, node: ir.Node) -> Iterator[tuple[ir.Value, Range]]:
        """The values that must be rounded for a node to compute in 8 bits."""
        is_carrier = node.op_type in self._style.carriers
        read = _varying(node) if node.op_type in self._style.between else [_first(node)]
        written = [settled(value) for value in node.outputs] if self._style.writes_rounded(node) else []
        for value in (*read, *written):
            # An activation behind a carrier has a range of its own.
            covered = self._covered(_first(node) if is_carrier and value in node.outputs else value)
            assert covered is not None, "such nodes were dropped"
            yield value, covered

    def _covered(self, value: ir.Value) -> Range | None:
        """The range that 8 bits can cover of a value, with 0 inside; None if its elements are in none that they can.

        A value without a noted range has the range of the tensor that it is picked from.
        """
        low, high = value_range(value) or (math.nan, math.nan)
        node = value.producer()
        if math.isnan(low) and node is not None and (node.op_type in self._style.carriers or _is_implied(node, value)):
            low, high = self._covered(_first(node)) or (math.nan, math.nan)
        if node is not None and _is_implied(node, value):
            least, greatest = _passed(node) or (-math.inf, math.inf)
            low, high = max(low, least), min(high, greatest)
        if not (math.isfinite(low) and math.isfinite(high) and low <= high):
            return None
        low, high = min(low, 0.0), max(high, 0.0)
        return (low, high) if _SMALLEST < high - low < _LARGEST else None

    def _has_range(self, value: ir.Value, *, needed: bool) -> bool:
        if value_range(value) is None and self._covered(value) is None:
            self._unknown |= {str(value.name): None} if needed else {}
            return False
        return self._covered(value) is not None

    def _is_product(self, node: ir.Node) -> bool:
        if not _is_candidate(node) or not _is_regular(node, self._style.rounds_biases):
            return False
        has_range = self._has_range(_first(node), needed=True)
        if self._style.writes_rounded(node):
            has_range = self._has_range(settled(node.outputs[0]), needed=True) and has_range
        return has_range

    def _may_be_between(self, node: ir.Node) -> bool:
        if not _is_candidate(node):
            return False
        values = _varying(node)
        if node.op_type in self._style.carriers:
            activated = [settled(value) for value in node.outputs if settled(value) is not value]
            ranged = (*values[:1], *activated)
            return bool(values) and _moves_elements(node) and all(self._has_range(v, needed=False) for v in ranged)
        if node.op_type not in self._style.between or not values:
            return False
        constants = [value for value in node.inputs if value is not None and value not in values]
        results = (*values, settled(node.outputs[0]))
        return all(map(_is_finite, constants)) and all(self._has_range(value, needed=False) for value in results)


def _is_quantised(node: ir.Node) -> bool:
    return node.op_type in _QUANTISED or node.op_type.startswith("QLinear") or node.op_type == "QGemm"


def _graph_of(value: ir.Value) -> ir.Graph | None:
    producer = value.producer()
    graph = producer.graph if producer is not None else value.graph
    return graph


def _maker(value: ir.Value) -> ir.Node | None:
    """The node that makes a value, or the node before the activation that makes it."""
    node = value.producer()
    if node is not None and _is_implied(node, value):
        return _first(node).producer()
    return node


def _is_implied(node: ir.Node | None, value: ir.Value) -> bool:
    """Return True if a value is the result of an activation that rounding to its range would stand for."""
    return node is not None and node.op_type in ("Relu", "Clip") and settled(_first(node)) is value


def _passed(node: ir.Node) -> Range | None:
    """The range that an activation lets through; None if it lets no zeros through, or the node is another."""
    if node.op_type == "Relu":
        return 0.0, math.inf
    if node.op_type != "Clip" or node.attributes:
        return None
    bounds = [value.const_value for value in node.inputs[1:] if value is not None]
    if None in bounds:
        return None
    ends = [-math.inf, math.inf]
    for place, value in enumerate(node.inputs[1:3]):
        if value is not None and value.const_value is not None and value.const_value.size == 1:
            ends[place] = float(value.const_value.numpy().reshape(()))
    return (ends[0], ends[1]) if ends[0] <= 0.0 <= ends[1] else None


def _first(node: ir.Node) -> ir.Value:
    value = node.inputs[0]
    assert value is not None, f"{node.op_type} reads something"
    return value


def _varying(node: ir.Node) -> Sequence[ir.Value]:
    """The floats that a node reads and that vary, each once."""
    values = (value for value in node.inputs if value is not None and value.const_value is None)
    return tuple(dict.fromkeys(value for value in values if _is_float32(value)))


def _is_float32(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.name == "FLOAT"


def _is_finite(value: ir.Value) -> bool:
    tensor = value.const_value
    if tensor is None or not _is_float32(value) or tensor.size == 0:
        return False
    array = tensor.numpy()
    return bool(np.isfinite(array).all()) and float(np.abs(array).max()) < _LARGEST


def _is_candidate(node: ir.Node) -> bool:
    """Return True if the types of a node permit 8 bits."""
    has_types = bool(node.inputs) and node.inputs[0] is not None and all(map(_is_float32, node.outputs))
    return node.domain == "" and has_types and _is_float32(_first(node)) and not stays_float(node)


def _is_regular(node: ir.Node, rounds_biases: bool) -> bool:
    """Return True if a product has weights with a scale for each result channel, and a bias that fits them."""
    if len(node.inputs) < 2 or (weight := node.inputs[1]) is None or _first(node).const_value is not None:
        return False
    tensor = weight.const_value
    if tensor is None or weight.is_graph_input() or not _is_finite(weight):
        return False
    rank, bias = len(tensor.shape), node.inputs[2] if len(node.inputs) > 2 else None
    has_bias = bias is None or not rounds_biases
    if bias is not None and rounds_biases:
        has_bias = not bias.is_graph_input() and _is_finite(bias) and _is_row(bias.const_value, tensor, node)
    if node.op_type == "Gemm":
        factors = [node.attributes.get_float(name, 1.0) for name in ("alpha", "beta")]
        return rank == 2 and has_bias and factors == [1.0, 1.0] and node.attributes.get_int("transA", 0) == 0
    if node.op_type == "MatMul":
        return rank == 2
    if node.op_type == "ConvTranspose":
        return rank > 2 and has_bias and node.attributes.get_int("group", 1) == 1
    return rank > 2 and has_bias


def _is_row(bias: ir.TensorProtocol | None, weight: ir.TensorProtocol, node: ir.Node) -> bool:
    """Return True if a bias has one element for each channel, along the last axis."""
    shape = bias.shape.numpy() if bias is not None else ()
    channels = weight.shape.numpy()[channel_axis(node)] if len(weight.shape) > 1 else 0
    return bias is not None and bias.size == channels and bool(shape) and shape[-1] == channels


def channel_axis(node: ir.Node) -> int:
    """Return the axis of a product's weights along which its result channels lie."""
    if node.op_type == "Conv" or (node.op_type == "Gemm" and node.attributes.get_int("transB", 0) != 0):
        return 0
    return 1


def _moves_elements(node: ir.Node) -> bool:
    """Return True if each element of the results is one of the first input's."""
    if node.op_type == "Resize":
        mode = node.attributes.get("mode")
        coordinates = node.attributes.get("coordinate_transformation_mode")
        crops = coordinates is not None and coordinates.as_string() == "tf_crop_and_resize"
        return (mode is None or mode.as_string() == "nearest") and not crops
    if node.op_type == "MaxPool":
        return len(node.outputs) == 1
    return True
