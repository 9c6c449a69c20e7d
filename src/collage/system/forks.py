"""Forks of this process: what they cannot use is kept, and not ended there."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

__all__ = ["in_forks", "keep_for_ever"]


def in_forks(work: Callable[[], None]) -> None:
    """Have a function called in every fork, before anything else runs there. Systems without forks never call it."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=work)


def keep_for_ever(thing: object) -> None:
    """Never end an object: its end would wait for threads that this process does not have."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
