"""Whether an installed package can be imported, found out in a process that may crash or hang in our place."""

from __future__ import annotations

import functools
import importlib.util
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from collage.toolchains._model_files import one_line

__all__ = ["import_failure", "importing_here"]

IMPORT_S = 30.0
"""Longer than any import on a busy machine takes."""


_here: ContextVar[bool] = ContextVar("_here", default=False)


@contextmanager
def importing_here() -> Iterator[None]:
    """For processes that import the packages next, or may crash: they are imported at once, and not elsewhere first."""
    token = _here.set(True)
    try:
        yield
    finally:
        _here.reset(token)


@functools.cache
def import_failure(package: str, load: Callable[[], object] | None = None) -> str | None:
    """Why a package cannot be imported here, None if it can. Asked of another process once, unless it is imported.

    Args:
        package: Its name.
        load: Imports it into this process, if that takes more than its name.
    """
    if package in sys.modules:
        return None
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:  # without an origin it is some folder of that name
        return "not installed"
    if _here.get():
        return _failure_here(load or functools.partial(importlib.import_module, package))
    program = f"import sys; sys.path[:] = sys.argv[1:]; import {package}"
    try:
        subprocess.run(
            [sys.executable, "-c", program, *sys.path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=IMPORT_S,
            check=True,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        return f"importing it takes more than {IMPORT_S:g} s"
    except subprocess.CalledProcessError as error:
        if error.returncode < 0:
            return f"importing it ends with {signal.Signals(-error.returncode).name}"
        return f"importing it fails: {one_line(RuntimeError(error.stderr))}"
    except OSError as error:
        return f"importing it cannot be tried: {one_line(error)}"
    return None


def _failure_here(load: Callable[[], object]) -> str | None:
    try:
        load()
    except Exception as error:
        return f"importing it fails: {one_line(error)}"
    return None
