"""Operators that OpenVINO's CPU plugin takes without complaint and computes wrongly, a row for each defect."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from collage.graph import used_values
from collage.system.machine import this_machine
from collage.toolchains.sdk.integer_bounds import IntegerBounds
from collage.toolchains.sdk.model_files import elem_type

__all__ = ["DEFECTS", "KnownDefect", "known_wrong"]


@dataclass(frozen=True)
class KnownDefect:
    """Operators that come out wrong.

    Attributes:
        ops: Names of the operators, by spaces.
        what: The defect, a phrase that says "openvino" and, as {op}, the operator.
        when: Tells if a node has the form that is wrong.
        seen_in: The version of OpenVINO in which it was last seen.
    """

    ops: str
    what: str
    when: Callable[[ir.Node], bool] = lambda node: True
    seen_in: str = "2026.4.1"


def known_wrong(node: ir.Node) -> str | None:
    """Return the known fault of an operator, found with ONNX's own test cases and by comparison; None if nothing is known."""
    return next((row.what.format(op=node.op_type) for row in _ROWS.get(node.op_type, ()) if row.when(node)), None)


_RANK_OF_MATRIX = 2
_RANK_OF_TILE = 4
"""The rank from which on Tile needs constant repeats."""
_MASKED = 2
"""The mode in which Attention returns its scores with mask and bias."""
_LENGTHS = 4
"""The place of the lengths of sequences among the inputs of recurrent networks."""
_PEEPHOLES = 7
"""The place of the peepholes among LSTM's inputs."""
_SUMS_OF_PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_OVERLAP = 3
"""The place of the threshold among NonMaxSuppression's inputs."""


def _makes_16_bits(node: ir.Node) -> bool:
    """Return True if a node makes integers of 16 bits, as far as its output, its attributes or its first input say."""
    to = node.attributes.get_int("to") if node.op_type == "Cast" else None
    first = node.inputs[0] if node.inputs else None
    told = (elem_type(node.outputs[0]), to and ir.DataType(to), elem_type(first) if first is not None else None)
    return next(filter(None, told), None) in (ir.DataType.INT16, ir.DataType.UINT16)


def _counts_up_from_zero(node: ir.Node) -> bool:
    """Return True if constants say that a Range begins at 0 or below, and grows: up to a length it is never empty."""
    # ONNX Runtime's own Range may have no step.
    start, _, delta = (None if value is None else value.const_value for value in (*node.inputs, None)[:3])
    return start is not None and delta is not None and float(start.numpy()) <= 0 < float(delta.numpy())


def _cuts_elsewhere(node: ir.Node) -> bool:
    """Return True if a transposed convolution's padding follows from lengths, and the plugin pads differently."""
    mode, is_cut = _text(node, "auto_pad", "NOTSET"), "output_shape" in node.attributes
    shape = node.inputs[0].shape if node.inputs and node.inputs[0] is not None else None
    is_known = shape is not None and all(isinstance(length, int) for length in shape[2:])
    return (is_cut and mode == "SAME_UPPER") or ((is_cut or mode.startswith("SAME")) and not is_known)


def _scales_another_axis(node: ir.Node) -> bool:
    """Return True for several scales, of a computed value, or along an axis before the last of unknown length."""
    x, scale = node.inputs[:2]
    scales = None if scale is None or scale.shape is None else tuple(scale.shape)
    if scales in ((), (1,)):
        return False
    if scales is None or x is None or x.shape is None:
        return True
    if x.producer() is not None:
        return True  # of sums and reductions, resizes and normalisations, it makes a part, with axes of its own
    axis = node.attributes.get_int("axis", 1) or 0
    rank = len(x.shape)
    return -rank <= axis < rank and axis % rank != rank - 1 and not isinstance(x.shape[axis], int)


def _quantises_scaled_matrix(node: ir.Node) -> bool:
    """Return True if the quantised value may be a matrix that was multiplied last."""
    x = node.inputs[0]
    maker = None if x is None else x.producer()
    if x is None or maker is None or (x.shape is not None and len(x.shape) != _RANK_OF_MATRIX):
        return False
    has_bias = maker.op_type == "LayerNormalization" and len(maker.inputs) > 2 and maker.inputs[2] is not None
    return maker.op_type in ("Div", "LayerNormalization", "Mul") and not has_bias


