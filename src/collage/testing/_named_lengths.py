"""Models of fixed shapes with names for the lengths of their inputs."""

from __future__ import annotations

import onnx

__all__ = ["with_named_lengths"]


def with_named_lengths(
    model: onnx.ModelProto, *, inputs: int | None = None, first_only: bool = False
) -> onnx.ModelProto:
    """Return a copy of a model in which the lengths of inputs above 1 have names.

    Equal lengths get the same name. The lengths of outputs become unknown.

    Args:
        model: Model of fixed shapes.
        inputs: Number of inputs whose lengths get names, all by default.
        first_only: Name the first dimension of an input only.
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
