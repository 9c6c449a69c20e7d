"""GNU OpenMP's threads: how long they wait awake for the next piece of work.

The library reads the environment when it is loaded, and only then. Packages bring copies of it, each with threads of its own.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

__all__ = ["quiet_threads"]

_SPIN_COUNT_NAME = "GOMP_SPINCOUNT"
_SPIN_COUNT = "2000"
"""Turns of a loop, some microseconds: enough for the next operator of a kernel, not for a neighbour to notice."""


@contextlib.contextmanager
def quiet_threads() -> Iterator[None]:
    """Make the threads of an OpenMP library sleep between runs. The library must first be imported inside this context.

    A variable that was not set before is not left in the environment: timings are filed under it.
    """
    if _SPIN_COUNT_NAME in os.environ:
        yield
        return
    os.environ[_SPIN_COUNT_NAME] = _SPIN_COUNT
    try:
        yield
    finally:
        os.environ.pop(_SPIN_COUNT_NAME, None)
