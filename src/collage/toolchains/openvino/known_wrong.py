"""Operators that OpenVINO's CPU plugin takes without complaint and computes wrongly."""

from __future__ import annotations

import onnx_ir as ir

from collage.graph import used_values
from collage.system.machine import this_machine
from collage.toolchains.sdk.model_files import elem_type

__all__ = ["known_wrong"]

_NO_MERE_COPIES = ("ReduceL1", "ReduceL2", "ReduceLogSum")
"""Reductions that change what they do not reduce."""
_OF_NO_AXES = ("ReduceL1", "ReduceLogSum", "ReduceLogSumExp")
"""Reductions that are told axes by an attribute before opset 18, where only an input is looked at."""
_OF_NOTHING = {
    **dict.fromkeys(("Expand", "Gather", "Unique"), "crashes of"),
    **dict.fromkeys(("Gemm", "Transpose"), "makes a row of"),
    **dict.fromkeys(("ReduceMax", "ReduceMin"), "does not make infinity of"),
}
"""What it does with tensors of no elements."""
_OF_SEQUENCES = frozenset(
    {"ConcatFromSequence", "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert"}
    | {"SequenceLength", "SequenceMap", "SplitToSequence"}
)
_SATURATED = ("Abs", "Add", "Mul", "Neg", "Sub", "Sum")
_WRAPPED = (*_SATURATED, "BitShift", "BitwiseNot", "Cast", "CastLike", "CumSum", "Div")
"""Operators that may make numbers which do not fit their type, and wrap around."""
_IN_FLOAT = ("MatMul", "Pow", "Relu")
"""Operators of integers that few models have, so that it costs nothing to leave all of them to others."""
_WIDE = 32
"""Bits of the smallest integers that float32 does not hold."""
_MASKED = 2
"""The mode in which Attention returns its scores with mask and bias."""
_RECURRENT = ("GRU", "LSTM", "RNN")
_PEEPHOLES = 7
"""The place of the peepholes among LSTM's inputs."""
_SCALING = ("Div", "LayerNormalization", "Mul")
_RANK_OF_MATRIX = 2
_RANK_OF_TILE = 4
"""The rank from which on Tile needs constant repeats."""
_OF_BYTES = ("QLinearConv", "QLinearMatMul")
"""Where products of bytes saturate, ONNX Runtime and the plugin let them with large weights behind unsigned activations, as their
vendors say; behind signed ones only the plugin does."""


def known_wrong(node: ir.Node) -> str | None:
    """Operators that the plugin takes without complaint and computes wrongly, found with ONNX's own cases and by comparison."""
    first = node.inputs[0] if node.inputs else None
    dtype = elem_type(first) if first is not None else None
    if first is not None and dtype is not None and dtype.is_integer():
        if node.op_type.startswith("Reduce") and 0 in tuple(first.shape or ()):
            return f"openvino's CPU plugin does not make of no integers what {node.op_type} makes of them in ONNX"
        if node.op_type == "TopK":
            return "openvino's CPU plugin orders equal integers in TopK otherwise than ONNX does"
        if node.op_type in _OF_BYTES and dtype == ir.DataType.INT8 and this_machine().saturates_products_of_bytes:
            return f"openvino's CPU plugin rounds and saturates {node.op_type} of signed bytes on this processor"
        if (reason := _wrong_of_integers(node, dtype.bitwidth)) is not None:
            return reason
    if node.op_type in _WRAPPED and _makes_16_bits(node) and node.outputs[0].uses():
        return f"openvino's CPU plugin holds 16-bit integers in 32 bits, in which those of {node.op_type} do not wrap"
    if node.op_type == "Range" and not _counts_up_from_zero(node):
        return "openvino's Range is not empty where its limit lies on the other side"
    if node.op_type in _NO_MERE_COPIES and node.attributes.get_int("noop_with_empty_axes") and not _has_axes(node):
        return f"openvino's {node.op_type} copies its input where it is given no axes"
    if node.op_type in _OF_NO_AXES and node.attributes.get_ints("axes"):
        return f"openvino takes no notice of the axes of {node.op_type} before opset 18"
    if first is not None and node.op_type in _OF_NOTHING and 0 in tuple(first.shape or ()):
        return f"openvino's CPU plugin {_OF_NOTHING[node.op_type]} {node.op_type} of nothing"
    if node.op_type in _OF_SEQUENCES:
        return "openvino inserts into sequences, erases from them and counts them otherwise than ONNX"
    if node.op_type == "Attention":
        return _wrong_of_attention(node)
    if node.op_type == "Resize":
        return _wrong_of_resize(node)
    if node.op_type == "AveragePool" and _averages_past_padding(node):
        return "openvino divides by other counts in AveragePool with ceil_mode and count_include_pad"
    if node.op_type == "ConvTranspose" and _cuts_elsewhere(node):
        return "openvino cuts a ConvTranspose to its output_shape, or to SAME, in other places than ONNX"
    if node.op_type == "If" and any(value.is_graph_output() for value in used_values(node)[1:]):
        return "openvino's reader takes an output that a branch of If reads for what If makes"
    if node.op_type == "LpNormalization":
        return "openvino adds a millionth and more to the norms that LpNormalization divides by"
    if node.op_type == "MaxPool" and _pools_padding(node):
        return "openvino adds windows to MaxPool with ceil_mode that begin in the padding"
    if node.op_type == "QuantizeLinear" and _scales_another_axis(node):
        return (
            "openvino applies the scales of QuantizeLinear to another axis where it does not know how long theirs is, and "
            "where it joins it to what computes its input"
        )
    if node.op_type == "QuantizeLinear" and _quantises_scaled_matrix(node):
        return "openvino's CPU plugin scales a matrix otherwise where it normalises, scales and quantises it in one"
    if node.op_type == "STFT" and _window_of_two_sides(node):
        return "openvino's reader crashes of STFT with a window that is not one-sided"
    if node.op_type == "Slice" and _is_told_axes_late(node):
        return "openvino's CPU plugin crashes where a Slice is told its axes, and nothing else, when it runs"
    if node.op_type == "RoiAlign" and _text(node, "mode", "avg") == "max":
        return "openvino's CPU plugin takes other maxima in RoiAlign than ONNX"
    if node.op_type == "SpaceToDepth" and _text(node, "mode", "DCR") != "DCR":
        return "openvino takes no notice of the mode of SpaceToDepth"
    if node.op_type in _RECURRENT and node.attributes.get_int("layout"):
        return f"openvino takes no notice of the layout of {node.op_type}"
    if node.op_type == "LSTM" and len(node.inputs) > _PEEPHOLES and node.inputs[_PEEPHOLES] is not None:
        return "openvino takes no notice of the peepholes of LSTM"
    if node.op_type == "DFT" and (node.attributes.get_int("onesided") or not _is_along_default(node)):
        return "openvino takes no notice of the axis of DFT, and makes other shapes where it is one-sided"
    if node.op_type == "Tile" and not _has_known_repeats(node):
        return "openvino's CPU plugin leaves outputs of Tile unwritten where it is told the repeats when it runs"
    return None


