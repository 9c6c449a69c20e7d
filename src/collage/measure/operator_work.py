"""The work of a kernel or a model, by operator: what a time that is not measured can be predicted from.

It is kept beside the timings of a kernel, whose key is only a digest of it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir as ir

from collage.database import FactKind
from collage.graph import is_view, value_nbytes
from collage.measure.work import ShapeOf, product_flops
from collage.system.codec import Count, Share

__all__ = ["WORK", "OperatorWork", "WorkByOperator", "work_of"]


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
class WorkByOperator:
    """The work of a kernel or a model.

    Attributes:
        operators: The work by type of operator, see ``_label``.
        unknown: Number of operators that have an output of unknown shape.
        model: Digest of the model that the kernel was last measured for; empty if it is not known.
    """

    operators: dict[str, OperatorWork]
    unknown: Count = 0
    model: str = ""


WORK: FactKind[WorkByOperator] = FactKind("work", WorkByOperator)


def work_of(nodes: Iterable[ir.Node], shape_of: ShapeOf) -> WorkByOperator:
    """Return the work of operators. Bodies of control flow are not looked into."""
    rows: dict[str, list[tuple[int, float, float, float]]] = defaultdict(list)
    unknown = 0
    for node in nodes:
        if is_view(node) or node.op_type == "Constant":
            continue
        written = [_nbytes(value, shape_of) for value in node.outputs]
        read = [_nbytes(value, shape_of) for value in node.inputs if value is not None]
        unknown += None in written
        row = 1, product_flops(node, shape_of), float(sum(filter(None, read))), float(sum(filter(None, written)))
        rows[_label(node, shape_of)].append(row)
    return WorkByOperator(
        {label: OperatorWork(*map(sum, zip(*each, strict=True))) for label, each in sorted(rows.items())}, unknown
    )


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
