"""Fleets: many models compiled on many machines, by Ray, with one database.

Ray places tasks on nodes and notices lost ones. PostgreSQL shares timings, and holds the state of every task. This
package joins the two: the same command always continues where the last one ended.

Names are imported on first use: the command line comes up fast, and only the driver needs Ray.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collage.fleet.command import compile_fleet
    from collage.fleet.machines import Fleet, MachineType, read_fleet
    from collage.fleet.remote import compile_on
    from collage.fleet.tasks import Task, TaskStore

_HOME = {
    "Fleet": "collage.fleet.machines",
    "MachineType": "collage.fleet.machines",
    "Task": "collage.fleet.tasks",
    "TaskStore": "collage.fleet.tasks",
    "compile_fleet": "collage.fleet.command",
    "compile_on": "collage.fleet.remote",
    "read_fleet": "collage.fleet.machines",
}

__all__ = ["Fleet", "MachineType", "Task", "TaskStore", "compile_fleet", "compile_on", "read_fleet"]

if not TYPE_CHECKING:  # As in `collage`: it would turn every misspelt name into Any.

    def __getattr__(name: str) -> Any:
        if name in _HOME:
            return getattr(importlib.import_module(_HOME[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