def _makes_16_bits(node: ir.Node) -> bool:
    """Whether a node makes integers of 16 bits, as far as its output, its attributes or its first input say."""
    to = node.attributes.get_int("to") if node.op_type == "Cast" else None
    first = node.inputs[0] if node.inputs else None
    told = (elem_type(node.outputs[0]), to and ir.DataType(to), elem_type(first) if first is not None else None)
    return next(filter(None, told), None) in (ir.DataType.INT16, ir.DataType.UINT16)


def _counts_up_from_zero(node: ir.Node) -> bool:
    """Whether constants say that a Range begins at 0 or below, and grows: up to a length it is never empty."""
    start, _, delta = (None if value is None else value.const_value for value in node.inputs)
    return start is not None and delta is not None and float(start.numpy()) <= 0 < float(delta.numpy())


def _wrong_of_resize(node: ir.Node) -> str | None:
    if _text(node, "keep_aspect_ratio_policy", "stretch") != "stretch":
        return "openvino does not keep the aspect ratio in Resize"
    for name in ("antialias", "exclude_outside"):
        if node.attributes.get_int(name):
            return f"openvino's {name} in Resize is another than ONNX's"
    return None


def _cuts_elsewhere(node: ir.Node) -> bool:
    """Whether a transposed convolution's padding follows from lengths, and the plugin pads otherwise."""
    mode, is_cut = _text(node, "auto_pad", "NOTSET"), "output_shape" in node.attributes
    shape = node.inputs[0].shape if node.inputs and node.inputs[0] is not None else None
    is_known = shape is not None and all(isinstance(length, int) for length in shape[2:])
    return (is_cut and mode == "SAME_UPPER") or ((is_cut or mode.startswith("SAME")) and not is_known)


def _scales_another_axis(node: ir.Node) -> bool:
    """Whether there are several scales, of what an operator makes, or along an axis before the last of no known length."""
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
    """Whether what is quantised may be a matrix that was multiplied last."""
    x = node.inputs[0]
    maker = None if x is None else x.producer()
    if x is None or maker is None or (x.shape is not None and len(x.shape) != _RANK_OF_MATRIX):
        return False
    has_bias = maker.op_type == "LayerNormalization" and len(maker.inputs) > 2 and maker.inputs[2] is not None
    return maker.op_type in _SCALING and not has_bias


def _window_of_two_sides(node: ir.Node) -> bool:
    """Whether an STFT has a window, and is told that it is not one-sided."""
    has_window = len(node.inputs) > 2 and node.inputs[2] is not None
    return has_window and node.attributes.get_int("onesided", 1) == 0


def _averages_past_padding(node: ir.Node) -> bool:
    """Whether the last window of an AveragePool may reach past the padding, which counts."""
    attributes = node.attributes
    if not (attributes.get_int("ceil_mode", 0) and attributes.get_int("count_include_pad", 0)):
        return False
    if _text(node, "auto_pad", "NOTSET").startswith("SAME"):
        return True
    pads = attributes.get_ints("pads") or ()
    return any(pads) and any(_reaches_past(*axis) for axis in _axes_of_pool(node))


