"""Worker processes, which may die without consequence, and the lock that lets one of them measure at a time.

Names are imported on first use: worker processes import this package, and must come up fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from collage._lazy import ImportedOnUse

if TYPE_CHECKING:
    from collage.workers.worker import Worker
else:
    __getattr__ = ImportedOnUse(
        __name__,
        {
            "collage.workers.worker": "Worker",
        },
    )


__all__ = ["Worker"]
