"""Models of fixed shapes with names for the lengths of their inputs."""

from __future__ import annotations

import onnx

__all__ = ["with_named_lengths"]


def with_named_lengths(
    model: onnx.ModelProto, *, inputs: int | None = None, first_only: bool = False
) -> onnx.ModelProto:
    """A copy of a model: its inputs' lengths above 1 have names, equal ones the same, and its outputs' are not known.

    Args:
        model: Of fixed shapes.
        inputs: Only of so many inputs.
        first_only: Name an input's first dimension only.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for value in copy.graph.input[:inputs]:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.dim_value > 1 and not (first_only and axis):
                dim.dim_param = f"d{dim.dim_value}"
    for value in copy.graph.output:
        for dim in value.type.tensor_type.shape.dim:
            dim.Clear()
    return copy
