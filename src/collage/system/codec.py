"""JSON from frozen dataclasses, back, and its JSON Schema: the one reader of files and facts.

Values may come from an untrusted file, or from a damaged database. So size, depth and every type are checked, and
whatever is wrong with them ends in a ``ValueError`` that names the place.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import json
import math
import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from collage._errors import CollageError

__all__ = [
    "LARGEST",
    "RARE",
    "Count",
    "Positive",
    "Share",
    "Us",
    "Within",
    "check_bounds",
    "from_json",
    "json_schema",
    "read_text",
    "to_json",
]

_T = TypeVar("_T")

RARE = {"is_rare": True}
"""Metadata of a field that is left out if it has its default, since few values have another."""

# Far more than the largest file of Collage holds, and few enough to be read in seconds.
_MOST_VALUES = 1_000_000
# A plan with bodies within bodies has three levels for each. Python's own stack ends at a thousand calls.
_DEEPEST = 40
_LONGEST_TEXT = 1 << 16
# Bytes of JSON of one value whose form is free.
_LARGEST_SECTION = 4 << 20
# Integers of a database have 64 bits.
_LARGEST_INT = 2**63
_ATTRIBUTE = re.compile(r"^    (\w+): (.*(?:\n        .*)*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Within:
    """The bounds of a number, or of the length of a text or a tuple; a part of an ``Annotated`` type.

    Attributes:
        least: The smallest that is right.
        most: The largest that is right.
    """

    least: float = -math.inf
    most: float = math.inf

    def has(self, value: Any) -> bool:
        """Return True if a value, or its length, is in bounds."""
        return self.least <= (value if isinstance(value, int | float) else len(value)) <= self.most


Count = Annotated[int, Within(0)]
"""A number of things, or the index of one."""
Share = Annotated[float, Within(0.0)]
"""A time, a ratio, an error, or another number that is never negative."""
LARGEST = 1e15
"""The largest figure that is drawn or computed with: sums, products and quotients of a few such are finite."""
Us = Annotated[float, Within(0.0, LARGEST)]
"""A time in µs."""
Positive = Annotated[float, Within(math.ulp(0.0))]
"""A number above zero, such as a rate or a measured time."""


def to_json(value: Any) -> Any:
    """Return a dataclass, and all that it holds, as JSON values.

    Fields marked ``RARE`` are left out if they have their default. A class with a class method ``parse`` is written as its text.
    """
    if isinstance(value, enum.Enum):
        return value.value
    if hasattr(type(value), "parse"):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [(field, getattr(value, field.name)) for field in dataclasses.fields(value)]
        return {field.name: to_json(each) for field, each in fields if not _is_left_out(field, each)}
    if isinstance(value, Mapping):
        return {str(key): to_json(each) for key, each in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(to_json, value))
    if isinstance(value, list | tuple):
        return [to_json(each) for each in value]
    return value


def read_text(text: str | bytes) -> Any:
    """Return the JSON value of a text.

    Raises:
        ValueError: It is not JSON: cut off, nested too deeply, of numbers that JSON lacks, or with a name twice in an object.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_distinct)
    except RecursionError as error:
        raise ValueError("JSON that is nested too deeply") from error


def check_bounds(data: Any, what: str, longest_text: int = _LONGEST_TEXT) -> None:
    """Refuse JSON that is larger than anything that is written here.

    Args:
        data: JSON values.
        what: Their name in messages.
        longest_text: The most characters of a text.

    Raises:
        ValueError: It is too deep, holds too many values, too long texts, or numbers and characters that JSON lacks.
    """
    left, stack = _MOST_VALUES, [(data, 0)]
    while stack:
        value, depth = stack.pop()
        left -= 1
        if left < 0 or depth > _DEEPEST:
            raise ValueError(f"{what} holds too many values, or too deep ones")
        if isinstance(value, Mapping):
            stack += [(each, depth + 1) for pair in value.items() for each in pair]
        elif isinstance(value, list | tuple):
            stack += [(each, depth + 1) for each in value]
        elif isinstance(value, str):
            if len(value) > longest_text:
                raise ValueError(f"{what} holds a text of {len(value)} characters")
            value.encode()  # Halves of characters cannot be printed.
        elif isinstance(value, int):
            if abs(value) >= _LARGEST_INT:
                raise ValueError(f"{what} holds a number beyond 64 bits")
        elif isinstance(value, float):
            if not math.isfinite(value):
                raise ValueError(f"{what} holds {value}")
        elif value is not None:
            raise ValueError(f"{what} holds a {type(value).__name__}")


