"""Operators that TVM computes wrongly, and types that its importer does not take.

They were found with ONNX's own tests and with random models, on TVM 0.27. Kernels with these operators are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from collage._errors import Unsupported
from collage.toolchains.sdk.model_files import elem_type, support_of

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage.toolchains._contract import Support

__all__ = ["is_plain", "known_wrong", "misread", "refuse_types", "summed_up", "support"]

_TYPES = frozenset(
    ("FLOAT", "FLOAT16", "DOUBLE", "BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")
)
"""Not bfloat16: NumPy's arrays of it do not speak DLPack."""

_EXACT_IN_HALF = frozenset(
    """
    Compress Concat DepthToSpace Expand Flatten Gather GatherElements GatherND Identity Pad Reshape ScatterElements
    ScatterND Shape Size Slice SpaceToDepth Split Squeeze Tile Transpose Trilu Unsqueeze Where
    ArgMax ArgMin Clip Equal Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual Max MaxPool Min ReduceMax ReduceMin Relu
    Sign TopK
    Abs Add Cast CastLike Ceil Cos Div Erf Exp Floor LeakyRelu Log Mod Mul Neg PRelu Pow Range Reciprocal Round Sin
    Softsign Sqrt Sub
    """.split()  # noqa: SIM905 - as a list of literals it would fill a page
)
"""Operators that yield the nearest float16. Generated code rounds between the steps of others: sums differ in the third
digit, ``Softplus`` is 0 where it should not be.
"""

_WRONG: Mapping[str, tuple[Callable[[ir.Node], bool], str]] = {
    "BatchNormalization": (
        lambda node: node.attributes.get_int("training_mode", 0) == 1,
        "ignores the training mode",
    ),
    "Dropout": (lambda node: _is_given(node, 2), "ignores the training mode"),
    "DynamicQuantizeLinear": (lambda node: True, "divides by 0 if all numbers are 0"),
    "Expand": (lambda node: _is_input(node, 1), "does not keep lengths if its shape is an input and contains 1"),
    "LayerNormalization": (lambda node: _uses_more_than_first(node), "computes only the first of its outputs"),
    "MaxRoiPool": (lambda node: True, "reads beyond the images where a region names none of them"),
    "NonMaxSuppression": (lambda node: _varies(node, 2), "ignores a number of boxes that is not constant"),
    "OneHot": (lambda node: _gives_floats(node), "returns float64 instead of float32"),
    "ReduceMean": (lambda node: _is_of_integers(node), "returns wider integers than it reads"),
    "Resize": (lambda node: _scales_to_fractions(node), "recomputes its scales from lengths that were rounded"),
    "RoiAlign": (lambda node: node.attributes.get_string("mode", "avg") == "max", "computes other maxima than ONNX"),
    "ScatterElements": (
        lambda node: not _covers_other_axes(node),
        "writes to wrong positions if indices are shorter than the data",
    ),
    "TopK": (lambda node: _counts_nothing(node), "returns all elements if it is asked for none"),
}
"""Operators that TVM 0.27 imports and computes wrongly: the condition, and the fault. Found by ONNX's own tests."""

_NO_MERE_COPIES = frozenset(("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceSumSquare"))
"""Reductions that change elements even if they reduce no axis."""

_FUNCTIONS = {"RNN": ("tanh",), "GRU": ("sigmoid", "tanh"), "LSTM": ("sigmoid", "tanh", "tanh")}
"""Recurrent layers, and the functions that ONNX gives them."""

_MAY_WRAP = frozenset(
    """
    Add CumSum Einsum Gemm MatMul Mul Neg Pow ReduceProd ReduceSum ReduceSumSquare ScatterElements ScatterND Sub Sum
    """.split()  # noqa: SIM905
)
"""Operators whose results may exceed the type of their inputs."""

_SUMS = frozenset(("Einsum", "Gemm", "GlobalAveragePool", "GlobalMaxPool", "MatMul", "MatMulInteger", "QLinearMatMul"))

_PLAIN = frozenset(
    ("Gemm", "LayerNormalization", "LogSoftmax", "MatMul", "RMSNormalization", "Shape", "Size", "Softmax")
)
"""Operators beside elementwise ones, copies and reductions that are right on tensors without elements."""

