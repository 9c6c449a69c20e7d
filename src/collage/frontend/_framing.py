"""The outermost layer of a model file: is it a sequence of protobuf fields at all?

Told from a few bytes for each field, so that gigabytes of something else are refused without being read.
"""

from __future__ import annotations

from typing import BinaryIO

from collage._errors import ModelError

__all__ = ["check_framing"]

_HEADER_BYTES = 20
"""Room for a tag and a length, ten bytes each at most."""

_VARINT, _EIGHT_BYTES, _DELIMITED, _FOUR_BYTES = 0, 1, 2, 5


def check_framing(file: BinaryIO, size: int, most_fields: int) -> None:
    """Steps from field to field over a file, and leaves it at its beginning.

    Raises:
        ModelError: A field is none, reaches beyond the end, or there are too many.
    """
    position = fields = 0
    while position < size:
        fields += 1
        if fields > most_fields:
            raise ModelError(f"has more than {most_fields:,} fields, functions and metadata among them")
        file.seek(position)
        header = file.read(_HEADER_BYTES)
        tag, used = _varint(header, 0)
        kind = tag & 7
        if not tag >> 3 or kind not in (_VARINT, _EIGHT_BYTES, _DELIMITED, _FOUR_BYTES):
            raise ModelError("is not an ONNX model, or is damaged")
        if kind in (_VARINT, _DELIMITED):
            length, used = _varint(header, used)
            position += used + (length if kind == _DELIMITED else 0)
        else:
            position += used + (8 if kind == _EIGHT_BYTES else 4)
    if position != size:
        raise ModelError("is not an ONNX model, or is truncated")
    file.seek(0)


def _varint(data: bytes, start: int) -> tuple[int, int]:
    """A number of seven bits a byte, the lowest first, and where it ends."""
    value = 0
    for place, byte in enumerate(data[start : start + 10]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, start + place + 1
    raise ModelError("is not an ONNX model, or is truncated or damaged")
