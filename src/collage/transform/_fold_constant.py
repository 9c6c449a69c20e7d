"""FoldConstant: values that depend on constants only are computed once, here."""

from __future__ import annotations

import logging
import math
from typing import Any

import onnx_ir as ir
from onnxscript import optimizer

from collage.frontend import lift_constants
from collage.transform._context import PassContext
from collage.transform._effects import bodies, is_pure
from collage.transform._evaluate import evaluate
from collage.transform._info import PassInfo
from collage.transform._linear import add_constant, constant_of
from collage.transform._marks import marked_functions_hidden
from collage.transform._outputs import output_names, restore_outputs
from collage.transform._pass_kinds import ModulePass

__all__ = ["FoldConstant"]

_logger = logging.getLogger(__name__)

_SMALL_BYTES = 64 * 1024
"""A result up to this size is always worth having."""

_LARGEST_INPUT_BYTES = 64 * 2**20
"""Larger constants stay mapped: computing with them here would load them."""

_GROWN_BYTES = 1024
"""The same for operators that only enlarge tensors. Shapes and paddings are computed
with them, and many toolchains need these as constants.
"""

_GROWING = frozenset({"ConstantOfShape", "Expand", "Tile"})
"""Operators that only make tensors larger."""

_SIZED_BY_VALUES = frozenset({"BlackmanWindow", "HammingWindow", "HannWindow", "Pad", "Range"})
"""Operators of whose result an unknown length may be any number."""

_KEPT = frozenset({"DequantizeLinear", "DynamicQuantizeLinear", "QuantizeLinear"})
"""Operators that toolchains need to see."""

_PARTS = frozenset({"Gather", "Slice"})
"""Operators that take a part of a tensor, as PyTorch's exporter does to order the gates of a recurrent layer."""

_NO_TENSORS = (ir.SequenceType, ir.OptionalType)
"""Types that no constant can have."""


class FoldConstant(ModulePass):
    """Folds constants, under rules that keep models small and their results equal.

    A node is folded if its result is small, or no larger than the constants that only it reads. So are all parts of a constant
    if their sizes add up to that of the constant at most. Random operators,
    operators of unknown domains, those whose result is an output of a graph, quantisation, and operators that only
    enlarge tensors beyond the size of a shape, stay. Results are exact or bounded as the table of ``_evaluate`` says.

    Around that, onnxscript's optimizer follows shapes: a Shape of known lengths is a constant, a Reshape or Expand to the
    shape that a tensor has is the tensor, an If with a known condition is its branch, a Dropout that does not train is its
    input, as is a Cast to the same type, and a Concat needs no empty operand. All that is exact.
    """

    def __init__(self) -> None:
        super().__init__(PassInfo("FoldConstant", opt_level=2))

    def transform_module(self, model: ir.Model, context: PassContext) -> ir.Model:
        """Folds in place."""
        names = output_names(model)
        with marked_functions_hidden(model):
            _Folder(
                shape_inference=True,
                input_size_limit=_SMALL_BYTES,
                output_size_limit=_LARGEST_INPUT_BYTES,  # It counts elements, and no parts: see ``_is_worth_folding``.
                should_fold=lambda node: False,
            )(model)
            _forget_untyped_shapes(model)
            lift_constants(model)
            _make_bounds_scalar(model)
        restore_outputs(model, names)
        return model


def _make_bounds_scalar(model: ir.Model) -> None:
    """Give Range scalars for constants of one element: ONNX Runtime takes other shapes only if they are not constant."""
    for graph in model.graphs():
        for node in graph:
            if node.op_identifier() != ("", "Range", ""):
                continue
            for index, value in enumerate(node.inputs):
                array = constant_of(value)
                if array is not None and array.ndim and array.size == 1:
                    node.replace_input_with(index, add_constant(graph, f"{node.name}_bound_{index}", array.reshape(())))


