"""The outermost layer of a model file: is it a sequence of protobuf fields at all?

A few bytes of each field are enough, so that gigabytes of something else are refused without being read.
"""

from __future__ import annotations

from typing import Any, BinaryIO

import onnx

from collage._errors import ModelError
from collage.frontend._budget import Budgets

__all__ = ["check_framing"]

_HEADER_BYTES = 20
"""Room for a tag and a length, ten bytes each at most."""

_LONG_BYTES = 1024
"""Fields from this length on are looked into, or are weights and strings."""

_MAY_BE_LONG = (onnx.TensorProto.DESCRIPTOR, onnx.AttributeProto.DESCRIPTOR)
"""Messages that hold weights, and lists of numbers; elsewhere, what is long is text, or unknown."""

_VARINT, _EIGHT_BYTES, _DELIMITED, _FOUR_BYTES = 0, 1, 2, 5


def check_framing(file: BinaryIO, size: int, budgets: Budgets) -> None:
    """Step from field to field over a file, and leave it at its beginning.

    A message of two bytes takes eighty when it is parsed, so that of a file larger than ``structure_bytes`` long
    messages are looked into, for how much of it is something else than weights.

    Raises:
        ModelError: A field is none, reaches beyond the end, or there are too many, or too much of them.
    """
    waiting: list[tuple[int, int, Any]] = [(0, size, onnx.ModelProto.DESCRIPTOR)]
    fields = structure_bytes = text_bytes = 0
    while waiting:
        position, end, message = waiting.pop()
        while position < end:
            fields += 1
            if fields > budgets.items:
                raise ModelError(f"has more than {budgets.items:,} fields, functions and metadata among them")
            number, start, stop = _field(file, position)
            if stop - start < _LONG_BYTES:
                structure_bytes += stop - position
            elif size > budgets.structure_bytes:
                inner = _message(message, number)
                if inner is not None:
                    waiting.append((start, stop, inner))
                elif message not in _MAY_BE_LONG:
                    text_bytes += stop - start
            position = stop
        if position != end:
            raise ModelError("is not an ONNX model, or is truncated")
        if structure_bytes > budgets.structure_bytes:
            raise ModelError(f"has more than {budgets.structure_bytes:,} bytes of nodes and descriptions")
        if text_bytes > budgets.text_bytes:
            raise ModelError(f"has more than {budgets.text_bytes:,} bytes of texts")
    file.seek(0)


def _message(message: Any, number: int) -> Any:
    """The descriptor of the messages that a field holds; None if it holds none."""
    field = message.fields_by_number.get(number)
    return field.message_type if field is not None else None


def _field(file: BinaryIO, position: int) -> tuple[int, int, int]:
    """The number of the field at a position, where its contents begin, and where they end."""
    file.seek(position)
    header = file.read(_HEADER_BYTES)
    tag, used = _varint(header, 0)
    kind = tag & 7
    if not tag >> 3 or kind not in (_VARINT, _EIGHT_BYTES, _DELIMITED, _FOUR_BYTES):
        raise ModelError("is not an ONNX model, or is damaged")
    start = position + used
    if kind == _DELIMITED:
        length, used = _varint(header, used)
        return tag >> 3, position + used, position + used + length
    if kind == _VARINT:
        return tag >> 3, start, position + _varint(header, used)[1]
    return tag >> 3, start, start + (8 if kind == _EIGHT_BYTES else 4)


def _varint(data: bytes, start: int) -> tuple[int, int]:
    """A number of seven bits a byte, the lowest first, and where it ends."""
    value = 0
    for place, byte in enumerate(data[start : start + 10]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, start + place + 1
    raise ModelError("is not an ONNX model, or is truncated or damaged")
