"""Executables in forks of the process that loaded them.

A fork has the memory of its parent, but only the thread that forked. Kernels of the parent would wait for ever for
threads that do not exist. So a fork does not call them, and loads its own kernels at its first run. Libraries such as
TVM and OpenMP also keep helper threads for each calling thread. The thread that forked has lost its helpers, so a new
thread runs the kernels.

Locks of libraries that are held at that moment stay held. So a fork waits until runs are over and threads of libraries sleep.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from collage._errors import CollageError, ToolchainError
from collage.runtime._contexts import ContextPool
from collage.runtime._executor import Executor, Targets
from collage.runtime._parallel import CoreSets
from collage.system.forks import around_forks, in_forks, keep_for_ever, wait_for_sleep

__all__ = ["ForkedPool", "loading_again", "new_pool", "note_loading", "restart_in_forks"]

T = TypeVar("T")


class Forkable(Protocol):
    """An object that must be initialised again in a forked process."""

    def hold_for_fork(self, until: float) -> Callable[[], None]:
        """Have no run begin until the result is called, and wait for those that began, to a time of ``time.monotonic``."""
        ...

    def restart_in_fork(self) -> None:
        """Drop the objects of the parent process; called in the child, before anything else runs there."""
        ...


_RUNS_S = 1.0
"""Time that runs have to end before a fork."""
_SLEEP_S = 0.1
"""Time that threads of libraries have to sleep after that."""
_living: weakref.WeakSet[Any] = weakref.WeakSet()
_held: list[Callable[[], None]] = []
# One fork at a time: the end of one would let runs begin that another one, of another thread, still holds.
_forking = threading.Lock()
_has_loaded = False
_orphan: int | None = None


def restart_in_forks(one: Forkable) -> None:
    """Have ``restart_in_fork`` called in every fork for as long as the object lives."""
    _living.add(one)


def note_loading() -> None:
    """Note that kernels are loaded in this process: libraries may keep helpers for its threads from now on."""
    global _has_loaded
    _has_loaded = True


def new_pool(make: Callable[[], Executor], limit: int, *, is_lazy: bool) -> ContextPool:
    """Return contexts that suit this process, a fork or not."""
    if _orphan is None:
        return ContextPool(make, limit, is_lazy=is_lazy)
    pool = ForkedPool(make, limit, _orphan)
    if not is_lazy:
        pool.apart(pool.fill_one)
    return pool


def _before() -> None:
    _forking.acquire()
    if _has_loaded:
        until = time.monotonic() + _RUNS_S
        for one in list(_living):
            _held.append(one.hold_for_fork(until))
        wait_for_sleep(_SLEEP_S)


def _in_parent() -> None:
    while _held:
        _held.pop()()
    _forking.release()


def _in_child() -> None:
    global _orphan, _held, _forking
    keep_for_ever(_held)
    _held, _forking = [], threading.Lock()
    if _has_loaded:
        _orphan = threading.get_ident()
    for one in list(_living):
        one.restart_in_fork()


in_forks(_in_child)
around_forks(_before, _in_parent)


class ForkedPool(ContextPool):
    """The contexts of an executable in a fork of a process that had loaded kernels. They are loaded by the first run.

    Args:
        make: Makes an executor, loading its kernels.
        limit: The most contexts that there may be.
        orphan: The thread that forked.
    """

    def __init__(self, make: Callable[[], Executor], limit: int, orphan: int) -> None:
        super().__init__(make, limit, is_lazy=True)
        self._forked = orphan
        self._helper: CoreSets | None = None

    def run(self, values: Sequence[Any], is_empty: bool = False, targets: Targets | None = None) -> Sequence[Any]:
        """Run on a context that is free; see ``ContextPool``."""
        return self.apart(lambda: ContextPool.run(self, values, is_empty, targets))

    def apart(self, work: Callable[[], T]) -> T:
        """Call a function, in another thread if this is the one that forked."""
        if threading.get_ident() != self._forked:
            return work()
        if self._helper is None:
            self._helper = CoreSets({"fork": ()})
        return self._helper.call("fork", work)


def loading_again(make: Callable[[], Executor]) -> Callable[[], Executor]:
    """Return a function that loads kernels in a fork, and raises a clear error if that fails."""

    def load() -> Executor:
        try:
            return make()
        except (CollageError, OSError) as error:
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            raise ToolchainError(
                f"the executable was loaded before this process was forked, and its kernels cannot be loaded again: "
                f"{reason}; load it in the fork"
            ) from error

    return load
