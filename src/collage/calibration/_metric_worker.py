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
        except Exception as error:
            raise CompileError(f"cannot be imported: {type(error).__name__}: {error}") from error
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
            score = float(self._function(_arrays(outputs), _arrays(expected), told))
        except Exception as error:
            raise CompileError(f"raised {type(error).__name__}: {' '.join(str(error).split())[:300]}") from error
        if not math.isfinite(score):
            raise CompileError(f"returned {score}, and must return a finite number")
        return score


def _arrays(folder: str) -> dict[str, Any]:
    store = ValueStore(Path(folder))
    return {name: np.array(store.get(name)) for name in store}
