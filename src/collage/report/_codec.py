"""JSON from frozen dataclasses, back, and its JSON Schema.

The values may come from an untrusted artefact. So size, depth and every type are checked.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import math
import re
import types
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

__all__ = ["RARE", "check_bounds", "from_json", "json_schema", "to_json"]

_T = TypeVar("_T")

RARE = {"is_rare": True}
"""Metadata of a field that few reports have, so that all others stay as they are."""

_MOST_VALUES = 1_000_000
_DEEPEST = 40
_LONGEST_TEXT = 1 << 16
_LARGEST_SECTION = 4 << 20
"""Bytes of JSON of one value whose form is free."""
_LARGEST_INT = 2**63
_ATTRIBUTE = re.compile(r"^    (\w+): (.*(?:\n        .*)*)", re.MULTILINE)


def to_json(value: Any) -> Any:
    """Return a dataclass, and all that it holds, as JSON values; fields marked ``RARE`` are left out if they are empty."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [(field, getattr(value, field.name)) for field in dataclasses.fields(value)]
        return {field.name: to_json(each) for field, each in fields if each or field.metadata != RARE}
    if isinstance(value, Mapping):
        return {str(key): to_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(each) for each in value]
    return value


def check_bounds(data: Any) -> None:
    """Refuse JSON that is too large to be a report.

    Raises:
        ValueError: It is too deep, holds too many values, too long texts, or numbers that JSON lacks.
    """
    left, stack = _MOST_VALUES, [(data, 0)]
    while stack:
        value, depth = stack.pop()
        left -= 1
        if left < 0 or depth > _DEEPEST:
            raise ValueError("a report with too many values, or too deep ones")
        if isinstance(value, Mapping):
            stack += [(each, depth + 1) for pair in value.items() for each in pair]
        elif isinstance(value, list | tuple):
            stack += [(each, depth + 1) for each in value]
        elif isinstance(value, str):
            if len(value) > _LONGEST_TEXT:
                raise ValueError(f"a text of {len(value)} characters in a report")
        elif isinstance(value, int):
            if abs(value) >= _LARGEST_INT:
                raise ValueError("a report with a number beyond 64 bits")
        elif isinstance(value, float):
            if not math.isfinite(value):
                raise ValueError(f"a report with {value}")
        elif value is not None:
            raise ValueError(f"a report with a {type(value).__name__}")


def from_json(form: type[_T], data: Any) -> _T:
    """Return the dataclass that ``to_json`` wrote; unknown keys are ignored, and absent ones get their defaults.

    Raises:
        ValueError: A value has another type than its field.
    """
    found: _T = _read(form, data, form.__name__)
    return found


def _read(form: Any, data: Any, place: str) -> Any:
    origin, arguments = get_origin(form), get_args(form)
    if dataclasses.is_dataclass(form):
        return _dataclass(form, data, place)
    if origin is Literal:
        return _expect(data, data in arguments if isinstance(data, str) else False, form, place)
    if origin in (Union, types.UnionType):
        (other,) = (each for each in arguments if each is not type(None))
        return None if data is None else _read(other, data, place)
    if origin is tuple:
        _expect(data, isinstance(data, list | tuple), form, place)
        return tuple(_read(arguments[0], each, f"{place}[{i}]") for i, each in enumerate(data))
    if origin is Mapping:
        _expect(data, isinstance(data, Mapping) and all(isinstance(key, str) for key in data), form, place)
        if arguments[1] is Any:
            return _free(data, place)
        return {key: _read(arguments[1], each, f"{place}.{key[:80]}") for key, each in data.items()}
    if form is float:
        return float(_expect(data, type(data) in (int, float) and math.isfinite(data), form, place))
    if form in (int, bool, str):
        return _expect(data, type(data) is form, form, place)
    raise TypeError(f"{place}: {form} is not a type of a report")


def _dataclass(form: Any, data: Any, place: str) -> Any:
    _expect(data, isinstance(data, Mapping), form, place)
    hints = _hints(form)
    given = {name: _read(hint, data[name], f"{place}.{name}") for name, hint in hints.items() if name in data}
    absent = [f.name for f in dataclasses.fields(form) if f.name not in given and _is_required(f)]
    if absent:
        raise ValueError(f"{place} lacks {absent[0]!r}")
    return form(**given)


def _free(data: Mapping[str, Any], place: str) -> dict[str, Any]:
    check_bounds(data)
    if len(json.dumps(data, allow_nan=False)) > _LARGEST_SECTION:
        raise ValueError(f"{place} is larger than {_LARGEST_SECTION >> 20} MiB")
    return dict(data)


def _expect(data: Any, is_right: bool, form: Any, place: str) -> Any:
    if not is_right:
        name = form.__name__ if isinstance(form, type) else str(form).replace("typing.", "")
        raise ValueError(f"{place} is {str(data)[:40]!r}, not {name}")
    return data


@functools.cache
def _hints(form: Any) -> Mapping[str, Any]:
    return get_type_hints(form)


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def json_schema(form: type) -> dict[str, Any]:
    """Return the JSON Schema of a dataclass, with descriptions from the docstrings."""
    definitions: dict[str, Any] = {}
    root = _schema_of(form, definitions)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **root, "$defs": definitions}


def _schema_of(form: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = get_origin(form), get_args(form)
    if dataclasses.is_dataclass(form):
        name = form.__name__  # type: ignore[union-attr]
        if name not in definitions:
            definitions[name] = {}
            definitions[name] = _object_schema(form, definitions)
        return {"$ref": f"#/$defs/{name}"}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        (other,) = (each for each in arguments if each is not type(None))
        return {"anyOf": [_schema_of(other, definitions), {"type": "null"}]}
    if origin is tuple:
        return {"type": "array", "items": _schema_of(arguments[0], definitions)}
    if origin is Mapping:
        free = arguments[1] is Any
        return {"type": "object", "additionalProperties": True if free else _schema_of(arguments[1], definitions)}
    return {"type": {float: "number", int: "integer", bool: "boolean", str: "string"}[form]}


def _object_schema(form: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    docstring = form.__doc__ or ""
    texts = (inspect.cleandoc(base.__doc__ or "") for base in form.__mro__)
    told = {name: " ".join(text.split()) for each in texts for name, text in _ATTRIBUTE.findall(each)}
    properties = {
        name: {**_schema_of(hint, definitions), **({"description": told[name]} if name in told else {})}
        for name, hint in _hints(form).items()
    }
    return {
        "type": "object",
        "description": docstring.split("\n\n")[0].strip(),
        "properties": properties,
        "required": [field.name for field in dataclasses.fields(form) if _is_required(field)],
    }