def _axes_of_pool(node: ir.Node) -> list[tuple[int | None, int, int, int, int]]:
    """Of each axis that a pool's window moves along: its length, or None; the window's reach and step; what is padded."""
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
    """Whether rounding up adds a window; not one that would begin in the padding at the end, which ONNX leaves out."""
    if size is None:
        return True
    room = size + first + last - reach
    return step > 0 and room % step != 0 and -(-room // step) * step < size + first


def _pools_padding(node: ir.Node) -> bool:
    """Whether rounding up may add a window to a MaxPool that begins in the padding at the end, which ONNX leaves out."""
    if not node.attributes.get_int("ceil_mode", 0) or _text(node, "auto_pad", "NOTSET").startswith("SAME"):
        return False
    return any(_may_begin_past(*axis) for axis in _axes_of_pool(node))


def _may_begin_past(size: int | None, reach: int, step: int, first: int, last: int) -> bool:
    """Whether a window may begin behind the elements, rounded up; for any size, where that is not known."""
    if step <= 0:
        return False
    if size is None:
        return last + step > reach
    room = size + first + last - reach
    return room % step != 0 and -(-room // step) * step >= size + first


def _is_told_axes_late(node: ir.Node) -> bool:
    """Whether the axes of a Slice vary while all else is constant."""
    told = [value for value in node.inputs[1:] if value is not None]
    axes = node.inputs[3] if len(node.inputs) > 3 else None
    return axes is not None and [v for v in told if v.const_value is None] == [axes]


def _is_along_default(node: ir.Node) -> bool:
    """Whether a DFT's input for the axis is not there, or says what it says where it is not."""
    x, axis = (*node.inputs, None, None, None)[0:3:2]
    if axis is None:
        return True
    rank = len(x.shape) if x is not None and x.shape is not None else 0
    return axis.const_value is not None and axis.const_value.numpy().reshape(-1).tolist() in ([-2], [rank - 2])


def _has_known_repeats(node: ir.Node) -> bool:
    """Whether a Tile is told its repeats by a constant, or is of few axes, which go well without."""
    x, repeats = (*node.inputs, None, None)[:2]
    if repeats is not None and repeats.const_value is not None:
        return True
    return x is not None and x.shape is not None and len(x.shape) < _RANK_OF_TILE


def _wrong_of_integers(node: ir.Node, bits: int) -> str | None:
    shifts_left = node.op_type == "BitShift" and _text(node, "direction", "") == "LEFT"
    if (bits == 8 and (node.op_type in _SATURATED or shifts_left)) or (bits < 32 and node.op_type == "Pow"):
        return f"openvino's CPU plugin saturates {node.op_type} of {bits}-bit integers, which wrap around in ONNX"
    if node.op_type in _IN_FLOAT and bits >= _WIDE:
        return f"openvino's CPU plugin computes {node.op_type} of {bits}-bit integers in float32"
    if node.op_type == "Div" and bits == 8 and not all(x is not None and _is_fixed(x) for x in node.inputs):
        return "openvino's CPU plugin rounds Div of 8-bit integers where shapes vary"
    if node.op_type == "BitShift" and _shifts_out(node, bits):
        return f"openvino's CPU plugin does not make 0 of {bits}-bit integers that are shifted by as much"
    return None


def _is_fixed(value: ir.Value) -> bool:
    return value.shape is not None and all(isinstance(size, int) for size in value.shape)


def _shifts_out(node: ir.Node, bits: int) -> bool:
    """Whether constants say so: ONNX's own cases shift by inputs, which are not known."""
    amounts = node.inputs[1].const_value if len(node.inputs) > 1 and node.inputs[1] is not None else None
    return amounts is not None and amounts.size > 0 and bool(amounts.numpy().max() >= bits)


def _has_axes(node: ir.Node) -> bool:
    """Whether a reduction is told axes, by a constant or, before opset 18, an attribute."""
    axes = node.inputs[1].const_value if len(node.inputs) > 1 and node.inputs[1] is not None else None
    return bool(node.attributes.get_ints("axes")) or (axes is not None and axes.size > 0)


def _wrong_of_attention(node: ir.Node) -> str | None:
    attributes = node.attributes
    if any(attributes.get_int(f"{side}_window_size", -1) != -1 for side in ("left", "right")):
        return "openvino takes no notice of the windows of Attention"
    scores = node.outputs[3] if len(node.outputs) > 3 else None
    is_used = scores is not None and (scores.is_graph_output() or bool(scores.uses()))
    if is_used and attributes.get_int("is_causal") and attributes.get_int("qk_matmul_output_mode", 0) == _MASKED:
        return "openvino does not mask the scores that causal Attention returns"
    return None


def _text(node: ir.Node, name: str, default: str) -> str:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_string()
