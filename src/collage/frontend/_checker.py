"""ONNX's own checker, for models that runtimes take."""

from __future__ import annotations

import onnx
import onnx.checker

from collage.frontend.contrib_ops import give_domain

__all__ = ["check_model"]


def check_model(proto: onnx.ModelProto) -> None:
    """``onnx.checker.check_model``, content with shapes that inference finds later and with ONNX Runtime's operators.

    Raises:
        onnx.checker.ValidationError: The model breaks ONNX's rules.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for value in (*copy.graph.input, *copy.graph.output):
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.shape.SetInParent()  # It insists on one, be it of no axes.
    give_domain(copy)
    onnx.checker.check_model(copy)