_WIDE = 32
"""Bits of the smallest integers that float32 does not hold."""


def support(node: ir.Node) -> Support:
    """Return if TVM takes an operator: it has no known defect, and its types are supported."""
    return support_of(refuse_types, node, known_wrong)


def known_wrong(node: ir.Node) -> str | None:
    """Return why TVM computes an operator wrongly, or None."""
    when, what = _WRONG.get(node.op_type, (None, ""))
    if when is not None and node.domain == "" and when(node):
        return f"tvm's {node.op_type} {what}"
    one_sided = {node.attributes.get_int(f"detect_{side}", 1) for side in ("positive", "negative")}
    if node.op_type == "IsInf" and one_sided != {1}:
        return "tvm's IsInf ignores its attributes and detects both signs"
    if node.op_type == "Resize" and node.domain == "" and (ignored := _ignored_of_resize(node)):
        return f"tvm's Resize ignores {ignored}"
    if node.op_type == "Resize" and node.inputs[0] is not None and _is_wider_than_float(node.inputs[0]):
        return "tvm's Resize converts its input to float32, even if that has fewer digits or a smaller range"
    if (
        node.op_type == "Resize"
        and node.attributes.get_string("mode", "nearest") != "nearest"
        and _is_of_integers(node)
    ):
        return "tvm's Resize loses a step of integers: it cuts off the fractions of sums that are just below a whole number"
    if node.op_type == "Resize" and node.domain == "" and _halves_inexactly(node):
        return "tvm's Resize rounds coordinates that lie between two elements to either of them"
    if node.op_type in _FUNCTIONS and node.domain == "" and (left_out := _left_out_of_recurrent(node)):
        return f"tvm's loops of {node.op_type} lack {left_out}"
    values = (*node.inputs, *node.outputs)
    if node.op_type in ("Concat", "Split") and any(value is not None and 0 in (value.shape or ()) for value in values):
        return f"tvm's {node.op_type} is wrong after a part without elements"
    if node.op_type == "Split" and node.domain == "" and not _has_known_length(node):
        return "tvm's Split does not check that its parts add up to a length that is not known"
    if _sums_up_nothing(node):
        return f"tvm's {node.op_type} returns uninitialised memory if it reduces a tensor without elements"
    if node.op_type in _NO_MERE_COPIES and _may_reduce_nothing(node):
        return f"tvm's {node.op_type} returns its input unchanged if axes are empty"
    if node.op_type in _MAY_WRAP and _is_wide_unsigned(node.outputs[0]):
        return f"tvm lets LLVM assume that {node.op_type} of unsigned integers never wraps around"
    if node.op_type not in _EXACT_IN_HALF and any(value is not None and _is_half(value) for value in values):
        return f"tvm's {node.op_type} rounds to float16 between its steps"
    return None


def misread(node: ir.Node) -> str | None:
    """Return why TVM takes an operator for another one, or None. Contributed operators may have been written out before."""
    is_misread = node.domain and node.op_type.isidentifier()  # Calls of libraries have names that no operator has.
    return f"tvm takes {node.domain}.{node.op_type} for an operator of ONNX's" if is_misread else None


