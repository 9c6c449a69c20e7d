"""Whether an installed package can be imported, found out in a process that may crash or hang in our place."""

from __future__ import annotations

import functools
import importlib.util
import signal
import subprocess
import sys

from collage.toolchains._model_files import one_line

__all__ = ["import_failure"]

IMPORT_S = 30.0
"""Longer than any import on a busy machine takes."""


@functools.cache
def import_failure(package: str) -> str | None:
    """Why a package cannot be imported here, None if it can. Asked of another process once, unless it is imported."""
    if package in sys.modules:
        return None
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:  # without an origin it is some folder of that name
        return "not installed"
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
