"""Checks of the type, shape and data that a tensor in a model file claims, made before they are used."""

from __future__ import annotations

from dataclasses import dataclass

import onnx
import onnx_ir as ir

from collage._errors import ModelError

__all__ = ["TensorFacts", "check_tensor"]

_EXTERNAL = onnx.TensorProto.EXTERNAL
_KEYS = frozenset({"location", "offset", "length", "checksum"})

_T = onnx.TensorProto
_TYPED_FIELD = {
    _T.FLOAT: "float_data",
    _T.COMPLEX64: "float_data",
    _T.DOUBLE: "double_data",
    _T.COMPLEX128: "double_data",
    _T.INT64: "int64_data",
    _T.UINT64: "uint64_data",
    _T.UINT32: "uint64_data",
    _T.STRING: "string_data",
}
"""The field that holds a type's values where ``raw_data`` does not; ``int32_data`` for all others."""


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """A tensor's claims.

    Attributes:
        where: The place in the model, for messages.
        nbytes: Bytes of its values, packed as ONNX packs them; 0 for strings.
        location: The file that holds them, None if the model file does.
        offset: Offset of the values in that file, in bytes.
    """

    where: str
    nbytes: int
    location: str | None = None
    offset: int = 0


def check_tensor(tensor: onnx.TensorProto, where: str, *, max_rank: int, max_bytes: int) -> TensorFacts:
    """Refuse a tensor whose data does not fit its type and shape.

    Raises:
        ModelError: Unknown type, impossible shape, too large, or too much or too little data.
    """
    try:
        dtype = ir.DataType(tensor.data_type)
    except ValueError:
        dtype = ir.DataType.UNDEFINED
    if dtype == ir.DataType.UNDEFINED:
        raise ModelError(f"{where} has the unknown element type {tensor.data_type}")
    if len(tensor.dims) > max_rank:
        raise ModelError(f"{where} has {len(tensor.dims)} dimensions")
    elements = extent = 1
    for dim in tensor.dims:
        if dim < 0:
            raise ModelError(f"{where} has the negative dimension {dim}")
        elements *= dim
        extent *= dim or 1
    if tensor.HasField("segment"):
        raise ModelError(f"{where} is stored in segments, which are not supported")
    is_string = dtype == ir.DataType.STRING
    nbytes = 0 if is_string else (elements * dtype.bitwidth + 7) // 8
    if max(nbytes, elements) > max_bytes:
        raise ModelError(f"{where} would have {elements:,} elements, {nbytes:,} bytes")
    if extent > max_bytes:  # NumPy and runtimes multiply the lengths of a tensor without elements, too.
        raise ModelError(f"{where} has no elements, and lengths too large for one that has any")
    if tensor.data_location == _EXTERNAL:
        return _external_facts(tensor, where, nbytes, is_string)
    if tensor.external_data:
        raise ModelError(f"{where} names an external file, but its data location is the model")
    _check_inline(tensor, where, elements, nbytes, dtype)
    return TensorFacts(where, nbytes)


def _check_inline(tensor: onnx.TensorProto, where: str, elements: int, nbytes: int, dtype: ir.DataType) -> None:
    if tensor.HasField("raw_data"):
        if dtype == ir.DataType.STRING:
            raise ModelError(f"{where} holds strings as raw data")
        if len(tensor.raw_data) != nbytes:
            raise ModelError(f"{where} has {len(tensor.raw_data):,} bytes of data where its shape needs {nbytes:,}")
        return
    field = _TYPED_FIELD.get(tensor.data_type, "int32_data")
    expected = elements
    if dtype in (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128):
        expected = 2 * elements
    elif dtype != ir.DataType.STRING and dtype.bitwidth < 8:
        expected = nbytes
    held = len(getattr(tensor, field))
    if held != expected:
        raise ModelError(f"{where} has {held:,} items of data where its shape needs {expected:,}")


def _external_facts(tensor: onnx.TensorProto, where: str, nbytes: int, is_string: bool) -> TensorFacts:
    if is_string:
        raise ModelError(f"{where} keeps strings in an external file, which is not supported")
    entries: dict[str, str] = {}
    for entry in tensor.external_data:
        if entry.key not in _KEYS or entry.key in entries:
            raise ModelError(f"{where} has the unknown or repeated external data key {entry.key[:80]!r}")
        entries[entry.key] = entry.value
    offset = _natural(entries.get("offset", "0"), "offset", where)
    length = _natural(entries["length"], "length", where) if "length" in entries else nbytes
    if length != nbytes:
        raise ModelError(f"{where} claims {length:,} external bytes where its shape needs {nbytes:,}")
    return TensorFacts(where, nbytes, entries.get("location", ""), offset)


def _natural(text: str, name: str, where: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise ModelError(f"{where} has the external data {name} {text[:40]!r}, which is not a natural number")
    return int(text)