def _window_of_two_sides(node: ir.Node) -> bool:
    """Return True if an STFT has a window and the attribute ``onesided=0``."""
    has_window = len(node.inputs) > 2 and node.inputs[2] is not None
    return has_window and node.attributes.get_int("onesided", 1) == 0


def _averages_past_padding(node: ir.Node) -> bool:
    """Return True if the last window of an AveragePool may reach past the padding, which counts."""
    attributes = node.attributes
    if not (attributes.get_int("ceil_mode", 0) and attributes.get_int("count_include_pad", 0)):
        return False
    if _text(node, "auto_pad", "NOTSET").startswith("SAME"):
        return True
    pads = attributes.get_ints("pads") or ()
    return any(pads) and any(_reaches_past(*axis) for axis in _axes_of_pool(node))


def _averages_padded_bytes(node: ir.Node) -> bool:
    """Return True if padding counts in an AveragePool of dequantised values, up to the next sums of products."""
    attributes, x = node.attributes, node.inputs[0]
    is_padded = _text(node, "auto_pad", "").startswith("SAME") or any(attributes.get_ints("pads") or ())
    if not (attributes.get_int("count_include_pad") and is_padded):
        return False
    while x is not None and (maker := x.producer()) is not None and maker.op_type not in _SUMS_OF_PRODUCTS:
        if maker.op_type == "DequantizeLinear":
            return True
        x = maker.inputs[0] if maker.inputs else None
    return False


def _axes_of_pool(node: ir.Node) -> list[tuple[int | None, int, int, int, int]]:
    """For each axis that a pool's window moves along: its length, or None; the window's reach and step; the padding."""
    attributes, x = node.attributes, node.inputs[0]
    windows = attributes.get_ints("kernel_shape") or ()
    ones, half = [1] * len(windows), len(windows)
    pads = attributes.get_ints("pads") or [0] * (2 * half)
    shape = tuple(x.shape[2:]) if x is not None and x.shape is not None else (None,) * half
    sizes = [size if isinstance(size, int) else None for size in shape]
    steps, spread = attributes.get_ints("strides") or ones, attributes.get_ints("dilations") or ones
    reaches = [gap * (window - 1) + 1 for gap, window in zip(spread, windows, strict=False)]
    return [*zip(sizes, reaches, steps, pads[:half], pads[half:], strict=False)]


