"""A worker that tells what was imported in it."""

from __future__ import annotations

import importlib
import sys

from collage.measure._kernel_worker import KernelWorker

__all__ = ["Witness"]


class Witness(KernelWorker):
    """Serves a toolchain, and answers for it."""

    def imported(self, name: str) -> bool:
        """Whether a package was imported."""
        return name in sys.modules

    def can_import(self, name: str) -> bool:
        """Whether it can be."""
        return importlib.import_module(name) is not None
