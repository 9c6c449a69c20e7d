"""Orders: the tasks and limits of a driver, as JSON on its standard input."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

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

    def to_json(self) -> str:
        """Return the order as one line."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> Order:
        """Return the order that ``to_json`` wrote."""
        told = json.loads(text)
        machines = {name: MachineType(**each) for name, each in told["machines"].items()}
        work = tuple(Work(Task(**each["task"]), _model(each["model"])) for each in told["work"])
        return cls(**{**told, "folder": Path(told["folder"]), "machines": machines, "work": work})


def _model(told: Mapping[str, Any]) -> ModelFiles:
    ports = {name: tuple((str(port), dtype) for port, dtype in told[name]) for name in ("inputs", "outputs")}
    return ModelFiles(**{**told, "path": Path(told["path"]), "files": tuple(told["files"]), **ports})
