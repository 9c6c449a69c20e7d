"""TVM's ONNX importer, with own importers for operators that it reads wrongly or that TVM then cannot compile.

* The greatest of nothing but infinities is to TVM the greatest finite number, with its sign: where attention masks a whole
  row, ONNX then yields 0 and TVM's code NaN.
* If all elements are the least of their type, or infinities, ``ArgMax`` and ``ArgMin`` return a position beside the tensor.
* ``Pad`` by at least the length reflects what lies beside the tensor in memory.
* Lengths that must be equal are taken for equal. Where they differ at run time, loops read what lies beside a tensor.
* ``Min``, ``Max``, ``Mean`` and ``Sum`` become a reduction of stacked inputs: a copy of each, where loops would have fused, and
  a division by zero in TVM's own process when it lays out a stack of scalars.
* If a tensor is normalised over several dimensions after a convolution, TVM makes it channels-last but not its scale,
  and reads beyond its end. One dimension instead of several leaves nothing to turn. And it needs one that it does not
  normalise.
* Beside convolutions, images and groups of channels are normalised in loops that no schedule is for; see ``normalisations``.
* The sign of unsigned numbers is compared with -1, which fails.
* ``Pow`` of integers takes the way of floating-point numbers, which TVM refuses to generate.
* The result of a shift by at least the number of bits depends on the processor. To ONNX nothing is left but the sign.
* The remainder of floats with the divisor's sign is found from a rounded quotient: of 1 and 0.1 it is 0, of 3 and infinity NaN.
* ``Mish`` adds a small exponential to 1 and takes the logarithm of that: of -10 three digits are left.
* ``ConvTranspose`` ignores ``output_shape``.
* ``Conv`` over one dimension is left to plain loops, up to eight times slower than those that are written for two.
* ``Conv`` over three dimensions, and ``ConvTranspose``, are left to such loops as well; see ``convolutions``.
* ``Einsum`` takes a letter's length from the first tensor. If that is 1 at run time, ONNX takes another tensor's.
* ``Expand`` uses a length known only at run time as that of the output. If it is 1, ONNX keeps the input's length.
* Truth values are compared as floats, which TVM refuses to generate.
* ``RoiAlign`` moves regions by half a pixel before it scales them, and not after.
* ``SpaceToDepth`` and ``DepthToSpace`` are transposed twice; with several lengths that are not known TVM's compiler works on
  that for minutes. Of the modes of the first it knows one.
* ``Squeeze`` of axes that are counted from the last cannot be turned to channels-last; all the model then is not.
* ``Slice`` computes a wrong length if the end is the lowest integer, which means "to the end", and the step is not 1.
* ``Slice`` reads beyond the tensor if an end follows from lengths, and is negative or larger than the tensor.
* Integers are divided as the processor does it, which ends the process where the divisor is 0, and where the least integer is
  divided by -1.
* A shape that is an output stays a shape of TVM's, and a length a number: neither is a tensor. Few operators take such a
  number beside a tensor.
* Keys and values that several queries share are repeated for each of them; see ``shared_heads``.
* ``Softmax`` of rows that fill no vectors is added up one element after the other; see ``softmax_loops``.
* ``RNN``, ``GRU`` and ``LSTM`` are unknown to it; see ``recurrent``.
* Padding to the same size, and ``Range``, ask for lengths that are known; see ``free_lengths``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax, te
from tvm.relax.frontend.onnx import onnx_frontend
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter, onnx_input

from collage.toolchains.sdk.profiler_names import tokens_in
from collage.toolchains.tvm.activations import activation
from collage.toolchains.tvm.arithmetic import PAIRWISE, mish, pairwise, remainder, shifted, whole_exponent
from collage.toolchains.tvm.bfloat16 import ROUND, WIDEN, rounded, widened
from collage.toolchains.tvm.channel_convolutions import are_by_channel, by_channel, mixes_channels
from collage.toolchains.tvm.convolutions import (
    Windows,
    column_by_column,
    has_columns_for_vectors,
    is_known,
    over_three_dimensions,
    padded_to_shape,
    transposed,
    with_whole_vectors,
)
from collage.toolchains.tvm.empty_sums import lengths_of_sums, with_lengths_of_sums
from collage.toolchains.tvm.extremes import EXTREMES, POSITIONS, axes_of, extreme, within_length
from collage.toolchains.tvm.free_lengths import (
    CONVOLUTIONS,
    OF_IMAGES,
    WINDOWS,
    expanded,
    of_as_many,
    refuse_equal_lengths,
    refuse_unlike_lengths,
    resized,
    resized_to,
    with_all_lengths,
    with_common_lengths,
    with_equal_lengths,
    with_pads,
    with_sides,
)
from collage.toolchains.tvm.indexed import (
    gathered,
    gathered_elements,
    gathered_points,
    scattered_elements,
    scattered_points,
)
from collage.toolchains.tvm.known_wrong import summed_up
from collage.toolchains.tvm.length_numbers import (
    DIVISIONS,
    as_shape,
    as_tensor,
    bounded,
    counted,
    has_lengths,
    quotient,
    with_tensors,
)
from collage.toolchains.tvm.narrow_products import narrow_product
from collage.toolchains.tvm.normalisations import (
    is_of_images,
    mean_of_squares,
    normalised_images,
    reshaped,
    with_channels,
)
from collage.toolchains.tvm.one_length import Images
from collage.toolchains.tvm.processor import WIDE, current_processor
from collage.toolchains.tvm.products import are_expected, are_expected_of_windows
from collage.toolchains.tvm.recurrent import RECURRENT, recurrent
from collage.toolchains.tvm.reflections import long_pads, reflected
from collage.toolchains.tvm.shared_heads import product_of_groups
from collage.toolchains.tvm.slices import kept_within, within_reach
from collage.toolchains.tvm.softmax_loops import is_in_parts, softmax
from collage.toolchains.tvm.stored_weights import NARROW_PRODUCT
from collage.toolchains.tvm.winograd import is_expected

__all__ = ["KernelImporter", "import_onnx"]

# It prints each operator that it refuses, to where users read results. The error says which one it is.
onnx_frontend.print = lambda *_: None


def import_onnx(proto: onnx.ModelProto) -> Any:
    """A Relax module of an ONNX model."""
    return KernelImporter().read(proto)


class KernelImporter(ONNXGraphImporter):  # type: ignore[misc]
    """The importer, with converters of our own before TVM's."""

    def __init__(self) -> None:
        super().__init__(None, "float32")
        self._is_turned = self._mixes_channels = False
        self._images = Images(self.bb)
        self._bound: set[Any] = set()
        self._summed: list[Any] = []
        # Loops that are written by hand are for processors. Another device has loops of TVM's alone.
        self._processor = current_processor()

    def read(self, proto: onnx.ModelProto) -> Any:
        """A Relax module of an ONNX model."""
        convolutions = [node for node in proto.graph.node if node.op_type in CONVOLUTIONS]
        self._is_turned = bool(convolutions)
        self._mixes_channels = any(mixes_channels(node) for node in convolutions)
        version = next(opset.version for opset in proto.opset_import if opset.domain in ("", "ai.onnx"))
        made = self.from_onnx(proto.graph, version)
        lengths = lengths_of_sums(self._summed, [port for port in self._inputs.values() if isinstance(port, relax.Var)])
        # Views of images that nothing reads are left out.
        return relax.transform.DeadCodeElimination()(with_lengths_of_sums(made, lengths))

    def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
        others = onnx.GraphProto(node=[node for node in graph.node if node.op_type not in _OWN])
        super()._check_for_unsupported_ops(others)

    def _construct_nodes(self, graph: onnx.GraphProto) -> None:
        super()._construct_nodes(graph)
        for output in graph.output:
            made = self._nodes[output.name]
            if isinstance(made.ty, relax.ShapeType):
                self._nodes[output.name] = self.bb.normalize(relax.op.shape_to_tensor(made))
            elif isinstance(made.ty, tvm.ir.PrimType):
                self._nodes[output.name] = as_tensor(self.bb, made)

    def _convert_operator(self, op_name: str, inputs: list[Any], attrs: dict[str, Any], opset: int) -> Any:
        """Convert an operator, with its type: converters of later operators ask for ranks."""
        inputs = with_tensors(self.bb, op_name, inputs)
        inputs = with_equal_lengths(self.bb, op_name, self._with_common_lengths(op_name, inputs), attrs)
        self._summed += summed_up(op_name, inputs)
        if op_name in WINDOWS:
            attrs = with_pads(inputs, attrs)

        def on_images(images: list[Any], changed: dict[str, Any]) -> Any:
            return self._convert_operator(op_name, images, changed, opset)

        found = self._images.convert(op_name, inputs, attrs, on_images)
        if found is None:
            found = self._converted(op_name, inputs, attrs, opset)
        if not isinstance(found, relax.Expr):
            return found
        if isinstance(found, relax.Tuple):
            return relax.Tuple([self._named(self.bb.normalize(field), attrs) for field in found.fields])
        return self._named(self.bb.normalize(found), attrs)

    def _with_common_lengths(self, op_name: str, inputs: list[Any]) -> list[Any]:
        return with_common_lengths(self.bb, op_name, inputs)

    def _named(self, found: Any, attrs: Mapping[str, Any]) -> Any:
        """Bind what a node computes to a variable with the node's name, which later passes keep.

        Lists of integers are left alone: they may be lengths, which TVM looks for in expressions.
        """
        name = attrs["tvm_custom"]["name"] if "tvm_custom" in attrs else ""
        # Some converters bind what they make. No other node has such a variable yet, but for views of images.
        is_new = isinstance(found, relax.Var) and found not in self._bound and found not in self._images
        made = self.bb.lookup_binding(found) if is_new else found
        if not (tokens_in(name) and isinstance(made, relax.Call)):
            return found
        is_several = isinstance(made.ty, relax.TupleType)
        if is_several or (isinstance(made.ty, relax.TensorType) and (made.ty.ndim > 1 or _is_float(made))):
            found = self.bb.emit(made, name)
            self._bound.add(found)
        return found

    def _of_as_many(self, x: Any, y: Any) -> Any:
        """``y``, a Reshape of ``x``, with a check at run time that it has as many elements, if that is not certain."""
        if not (has_lengths(x) and has_lengths(y)):
            return y
        return of_as_many(self.bb, x, y.ty.shape.values)

    def _converted(self, op_name: str, inputs: list[Any], attrs: dict[str, Any], opset: int) -> Any:
        if (simple := activation(op_name, inputs, attrs)) is not None:
            return simple
        if op_name in RECURRENT:
            return recurrent(self.bb, self._processor, op_name, inputs, attrs)
        if op_name == NARROW_PRODUCT:
            return narrow_product(self.bb, attrs, *inputs)
        if op_name in (WIDEN, ROUND):
            return (widened if op_name == WIDEN else rounded)(self.bb, *inputs)
        if op_name in PAIRWISE:
            number = bounded(op_name, inputs)
            return pairwise(op_name, inputs, self.bb) if number is None else number
        if op_name in EXTREMES and _is_float(inputs[0]):
            axes, keepdims = axes_of(inputs, attrs, opset), bool(attrs.get("keepdims", 1))
            if axes:
                reduce = EXTREMES[op_name]
                return self.bb.emit_te(
                    lambda x: extreme(x, axes, keepdims, reduce), inputs[0], primfunc_name_hint=op_name.lower()
                )
        if op_name == "ReduceMean" and attrs.get("keepdims", 1) and has_lengths(inputs[0]):
            mean = mean_of_squares(self.bb, inputs[0], axes_of(inputs, attrs, opset) or ())
            if mean is not None:
                return mean
        if op_name in _SOFTMAXES and self._processor and has_lengths(inputs[0]) and is_in_parts(inputs[0]):
            # Before operator set 13 the axes from `axis` on were one row, and 1 was the default.
            axis = attrs.get("axis", -1 if opset >= _ALONG_ONE_AXIS else 1)
            if axis % inputs[0].ty.ndim == inputs[0].ty.ndim - 1:
                return softmax(self.bb, inputs[0], op_name == "LogSoftmax")
        if op_name in POSITIONS:
            length = relax.ShapeExpr([inputs[0].ty.shape.values[attrs.get("axis", 0)]])
            y = self.bb.normalize(super()._convert_operator(op_name, inputs, attrs, opset))
            return self.bb.emit_te(within_length, y, length, primfunc_name_hint=op_name.lower())
        if op_name == "Pad" and attrs.get("mode") == b"reflect" and (pads := long_pads(inputs, attrs)) is not None:
            return self.bb.emit_te(reflected, inputs[0], *pads, primfunc_name_hint="pad")
        if op_name in _NORMALISATIONS:
            return self._normalised(op_name, inputs, attrs, opset)
        if op_name in OF_IMAGES and self._is_turned:
            return self._normalised_images(op_name, inputs, attrs, opset)
        if op_name == "Reshape" and (shape := as_shape(*inputs)) is not None:
            return shape
        if op_name == "Reshape":
            inputs = onnx_input([inputs[0], with_all_lengths(*inputs)])
            y = self.bb.normalize(super()._convert_operator(op_name, inputs, attrs, opset))
            return reshaped(self.bb, self._of_as_many(inputs[0], y))
        if op_name == "Sign" and str(inputs[0].ty.dtype).startswith("uint"):
            return relax.op.minimum(inputs[0], relax.const(1, inputs[0].ty.dtype))
        if op_name == "Equal":
            refuse_equal_lengths(*inputs)
        if op_name == "Equal" and _is_tensor(inputs[0], "bool"):
            return relax.op.logical_not(relax.op.logical_xor(*inputs))
        if op_name == "BitShift":
            return shifted(inputs[0], inputs[1], attrs["direction"] == b"RIGHT")
        if op_name == "Div" and (number := quotient(inputs[0], inputs[1], self._inputs.values())) is not None:
            return number
        if op_name in DIVISIONS and _divides_by_anything(*inputs[:2]):
            return self._divided(op_name, inputs, attrs, opset)
        if op_name == "Mod" and not attrs.get("fmod", 0) and _is_tensor(inputs[0], "float"):
            return remainder(*inputs)
        if op_name == "ConvTranspose" and "output_shape" in attrs:
            attrs = padded_to_shape(inputs[0], inputs[1], attrs)
        if op_name in CONVOLUTIONS and is_known(inputs[1]):
            windows = Windows.of(attrs, inputs[0].ty.ndim - 2)
            if windows is not None and (op_name == "ConvTranspose" or inputs[0].ty.ndim == _THREE_LENGTHS):
                return self._convolved(op_name, inputs, windows, attrs, opset)
            if windows is not None and self._is_by_channel(op_name, inputs, windows):
                return by_channel(self.bb, inputs[0], inputs[1], [*inputs, None][2], windows)
            if op_name == "Conv" and inputs[0].ty.ndim == _TWO_LENGTHS and attrs.get("group", 1) == 1:
                if windows is not None and has_columns_for_vectors(inputs[1], windows):
                    return self._convolved(op_name, inputs, windows, attrs, opset)
                as_they_are = windows is not None and self._has_own_loops(inputs[0], inputs[1], windows)
                whole = None if as_they_are else with_whole_vectors(inputs[1], [*inputs, None][2])
                if whole is not None:
                    given = [inputs[0], *(value for value in whole if value is not None)]
                    y = self.bb.normalize(super()._convert_operator("Conv", onnx_input(given), attrs, opset))
                    return relax.op.strided_slice(y, [1], [0], [int(inputs[1].ty.shape.values[0])])
        if op_name == "MatMul" and (product := product_of_groups(self.bb, *inputs)) is not None:
            return product
        if op_name == "MatMul" and (product := self._product_of_whole_vectors(inputs)) is not None:
            return product
        if op_name in _INDEXED and all(map(has_lengths, inputs)) and not _may_hold_lengths(op_name, inputs[0]):
            return _INDEXED[op_name](self.bb, inputs, attrs)
        if op_name == "Einsum":
            refuse_unlike_lengths(attrs["equation"].decode(), inputs)
        if op_name == "Expand":
            return expanded(self.bb, *inputs)
        if op_name == "Mish":
            return mish(inputs[0])
        if op_name == "RoiAlign":
            inputs, attrs = self._scaled_regions(inputs, attrs)
        if op_name in _BLOCKS:
            return self.bb.emit_te(_BLOCKS[op_name], inputs[0], attrs["blocksize"], attrs.get("mode", b"DCR") == b"DCR")
        if op_name == "Range" and (numbers := counted(inputs, self._nodes.values())) is not None:
            return numbers
        if op_name == "Resize":
            named, sides = with_sides(inputs, attrs)
            made = super()._convert_operator(op_name, named, attrs, opset)
            return resized_to(made, sides) if sides else resized(inputs[0], made, [*inputs, None, None][2])
        if op_name == "Slice":
            inputs = onnx_input([inputs[0], *map(within_reach, inputs[1:3]), *inputs[3:]])
            y = super()._convert_operator(op_name, inputs, attrs, opset)
            return kept_within(self.bb, y, self._nodes.values())
        if op_name == "Squeeze":
            return _squeezed(super()._convert_operator(op_name, inputs, attrs, opset))
        if op_name == "Pow" and (exponent := whole_exponent(inputs)) is not None:
            return functools.reduce(relax.op.multiply, [inputs[0]] * exponent)
        return super()._convert_operator(op_name, inputs, attrs, opset)

    def _convolved(
        self, op_name: str, inputs: list[Any], windows: Windows, attrs: Mapping[str, Any], opset: int
    ) -> Any:
        """A convolution that is made of ordinary ones."""
        x, weight, bias = [*inputs, None][:3]

        def convolve(x: Any, weight: Any, bias: Any, windows: Windows) -> Any:
            given = onnx_input([x, weight] if bias is None else [x, weight, bias])
            kernel = [int(n) for n in weight.ty.shape.values[2:]]
            return self._convert_operator("Conv", given, {**windows.as_attributes(), "kernel_shape": kernel}, opset)

        if op_name == "Conv":
            ordinary = column_by_column if x.ty.ndim == _TWO_LENGTHS else over_three_dimensions
            return ordinary(self.bb, x, weight, bias, windows, convolve)
        extra = attrs.get("output_padding") or [0] * (x.ty.ndim - 2)
        return transposed(self.bb, x, weight, bias, windows, extra, convolve)

    def _is_by_channel(self, op_name: str, inputs: list[Any], windows: Windows) -> bool:
        """Return True for a convolution of single channels in a kernel that never mixes channels by another one."""
        if self._mixes_channels or op_name != "Conv" or inputs[0].ty.ndim != _TWO_LENGTHS:
            return False
        return are_by_channel(inputs[0], inputs[1], windows, self._processor)

    def _has_own_loops(self, x: Any, weight: Any, windows: Windows) -> bool:
        """Return True for a convolution whose loops take any number of maps."""
        processor = self._processor or WIDE  # Another device needs no maps that fill vectors either.
        return any(are(x, weight, windows, processor) for are in (are_expected_of_windows, is_expected))

    def _product_of_whole_vectors(self, inputs: list[Any]) -> Any | None:
        """A product with a weight whose columns fill no vectors; None for others."""
        x, weight = inputs
        if are_expected(x) or not (
            is_known(weight) and weight.ty.ndim == 2 and _is_float(weight) and int(weight.ty.shape.values[1]) > 1
        ):
            return None
        whole = with_whole_vectors(weight, None, axis=1)
        if whole is None:
            return None
        y = self.bb.normalize(relax.op.matmul(x, whole[0]))
        return relax.op.strided_slice(y, [y.ty.ndim - 1], [0], [int(weight.ty.shape.values[1])])

    def _divided(self, op_name: str, inputs: list[Any], attrs: dict[str, Any], opset: int) -> Any:
        """A quotient or remainder of integers that is 0 where the divisor is, and wraps around where it is -1.

        Both divisors become 1, whose remainders are 0.
        """
        x, y = inputs
        dtype, emit = str(y.ty.dtype), self.bb.normalize

        def are(number: int) -> Any:
            return emit(relax.op.astype(relax.op.equal(y, relax.const(number, dtype)), dtype))

        raised = are(0)
        sign = emit(relax.op.subtract(relax.const(1, dtype), raised))
        if dtype.startswith("int"):
            twice = emit(relax.op.multiply(are(-1), relax.const(2, dtype)))
            raised, sign = emit(relax.op.add(raised, twice)), emit(relax.op.subtract(sign, twice))
        divisor = emit(relax.op.add(y, raised))
        made = emit(super()._convert_operator(op_name, onnx_input([x, divisor]), attrs, opset))
        return relax.op.multiply(made, sign) if op_name == "Div" else made

    def _scaled_regions(self, inputs: list[Any], attrs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Arguments of a RoiAlign whose regions are scaled already."""
        scale = relax.const(attrs.get("spatial_scale", 1.0), inputs[1].ty.dtype)
        regions = self.bb.normalize(relax.op.multiply(inputs[1], scale))
        return onnx_input([inputs[0], regions, *inputs[2:]]), {**attrs, "spatial_scale": 1.0}

    def _normalised(self, op_name: str, inputs: list[Any], attrs: dict[str, Any], opset: int) -> Any:
        """A normalisation over the dimensions from ``axis`` on, as one over a single dimension."""
        x, *parameters = inputs
        axis = attrs.get("axis", -1) % x.ty.ndim
        if 0 < axis == x.ty.ndim - 1:
            return super()._convert_operator(op_name, inputs, attrs, opset)
        outer, inner = x.ty.shape.values[:axis] or [1], x.ty.shape.values[axis:]
        length = functools.reduce(lambda m, n: m * n, inner)

        def flat(parameter: Any) -> Any:
            whole = self.bb.normalize(expanded(self.bb, parameter, relax.ShapeExpr(inner)))
            return self.bb.normalize(relax.op.reshape(whole, [length]))

        flattened = self.bb.normalize(relax.op.reshape(x, [*outer, length]))
        given = [flattened, *(None if p is None else flat(p) for p in parameters)]
        made = super()._convert_operator(op_name, onnx_input(given), {**attrs, "axis": len(outer)}, opset)
        y, *others = made.fields if isinstance(made, relax.Tuple) else [made]
        y = self.bb.normalize(relax.op.reshape(self.bb.normalize(y), x.ty.shape))
        return relax.Tuple([y, *others]) if others else y

    def _normalised_images(self, op_name: str, inputs: list[Any], attrs: dict[str, Any], opset: int) -> Any:
        """A normalisation of images, or of groups that are a Reshape of images."""
        x, scale, bias = inputs
        whole = with_channels(self.bb, x) if op_name == "InstanceNormalization" else None
        if whole is None and not is_of_images(x):
            return super()._convert_operator(op_name, onnx_input(inputs), attrs, opset)
        groups = int(attrs.get("num_groups", x.ty.shape.values[1]))
        given = x if whole is None else whole
        y = self.bb.normalize(normalised_images(self.bb, given, scale, bias, attrs.get("epsilon", 1e-5), groups))
        return y if whole is None else relax.op.reshape(y, x.ty.shape)


_OWN = frozenset((*RECURRENT, NARROW_PRODUCT, WIDEN, ROUND))
"""Operators that TVM's importer does not know."""
_NORMALISATIONS = frozenset(("LayerNormalization", "RMSNormalization"))
_SOFTMAXES = frozenset(("LogSoftmax", "Softmax"))
_ALONG_ONE_AXIS = 13
_TWO_LENGTHS, _THREE_LENGTHS = 4, 5

_INDEXED: Mapping[str, Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]] = {
    "Gather": lambda bb, given, attrs: gathered(bb, given[0], given[1], attrs.get("axis", 0)),
    "GatherElements": lambda bb, given, attrs: gathered_elements(bb, given[0], given[1], attrs.get("axis", 0)),
    "GatherND": lambda bb, given, attrs: gathered_points(bb, given[0], given[1], attrs.get("batch_dims", 0)),
    "ScatterElements": lambda bb, given, attrs: scattered_elements(
        bb, given[0], given[1], given[2], attrs.get("axis", 0), _reduction(attrs)
    ),
    "ScatterND": lambda bb, given, attrs: scattered_points(bb, given[0], given[1], given[2], _reduction(attrs)),
}
"""Operators with indices; see ``indexed``."""


