"""Sums over no elements, which TVM's loops leave unwritten: the lengths by which a kernel has any.

If new elements are added to a cache that is empty at first, a sum over both has elements. The rest of a slice may have none,
though no input is empty.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tvm import sym, tirx

from collage.toolchains.tvm.length_forms import OPERATORS, Form
from collage.toolchains.tvm.length_numbers import has_lengths

__all__ = ["known_lengths_of_sums", "lengths_of_sums", "with_lengths_of_sums"]

_ATTRIBUTE = "sums"
_KINDS = {getattr(tirx, name): name for name in OPERATORS}
_DIVISIONS = ("FloorDiv", "FloorMod")


def lengths_of_sums(summed: Iterable[Any], inputs: Sequence[Any]) -> list[list[Form]] | None:
    """Return the lengths that may be 0 of values that are summed up; None if they are not all known.

    Args:
        summed: The values in Relax. Any axis of them may be the one of the sum.
        inputs: The kernel's inputs in Relax, in order.

    Returns:
        The lengths that may be 0 though no input is empty, and those that may be 0 only if an input is.
    """
    places: dict[Any, Form] = {}
    for number, port in enumerate(inputs):
        for axis, length in enumerate(port.ty.shape.values if has_lengths(port) else ()):
            if isinstance(length, tirx.Var):
                places.setdefault(length, ["axis", number, axis])
    found: list[list[Form]] = [[], []]
    for value in summed:
        if not has_lengths(value):
            return None
        for length in value.ty.shape.values:
            if _is_positive(length, 0):
                continue
            form, kind = _form(length, places), found[_is_positive(length, 1)]
            if form is None:
                return None
            if form not in kind:
                kind.append(form)
    return found


def _is_positive(length: Any, least: int) -> bool:
    """Return True if a length is more than 0 whenever all lengths that it is made of are at least ``least``."""
    analyzer = sym.Analyzer()
    for variable in tirx.analysis.undefined_vars(length):
        analyzer.update(variable, sym.ConstIntBound(least, sym.ConstIntBound.POS_INF))
    return bool(analyzer.can_prove(length > 0))


def _form(length: Any, places: Mapping[Any, Form]) -> Form | None:
    """Return a length as a form; None if it has none."""
    if isinstance(length, tirx.IntImm):
        return int(length)
    if isinstance(length, tirx.Var):
        return places.get(length)
    name = _KINDS.get(type(length))
    if name is None or (name in _DIVISIONS and not (isinstance(length.b, tirx.IntImm) and int(length.b))):
        return None
    first, second = _form(length.a, places), _form(length.b, places)
    return None if first is None or second is None else [name, first, second]


def with_lengths_of_sums(module: Any, lengths: Sequence[Sequence[Form]] | None) -> Any:
    """Return a module that knows the lengths of its sums, if they are known."""
    if lengths is not None:
        module["main"] = module["main"].with_attr(_ATTRIBUTE, json.dumps(lengths))
    return module


def known_lengths_of_sums(module: Any) -> list[list[Form]] | None:
    """Return the lengths that a module knows; None if it knows none."""
    text = (module["main"].attrs or {}).get(_ATTRIBUTE)
    return None if text is None else list(json.loads(str(text)))
