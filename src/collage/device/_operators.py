"""Operands that operators read on the host: shapes, axes, counts, conditions. From the operators' own signatures.

An operand falls into one of three classes. *Data* is read where the operator runs. *Host* operands decide shapes or
control flow, so the host reads them to launch the operator. Of *unread* operands only type and shape matter: they may lie
anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

__all__ = ["has_host_result", "host_operands", "is_standard", "register_host_operands", "unread_operands"]

_STANDARD_DOMAINS = ("", "ai.onnx")

_WINDOWS = ("BlackmanWindow", "HammingWindow", "HannWindow")
_REDUCTIONS = (
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax"),
    *("ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"),
)

_HOST: dict[tuple[str, str], frozenset[int]] = {
    ("", op_type): frozenset(operands)
    for op_type, operands in {
        "AffineGrid": (1,),  # size
        "CenterCropPad": (1,),  # shape
        "Col2Im": (1, 2),  # image_shape, block_shape
        "ConstantOfShape": (0,),
        "CumSum": (1,),  # axis
        "DFT": (1, 2),  # dft_length, axis
        "Dropout": (1, 2),  # ratio, training_mode
        "Expand": (1,),  # shape
        "If": (0,),  # cond
        "Loop": (0, 1),  # M, cond
        "MaxUnpool": (2,),  # output_shape
        "MelWeightMatrix": (0, 1, 2, 3, 4),
        "NonMaxSuppression": (2, 3, 4),  # max_output_boxes_per_class, iou_threshold, score_threshold
        "OneHot": (1,),  # depth
        "Pad": (1, 3),  # pads, axes
        "Range": (0, 1, 2),
        "Reshape": (1,),  # shape
        "Resize": (1, 2, 3),  # roi, scales, sizes
        "STFT": (1, 3),  # frame_step, frame_length
        "SequenceAt": (1,),  # position
        "SequenceErase": (1,),
        "SequenceInsert": (2,),
        "Slice": (1, 2, 3, 4),  # starts, ends, axes, steps
        "Split": (1,),  # split
        "SplitToSequence": (1,),
        "Squeeze": (1,),  # axes
        "Tile": (1, 2),  # repeats; before opset 6 tiles and axis
        "TopK": (1,),  # K
        "Trilu": (1,),  # k
        "Unsqueeze": (1,),  # axes
        "Upsample": (1,),  # scales
        **dict.fromkeys(_WINDOWS, (0,)),
        **dict.fromkeys(_REDUCTIONS, (1,)),
    }.items()
}

_UNREAD = {
    "CastLike": (1,),
    "EyeLike": (0,),
    "OptionalHasElement": (0,),
    "RandomNormalLike": (0,),
    "RandomUniformLike": (0,),
    "SequenceLength": (0,),
    "Shape": (0,),
    "Size": (0,),
}

_HOST_RESULTS = frozenset({"OptionalHasElement", "SequenceLength", "Shape", "Size"})

_NOTHING: frozenset[int] = frozenset()


def is_standard(node: ir.Node, op_type: str) -> bool:
    """Return True if a node is this operator of ONNX itself."""
    return node.op_type == op_type and node.domain in _STANDARD_DOMAINS


def host_operands(node: ir.Node) -> frozenset[int]:
    """Indices of the inputs that are read on the host."""
    domain = "" if node.domain in _STANDARD_DOMAINS else node.domain
    return _HOST.get((domain, node.op_type), _NOTHING)


def unread_operands(node: ir.Node) -> tuple[int, ...]:
    """Indices of the inputs of which only type and shape matter."""
    return _UNREAD.get(node.op_type, ()) if node.domain in _STANDARD_DOMAINS else ()


def has_host_result(node: ir.Node) -> bool:
    """Return True if the operator turns facts that the host knows, such as a shape, into a value. It runs on the host."""
    return node.op_type in _HOST_RESULTS and node.domain in _STANDARD_DOMAINS


def register_host_operands(op_type: str, operands: Iterable[int], domain: str = "") -> None:
    """Says which inputs of an operator are read on the host, for operators of other domains."""
    _HOST[domain, op_type] = frozenset(operands)
