"""Kernels with calibrated 8-bit integers inside, written as QuantizeLinear and DequantizeLinear around floats.

Activations are unsigned bytes with a zero point, weights signed bytes with a scale for each result channel. The runtimes
that read such a model compute the products in integers. The answers are those of the model as it is written, but for the
rounding of sums. If the means of a product's inputs are known, its bias corrects the mean error of rounding its weights.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from collage._errors import Unsupported
from collage.graph import NameSupply, copy_model, remove_unused_initializers
from collage.system.machine import this_machine
from collage.toolchains.sdk.bias_correction import input_means, mean_shift
from collage.toolchains.sdk.int8_placement import Int8Style, Placement, Range, channel_axis, place
from collage.toolchains.sdk.model_files import values_of

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage.toolchains._contract import Tensor

__all__ = ["in_int8", "products_in_floats", "scale_and_zero_point", "weight_scales"]

_OLDEST_OPSET = 13
"""The first in which weights have a scale for each channel."""
_LEVELS = 255
_BIAS_LIMIT = 2**31 - 1
_SMALLEST_SCALE = 1e-20
"""Smallest scale of weights. Multiplied by the smallest scale of activations, it is still a normal float32."""


def in_int8(kernel: ir.Model, style: Int8Style) -> ir.Model:
    """Return a copy of a kernel whose operators compute in calibrated 8-bit integers if they profit.

    Inputs and outputs keep their types.

    Args:
        kernel: Its values carry their ranges, see ``collage.graph.value_range``.
        style: The operators that the runtime computes in 8 bits.

    Raises:
        Unsupported: Nothing in the kernel profits, it is quantised already, or ranges are not known.
    """
    if kernel.graph.opset_imports.get("", 0) < _OLDEST_OPSET:
        raise Unsupported(f"kernels of 8 bits need operator set {_OLDEST_OPSET}, and this one has an older one")
    made = copy_model(kernel)
    placement = place(made.graph, style)
    writer = _Writer(made.graph, placement, style)
    for node in placement.implied:
        writer.drop_activation(node)
    for value, covered in placement.rounded.items():
        writer.round_value(value, covered)
    for node in placement.products:
        writer.round_weights(node)
    for node in made.graph:
        if node in placement.nodes and node not in placement.products:
            writer.round_constants(node)
    remove_unused_initializers(made.graph)
    return made


def products_in_floats(kernel: ir.Model, made: ir.Model) -> list[int]:
    """Return the positions of nodes with constant weights that a coarser copy of a kernel computes in floats all the same."""
    same = {node.name: node for node in made.graph}
    found = []
    for position, node in enumerate(kernel.graph):
        weights = node.inputs[1] if len(node.inputs) > 1 else None
        copy = same.get(node.name)
        if weights is None or weights.const_value is None or copy is None or copy.op_type != node.op_type:
            continue
        producer = copy.inputs[1].producer() if copy.inputs[1] is not None else None
        if producer is None or producer.op_type != "DequantizeLinear":
            found.append(position)
    return found


def scale_and_zero_point(covered: Range) -> tuple[Tensor, Tensor]:
    """Return the scale and the zero point with which unsigned bytes cover a range that holds 0."""
    low, high = covered
    scale = np.float32((high - low) / _LEVELS)
    return np.array(scale), np.array(np.clip(np.rint(-low / float(scale)), 0, _LEVELS), np.uint8)


def weight_scales(weight: Tensor, axis: int, bits: int) -> Tensor:
    """Return the scale of each channel of weights; 1 if the whole channel is too small for any other.

    Args:
        weight: The weights.
        axis: The axis along which channels lie.
        bits: Bits of the signed integers that they become.
    """
    others = tuple(i for i in range(weight.ndim) if i != axis)
    scales = np.abs(weight).max(axis=others).astype(np.float64) / (2 ** (bits - 1) - 1)
    return np.where(scales < _SMALLEST_SCALE, 1.0, scales).astype(np.float32)


class _Writer:
    """Puts pairs of operators into a graph."""

    def __init__(self, graph: ir.Graph, placement: Placement, style: Int8Style) -> None:
        self._graph = graph
        self._placement = placement
        self._style = style
        # Where two products of bytes are added in 16 bits, 8 bits of both may be too many.
        self._weight_bits = 7 if this_machine().saturates_products_of_bytes else 8
        names = [str(value.name) for value in values_of(graph) if value.name]
        self._names = NameSupply(reserved=[*names, *(node.name for node in graph.all_nodes() if node.name)])
        self._scales: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}
        self._rounded: dict[ir.Value, ir.Value] = {}
        self._replaced: dict[ir.Value, ir.Value] = {}
        self._means = {node: input_means(node) for node in placement.products}
        self._adding = {node: _constant_sum(node) for node in placement.products if node.op_type == "MatMul"}

    def drop_activation(self, node: ir.Node) -> None:
        """Remove an activation; rounding to the range of its result replaces it."""
        before, after = node.inputs[0], node.outputs[0]
        assert before is not None
        self._replaced[after] = before
        _replace_uses(after, before, (use.node for use in after.uses()))
        self._take_output(after, before)
        self._graph.remove(node, safe=True)

    def round_value(self, value: ir.Value, covered: Range) -> None:
        """Round a value for the nodes that read it in 8 bits, or for all readers."""
        everywhere = value in self._placement.everywhere
        like = self._placement.scaled_like.get(value)
        value = self._replaced.get(value, value)
        if like is not None and self._replaced.get(like, like) in self._scales:
            scales = self._scales[self._replaced.get(like, like)]
        else:
            scale, zero = scale_and_zero_point(covered)
            scales = self._constant(f"{value.name}_scale", scale), self._constant(f"{value.name}_zero", zero)
        self._scales[value] = scales
        quantize = self._node("QuantizeLinear", [value, *scales], f"{value.name}_q")
        quantize.outputs[0].type = scales[1].type
        dequantize = self._node("DequantizeLinear", [quantize.outputs[0], *scales], f"{value.name}_dq")
        result = dequantize.outputs[0]
        for made in (quantize.outputs[0], result):
            made.shape = None if value.shape is None else value.shape.copy()
        result.type = value.type
        readers = {use.node for use in value.uses()} - {quantize}
        _replace_uses(value, result, readers if everywhere else readers & self._placement.nodes)
        if everywhere:
            self._take_output(value, result)
        producer = value.producer()
        if producer is not None:
            self._graph.insert_after(producer, [quantize, dequantize])
        else:
            self._graph.insert_before(self._graph[0], [quantize, dequantize])

    def round_weights(self, node: ir.Node) -> None:
        """Let a product read weights of signed bytes and, for some runtimes, a bias in units of the products."""
        weight = _array(node.inputs[1])
        axis = channel_axis(node)
        scales = weight_scales(weight, axis, self._weight_bits)
        bias = node.inputs[2] if len(node.inputs) > 2 and self._style.rounds_biases else None
        if bias is not None:
            unit = float(self._unit(node))
            needed = np.abs(_array(bias).reshape(-1)).astype(np.float64) / (unit * (_BIAS_LIMIT - 1))
            scales = np.maximum(scales, needed.astype(np.float32))
        limit = 2 ** (self._weight_bits - 1) - 1
        along = _along(scales, axis, weight.ndim)
        integers = np.clip(np.rint(weight / along), -limit, limit).astype(np.int8)
        means = self._means[node]
        if means is not None:
            self._correct(node, mean_shift(node, integers * along.astype(np.float64) - weight, means))
        self._read_integers(node, 1, integers, scales, axis)
        bias = node.inputs[2] if len(node.inputs) > 2 and self._style.rounds_biases else None
        if bias is not None:
            unit = float(self._unit(node))
            steps = np.rint(_array(bias).reshape(-1) / (scales.astype(np.float64) * unit))
            integers = np.clip(steps, -_BIAS_LIMIT, _BIAS_LIMIT).astype(np.int32)
            self._read_integers(node, 2, integers, (scales * np.float32(unit)).astype(np.float32), 0)

    def _correct(self, node: ir.Node, shift: Tensor) -> None:
        """Subtract the mean error of rounded weights from a product's bias, or from a constant that is added to its result."""
        node, index = (self._adding.get(node) or (node, -1)) if node.op_type == "MatMul" else (node, 2)
        if index < 0:
            return
        bias = node.inputs[index] if len(node.inputs) > index else None
        if bias is not None and bias.const_value is None:
            return
        array = np.zeros(1, np.float32) if bias is None else _array(bias)
        corrected = (array - shift).astype(np.float32)
        if corrected.size > max(array.size, shift.size):
            return  # Constants that vary along other axes only would grow.
        if bias is None:
            node.resize_inputs(max(3, len(node.inputs)))
        node.replace_input_with(index, self._constant(f"{node.name}_corrected", corrected))

    def round_constants(self, node: ir.Node) -> None:
        """Have a node between products read its constants as unsigned bytes with a zero point."""
        if node.op_type not in self._style.between:
            return
        for index, value in enumerate(node.inputs):
            if value is not None and value.const_value is not None:
                array = _array(value)
                low, high = min(float(array.min()), 0.0), max(float(array.max()), 0.0)
                scale, zero = scale_and_zero_point(
                    (low, high) if high - low > _LEVELS * _SMALLEST_SCALE else (0.0, 1.0)
                )
                steps = np.rint(array / scale.astype(np.float64)) + float(zero)
                self._read_integers(node, index, np.clip(steps, 0, _LEVELS).astype(np.uint8), scale, None, zero)

    def _unit(self, node: ir.Node) -> Any:
        """The scale of a product's first input."""
        dequantize = node.inputs[0].producer() if node.inputs[0] is not None else None
        assert dequantize is not None and dequantize.op_type == "DequantizeLinear"
        return _array(dequantize.inputs[1])

    def _read_integers(
        self, node: ir.Node, index: int, integers: Tensor, scale: Tensor, axis: int | None, zero: Tensor | None = None
    ) -> None:
        """Have a node read integers in place of a constant."""
        old = node.inputs[index]
        assert old is not None
        zero = np.zeros(scale.shape, integers.dtype) if zero is None else zero
        stem = f"{old.name}_{node.name}"
        values = [
            self._constant(f"{stem}_{part}", array)
            for part, array in (("bytes", integers), ("scale", scale), ("zero", zero))
        ]
        dequantize = self._node("DequantizeLinear", values, f"{stem}_dq", axis)
        dequantize.outputs[0].type = old.type
        dequantize.outputs[0].shape = values[0].shape
        self._graph.insert_before(node, dequantize)
        node.replace_input_with(index, dequantize.outputs[0])

    def _take_output(self, old: ir.Value, new: ir.Value) -> None:
        """Replace an output of the graph by another value, which takes over its name."""
        if old.is_graph_output():
            name = old.name
            old.name = self._names.fresh(f"{name}_inner")
            new.name, new.type, new.shape = name, old.type, old.shape
            for index, output in enumerate(self._graph.outputs):
                if output is old:
                    self._graph.outputs[index] = new

    def _node(self, op_type: str, inputs: list[ir.Value], hint: str, axis: int | None = None) -> ir.Node:
        import onnx_ir as ir

        attributes = [] if axis is None else [ir.AttrInt64("axis", axis)]
        node = ir.Node("", op_type, inputs, attributes, name=self._names.fresh(hint))
        node.outputs[0].name = self._names.fresh(hint)
        return node

    def _constant(self, hint: str, array: Tensor) -> ir.Value:
        import onnx_ir as ir

        name = self._names.fresh(hint)
        tensor = ir.Tensor(array, name=name)
        value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
        self._graph.register_initializer(value)
        return value


def _constant_sum(product: ir.Node) -> tuple[ir.Node, int] | None:
    """Return the sum that alone reads a product's result, and the place of the constant that it adds; None if there is none."""
    uses = tuple(product.outputs[0].uses())
    if len(uses) != 1 or uses[0].node.op_type != "Add" or product.outputs[0].is_graph_output():
        return None
    node, index = uses[0].node, 1 - uses[0].idx
    constant = node.inputs[index]
    return (node, index) if constant is not None and constant.const_value is not None else None


def _replace_uses(old: ir.Value, new: ir.Value, readers: Iterable[ir.Node]) -> None:
    among = set(readers)
    for node, index in tuple(old.uses()):
        if node in among:
            node.replace_input_with(index, new)


def _along(scales: Tensor, axis: int, rank: int) -> Tensor:
    """Scales in the shape in which they divide weights."""
    return scales.reshape([-1 if i == axis else 1 for i in range(rank)])


def _array(value: ir.Value | None) -> Any:
    assert value is not None and value.const_value is not None
    return value.const_value.numpy()
