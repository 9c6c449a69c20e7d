"""Lengths in loops that are written by hand: integers, or expressions of what a call knows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tvm import tirx

__all__ = ["Length", "ceil_div", "f32", "i64", "lengths_of", "numbers_of"]

Length = Any
"""An integer, or an expression of lengths that a call of the loops has."""


def ceil_div(length: Length, size: Length) -> Length:
    """Return the number of blocks of a size that cover a length."""
    return (length + (size - 1)) // size


def i64(number: Length) -> Any:
    """Return a length as TVM's loops take it."""
    return tirx.IntImm("int64", number) if isinstance(number, int) else number


def f32(number: float) -> Any:
    """Return a constant in single precision."""
    return tirx.FloatImm("float32", number)


def lengths_of(buffer: Any) -> list[Length]:
    """Return the lengths of a buffer."""
    return numbers_of(buffer.shape)


def numbers_of(shape: Iterable[Any]) -> list[Length]:
    """Return lengths, of which those that are known are integers."""
    return [int(n) if isinstance(n, tirx.IntImm) else n for n in shape]
