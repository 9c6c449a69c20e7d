"""Try imports of installed packages in a process of their own, which may crash or hang instead of this one."""

from __future__ import annotations

import functools
import importlib.util
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from collage import _distribution
from collage.toolchains.sdk.model_files import one_line

__all__ = ["NOT_INSTALLED", "import_failure", "importing_here", "install_command", "is_alone"]

NOT_INSTALLED = "not installed"
"""The reason of an availability if the packages of a toolchain are absent."""
IMPORT_S = 60.0
"""Longer than any import on a busy machine takes."""
_AT_ONCE = threading.BoundedSemaphore(4)
"""Some packages take half a gigabyte to import."""
_LOOK_S = 0.02
_TAIL_BYTES = 1 << 16
"""Bytes kept from the end of a package's output, which holds the error: as much as a pipe holds."""
_END_WITH_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.getppid() == int(sys.argv[1]) or os._exit(1)"
)
"""Code that ends the child with its parent, by PR_SET_PDEATHSIG. Otherwise an import that hangs would outlive a killed parent."""

_failures: dict[str, str | None] = {}
_locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
_here: ContextVar[bool] = ContextVar("_here", default=False)
_alone: ContextVar[bool] = ContextVar("_alone", default=False)


@contextmanager
def importing_here(*, alone: bool = False) -> Iterator[None]:
    """Context for processes that import the packages next, or may crash: no other process tries the import first.

    Args:
        alone: True if the process has one thread and serves this toolchain only.
    """
    tokens = _here.set(True), _alone.set(alone)
    try:
        yield
    finally:
        _here.reset(tokens[0])
        _alone.reset(tokens[1])


def is_alone() -> bool:
    """Return True if imports now serve one toolchain only (see ``importing_here``)."""
    return _alone.get()


def install_command(extra: str, *, again: bool = False) -> str:
    """Return the command that installs the packages of an extra, for the distribution that is installed here.

    Args:
        extra: Its name.
        again: Something is there, and damaged.
    """
    runtime = importlib.util.find_spec("collage.compiler") is None
    return _distribution.install_command(extra, runtime=runtime, again=again) + _distribution.WHERE


def import_failure(
    package: str, load: Callable[[], object] | None = None, *, without: Sequence[str] = ()
) -> str | None:
    """Return the reason that a package cannot be imported here; None if it can. Another process tries it once.

    Threads that ask for different packages are answered side by side; of those that ask for the same, one finds out.

    Args:
        package: Its name.
        load: Imports it into this process, if that takes more than its name.
        without: Packages that it finds missing in that other process.
    """
    if package in sys.modules:
        return None
    with _locks[package]:
        if package not in _failures:
            _failures[package] = _failure(package, load, without)
        return _failures[package]


def _failure(package: str, load: Callable[[], object] | None, without: Sequence[str]) -> str | None:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:  # without an origin it is some folder of that name
        return NOT_INSTALLED
    if _here.get():
        return _failure_here(load or functools.partial(importlib.import_module, package))
    with _AT_ONCE:
        return _failure_elsewhere(package, without)


def _failure_here(load: Callable[[], object]) -> str | None:
    try:
        load()
    except Exception as error:
        return f"importing it fails: {one_line(error)}"
    return None


def _failure_elsewhere(package: str, without: Sequence[str]) -> str | None:
    hidden = f"sys.modules.update(dict.fromkeys({[*without]!r}))"
    program = f"{_END_WITH_PARENT}; {hidden}; sys.path[:] = sys.argv[2:]; import {package}"
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(os.getpid()), *sys.path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
    except OSError as error:
        return f"importing it cannot be tried: {one_line(error)}"
    with process:
        try:
            said = _last_words(process, time.monotonic() + IMPORT_S)
        except TimeoutError:
            return f"importing it takes more than {IMPORT_S:g} s"
        finally:
            process.kill()
    if process.returncode < 0:
        return f"its import fails with {signal.Signals(-process.returncode).name}"
    if process.returncode > 0:
        return f"importing it fails: {one_line(RuntimeError(said))}"
    return None


def _last_words(process: subprocess.Popen[bytes], deadline_s: float) -> str:
    """Return the end of the process's output. It may write without end, and its children may hold the pipe open.

    Raises:
        TimeoutError: It has not ended by the deadline.
    """
    assert process.stderr is not None
    said, ended = b"", False
    while True:
        heard, _, _ = select.select([process.stderr], [], [], 0.0 if ended else _LOOK_S)
        more = os.read(process.stderr.fileno(), _TAIL_BYTES) if heard else b""
        said = (said + more)[-_TAIL_BYTES:]
        if ended:
            return said.decode(errors="replace")
        if heard and not more:  # It closed the pipe, and may go on.
            time.sleep(_LOOK_S)
        if time.monotonic() > deadline_s:
            raise TimeoutError
        ended = process.poll() is not None
