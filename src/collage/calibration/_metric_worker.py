"""A user's own metric in a process of its own, where it may take its time, raise or crash. Runs in the child."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from collage._errors import CompileError
from collage.numerics.value_store import ValueStore

__all__ = ["MetricService"]


class MetricService:
    """Serve one function: ``function(outputs, expected, label)`` returns a number, and more is better.

    Args:
        module: The module that has it; found as Python finds any module, and then in ``paths``.
        function: Its name in the module.
        paths: Further folders in which Python looks for modules.
    """

    def __init__(self, module: str, function: str, paths: Sequence[str]) -> None:
        sys.path += [path for path in paths if path not in sys.path]
        self._at = f"{module}:{function}"
        self._module, self._name = module, function
        self._function: Callable[..., Any] | None = None

    def find(self) -> None:
        """Import the function, so that a mistake in its name is found before anything is compiled."""
        try:
            found = getattr(importlib.import_module(self._module), self._name)
        except BaseException as error:  # A module may call sys.exit.
            raise CompileError(f"cannot be imported: {_told(error)}") from error
        if not callable(found):
            raise CompileError(f"is {type(found).__name__}, not a function")
        self._function = found

    def score(self, outputs: str, expected: str, label: str | None) -> float:
        """Return what the function returns.

        Args:
            outputs: Folder of a ``ValueStore`` with the outputs.
            expected: Folder of one with the original model's.
            label: Folder of one with the value ``label``, if there is one.
        """
        if self._function is None:
            self.find()
        assert self._function is not None
        told = None if label is None else _arrays(label)["label"]
        try:
            found = self._function(_arrays(outputs), _arrays(expected), told)
        except BaseException as error:  # It may call sys.exit.
            raise CompileError(f"raised {_told(error)}") from error
        score = _number(found)
        if score is None or not math.isfinite(score):
            shape = "".join(map(str, [list(found.shape)] if isinstance(found, np.ndarray) else []))
            what = f"{type(found).__name__}{shape}" if score is None else score
            raise CompileError(f"returned {what}, and must return a finite number")
        return score


def _told(error: BaseException) -> str:
    """Return an exception in one line."""
    return ": ".join(filter(None, [type(error).__name__, " ".join(str(error).split())[:300]]))


def _number(found: Any) -> float | None:
    """Return what a function returned as a number; None if it is something else."""
    if found is None or isinstance(found, str | bytes):
        return None
    try:
        return float(found.item() if hasattr(found, "item") else found)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None


def _arrays(folder: str) -> dict[str, Any]:
    store = ValueStore(Path(folder))
    return {name: np.array(store.get(name)) for name in store}
