"""Contexts: how several threads run one executable."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from collage.runtime._executor import Executor, Targets

__all__ = ["ContextPool"]

T = TypeVar("T")

_LOOK_S = 1.0
"""Time after which a run that waits looks if there may be another context."""


class ContextPool:
    """Executors, each with kernels of its own, since a kernel serves one call at a time.

    The first is made at once. Another is made when a run finds all of them busy, up to the limit; beyond it, runs wait.

    Args:
        make: Makes an executor, loading its kernels.
        limit: Largest number of executors.
        is_lazy: Make the first one when it is needed.
    """

    def __init__(self, make: Callable[[], Executor], limit: int, *, is_lazy: bool = False) -> None:
        self._make = make
        self._limit = limit
        self._growing = threading.Lock()
        self._free: SimpleQueue[Executor] = SimpleQueue()
        # An interrupt may come between taking a context and the ``try`` that gives it back. It is then gone, and not counted.
        self._alive: weakref.WeakSet[Executor] = weakref.WeakSet()
        self._opens: threading.Event | None = None
        if not is_lazy:
            self.fill_one()

    @property
    def _made(self) -> int:
        return len(self._alive)

    @property
    def is_loaded(self) -> bool:
        """True once a context was made, or is being made."""
        return self._made > 0 or self._growing.locked()

    def run(self, values: Sequence[Any], is_empty: bool = False, targets: Targets | None = None) -> Sequence[Any]:
        """Run on a context that is free; ``is_empty`` says that some input has no elements. ``targets``: see ``run_to``."""
        context = self.hold()
        try:
            if targets is not None:
                return context.run_to(values, targets, is_empty)
            return context.run_empty(values) if is_empty else context.run(values)
        finally:
            self._free.put(context)

    def apart(self, work: Callable[[], T]) -> T:
        """Call a function in a thread that kernels may be called from."""
        return work()

    def fill_one(self) -> None:
        """Make the first context, unless it is there."""
        if not self._made and (context := self._another(is_patient=True)) is not None:
            self._free.put(context)

    def fill(self) -> None:
        """Make all the contexts that there may be, so that no later run has to."""
        while (context := self._another(is_patient=True)) is not None:
            self._free.put(context)

    def hold(self) -> Executor:
        """A context for the caller alone, until it is given to ``release``."""
        if (opens := self._opens) is not None:
            opens.wait()
        try:
            return self._free.get_nowait()
        except Empty:
            pass
        while (context := self._another()) is None:
            with suppress(Empty):
                return self._free.get(timeout=_LOOK_S)
        return context

    def release(self, context: Executor) -> None:
        """Take a context back."""
        self._free.put(context)

    def hold_all(self, until: float) -> Callable[[], None]:
        """Take all contexts that were made, and have none made, until the result is called.

        Args:
            until: The time of ``time.monotonic`` from which on this waits no longer for runs to end.
        """
        opens = self._opens = threading.Event()
        has_growing = self._growing.acquire(timeout=max(0.0, until - time.monotonic()))
        held: list[Executor] = []
        try:
            while len(held) < self._made:
                held.append(self._free.get(timeout=max(0.0, until - time.monotonic())))
        except Empty:
            pass

        def release() -> None:
            for context in held:
                self._free.put(context)
            if has_growing:
                self._growing.release()
            if self._opens is opens:
                self._opens = None
            opens.set()

        return release

    def _another(self, is_patient: bool = False) -> Executor | None:
        """One more context, if there may be more; while it loads, others do better to wait for a free one, if there is any."""
        if self._made < self._limit and self._growing.acquire(blocking=is_patient or not self._made):
            try:
                if self._made < self._limit:
                    context = self._make()
                    self._alive.add(context)
                    return context
            finally:
                self._growing.release()
        return None
