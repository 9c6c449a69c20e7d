"""Orders: the tasks and limits of a driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from collage.fleet.machines import MachineType
from collage.fleet.models import ModelFiles
from collage.fleet.tasks import Task

__all__ = ["Order", "Work"]


@dataclass(frozen=True, slots=True)
class Work:
    """A task with the files of its model.

    Attributes:
        task: The task as it was planned; the database knows its state.
        model: The model.
    """

    task: Task
    model: ModelFiles


@dataclass(frozen=True, slots=True)
class Order:
    """The work of a driver.

    Attributes:
        address: The cluster, see ``collage.fleet.cluster.join``.
        db: URL of the database.
        folder: The output folder.
        machines: The types of machines.
        work: The tasks that are not settled.
        tries: Number of tries that may fail for one task.
        limit_s: Seconds that one try may take.
        patience_s: Seconds without any progress after which the driver gives up.
    """

    address: str
    db: str
    folder: Path
    machines: Mapping[str, MachineType]
    work: tuple[Work, ...]
    tries: int
    limit_s: float
    patience_s: float
