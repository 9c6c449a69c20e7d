"""Representative lengths: with which lengths of its symbolic dimensions a model is used, and how often."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from collage._errors import UsageError
from collage.system.texts import is_whole_number

__all__ = ["Lengths", "ShapeProfile", "lengths_as_json", "lengths_from_json", "shape_profiles"]

Lengths = Mapping[str, int | Mapping[int, float]]
"""The representative length of each symbol, or several with weights."""

_LENGTH_BITS = 63
_LARGEST_WEIGHT = 1e100
_MOST = 16
"""Every kernel is measured on all of them."""


@dataclass(frozen=True, slots=True)
class ShapeProfile:
    """Lengths that a model is used with.

    Attributes:
        dims: Lengths by symbol; see ``bind_dims``.
        weight: Their share of all runs.
    """

    dims: Mapping[str, int]
    weight: float


def shape_profiles(lengths: Lengths) -> tuple[ShapeProfile, ...]:
    """All combinations of the lengths, the most frequent one first. Symbols are assumed independent.

    Args:
        lengths: ``{"batch": 1, "seq": {32: 3, 512: 1}}`` is three runs at 32 for each at 512; weights need not add up to 1.

    Raises:
        UsageError: No length, a negative one, a weight that is not positive, or more combinations than can be measured.
    """
    choices = []
    for name, several in lengths.items():
        weights = several if isinstance(several, Mapping) else {several: 1.0}
        if not weights:
            raise UsageError(f"dimension {name!r} has no representative length")
        for length, weight in weights.items():
            if not _is_length(length):
                raise UsageError(f"dimension {name!r} cannot be {length!r}")
            if not (isinstance(weight, Real) and 0 < float(weight) <= _LARGEST_WEIGHT):
                raise UsageError(f"dimension {name!r}: the weight of length {length} is {weight}; it must be above 0")
        total = math.fsum(weights.values())
        choices.append([(name, length, weight / total) for length, weight in weights.items()])
    if (number := math.prod(map(len, choices))) > _MOST:
        raise UsageError(f"{number} combinations of representative lengths, of which at most {_MOST} can be measured")
    found = [
        ShapeProfile({name: length for name, length, _ in chosen}, math.prod(weight for *_, weight in chosen))
        for chosen in itertools.product(*choices)
    ]
    return tuple(sorted(found, key=lambda occasion: -occasion.weight))


def _is_length(value: object) -> bool:
    """Return True for a whole number that may be a length, of any library."""
    return isinstance(value, Integral) and 0 <= int(value) < 1 << _LENGTH_BITS


def lengths_as_json(lengths: Lengths) -> dict[str, Any]:
    """The same, as JSON values: its keys are strings."""
    return {
        name: {str(length): weight for length, weight in several.items()} if isinstance(several, Mapping) else several
        for name, several in lengths.items()
    }


def lengths_from_json(told: object) -> Lengths:
    """Read lengths that ``lengths_as_json`` wrote.

    Raises:
        UsageError: It is something else.
    """
    if not isinstance(told, dict):
        raise UsageError("representative lengths must be an object of lengths by symbol")
    return {str(name): _lengths(name, several) for name, several in told.items()}


def _lengths(name: str, told: object) -> int | Mapping[int, float]:
    if isinstance(told, int):
        return told
    if not isinstance(told, dict):
        raise UsageError(f"dimension {name!r} has no representative length")
    pairs = [(str(length), weight) for length, weight in told.items()]
    if not all(is_whole_number(length) and isinstance(weight, int | float) for length, weight in pairs):
        raise UsageError(f"dimension {name!r}: its lengths must be numbers with weights")
    return {int(length): float(weight) for length, weight in pairs}
