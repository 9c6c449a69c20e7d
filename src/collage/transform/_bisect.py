"""Bisection: which pass breaks a property first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from collage._errors import PassError
from collage.transform._pass import Pass, as_pass

__all__ = ["bisect_passes"]


def bisect_passes(
    passes: Sequence[Pass | ir.passes.PassBase], model: ir.Model, holds: Callable[[ir.Model], bool]
) -> int | None:
    """Find the first pass after which a property no longer holds, running the property O(log n) times.

    Args:
        passes: Passes of ours or of onnx_ir's, which are run once each, in order.
        model: A model for which the property holds.
        holds: The property; taken to stay broken once it is.

    Returns:
        The index of the pass, or None if the property holds after all of them.

    Raises:
        ValueError: The property does not hold before the first pass.
        PassError: A pass fails on a model for which the property still holds.
    """
    if not holds(model):
        raise ValueError("the property does not hold before the first pass")
    states, failure = [model], None
    for pass_ in passes:
        try:
            states.append(as_pass(pass_)(states[-1]))
        except PassError as error:
            failure = error  # perhaps since an earlier pass broke the model
            break
    if holds(states[-1]):
        if failure is not None:
            raise failure
        return None
    good, bad = 0, len(states) - 1
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if holds(states[middle]) else (good, middle)
    return bad - 1
