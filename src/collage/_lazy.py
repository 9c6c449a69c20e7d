"""Names of a package that are imported on first use."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

__all__ = ["ImportedOnUse"]


class ImportedOnUse:
    """The ``__getattr__`` of a package.

    It stands where type checkers do not look: they would take every misspelt name for Any.

    Args:
        package: Name of the package.
        homes: Names, separated by spaces, by the module that has them.

    Attributes:
        homes: The module of each name.
    """

    def __init__(self, package: str, homes: Mapping[str, str]) -> None:
        self.homes = {name: module for module, names in homes.items() for name in names.split()}
        self._package = package

    def __call__(self, name: str) -> Any:
        if name in self.homes:
            return getattr(importlib.import_module(self.homes[name]), name)
        raise AttributeError(f"module {self._package!r} has no attribute {name!r}")
