"""Partitioned models: reading them with their kernels."""

from __future__ import annotations

import os
from typing import Any

import onnx
import onnx_ir as ir

from collage._errors import UsageError
from collage.frontend import read_model
from collage.graph import NameSupply, copy_model, kernels_of
from collage.transform import InferType

__all__ = ["read_partitioned"]


def read_partitioned(model: Any) -> tuple[ir.Model, ir.Model]:
    """Return a partitioned model with its kernels, named and typed, and the same model without them."""
    whole = InferType()(read_model(model))  # Reading validates the model, and expands its kernels.
    return _typed(_named(_as_ir(model)), whole), whole


def _as_ir(model: Any) -> ir.Model:
    """Return a partitioned model with its functions; nothing that the caller holds is changed."""
    if isinstance(model, ir.Model):
        return copy_model(model)
    if isinstance(model, onnx.ModelProto):
        return copy_model(ir.from_proto(model))
    if isinstance(model, (bytes, bytearray, memoryview)):
        return _as_ir(onnx.ModelProto.FromString(bytes(model)))
    if isinstance(model, str | os.PathLike):
        loaded: ir.Model = ir.load(model)
        return loaded
    raise UsageError(f"a partitioned model is ONNX; a {type(model).__name__} is compiled with collage.compile")


def _named(model: ir.Model) -> ir.Model:
    """Give every call of a kernel a name of its own."""
    names = NameSupply(reserved=[str(node.name) for node in model.graph if node.name])
    seen: set[str] = set()
    for call in kernels_of(model):
        if not call.node.name or call.node.name in seen:
            call.node.name = names.fresh(call.node.op_type)
        seen.add(str(call.node.name))
    return model


def _typed(model: ir.Model, whole: ir.Model) -> ir.Model:
    """Give the values between kernels the types that they have in the model without its partitioning."""
    known = {value.name: value for node in whole.graph for value in node.outputs}
    for value in (value for node in model.graph for value in node.outputs):
        if (same := known.get(value.name)) is not None:
            value.type = value.type or same.type
            value.shape = value.shape or same.shape
    return model