def _reduction(attrs: Mapping[str, Any]) -> str:
    return str(attrs.get("reduction", b"none").decode())


def _may_hold_lengths(op_name: str, x: Any) -> bool:
    """True for what TVM may compute while it compiles: a number of a list of integers, which may be a shape."""
    return op_name == "Gather" and x.ty.ndim == 1 and not _is_float(x)


def _squeezed(made: Any) -> Any:
    """A Squeeze whose axes are counted from the first: of others TVM's change of layouts fails for lack of memory."""
    axes = made.attrs.axis if isinstance(made, relax.Call) and made.op.name == "relax.squeeze" else None
    if axes is None:
        return made
    return relax.op.squeeze(made.args[0], [int(axis) % made.args[0].ty.ndim for axis in axes])


def _space_to_depth(x: Any, block: int, blocks_first: bool) -> Any:
    """Blocks of an image as channels, before or after those that were there, as an expression of TVM."""
    samples, channels, height, width = x.shape

    def element(i: Any, k: Any, row: Any, column: Any) -> Any:
        place, channel = (k // channels, k % channels) if blocks_first else (k % (block * block), k // (block * block))
        return x(i, channel, row * block + place // block, column * block + place % block)

    shape = (samples, channels * block * block, height // block, width // block)
    return te.compute(shape, element, name="space_to_depth")


def _depth_to_space(x: Any, block: int, blocks_first: bool) -> Any:
    """Move channels of an image into spatial blocks; these axes come before or after the remaining channels."""
    samples, channels, height, width = x.shape
    left = channels // (block * block)

    def element(i: Any, k: Any, row: Any, column: Any) -> Any:
        place = row % block * block + column % block
        channel = place * left + k if blocks_first else k * (block * block) + place
        return x(i, channel, row // block, column // block)

    return te.compute((samples, left, height * block, width * block), element, name="depth_to_space")


_BLOCKS = {"DepthToSpace": _depth_to_space, "SpaceToDepth": _space_to_depth}


def _is_tensor(x: Any, dtype: str | tuple[str, ...]) -> bool:
    """True if a value is a tensor, not a shape of TVM's, and the name of its type begins with ``dtype``."""
    return isinstance(x.ty, relax.TensorType) and str(x.ty.dtype).startswith(dtype)


def _divides_by_anything(x: Any, y: Any) -> bool:
    """True if integers are divided by something that is not constant, or by a constant that holds 0 or -1."""
    if not (_is_tensor(x, ("int", "uint")) and _is_tensor(y, ("int", "uint"))):
        return False
    return not isinstance(y, tvm.ir.GenericConst) or bool(np.isin(y.value.numpy(), (0, -1)).any())


def _is_float(x: Any) -> bool:
    return str(x.ty.dtype).startswith(("float", "bfloat"))
