"""Defaults of inputs: initializers of the same name, which callers may override (IR version 4 and later).

The front door makes such an input an ordinary one and keeps its default in the metadata of the value, so that no pass takes
it for a constant.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from collage._errors import ModelError
from collage.frontend._tensors import check_tensor

if TYPE_CHECKING:
    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["decode_default", "default_of", "default_text", "give_defaults", "take_defaults"]

_KEY = "collage.default"
_FIRST_IR_VERSION = 4
"""Before it, every initializer had to be listed as an input, and none could be overridden."""

_MOST_BYTES = 1 << 16
"""Together. Exporters that list all weights as inputs do not mean that callers replace them, and constants are faster."""

_MOST_RANK = 32


def take_defaults(model: ir.Model) -> dict[str, str]:
    """Make inputs that have a default ordinary inputs, and return the defaults by name, as text.

    If all defaults together exceed 64 KiB, and in old IR versions, they stay constants.

    Args:
        model: A model as it was read; it is changed.

    Raises:
        ModelError: A default is not of the type or shape of its input, or cannot be read.
    """
    graph = model.graph
    taken = {
        str(value.name): text for value in graph.inputs if (text := value.metadata_props.pop(_KEY, None)) is not None
    }
    listed = [(value, tensor) for value in graph.inputs if (tensor := _initializer(value)) is not None]
    if model.ir_version >= _FIRST_IR_VERSION and sum(tensor.nbytes for _, tensor in listed) <= _MOST_BYTES:
        for value, tensor in listed:
            taken[str(value.name)] = _encoded(tensor)
            del graph.initializers[str(value.name)]
            value.const_value = None
    for value in graph.inputs:
        if (text := taken.get(str(value.name))) is not None:
            _check(value, text)
    return taken


def give_defaults(model: ir.Model, defaults: dict[str, str]) -> None:
    """Put defaults that were taken back, into the metadata of their inputs."""
    for value in model.graph.inputs:
        if (text := defaults.get(str(value.name))) is not None:
            value.metadata_props[_KEY] = text


def default_text(value: ir.Value) -> str | None:
    """Return the default of an input as text, or None if it has none."""
    return value.metadata_props.get(_KEY)


def default_of(value: ir.Value) -> Array | None:
    """Return the default of an input, or None if it has none."""
    text = default_text(value)
    return None if text is None else decode_default(text)


def decode_default(text: str) -> Array:
    """Return the tensor that a text stands for, in memory of its own.

    Raises:
        ModelError: It stands for none.
    """
    try:
        proto = onnx.TensorProto.FromString(base64.b64decode(text, validate=True))
    except (DecodeError, binascii.Error, ValueError):
        raise ModelError("the default of an input is damaged") from None
    facts = check_tensor(proto, "the default of an input", max_rank=_MOST_RANK, max_bytes=_MOST_BYTES)
    if facts.location is not None:
        raise ModelError("the default of an input is in an external file")
    if proto.data_type == onnx.TensorProto.STRING:
        items = [item.decode(errors="replace") for item in proto.string_data]
        return np.array(items, dtype=object).reshape(tuple(proto.dims))
    return np.array(ir.serde.deserialize_tensor(proto).numpy())


def _initializer(value: ir.Value) -> ir.TensorProtocol | None:
    return value.const_value if value.is_initializer() else None


def _encoded(tensor: ir.TensorProtocol) -> str:
    proto = onnx.TensorProto(data_type=tensor.dtype, dims=tensor.shape.numpy())
    if tensor.dtype == ir.DataType.STRING:
        items = tensor.numpy().reshape(-1)
        proto.string_data.extend(item if isinstance(item, bytes) else str(item).encode() for item in items)
    else:
        proto.raw_data = tensor.tobytes()
    return base64.b64encode(proto.SerializeToString(deterministic=True)).decode()


def _check(value: ir.Value, text: str) -> None:
    array = decode_default(text)
    if value.dtype is None or isinstance(value.type, ir.SequenceType | ir.OptionalType):
        raise ModelError(f"input {value.name!r} has a default and is not a tensor")
    is_string = value.dtype == ir.DataType.STRING
    fits = array.dtype == (np.dtype(object) if is_string else value.dtype.numpy())
    if fits and value.shape is not None:
        fits = len(value.shape) == array.ndim and all(
            not isinstance(dim, int) or dim in (-1, length)
            for dim, length in zip(value.shape, array.shape, strict=True)
        )
    if not fits:
        raise ModelError(f"the default of input {value.name!r} has another type or shape than the input")
