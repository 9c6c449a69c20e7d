"""Notes for 8-bit kernels: range and means of a value, and the precision that a node is to keep.

Ranges and means change the results of a kernel, as weights do, but not its time. So the structural hash leaves them
out. A node that stays in float32 takes longer than one in 8 bits, so its note counts.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import numpy as np
import onnx_ir as ir

from collage.graph._lengths import FROM_LENGTHS

__all__ = [
    "NODE_PRECISION",
    "VALUE_MEANS",
    "VALUE_RANGE",
    "calibration_notes",
    "copy_notes",
    "drop_precisions",
    "keep_in_float",
    "set_value_means",
    "set_value_range",
    "stays_float",
    "value_means",
    "value_range",
]

VALUE_RANGE = "collage.range"
"""Metadata key of values: the smallest and the largest element that calibration saw, two floats with a space between."""

VALUE_MEANS = "collage.means"
"""Metadata key of values: an axis, and the mean at each place along it as float32 in base64, with a space between."""

NODE_PRECISION = "collage.precision"
"""Metadata key of nodes. With the value ``float32``, a kernel of 8 bits leaves the node as it is."""

_FLOAT = "float32"


def value_range(value: ir.Value) -> tuple[float, float] | None:
    """Return the smallest and the largest element that calibration saw, None if nothing readable is noted.

    Models are untrusted: the numbers may be infinite, NaN, or in the wrong order.
    """
    words = value.metadata_props.get(VALUE_RANGE, "").split()
    if len(words) != 2:
        return None
    try:
        return float(words[0]), float(words[1])
    except ValueError:
        return None


def set_value_range(value: ir.Value, low: float, high: float) -> None:
    """Note the range of a value."""
    value.metadata_props[VALUE_RANGE] = f"{float(low)!r} {float(high)!r}"


def value_means(value: ir.Value, axis: int) -> np.ndarray[Any, np.dtype[np.float32]] | None:
    """Return the mean that calibration saw at each place along an axis, None if nothing readable is noted for this axis."""
    words = value.metadata_props.get(VALUE_MEANS, "").split()
    if len(words) != 2 or words[0] != str(axis):
        return None
    try:
        means = np.frombuffer(base64.b64decode(words[1], validate=True), "<f4").astype(np.float32)
    except (binascii.Error, ValueError):
        return None
    return means if np.isfinite(means).all() else None


def set_value_means(value: ir.Value, axis: int, means: Any) -> None:
    """Note the mean of a value at each place along an axis."""
    text = base64.b64encode(np.asarray(means, "<f4").tobytes()).decode()
    value.metadata_props[VALUE_MEANS] = f"{axis} {text}"


def calibration_notes(value: ir.Value) -> tuple[str | None, str | None]:
    """Return all that is noted of a value, to be compared."""
    return value.metadata_props.get(VALUE_RANGE), value.metadata_props.get(VALUE_MEANS)


def copy_notes(old: ir.Value, new: ir.Value) -> None:
    """Copy the range and means of one value to another, and whether it follows from lengths."""
    for key in (VALUE_RANGE, VALUE_MEANS, FROM_LENGTHS):
        if (text := old.metadata_props.get(key)) is not None:
            new.metadata_props[key] = text


def stays_float(node: ir.Node) -> bool:
    """Return True if a node is to stay in float32 inside a kernel of 8 bits."""
    return node.metadata_props.get(NODE_PRECISION) == _FLOAT


def keep_in_float(node: ir.Node) -> None:
    """Note that a node is to stay in float32 inside a kernel of 8 bits."""
    node.metadata_props[NODE_PRECISION] = _FLOAT


def drop_precisions(model: ir.Model) -> None:
    """Forget which nodes are to stay in float32, for kernels in which all do."""
    for node in model.graph.all_nodes():
        node.metadata_props.pop(NODE_PRECISION, None)
