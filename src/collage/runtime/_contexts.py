"""Contexts: how several threads run one executable."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any

from collage.runtime._executor import Executor

__all__ = ["ContextPool"]


class ContextPool:
    """Executors, each with kernels of its own, since a kernel serves one call at a time.

    The first is made at once. Another is made when a run finds all of them busy, up to the limit; beyond it, runs wait.

    Args:
        make: Makes an executor, loading its kernels.
        limit: How many there may be.
    """

    def __init__(self, make: Callable[[], Executor], limit: int) -> None:
        self._make = make
        self._limit = limit
        self._growing = threading.Lock()
        self._free: SimpleQueue[Executor] = SimpleQueue()
        self._free.put(make())
        self._made = 1

    def run(self, values: Sequence[Any], is_empty: bool = False) -> Sequence[Any]:
        """Runs on a context that is free; ``is_empty`` says that some input has no elements."""
        context = self.hold()
        try:
            return context.run_empty(values) if is_empty else context.run(values)
        finally:
            self._free.put(context)

    def hold(self) -> Executor:
        """A context for the caller alone, until it is given to ``release``."""
        try:
            return self._free.get_nowait()
        except Empty:
            return self._another() or self._free.get()

    def release(self, context: Executor) -> None:
        """Takes a context back."""
        self._free.put(context)

    def _another(self) -> Executor | None:
        """One more context, if there may be more; while it loads, others do better to wait for a free one."""
        if self._made < self._limit and self._growing.acquire(blocking=False):
            try:
                if self._made < self._limit:
                    context = self._make()
                    self._made += 1
                    return context
            finally:
                self._growing.release()
        return None
