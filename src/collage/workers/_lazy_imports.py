"""Defer slow imports that few jobs need, in worker processes in which a single thread imports.

The library of symbolic algebra takes half of the time in which a worker comes up. ONNX IR imports it with itself, and uses it
where dimensions are computed with, which workers leave to others.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

__all__ = ["LATE", "import_late"]

LATE = ("sympy", "onnx_ir._symbolic_shapes")
"""Modules that are made at first use; the second one uses the first as it is imported."""


class _LateFinder:
    """Find modules as ever, and make each at the first look into it."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = frozenset(names)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._names:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec


def import_late(names: Sequence[str] = LATE) -> None:
    """From now on, makes modules of these names at first use rather than where they are imported."""
    sys.meta_path.insert(0, _LateFinder(names))
