"""Numbers in replacements: ``op.Mul(x, 2.0)`` multiplies by a 2 of the element type that ``x`` has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from collage.pattern import _operators
from collage.pattern._builder import Builder, NotApplicable

DtypeOf = Callable[[ir.Value, int], ir.DataType | None]
"""Returns the element type of a value that a new node reads beside a number. All new nodes before it are settled."""


def settle(
    builder: Builder, replaced: Mapping[ir.Value, ir.Value], imports: Mapping[str, int], dtype_of: DtypeOf
) -> dict[ir.Value, ir.Value]:
    """Give every plain number the element type that its place requires, and return the replacements.

    The type is that of the operands that must have the same one, or that of the replaced value. If the
    operator's schema leaves a choice it is the first operand's, if the number may have that.

    Raises:
        NotApplicable: The type cannot hold the number.
    """
    made: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}

    def typed(value: ir.Value, dtype: ir.DataType | None) -> ir.Value:
        if dtype is None or dtype == value.dtype:
            return value
        if (value, dtype) not in made:
            content, name = builder.plain[value]
            made[value, dtype] = builder.constant(_converted(content, dtype), name)
        return made[value, dtype]

    for index, node in enumerate(builder.nodes):
        places = {
            place: value for place, value in enumerate(node.inputs) if value is not None and value in builder.plain
        }
        if not places:
            continue
        formal = _operators.formal_types(node, imports)
        known = [
            None if value is None or place in places else dtype_of(value, index)
            for place, value in enumerate(node.inputs)
        ]
        for place, value in places.items():
            variable, allowed = formal[place]
            alike = (dtype for dtype, (other, _) in zip(known, formal, strict=True) if other == variable)
            partner = next((dtype for dtype in alike if dtype is not None), None) if variable else None
            first = next((dtype for dtype in known if dtype is not None), None)
            new = typed(value, partner or _chosen(builder.plain[value][0], allowed, first))
            node.replace_input_with(place, new)
            known[place] = new.dtype
    count = len(builder.nodes)
    return {old: typed(new, dtype_of(old, count)) if new in builder.plain else new for old, new in replaced.items()}


def _chosen(content: Any, allowed: frozenset[ir.DataType] | None, first: ir.DataType | None) -> ir.DataType | None:
    """The type of a number that no other operand settles; None if it keeps its own type."""
    if allowed is not None and len(allowed) == 1:
        return next(iter(allowed))
    kind = np.asarray(content).dtype.kind
    if first is None or kind == "b" or (allowed is not None and first not in allowed):
        return None
    is_alike = first.is_floating_point() if kind == "f" else first.is_integer()
    may_be_float = kind == "i" and allowed is not None and first.is_floating_point()
    return first if is_alike or may_be_float else None


def _converted(content: Any, dtype: ir.DataType) -> np.ndarray[Any, Any]:
    """A number, or lists of numbers, as an array of an element type.

    Raises:
        NotApplicable: The type cannot hold it.
    """
    array = np.asarray(content)
    if dtype == ir.DataType.STRING:
        raise NotApplicable(f"the number {content!r} is given, but a STRING is needed")
    with np.errstate(all="ignore"):
        new = array.astype(dtype.numpy())
        if dtype.is_floating_point():
            holds = np.array_equal(np.isfinite(new.astype(np.float64)), np.isfinite(array.astype(np.float64)))
        else:
            holds = bool((new.astype(object) == array.astype(object)).all())
    if not holds:
        raise NotApplicable(f"{content!r} is not a number of type {dtype.name}")
    return new