def _left_out_of_recurrent(node: ir.Node) -> str | None:
    """Return what a recurrent layer has that the loops of ``recurrent`` lack, or None."""
    attributes = node.attributes
    if _is_given(node, 4):
        return "lengths of sequences"
    if _is_given(node, 7) or "clip" in attributes or attributes.get_int("input_forget", 0) == 1:
        return "peepholes, bounds and coupled gates"
    if attributes.get_int("layout", 0) == 1:
        return "sequences as the first axis"
    if any(_varies(node, place) for place in (1, 2, 3)):
        return "matrices that are not constant"
    if not _is_single(node.inputs[1]):
        return "other types than float32"
    own = [name.lower() for name in attributes.get_strings("activations", None) or ()]
    is_usual = not own or own == [*_FUNCTIONS[node.op_type]] * (len(own) // len(_FUNCTIONS[node.op_type]))
    return None if is_usual or (node.op_type == "RNN" and set(own) == {"relu"}) else "other functions"


def _is_single(value: ir.Value | None) -> bool:
    dtype = elem_type(value) if value is not None else None
    return dtype is not None and dtype.name == "FLOAT"


def _is_given(node: ir.Node, place: int) -> bool:
    return len(node.inputs) > place and node.inputs[place] is not None


def _varies(node: ir.Node, place: int) -> bool:
    """True if the node has an input at ``place`` that is not constant."""
    value = node.inputs[place] if len(node.inputs) > place else None
    return value is not None and value.const_value is None


def _is_input(node: ir.Node, place: int) -> bool:
    """True if the node's input at ``place`` is an input of the graph."""
    value = node.inputs[place] if len(node.inputs) > place else None
    return value is not None and value.const_value is None and value.is_graph_input()


def _counts_nothing(node: ir.Node) -> bool:
    """True if the number of elements that a TopK returns is constant and 0."""
    count = node.inputs[1].const_value if len(node.inputs) > 1 and node.inputs[1] is not None else None
    return count is not None and count.size == 1 and int(count.numpy().item()) == 0


def _covers_other_axes(node: ir.Node) -> bool:
    """True if the indices of a ScatterElements have the lengths of the data on all axes but its own."""
    data, indices = (() if value is None or value.shape is None else tuple(value.shape) for value in node.inputs[:2])
    axis = node.attributes.get_int("axis", 0) or 0
    if not data or len(data) != len(indices) or not -len(data) <= axis < len(data):
        return False
    pairs = [pair for i, pair in enumerate(zip(data, indices, strict=True)) if i != axis % len(data)]
    return all(a == b and getattr(a, "value", a) is not None for a, b in pairs)


def _has_known_length(node: ir.Node) -> bool:
    """True if the axis along which a Split cuts has a length that is a number."""
    shape = tuple((None if node.inputs[0] is None else node.inputs[0].shape) or ())
    axis = node.attributes.get_int("axis", 0) or 0
    return -len(shape) <= axis < len(shape) and isinstance(shape[axis], int)


def _gives_floats(node: ir.Node) -> bool:
    values = node.inputs[2] if len(node.inputs) > 2 else None
    dtype = elem_type(values) if values is not None else None
    return dtype is not None and dtype.name in ("FLOAT", "FLOAT16")


def _scales_to_fractions(node: ir.Node) -> bool:
    """True if constant scales give lengths that must be rounded, or may do so."""
    x, scales = (node.inputs[0], node.inputs[2]) if len(node.inputs) > 2 else (None, None)
    if x is None or x.shape is None or scales is None or scales.const_value is None:
        return False
    factors = scales.const_value.numpy().astype(np.float32).reshape(-1)
    lengths = (n * factor if isinstance(n, int) else factor for n, factor in zip(x.shape, factors, strict=False))
    return any(length % 1 != 0 for length in lengths)


def _ignored_of_resize(node: ir.Node) -> str | None:
    """Return the attribute of a Resize that TVM ignores, or None. TVM resizes axes after batch and channels, to given lengths."""
    attributes = node.attributes
    if attributes.get_int("antialias", 0):
        return "antialias"
    if attributes.get_string("keep_aspect_ratio_policy", "stretch") != "stretch":
        return "keep_aspect_ratio_policy"
    if "axes" in attributes:
        return "axes"
    return "changes of batch and channels" if _resizes_more_than_images(node) else None


def _resizes_more_than_images(node: ir.Node) -> bool:
    """True if constant scales or sizes change the first two lengths (batch and channels), or may do so."""
    x, *told = (node.inputs[i] if len(node.inputs) > i else None for i in (0, 2, 3))
    for value, kept in zip(told, ((1, 1), tuple(x.shape or ())[:2] if x is not None else ()), strict=True):
        if value is not None and value.const_value is not None and value.const_value.size:
            first = value.const_value.numpy().reshape(-1)[:2].tolist()
            return any(n != m for n, m in zip(kept, first, strict=False))
    return False


def _halves_inexactly(node: ir.Node) -> bool:
    """True if a coordinate may be half-way between two elements, and the ratio of lengths is not exact in binary."""
    attributes = node.attributes
    nearest = attributes.get_string("nearest_mode", "round_prefer_floor") or ""
    if attributes.get_string("mode", "nearest") != "nearest" or not nearest.startswith("round"):
        return False
    transformation = attributes.get_string("coordinate_transformation_mode", "half_pixel") or ""
    return any(_has_inexact_tie(n, m, transformation) for n, m in _resized(node))


def _resized(node: ir.Node) -> list[tuple[int, int]]:
    """Lengths that a Resize with constant sizes or scales changes, as (before, after); (1, scale) for unknown lengths."""
    x, scales, sizes = (node.inputs[i] if len(node.inputs) > i else None for i in (0, 2, 3))
    told = sizes if scales is None or scales.const_value is None or not scales.const_value.size else scales
    if x is None or x.shape is None or told is None or told.const_value is None:
        return []
    numbers = told.const_value.numpy().reshape(-1).tolist()
    pairs = []
    for n, number in zip(x.shape, numbers, strict=False):
        known = n if isinstance(n, int) else 1
        pairs.append((known, int(number) if told is sizes else int(known * number)))
    return [(n, m) for n, m in pairs if n != m and n > 0 and m > 0]


def _has_inexact_tie(n: int, m: int, transformation: str) -> bool:
    """True if one of ``m`` coordinates in ``n`` elements is half-way between two, and its factor is not exact in binary."""
    if transformation == "align_corners":
        factor, offset = Fraction(n - 1, max(m - 1, 1)), Fraction(0)
    elif transformation == "asymmetric":
        factor, offset = Fraction(n, m), Fraction(0)
    else:
        factor = Fraction(n, m)
        offset = (factor - 1) / 2
    if factor.denominator & (factor.denominator - 1) == 0:
        return False
    places = range(min(m, 2 * factor.denominator))  # After that many, the fractions come again.
    return any((factor * i + offset) % 1 == Fraction(1, 2) for i in places)


def _uses_more_than_first(node: ir.Node) -> bool:
    return any(value.uses() or value.is_graph_output() for value in node.outputs[1:])


def _is_wide_unsigned(value: ir.Value) -> bool:
    dtype = elem_type(value)
    return dtype is not None and dtype.name in ("UINT32", "UINT64")


def _is_half(value: ir.Value) -> bool:
    dtype = elem_type(value)
    return dtype is not None and dtype.name == "FLOAT16"


def _is_of_integers(node: ir.Node) -> bool:
    dtype = elem_type(node.inputs[0]) if node.inputs and node.inputs[0] is not None else None
    return dtype is not None and dtype.is_integer()


def _is_wider_than_float(value: ir.Value) -> bool:
    """True if float32 cannot hold every number of a value's type."""
    dtype = elem_type(value)
    return dtype is not None and dtype.bitwidth >= _WIDE and dtype.name != "FLOAT"


def refuse_types(values: Iterable[ir.Value]) -> None:
    """Raise ``Unsupported`` if the importer does not take the type of a value."""
    import onnx_ir as ir

    for value in values:
        if isinstance(value.type, ir.SequenceType | ir.OptionalType):
            raise Unsupported(f"tvm: the importer takes tensors only ({value.name!r} is {value.type})")
        dtype = elem_type(value)
        if dtype is not None and dtype.name not in _TYPES:
            raise Unsupported(f"tvm: the importer does not take {dtype.name.lower()} ({value.name!r})")


def _sums_up_nothing(node: ir.Node) -> bool:
    """True if outputs are sums over a length of 0. TVM's loops do not set them to zero then."""
    made = node.outputs[0].shape
    return 0 not in (made or ()) and any(0 in (x.shape or ()) for x in summed_up(node.op_type, node.inputs))


def summed_up(operator: str, inputs: Sequence[Any]) -> list[Any]:
    """Return the inputs that an operator reduces: sums, multiplies, or takes the largest of."""
    reads = inputs if operator in _SUMS else inputs[:1] if operator.startswith("Reduce") else ()
    return [x for x in reads if x is not None]


def is_plain(node: ir.Node) -> bool:
    """Return True for an operator whose loops are right on tensors without elements, unless it sums over no elements."""
    from collage.graph import OpKind, declared_kind  # Late: running kernels does not need it.

    kind = declared_kind(node.domain, node.op_type)
    return kind <= OpKind.INJECTIVE or node.op_type.startswith("Reduce") or node.op_type in _PLAIN


def _may_reduce_nothing(node: ir.Node) -> bool:
    """True if a node is a reduction that returns its input unchanged when it gets no axes."""
    return node.attributes.get_int("noop_with_empty_axes", 0) == 1
