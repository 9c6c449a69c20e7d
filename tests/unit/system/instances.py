"""Random values of the types that files and facts are made of."""

from __future__ import annotations

import dataclasses
import enum
import math
import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from collage.explain import NodeRanges, Record

_TEXT = st.text(st.characters(codec="utf-8"), max_size=5)
_OPERATORS = 4


def any_of(form: Any) -> st.SearchStrategy[Any]:
    """Any value of a type that the codec knows; those that a dataclass refuses are left out."""
    origin, arguments = get_origin(form), get_args(form)
    if origin is Annotated:
        (bounds,) = arguments[1:]
        inner = arguments[0]
        if inner is float:
            least, most = (None if math.isinf(bound) else float(bound) for bound in (bounds.least, bounds.most))
            return st.floats(least, most, allow_nan=False, allow_infinity=False)
        if inner is int:
            return st.integers(int(bounds.least), 2**62 if math.isinf(bounds.most) else int(bounds.most))
        return any_of(inner).filter(bounds.has)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (Union, types.UnionType):
        return st.one_of(st.none() if each is type(None) else any_of(each) for each in arguments)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return st.tuples(*map(any_of, arguments))
    if origin in (tuple, list, set):
        return st.lists(any_of(arguments[0]), max_size=2).map(origin)
    if origin in (Mapping, dict):
        free = st.recursive(st.none() | st.booleans() | st.integers(0, 9) | _TEXT, _nested, max_leaves=4)
        return st.dictionaries(_TEXT, free if arguments[1] is Any else any_of(arguments[1]), max_size=2)
    if isinstance(form, type) and issubclass(form, enum.Enum):
        return st.sampled_from(form)
    if form is NodeRanges:
        return st.sets(st.integers(0, _OPERATORS - 1), min_size=1).map(NodeRanges.of)
    if form is Record:
        return st.deferred(lambda: instances(Record, names=("n",) * _OPERATORS, op_types=("Conv",) * _OPERATORS))
    if dataclasses.is_dataclass(form):
        return st.deferred(lambda: instances(form))
    simple: dict[Any, st.SearchStrategy[Any]] = {
        float: st.floats(allow_nan=False, allow_infinity=False),
        int: st.integers(-(2**62), 2**62),
        bool: st.booleans(),
        str: _TEXT,
    }
    return simple[form]


def _nested(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(leaves, max_size=2) | st.dictionaries(_TEXT, leaves, max_size=2)


def instances(form: Any, **own: Any) -> st.SearchStrategy[Any]:
    """Any values that the fields of a dataclass may have, except given ones; the schema stays as it is."""
    hints = {name: hint for name, hint in get_type_hints(form, include_extras=True).items() if name != "schema"}
    made = st.fixed_dictionaries({name: any_of(hint) for name, hint in hints.items()})

    def build(fields: dict[str, Any]) -> Any:
        try:
            return form(**{**fields, **own})
        except ValueError:
            return None

    return made.map(build).filter(lambda value: value is not None)
