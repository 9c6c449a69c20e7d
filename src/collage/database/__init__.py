"""The timing database: measurements, with keys that hold everything they depend on.

Names are imported on first use: worker processes import this package, and must come up fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collage.database._engine import begin_writing, describe, open_engine
    from collage.database._facts import QUARANTINED, FactKind, QuarantinedBuild
    from collage.database._persistence import await_server, persistently
    from collage.database.database import Database

_HOME = {
    "QUARANTINED": "collage.database._facts",
    "Database": "collage.database.database",
    "FactKind": "collage.database._facts",
    "QuarantinedBuild": "collage.database._facts",
    "await_server": "collage.database._persistence",
    "begin_writing": "collage.database._engine",
    "describe": "collage.database._engine",
    "open_engine": "collage.database._engine",
    "persistently": "collage.database._persistence",
}

__all__ = [
    "QUARANTINED",
    "Database",
    "FactKind",
    "QuarantinedBuild",
    "await_server",
    "begin_writing",
    "describe",
    "open_engine",
    "persistently",
]

if not TYPE_CHECKING:  # As in `collage`: it would turn every misspelt name into Any.

    def __getattr__(name: str) -> Any:
        if name in _HOME:
            return getattr(importlib.import_module(_HOME[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
