"""Measuring: kernels are built, checked and timed in worker processes, whole plans are compared end to end.

Names are imported on first use: worker processes import this package, and must come up fast. The package itself can be
called: ``collage.measure(kernel, target)`` is ``collage.measure.one_kernel.measure``.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collage.measure.estimator import CostEstimator, CustomCostEstimator, MeasuringCostEstimator
    from collage.measure.one_kernel import KernelCost

_HOME = {
    "CostEstimator": "collage.measure.estimator",
    "CustomCostEstimator": "collage.measure.estimator",
    "KernelCost": "collage.measure.one_kernel",
    "MeasuringCostEstimator": "collage.measure.estimator",
}

__all__ = ["CostEstimator", "CustomCostEstimator", "KernelCost", "MeasuringCostEstimator"]


class _CallableRoom(ModuleType):
    """This package as a function: a kernel is measured by ``collage.measure(kernel, target)``."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        return importlib.import_module("collage.measure.one_kernel").measure(*args, **options)


sys.modules[__name__].__class__ = _CallableRoom

if not TYPE_CHECKING:  # As in `collage`: it would turn every misspelt name into Any.

    def __getattr__(name: str) -> Any:
        if name in _HOME:
            return getattr(importlib.import_module(_HOME[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
