"""Worker processes, which may die without consequence, and the lock that lets one of them measure at a time.

Names are imported on first use: worker processes import this package, and must come up fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collage.workers.worker import Worker

_HOME = {
    "Worker": "collage.workers.worker",
}

__all__ = ["Worker"]

if not TYPE_CHECKING:  # As in `collage`: it would turn every misspelt name into Any.

    def __getattr__(name: str) -> Any:
        if name in _HOME:
            return getattr(importlib.import_module(_HOME[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
