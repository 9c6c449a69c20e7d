"""Values of measuring: costs, outcomes, statistics of latencies, the key of a workload.

Names are imported on first use: worker processes import this package, and must come up fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collage.cost.cost import Cost
    from collage.cost.outcome import Outcome
    from collage.cost.workload_key import WorkloadKey
    from collage.status import Status

_HOME = {
    "Cost": "collage.cost.cost",
    "Outcome": "collage.cost.outcome",
    "Status": "collage.status",
    "WorkloadKey": "collage.cost.workload_key",
}

__all__ = ["Cost", "Outcome", "Status", "WorkloadKey"]

if not TYPE_CHECKING:  # As in `collage`: it would turn every misspelt name into Any.

    def __getattr__(name: str) -> Any:
        if name in _HOME:
            return getattr(importlib.import_module(_HOME[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
