"""Fleets: many models compiled on many machines, by Ray, with one database.

Ray places tasks on nodes and notices lost ones. PostgreSQL shares timings, and holds the state of every task. This
package joins the two: the same command always continues where the last one ended.

Names are imported on first use: the command line comes up fast, and only the driver needs Ray.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from collage._lazy import ImportedOnUse

if TYPE_CHECKING:
    from collage.fleet.command import compile_fleet
    from collage.fleet.machines import Fleet, MachineType, read_fleet
    from collage.fleet.remote import compile_on
    from collage.fleet.tasks import Task, TaskStore
else:
    __getattr__ = ImportedOnUse(
        __name__,
        {
            "collage.fleet.machines": "Fleet MachineType read_fleet",
            "collage.fleet.tasks": "Task TaskStore",
            "collage.fleet.command": "compile_fleet",
            "collage.fleet.remote": "compile_on",
        },
    )


__all__ = ["Fleet", "MachineType", "Task", "TaskStore", "compile_fleet", "compile_on", "read_fleet"]
