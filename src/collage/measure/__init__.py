"""Measuring: kernels are built, checked and timed in worker processes, whole plans are compared end to end.

Names are imported on first use: worker processes import this package, and must come up fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collage.measure.estimator import (
        CostEstimator,
        CustomCostEstimator,
        MeasuringCostEstimator,
        RecordedCostEstimator,
    )

_HOME = {
    "CostEstimator": "collage.measure.estimator",
    "CustomCostEstimator": "collage.measure.estimator",
    "MeasuringCostEstimator": "collage.measure.estimator",
    "RecordedCostEstimator": "collage.measure.estimator",
}

__all__ = ["CostEstimator", "CustomCostEstimator", "MeasuringCostEstimator", "RecordedCostEstimator"]

if not TYPE_CHECKING:  # As in `collage`: it would turn every misspelt name into Any.

    def __getattr__(name: str) -> Any:
        if name in _HOME:
            return getattr(importlib.import_module(_HOME[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
