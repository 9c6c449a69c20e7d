"""The conditions that a model must meet after every pass."""

from __future__ import annotations

import onnx.checker
import onnx_ir as ir

from collage._errors import PassError
from collage.frontend import check_model, skeleton

__all__ = ["check_valid"]


def check_valid(model: ir.Model) -> None:
    """Check names, order, arities and attributes, without looking at weights.

    Raises:
        PassError: The message names the fault and the node.
    """
    for graph in model.graphs():
        for value in graph.outputs:
            if value.producer() is None and not value.is_initializer() and value.graph is None:
                raise PassError(f"output {value.name!r} of graph {graph.name!r} is computed by nothing")
    proto = skeleton(model)
    del proto.graph.value_info[:]
    try:
        check_model(proto)
    except onnx.checker.ValidationError as error:
        raise PassError("the model is no longer valid: " + " ".join(str(error).split())[:400]) from None
