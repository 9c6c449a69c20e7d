"""Lengths as expressions of those of a kernel's inputs, which a kernel computes without TVM's compiler."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["OPERATORS", "Form", "value_of"]

Form = Any
"""An integer, ``["axis", input, axis]``, or the name of an operator and two forms: all of them JSON values."""

OPERATORS: Mapping[str, Callable[[int, int], int]] = {
    "Add": operator.add,
    "FloorDiv": operator.floordiv,
    "FloorMod": operator.mod,
    "Max": max,
    "Min": min,
    "Mul": operator.mul,
    "Sub": operator.sub,
}
"""Operators by TVM's name of their expressions."""


def value_of(form: Form, shapes: Sequence[Sequence[int]]) -> int:
    """Return the length that a form stands for.

    Args:
        form: The form. It divides by constants only, which are not 0.
        shapes: The shapes of the kernel's inputs.
    """
    if isinstance(form, int):
        return form
    name, first, second = form
    if name == "axis":
        length: int = shapes[first][second]
        return length
    return OPERATORS[name](value_of(first, shapes), value_of(second, shapes))
