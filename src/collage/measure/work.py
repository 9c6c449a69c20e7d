"""The work of a kernel or a model, by operator: what a time that is not measured can be predicted from.

It is kept beside the timings of a kernel, whose key is only a digest of it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from collage.database import FactKind
from collage.graph import is_view, value_nbytes
from collage.numerics.value_store import ValueStore
from collage.system.codec import Count, Share

__all__ = ["WORK", "OperatorWork", "ShapeOf", "Work", "products", "shape_on", "stated_shape", "work_of"]

ShapeOf = Callable[[ir.Value], Sequence[int] | None]

_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


@dataclass(frozen=True, slots=True)
class OperatorWork:
    """The work of all operators of one type.

    Attributes:
        count: Number of operators. Views do no work and are not counted.
        flops: Floating-point operations of products and convolutions.
        read_bytes: Bytes of their inputs, weights included.
        written_bytes: Bytes of their outputs.
    """

    count: Count
    flops: Share
    read_bytes: Share
    written_bytes: Share


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a kernel or a model.

    Attributes:
        operators: The work by type of operator, see ``_label``.
        unknown: Number of operators that have an output of unknown shape.
        model: Digest of the model that the kernel was last measured for; empty if it is not known.
    """

    operators: dict[str, OperatorWork]
    unknown: Count = 0
    model: str = ""


WORK: FactKind[Work] = FactKind("work", Work)


def work_of(nodes: Iterable[ir.Node], shape_of: ShapeOf) -> Work:
    """Return the work of operators. Bodies of control flow are not looked into."""
    rows: dict[str, list[tuple[int, float, float, float]]] = defaultdict(list)
    unknown = 0
    for node in nodes:
        if is_view(node) or node.op_type == "Constant":
            continue
        written = [_nbytes(value, shape_of) for value in node.outputs]
        read = [_nbytes(value, shape_of) for value in node.inputs if value is not None]
        unknown += None in written
        row = 1, products(node, shape_of), float(sum(filter(None, read))), float(sum(filter(None, written)))
        rows[_label(node, shape_of)].append(row)
    return Work(
        {label: OperatorWork(*map(sum, zip(*each, strict=True))) for label, each in sorted(rows.items())}, unknown
    )


def products(node: ir.Node, shape_of: ShapeOf) -> float:
    """Return the floating-point operations of a product, a convolution or a recurrent layer as defined; 0 for all others."""
    inputs = [shape_of(value) if value is not None else None for value in node.inputs]
    output = shape_of(node.outputs[0]) if node.outputs else None
    if node.domain or len(inputs) < 2 or inputs[0] is None or inputs[1] is None or output is None:
        return 0.0
    first, second = inputs[0], inputs[1]
    match node.op_type:
        case "Conv" if len(second) > 2:
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
    return 0.0


def shape_on(values: ValueStore, value: ir.Value) -> Sequence[int] | None:
    """Return the shape that a value had in a reference run, or that the model states."""
    return values.shape(str(value.name)) if str(value.name) in values else stated_shape(value)


def stated_shape(value: ir.Value) -> Sequence[int] | None:
    """Return the shape that a model states for a value; None if a length of it is open."""
    shape = value.const_value.shape if value.const_value is not None else value.shape
    axes = (None,) if shape is None else tuple(shape)
    return tuple(axis for axis in axes if isinstance(axis, int)) if all(isinstance(a, int) for a in axes) else None


def _label(node: ir.Node, shape_of: ShapeOf) -> str:
    """Return the type of an operator as far as toolchains compute it by other algorithms: ``Conv.grouped/FLOAT16``."""
    name = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    kernel = shape_of(node.inputs[1]) if node.op_type == "Conv" and node.inputs[1] is not None else None
    if kernel is not None:
        groups = node.attributes.get_int("group", 1)
        if groups > 1:
            name += ".depthwise" if kernel[1] == 1 else ".grouped"
        elif math.prod(kernel[2:]) == 1:
            name += ".pointwise"
        elif len(kernel) != 4:
            name += f".{len(kernel) - 2}d"
    dtype = node.inputs[0].dtype if node.inputs and node.inputs[0] is not None else None
    return name if dtype in (None, ir.DataType.FLOAT) else f"{name}/{dtype.name}"


def _nbytes(value: ir.Value, shape_of: ShapeOf) -> int | None:
    shape = shape_of(value)
    return None if shape is None else value_nbytes(value, shape)
