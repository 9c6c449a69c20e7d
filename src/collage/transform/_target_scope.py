"""The target that passes and predicates compile for, inside a ``with`` block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from collage.target import Target

__all__ = ["current_target", "target_scope"]

_TARGETS: ContextVar[tuple[Target, ...]] = ContextVar("collage_targets", default=())


@contextmanager
def target_scope(target: Target) -> Iterator[Target]:
    """Makes a target current in this thread or task until the block ends."""
    before = _TARGETS.get()
    _TARGETS.set((*before, target))
    try:
        yield target
    finally:
        _TARGETS.set(before)


def current_target() -> Target | None:
    """The innermost current target, or None."""
    targets = _TARGETS.get()
    return targets[-1] if targets else None
