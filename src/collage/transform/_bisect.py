"""Bisection: which pass breaks a property first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from collage.transform._pass import Pass

__all__ = ["bisect_passes"]


def bisect_passes(passes: Sequence[Pass], model: ir.Model, holds: Callable[[ir.Model], bool]) -> int | None:
    """Finds the first pass after which a property no longer holds, running the property O(log n) times.

    Args:
        passes: A sequence of passes, which are run once each, in order.
        model: A model for which the property holds.
        holds: The property; taken to stay broken once it is.

    Returns:
        The index of the pass, or None if the property holds after all of them.

    Raises:
        ValueError: The property does not hold to begin with.
    """
    states = [model]
    for pass_ in passes:
        states.append(pass_(states[-1]))
    if not holds(states[0]):
        raise ValueError("the property does not hold before the first pass")
    if holds(states[-1]):
        return None
    good, bad = 0, len(passes)
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if holds(states[middle]) else (good, middle)
    return bad - 1
