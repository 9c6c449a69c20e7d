"""Names and texts that are not Unicode, which old exporters wrote in the encoding of their machine.

Protocol buffers hold Unicode, and their reader returns any other text as bytes. Runtimes written in C++ never look.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import onnx

__all__ = ["is_unicode", "with_unicode_texts"]

# A text of any bytes can be read so, and different texts stay different.
_ENCODING = "latin-1"
_MOST_MESSAGES = 1_000_000
"""Parts of a model that are looked at. Twice as many items as a model may have."""
_CONTENTS = ("s", "strings")
"""Fields of attributes that are texts to ONNX and bytes to protocol buffers."""


def is_unicode(model: onnx.ModelProto) -> bool:
    """Return True if all names and texts are Unicode, as far as the model is within the budgets of all models."""
    return next(_others(model), None) is None


def with_unicode_texts(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose names and texts are Unicode: a copy if some are not, in which these are read as Latin-1."""
    if is_unicode(model):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for message, field, index, text in list(_others(copy)):
        read: Any = text.decode(_ENCODING)
        if field.name in _CONTENTS:
            read = read.encode()
        if index is None:
            setattr(message, field.name, read)
        else:
            getattr(message, field.name)[index] = read
    return copy


def _others(model: onnx.ModelProto) -> Iterator[tuple[Any, Any, int | None, Any]]:
    """Yield each text that is not Unicode: the message, the field, the index if the field is a list, and the bytes."""
    for message in itertools.islice(_messages(model), _MOST_MESSAGES):
        for field, value in _texts(message):
            items: Any = [(None, value)] if isinstance(value, str | bytes) else enumerate(value)
            yield from ((message, field, index, text) for index, text in items if _is_other(text))


def _messages(model: onnx.ModelProto) -> Iterator[Any]:
    waiting: list[Any] = [model]
    while waiting:
        message = waiting.pop()
        yield message
        if isinstance(message, onnx.TensorProto):  # Listing its fields would copy its data.
            waiting += message.external_data
            continue
        for field, value in message.ListFields():
            if field.message_type is not None:
                waiting += [value] if hasattr(value, "ListFields") else value


def _texts(message: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(message, onnx.TensorProto):
        fields = message.DESCRIPTOR.fields_by_name
        yield from ((fields[name], getattr(message, name)) for name in ("name", "doc_string"))
        return
    for field, value in message.ListFields():
        is_text = field.type == field.TYPE_STRING
        if is_text or (field.type == field.TYPE_BYTES and field.name in _CONTENTS):
            yield field, value


def _is_other(text: str | bytes) -> bool:
    if isinstance(text, str):
        return False
    try:
        text.decode()
    except UnicodeDecodeError:
        return True
    return False