def from_json(
    form: type[_T] | Any, data: Any, *, what: str = "", is_strict: bool = False, longest_text: int = _LONGEST_TEXT
) -> _T:
    """Return the value that ``to_json`` wrote; absent keys get their defaults.

    Args:
        form: A dataclass, or another type of which its fields may be.
        data: JSON values.
        what: Its name in messages; that of the dataclass by default.
        is_strict: Refuse unknown keys, which people may have misspelt. Otherwise they are ignored.
        longest_text: The most characters of a text.

    Raises:
        ValueError: It is too large, or a value has another type than its field, or is out of its bounds.
    """
    name = what or (form.__name__ if dataclasses.is_dataclass(form) else "the value")
    check_bounds(data, name, longest_text)
    value: _T = _Reader(is_strict).read(form, data, name)
    return value


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads values of known forms.

    Attributes:
        is_strict: See ``from_json``.
    """

    is_strict: bool

    def read(self, form: Any, data: Any, place: str) -> Any:
        origin, arguments = get_origin(form), get_args(form)
        if form is Any:
            return data
        if origin is Annotated:
            value = self.read(arguments[0], data, place)
            for bounds in arguments[1:]:
                _expect(value, bounds.has(value), f"from {bounds.least:g} to {bounds.most:g}", place)
            return value
        if origin is Literal:
            return _expect(data, isinstance(data, str) and data in arguments, _named(form), place)
        if origin in (Union, types.UnionType):
            return self._union(arguments, data, place)
        if origin is tuple and arguments[-1] is not Ellipsis:
            _expect(data, isinstance(data, list | tuple) and len(data) == len(arguments), _named(form), place)
            return tuple(self.read(inner, *each) for inner, each in zip(arguments, _places(data, place), strict=True))
        if origin in (tuple, list, set):
            _expect(data, isinstance(data, list | tuple), _named(form), place)
            return origin(self.read(arguments[0], *each) for each in _places(data, place))
        if origin in (Mapping, dict):
            _expect(data, isinstance(data, Mapping) and all(isinstance(key, str) for key in data), _named(form), place)
            if arguments[1] is Any:
                return _free(data, place)
            return {key: self.read(arguments[1], each, f"{place}.{key[:80]}") for key, each in data.items()}
        if form is float:
            return float(_expect(data, type(data) in (int, float), "a number", place))
        if form in (int, bool, str):
            return _expect(data, type(data) is form, form.__name__, place)
        if issubclass(form, enum.Enum):
            _expect(data, data in [member.value for member in form], _named(form), place)
            return form(data)
        if hasattr(form, "parse"):
            _expect(data, isinstance(data, str), _named(form), place)
            return _made(form.parse, [data], {}, place)
        if dataclasses.is_dataclass(form):
            return self._dataclass(form, data, place)
        raise TypeError(f"{place}: {form} is not a type of a file")

    def _union(self, forms: Sequence[Any], data: Any, place: str) -> Any:
        """Return a value of the first form that it has."""
        if data is None and type(None) in forms:
            return None
        *first, last = (form for form in forms if form is not type(None))
        for form in first:
            try:
                return self.read(form, data, place)
            except ValueError:
                continue
        return self.read(last, data, place)

    def _dataclass(self, form: Any, data: Any, place: str) -> Any:
        _expect(data, isinstance(data, Mapping), "a JSON object", place)
        hints = _hints(form)
        if self.is_strict and (unknown := sorted(set(map(str, data)) - set(hints))):
            raise ValueError(
                f"{place} has {unknown[0][:80]!r}, which is not known; known are {', '.join(sorted(hints))}"
            )
        given = {name: self.read(hint, data[name], f"{place}.{name}") for name, hint in hints.items() if name in data}
        absent = [f.name for f in dataclasses.fields(form) if f.name not in given and _is_required(f)]
        if absent:
            raise ValueError(f"{place} lacks {absent[0]!r}")
        return _made(form, [], given, place)


def _made(form: Any, arguments: list[Any], named: Mapping[str, Any], place: str) -> Any:
    """Return a value of a class that may find more fault with its parts than their types show."""
    try:
        return form(*arguments, **named)
    except (ValueError, CollageError) as error:
        raise ValueError(f"{place}: {error}") from error


def _places(data: Sequence[Any], place: str) -> list[tuple[Any, str]]:
    return [(each, f"{place}[{i}]") for i, each in enumerate(data)]


def _free(data: Mapping[str, Any], place: str) -> dict[str, Any]:
    if len(json.dumps(data, allow_nan=False)) > _LARGEST_SECTION:
        raise ValueError(f"{place} is larger than {_LARGEST_SECTION >> 20} MiB")
    return dict(data)


def _expect(data: Any, is_right: bool, what: str, place: str) -> Any:
    if not is_right:
        raise ValueError(f"{place} is {str(data)[:40]!r}, not {what}")
    return data


def _named(form: Any) -> str:
    if isinstance(form, type) and get_origin(form) is None:
        return form.__name__
    return str(form).replace("typing.", "").replace("collections.abc.", "")


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


@functools.cache
def _hints(form: Any) -> Mapping[str, Any]:
    hints = get_type_hints(form, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(form)}


def _is_left_out(field: dataclasses.Field[Any], value: Any) -> bool:
    if field.metadata != RARE:
        return False
    factory = field.default_factory
    return bool(value == (field.default if factory is dataclasses.MISSING else factory()))


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
    if origin is Annotated:
        return _schema_of(arguments[0], definitions)
    if origin is Literal:
        return {"enum": list(arguments)}
    if isinstance(form, type) and issubclass(form, enum.Enum):
        return {"enum": [member.value for member in form]}
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
    described = {name: " ".join(text.split()) for each in texts for name, text in _ATTRIBUTE.findall(each)}
    properties = {
        name: {**_schema_of(hint, definitions), **({"description": described[name]} if name in described else {})}
        for name, hint in _hints(form).items()
    }
    return {
        "type": "object",
        "description": docstring.split("\n\n")[0].strip(),
        "properties": properties,
        "required": [field.name for field in dataclasses.fields(form) if _is_required(field)],
    }
