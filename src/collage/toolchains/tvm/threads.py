"""TVM's threads: how many there are, whether they wait awake, and where they run.

Each thread that calls TVM has a pool of its own, made when it is first needed, and as large as it will ever be. Left to
itself TVM takes every second processor for the other half of one before it, and a machine that has two computes with one.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from typing import Any, NoReturn

from collage.system.forks import in_forks
from collage.system.machine import usable_cores
from collage.toolchains.sdk.thread_affinity import HelperThreads, started_meanwhile
from collage.toolchains.tvm.runtime_library import runtime

__all__ = ["set_habits", "use_threads"]

_SHARE_ALL_CORES = -3
"""TVM's affinity mode in which any of its threads may run on any of the processors named."""


def set_habits(exclusive: bool) -> None:
    """Have TVM leave affinities alone, and its threads be quiet between two runs unless ``exclusive``.

    It would pin the caller to one core for good. It reads its environment variables when it first needs threads.
    """
    os.environ.setdefault("TVM_BIND_THREADS", "0")
    if not exclusive:
        os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "0")


def use_threads(count: int) -> None:
    """Let TVM run later calls of this thread with ``count`` threads, each on its own processor, and at most one per processor."""
    if _team.size != count:
        _team.resize(count)
    _team.helpers.move_off()


class _Team(threading.local):
    """The pool of the calling thread."""

    def __init__(self) -> None:
        self.size = 0
        self.helpers = HelperThreads()

    def resize(self, count: int) -> None:
        """Have the first ``count`` of the pool's threads do the work; the calling thread is one of them."""
        if not self.size:
            with started_meanwhile() as started:
                _configure(max(count, usable_cores()))
            self.helpers.add(started)
        _configure(count)
        self.size = count


_team = _Team()


def _end_early() -> None:
    """Have a fork end before the pool of the thread that forked does, which waits for threads that are not there.

    TVM ends its pools when C++ ends the thread, after all that Python does at its end. So a fork ends with the last of that.
    """
    if not _team.size:
        return
    told: list[object] = []
    leave = sys.exit

    def noted(code: Any = None) -> NoReturn:
        told[:] = [code]
        leave(code)

    def end() -> None:
        atexit.unregister(end)
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(_status(told))

    sys.exit = noted
    atexit.register(end)


def _status(told: list[object]) -> int:
    """Return the exit status of an interpreter that ends by an exception, by ``sys.exit``, or by itself."""
    if getattr(sys, "last_exc", getattr(sys, "last_value", None)) is not None:
        return 1
    code = told[0] if told else None
    if code is None or isinstance(code, int):
        return (code or 0) & 0xFF
    return 1


in_forks(_end_early)


def _configure(count: int) -> None:
    # How many processors are named is what counts, here and for every loop nest; nothing is bound to them.
    processors = [str(number) for number in range(count)]
    configure: Any = runtime().get_global_func("runtime.config_threadpool")
    configure(_SHARE_ALL_CORES, count, processors)
