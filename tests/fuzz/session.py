"""What judges share while one process lives: the menu, workers, a database, and a line to the process that waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Session:
    """What judges share.

    Attributes:
        targets: The menu. Every model is compiled for each target alone.
        folder: A folder for files of this process.
        stage: Told what begins, and what is to be thought of a process that dies of it.
        workers: Worker processes of ``collage.compile``.
        compiles_only: Judge only what ``collage.compile`` returns: an unchecked kernel has ended a process like this.
    """

    targets: Sequence[str]
    folder: Path
    stage: Callable[[str, str], None] = lambda how, what: None
    workers: dict[str, Any] = field(default_factory=dict)
    compiles_only: bool = False

    @property
    def database(self) -> str:
        """The timing database of this process."""
        return str(self.folder / "timings.sqlite")

    def close(self) -> None:
        """End the workers."""
        for worker in self.workers.values():
            worker.kill()
        self.workers.clear()
