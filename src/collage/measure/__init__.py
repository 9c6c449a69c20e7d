"""Measuring: kernels are built, checked and timed in worker processes, whole plans are compared end to end.

Names are imported on first use: worker processes import this package, and must come up fast. The package itself can be
called: ``collage.measure(kernel, target)`` is ``collage.measure.one_kernel.measure``.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from collage._lazy import ImportedOnUse

if TYPE_CHECKING:
    from collage.measure.estimator import CostEstimator, CustomCostEstimator, MeasuringCostEstimator
    from collage.measure.one_kernel import KernelCost
else:
    __getattr__ = ImportedOnUse(
        __name__,
        {
            "collage.measure.estimator": "CostEstimator CustomCostEstimator MeasuringCostEstimator",
            "collage.measure.one_kernel": "KernelCost",
        },
    )


__all__ = ["CostEstimator", "CustomCostEstimator", "KernelCost", "MeasuringCostEstimator"]


class _CallableRoom(ModuleType):
    """This package as a function: a kernel is measured by ``collage.measure(kernel, target)``."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        return importlib.import_module("collage.measure.one_kernel").measure(*args, **options)


sys.modules[__name__].__class__ = _CallableRoom
