"""Values of measuring: costs, outcomes, statistics of latencies, the key of a workload.

Names are imported on first use: worker processes import this package, and must come up fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from collage._lazy import ImportedOnUse

if TYPE_CHECKING:
    from collage.cost.cost import Cost
    from collage.cost.outcome import Outcome
    from collage.cost.workload_key import WorkloadKey
    from collage.status import Status
else:
    __getattr__ = ImportedOnUse(
        __name__,
        {
            "collage.cost.cost": "Cost",
            "collage.cost.outcome": "Outcome",
            "collage.status": "Status",
            "collage.cost.workload_key": "WorkloadKey",
        },
    )


__all__ = ["Cost", "Outcome", "Status", "WorkloadKey"]