class _Folder(optimizer.constant_folding.FoldConstantsPass):  # type: ignore[misc]
    """The library's, but that constants are computed here, and some of its rules are left out."""

    def process_node(self, node: ir.Node, is_function: bool) -> Any:
        """Return the replacement of the node; None to keep it."""
        for index, value in enumerate(node.inputs):
            same = self._state.get_sym_value(value)
            if isinstance(same, ir.Value):
                node.replace_input_with(index, same)
                self._modified = True
        if any(value is not None and value.is_graph_input() and value.const_value is not None for value in node.inputs):
            return None  # callers may give another value
        if node.op_type == "CastLike" and node.attributes:
            return None  # the library's Cast has neither ``saturate`` nor ``round_mode``
        folded = self._folded(node, is_function)
        if folded is not None:
            return folded
        if node.domain == "" and _is_misjudged(node):
            self._do_inference(node)
            return None
        try:
            return super().process_node(node, is_function)
        except RuntimeError as error:  # one node that it cannot handle does not keep it from all others
            _logger.debug("node %r is kept as it is: %s", node.name, error)
            return None

    def _folded(self, node: ir.Node, is_function: bool) -> Any:
        """Return the replacement of a node of constants."""
        if node.domain != "" or node.op_type == "Constant" or len(node.outputs) != 1:
            return None
        given = [value for value in node.inputs if value is not None]
        if not given or any(value.const_value is None for value in given):
            return None
        if any(attribute.is_ref() for attribute in node.attributes.values()) or any(True for _ in bodies(node)):
            return None
        for value in given:  # The value that a constant replaced may have had a shape with unknown lengths.
            if value.const_value is not None:
                value.shape = ir.Shape(value.const_value.shape.numpy())
        large = [value for value in given if value.const_value is not None and value.const_value.nbytes > _SMALL_BYTES]
        for reader in dict.fromkeys(
            [node, *(use.node for value in large for use in value.uses() if _is_part(use.node))]
        ):
            self._do_inference(reader)
        if not _is_worth_folding(node):
            return None
        operands = [
            None if value is None else optimizer.constant_folding._get_numpy_value(value) for value in node.inputs
        ]
        array = evaluate(node, self._opset_imports.get("", 1), operands)
        if array is None or not _is_worth_folding(node, array.nbytes):
            return None
        if is_function:
            constant = self.new_constant(node, array)
            return None if constant is None else optimizer.constant_folding.Replacement(constant.outputs, [constant])
        initializer = self.new_initializer(node, array)
        if initializer is None or node.graph is None:
            return None
        node.graph.register_initializer(initializer)
        return optimizer.constant_folding.Replacement([initializer], [])


_UNTRUSTED = frozenset({"Abs", "Add", "ConcatFromSequence", "SplitToSequence"})
"""Operators for which the library's rules are partly wrong.

It takes a sum of symbols for a symbol of that name, and such a sum for positive where a number in it is negative. It squeezes
what is split at given places, which ``keepdims`` must not, and writes attributes of a newer operator set.
``ResolveSequences`` does what the latter two are for.
"""


def _is_misjudged(node: ir.Node) -> bool:
    """If the library's rule for an operator is not sound for this node."""
    if node.op_type == "Gather":
        # It gathers from the elements of a shape, though a Reshape may have given them more axes.
        data = node.inputs[0]
        return data is None or data.shape is None or len(data.shape) != 1
    return node.op_type in _UNTRUSTED


def _forget_untyped_shapes(model: ir.Model) -> None:
    """The library may leave a value with a shape but no type, which ONNX cannot express."""
    for node in model.graph.all_nodes():
        for value in node.outputs:
            if value.type is None:
                value.shape = None


def _is_worth_folding(node: ir.Node, nbytes: int | None = None) -> bool:
    """Return True if a node may be folded; ``nbytes`` is the size of its result, guessed by default if no shape tells it."""
    if node.op_type in _KEPT or not is_pure(node) or any(True for _ in bodies(node)):
        return False
    if any(value.is_graph_output() or isinstance(value.type, _NO_TENSORS) for value in node.outputs):
        return False
    inputs = [value for value in dict.fromkeys(node.inputs) if value is not None]
    sizes = [value.const_value.nbytes if value.const_value is not None else 0 for value in inputs]
    if sum(sizes) > _LARGEST_INPUT_BYTES:
        return False
    if node.op_type in _GROWING:
        return sum(_bytes(value, _LARGEST_INPUT_BYTES) for value in node.outputs) <= _GROWN_BYTES
    unknown = _LARGEST_INPUT_BYTES + 1 if node.op_type in _SIZED_BY_VALUES else max(sizes, default=0)
    result = sum(_bytes(value, unknown) for value in node.outputs) if nbytes is None else nbytes
    if result <= _SMALL_BYTES:
        return True
    pairs = zip(inputs, sizes, strict=True)
    return result <= sum(size for value, size in pairs if len(value.uses()) == 1 or _is_divided(value, size))


def _is_divided(value: ir.Value, size: int) -> bool:
    """Return True if only parts of a constant are read, whose sizes add up to its own at most: it goes with the last one."""
    readers = [use.node for use in value.uses()]
    parts = sum(_bytes(output, size + 1) for reader in readers for output in reader.outputs)
    return all(map(_is_part, readers)) and parts <= size


def _is_part(node: ir.Node) -> bool:
    """Return True if a node takes a part of a constant, at constant places, and no caller reads it."""
    if node.domain != "" or node.op_type not in _PARTS or node.outputs[0].is_graph_output():
        return False
    return all(value is None or value.const_value is not None for value in node.inputs)


def _bytes(value: ir.Value, otherwise: int) -> int:
    """Size of a value, or a guess where its shape is not known."""
    if value.shape is None or value.dtype is None or not all(isinstance(dim, int) for dim in value.shape):
        return otherwise
    return math.ceil(math.prod(dim for dim in value.shape if isinstance(dim, int)) * value.dtype.bitwidth / 8)
