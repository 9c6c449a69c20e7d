"""Costs that can be trusted: estimators, workers, statistics, the timing database, the finals (design section 7).

Names are imported on first use: worker processes import this package, and must come up fast.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "Cost": "collage.cost.cost",
    "CostEstimator": "collage.cost.estimator",
    "CustomCostEstimator": "collage.cost.estimator",
    "Database": "collage.cost.database",
    "MeasuringCostEstimator": "collage.cost.estimator",
    "Outcome": "collage.cost.outcome",
    "RecordedCostEstimator": "collage.cost.estimator",
    "Status": "collage.cost.outcome",
    "WorkloadKey": "collage.cost.key",
}

__all__ = [
    "Cost",
    "CostEstimator",
    "CustomCostEstimator",
    "Database",
    "MeasuringCostEstimator",
    "Outcome",
    "RecordedCostEstimator",
    "Status",
    "WorkloadKey",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
