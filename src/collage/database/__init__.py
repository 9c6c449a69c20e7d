"""The timing database: measurements, with keys that hold everything they depend on.

Names are imported on first use: worker processes import this package, and must come up fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from collage._lazy import ImportedOnUse

if TYPE_CHECKING:
    from collage.database._engine import begin_writing, describe, open_engine
    from collage.database._facts import MACHINE, QUARANTINED, FactKind, QuarantinedBuild
    from collage.database._persistence import await_server, persistently
    from collage.database._rows import clean_text
    from collage.database.database import Database
else:
    __getattr__ = ImportedOnUse(
        __name__,
        {
            "collage.database._facts": "MACHINE QUARANTINED FactKind QuarantinedBuild",
            "collage.database.database": "Database",
            "collage.database._persistence": "await_server persistently",
            "collage.database._rows": "clean_text",
            "collage.database._engine": "begin_writing describe open_engine",
        },
    )


__all__ = [
    "MACHINE",
    "QUARANTINED",
    "Database",
    "FactKind",
    "QuarantinedBuild",
    "await_server",
    "begin_writing",
    "clean_text",
    "describe",
    "open_engine",
    "persistently",
]