def _reaches_past(size: int | None, reach: int, step: int, first: int, last: int) -> bool:
    """Return True if rounding up adds a window. ONNX leaves out one that would begin in the padding at the end."""
    if size is None:
        return True
    room = size + first + last - reach
    return step > 0 and room % step != 0 and -(-room // step) * step < size + first


def _pools_padding(node: ir.Node) -> bool:
    """Return True if rounding up may add a window to a MaxPool that begins in the padding at the end. ONNX leaves it out."""
    if not node.attributes.get_int("ceil_mode", 0) or _text(node, "auto_pad", "NOTSET").startswith("SAME"):
        return False
    return any(_may_begin_past(*axis) for axis in _axes_of_pool(node))


def _may_begin_past(size: int | None, reach: int, step: int, first: int, last: int) -> bool:
    """Return True if a window may begin behind the elements, rounded up. An unknown size counts as any size."""
    if step <= 0:
        return False
    if size is None:
        return last + step > reach
    room = size + first + last - reach
    return room % step != 0 and -(-room // step) * step >= size + first


def _is_told_axes_late(node: ir.Node) -> bool:
    """Return True if the axes of a Slice vary while all else is constant."""
    told = [value for value in node.inputs[1:] if value is not None]
    axes = node.inputs[3] if len(node.inputs) > 3 else None
    return axes is not None and [v for v in told if v.const_value is None] == [axes]


def _is_along_its_own_axis(node: ir.Node) -> bool:
    """Return True if a DFT's axis is the one that the plugin takes: the second, or an attribute that is not negative."""
    if "axis" in node.attributes:
        return (node.attributes.get_int("axis") or 0) >= 0
    x, axis = (*node.inputs, None, None, None)[0:3:2]
    stated = -2
    if axis is not None:
        if axis.const_value is None:
            return False
        stated = int(axis.const_value.numpy().reshape(-1)[0])
    return x is not None and x.shape is not None and stated % len(x.shape) == 1


def _has_known_repeats(node: ir.Node) -> bool:
    """Return True if a Tile has constant repeats, or so few axes that variable repeats work too."""
    x, repeats = (*node.inputs, None, None)[:2]
    if repeats is not None and repeats.const_value is not None:
        return True
    return x is not None and x.shape is not None and len(x.shape) < _RANK_OF_TILE


def _bits(node: ir.Node) -> int:
    """Bits of the integers that a node reads first; 0 if it reads none."""
    dtype = elem_type(node.inputs[0]) if node.inputs and node.inputs[0] is not None else None
    return dtype.bitwidth if dtype is not None and dtype.is_integer() else 0


def _is_of_nothing(node: ir.Node) -> bool:
    return bool(node.inputs) and node.inputs[0] is not None and 0 in tuple(node.inputs[0].shape or ())


def _multiplies_signed_bytes(node: ir.Node) -> bool:
    """Return True if products of signed bytes saturate.

    Behind unsigned bytes, ONNX Runtime and the plugin let products with large weights saturate, as their vendors say.
    """
    first = node.inputs[0]
    is_signed = first is not None and elem_type(first) == ir.DataType.INT8
    return is_signed and this_machine().saturates_products_of_bytes


def _reads_output_in_branch(node: ir.Node) -> bool:
    return any(value.is_graph_output() for value in used_values(node)[1:])


def _suppresses_what_touches(node: ir.Node) -> bool:
    """Return True if boxes that overlap by no more than the threshold may be common: it is 0, or not known."""
    threshold = node.inputs[_OVERLAP] if len(node.inputs) > _OVERLAP else None
    if threshold is None or threshold.const_value is None:
        return True
    return threshold.const_value.size == 0 or bool(threshold.const_value.numpy().min() <= 0)


def _has_lengths_of_varying_shapes(node: ir.Node) -> bool:
    x = node.inputs[0]
    has_lengths = len(node.inputs) > _LENGTHS and node.inputs[_LENGTHS] is not None
    return has_lengths and not (x is not None and _is_fixed(x))


def _is_fixed(value: ir.Value) -> bool:
    return value.shape is not None and all(isinstance(size, int) for size in value.shape)


def _shifts_out(node: ir.Node) -> bool:
    """Return True if constants say so. ONNX's own cases shift by inputs, which are not known."""
    amounts = node.inputs[1].const_value if len(node.inputs) > 1 and node.inputs[1] is not None else None
    return amounts is not None and amounts.size > 0 and bool(amounts.numpy().max() >= _bits(node))


def _has_axes(node: ir.Node) -> bool:
    """Return True if a reduction has axes, as a constant or, before opset 18, as an attribute."""
    axes = node.inputs[1].const_value if len(node.inputs) > 1 and node.inputs[1] is not None else None
    return bool(node.attributes.get_ints("axes")) or (axes is not None and axes.size > 0)


def _has_window(node: ir.Node) -> bool:
    return any(node.attributes.get_int(f"{side}_window_size", -1) != -1 for side in ("left", "right"))


def _returns_masked_scores(node: ir.Node) -> bool:
    """Return True if the scores of a causal Attention are used, with the mask."""
    scores = node.outputs[3] if len(node.outputs) > 3 else None
    is_used = scores is not None and (scores.is_graph_output() or bool(scores.uses()))
    is_masked = node.attributes.get_int("qk_matmul_output_mode", 0) == _MASKED
    return is_used and is_masked and bool(node.attributes.get_int("is_causal"))


def _is_causal_later(node: ir.Node) -> bool:
    """Return True if a causal Attention has a past."""
    return len(node.inputs) > 4 and node.inputs[4] is not None and bool(node.attributes.get_int("is_causal"))


def _copies_by_einsum(node: ir.Node) -> bool:
    """Return True if an Einsum of one operand keeps letters in their order. Without an arrow, they are sorted."""
    letters, arrow, made = _text(node, "equation", "").replace(" ", "").replace(".", "").partition("->")
    return len(node.inputs) == 1 and letters == (made if arrow else "".join(sorted(set(letters))))


def _is_of_integers(node: ir.Node) -> bool:
    dtype = None if node.inputs[0] is None else elem_type(node.inputs[0])
    return dtype is not None and dtype.is_integer()


def _lengths(value: ir.Value | None) -> list[int | ir.SymbolicDim] | None:
    return None if value is None or value.shape is None else list(value.shape)


def _takes_slopes_of_channels(node: ir.Node) -> bool:
    """Return True if slopes of the last axis may be as many as channels."""
    x, slopes = map(_lengths, node.inputs[:2])
    if x is None or slopes is None or len(slopes) != 1 or slopes[0] == 1 or len(x) <= _RANK_OF_MATRIX:
        return False
    return x[1] == slopes[0] or not (isinstance(x[1], int) and isinstance(slopes[0], int))


def _stretches(node: ir.Node) -> bool:
    """Return True if lengths that ONNX demands to be equal are not known to be: the plugin stretches a length of 1."""
    shapes = [_lengths(value) for value in node.inputs]
    first, second = shapes[:2]
    if first is None or second is None:
        return False
    bias = next(iter(shapes[2:]), None)
    if node.op_type in ("BatchNormalization", "InstanceNormalization"):
        pairs = [(first[1], scale[0]) for scale in shapes[1:] if scale]
    elif node.op_type == "Conv":
        pairs = [(second[0], bias[0])] if bias else []
    elif node.op_type == "GatherND":
        pairs = list(zip(first, second, strict=False))[: node.attributes.get_int("batch_dims", 0) or 0]
    elif node.op_type == "MatMul":
        has_weights = node.inputs[1] is not None and node.inputs[1].const_value is not None
        pairs = [(first[-1], second[-2:][0])] if has_weights and first and second else []
    elif node.op_type == "Gemm":
        made = [first[bool(node.attributes.get_int("transA"))], second[not node.attributes.get_int("transB")]]
        pairs = [(m, n) for m, n in zip(reversed(made), reversed(bias or ()), strict=False) if n != 1]
    else:
        pairs = [(m, n) for scale in shapes[1:] for m, n in zip(reversed(first), reversed(scale or ()), strict=False)]
    return not all(m == n and getattr(m, "value", m) is not None for m, n in pairs)


def _may_not_run(node: ir.Node) -> bool:
    """Return True if a Loop's number of runs may be negative, or 0 where results of its runs are stacked."""
    count, condition = (*node.inputs, None, None)[:2]
    least = 1 if count is None else IntegerBounds(2**63 - 1, trusts_floats=False).of(count).low
    begins = None if condition is None else condition.const_value
    may_stop = condition is not None and (begins is None or not begins.numpy().all())
    is_stacked = len(node.outputs) > len(node.inputs) - 2
    return least < 0 or (is_stacked and (least < 1 or may_stop))


def _text(node: ir.Node, name: str, default: str) -> str:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_string()


_SATURATED = "Abs Add Mul Neg Sub Sum"

DEFECTS: Sequence[KnownDefect] = (
    KnownDefect(
        "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare",
        "openvino's CPU plugin returns other results than ONNX for {op} of an empty integer tensor",
        lambda node: _is_of_nothing(node) and _bits(node) > 0,
    ),
    KnownDefect(
        "TopK",
        "openvino's CPU plugin orders equal integers in TopK differently from ONNX",
        lambda node: _bits(node) > 0,
    ),
    KnownDefect(
        "QLinearConv QLinearMatMul",
        "openvino's CPU plugin rounds and saturates {op} of signed bytes on this processor",
        _multiplies_signed_bytes,
    ),
    KnownDefect(
        _SATURATED,
        "openvino's CPU plugin saturates {op} of 8-bit integers, which wrap around in ONNX",
        lambda node: _bits(node) == 8,
    ),
    KnownDefect(
        "BitShift",
        "openvino's CPU plugin saturates {op} of 8-bit integers, which wrap around in ONNX",
        lambda node: _bits(node) == 8 and _text(node, "direction", "") == "LEFT",
    ),
    KnownDefect(
        "Pow",
        "openvino's CPU plugin saturates {op} of 8-bit and 16-bit integers, which wrap around in ONNX",
        lambda node: 0 < _bits(node) < 32,
    ),
    KnownDefect(
        "MatMul Pow Relu",
        "openvino's CPU plugin computes {op} of 32-bit and 64-bit integers in float32",
        lambda node: _bits(node) >= 32,
    ),
    KnownDefect(
        "BitShift Div",
        "openvino's CPU plugin rounds {op} of 8-bit integers if shapes are dynamic",
        lambda node: _bits(node) == 8 and not all(x is not None and _is_fixed(x) for x in node.inputs),
    ),
    KnownDefect(
        "BitShift",
        "openvino's CPU plugin does not return 0 for integers that are shifted by all their bits",
        _shifts_out,
    ),
    KnownDefect(
        f"{_SATURATED} BitShift BitwiseNot Cast CastLike CumSum Div",
        "openvino's CPU plugin computes {op} of 16-bit integers in 32 bits, so results do not wrap around",
        lambda node: _makes_16_bits(node) and bool(node.outputs[0].uses()),
    ),
    KnownDefect(
        "Range",
        "openvino's Range is not empty if its limit is on the wrong side of its start",
        lambda node: not _counts_up_from_zero(node),
    ),
    KnownDefect(
        "ReduceL1 ReduceL2 ReduceLogSum",
        "openvino's {op} returns its input unchanged if axes are empty",
        lambda node: bool(node.attributes.get_int("noop_with_empty_axes")) and not _has_axes(node),
    ),
    KnownDefect(
        "ReduceL1 ReduceLogSum ReduceLogSumExp",
        "openvino ignores the axes of {op} before opset 18, where they are an attribute",
        lambda node: bool(node.attributes.get_ints("axes")),
    ),
    KnownDefect("Expand Gather Unique", "openvino's CPU plugin crashes on {op} of an empty tensor", _is_of_nothing),
    KnownDefect("Gemm Transpose", "openvino's CPU plugin returns a row for {op} of an empty tensor", _is_of_nothing),
    KnownDefect(
        "ReduceMax ReduceMin",
        "openvino's CPU plugin does not return infinity for {op} of an empty tensor",
        _is_of_nothing,
    ),
    KnownDefect(
        "ConcatFromSequence SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength "
        "SequenceMap SplitToSequence",
        "openvino's operators on sequences insert, erase and count differently from ONNX",
    ),
    KnownDefect("Attention", "openvino ignores the windows of Attention", _has_window),
    KnownDefect("Attention", "openvino does not mask the scores that causal Attention returns", _returns_masked_scores),
    KnownDefect("Attention", "openvino counts queries of causal Attention from 0, whatever the past", _is_causal_later),
    KnownDefect(
        "Attention",
        "openvino ignores the mask_filter_value of Attention",
        lambda node: "mask_filter_value" in node.attributes,
    ),
    KnownDefect(
        "MultiHeadAttention",
        "openvino weakens and moves the causal mask of MultiHeadAttention",
        lambda node: bool(node.attributes.get_int("unidirectional")),
    ),
    KnownDefect(
        "Einsum",
        "openvino's CPU plugin leaves the output of an Einsum that copies its input unwritten",
        _copies_by_einsum,
    ),
    KnownDefect(
        "QLinearAdd QLinearAveragePool QLinearConcat QLinearLeakyRelu QLinearMul QLinearSigmoid QLinearSoftmax QLinearWhere",
        "openvino's importer cuts off fractions in {op}, and lets results beyond 8 bits wrap around",
    ),
    KnownDefect(
        "Resize",
        "openvino rounds integers in Resize, where ONNX cuts off their fractions",
        lambda node: _text(node, "mode", "nearest") != "nearest" and _is_of_integers(node),
    ),
    KnownDefect(
        "Resize",
        "openvino does not keep the aspect ratio in Resize",
        lambda node: _text(node, "keep_aspect_ratio_policy", "stretch") != "stretch",
    ),
    KnownDefect(
        "Resize",
        "openvino's antialias and exclude_outside in Resize differ from ONNX's",
        lambda node: any(node.attributes.get_int(name) for name in ("antialias", "exclude_outside")),
    ),
    KnownDefect(
        "AveragePool",
        "openvino divides by other counts in AveragePool with ceil_mode and count_include_pad",
        _averages_past_padding,
    ),
    KnownDefect(
        "AveragePool",
        "openvino's CPU plugin pads an AveragePool of dequantised integers with 0, not with their zero point",
        _averages_padded_bytes,
    ),
    KnownDefect(
        "ConvTranspose",
        "openvino crops a ConvTranspose with output_shape or SAME padding at other positions than ONNX",
        _cuts_elsewhere,
    ),
    KnownDefect(
        "If",
        "openvino's importer confuses a graph output that a branch of If reads with the output of If",
        _reads_output_in_branch,
    ),
    KnownDefect(
        "Loop",
        "openvino runs a Loop forever if it is to run a negative number of times, and stacks old results if it is not to run",
        _may_not_run,
    ),
    KnownDefect("LpNormalization", "openvino adds at least 1e-6 to the norms that LpNormalization divides by"),
    KnownDefect(
        "BatchNormalization Conv GatherND Gemm InstanceNormalization LayerNormalization MatMul RMSNormalization",
        "openvino stretches lengths of 1 in {op} that ONNX demands to be equal to others",
        _stretches,
    ),
    KnownDefect(
        "MaxPool",
        "openvino swaps axes of the indices of MaxPool with storage_order",
        lambda node: bool(node.attributes.get_int("storage_order", 0)) and len(node.outputs) > 1,
    ),
    KnownDefect(
        "PRelu",
        "openvino's PRelu takes slopes of one axis for those of channels",
        _takes_slopes_of_channels,
    ),
    KnownDefect("MaxPool", "openvino adds windows to MaxPool with ceil_mode that begin in the padding", _pools_padding),
    KnownDefect(
        "NonMaxSuppression",
        "openvino's NonMaxSuppression also removes boxes whose overlap equals the threshold, such as 0 for boxes that only touch",
        _suppresses_what_touches,
    ),
    KnownDefect(
        "QuantizeLinear",
        "openvino applies the scales of QuantizeLinear to another axis if the length of theirs is unknown, or if it fuses "
        "QuantizeLinear with the operator before it",
        _scales_another_axis,
    ),
    KnownDefect(
        "QuantizeLinear",
        "openvino's CPU plugin scales a matrix wrongly if it fuses its normalisation, scaling and quantisation",
        _quantises_scaled_matrix,
    ),
    KnownDefect(
        "STFT", "openvino's importer crashes on STFT with a window that is not one-sided", _window_of_two_sides
    ),
    KnownDefect(
        "Slice",
        "openvino's CPU plugin crashes if the axes of a Slice are not constant, and starts, ends and steps are",
        _is_told_axes_late,
    ),
    KnownDefect(
        "RoiAlign",
        "openvino's CPU plugin computes other maxima in RoiAlign than ONNX",
        lambda node: _text(node, "mode", "avg") == "max",
    ),
    KnownDefect(
        "SpaceToDepth",
        "openvino ignores the mode of SpaceToDepth",
        lambda node: _text(node, "mode", "DCR") != "DCR",
    ),
    KnownDefect(
        "GRU LSTM RNN",
        "openvino ignores the layout of {op}",
        lambda node: bool(node.attributes.get_int("layout")),
    ),
    KnownDefect(
        "GRU LSTM RNN",
        "openvino's CPU plugin ignores the sequence lengths of {op} if shapes are dynamic",
        _has_lengths_of_varying_shapes,
    ),
    KnownDefect(
        "LSTM",
        "openvino ignores the peepholes of LSTM",
        lambda node: len(node.inputs) > _PEEPHOLES and node.inputs[_PEEPHOLES] is not None,
    ),
    KnownDefect(
        "DFT",
        "openvino ignores the axis of DFT, and returns other shapes if it is one-sided",
        lambda node: bool(node.attributes.get_int("onesided")) or not _is_along_its_own_axis(node),
    ),
    KnownDefect(
        "Tile",
        "openvino's CPU plugin leaves outputs of Tile unwritten if the repeats are not constant",
        lambda node: not _has_known_repeats(node),
    ),
)
"""All known defects, in the order in which they are tested."""

_ROWS: Mapping[str, Sequence[KnownDefect]] = {
    op: tuple(row for row in DEFECTS if op in row.ops.split()) for row in DEFECTS for op in row.ops.split()
}
