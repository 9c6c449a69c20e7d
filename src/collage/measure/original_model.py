"""The model as the user gave it: the reference that the prepared model, and every executable, is compared with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from collage.measure.worker_pool import Limits
from collage.numerics.value_store import ValueStore
from collage.workers.machine_lock import build_lock
from collage.workers.worker import Worker

__all__ = ["Mismatch", "OriginalModel"]

_SERVICE = "collage.measure._original_model_worker:OriginalService"
_WORKER = "original model"


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A value in which the prepared model differs from the original.

    Attributes:
        value: Its name.
        reason: The difference.
        inputs: The inputs on which it does, such as ``zeros``.
    """

    value: str
    reason: str
    inputs: str

    def __str__(self) -> str:
        return f"{self.value!r} {self.reason}, on {self.inputs}"


class OriginalModel:
    """The original model in a worker process of its own, which may die of it.

    Args:
        path: The model's file.
        limits: Limits of the process.
        workers: Worker processes lent by the caller, by name; one for originals is among them, or is added.

    Attributes:
        path: The model's file.
        evaluator: Runs the model; None until ``open`` has succeeded.
        failure: The reason why it cannot be run; None if it can, as far as is known.
    """

    def __init__(self, path: Path, limits: Limits, workers: dict[str, Worker] | None = None) -> None:
        self.path = path
        self._limits = limits
        self._is_lent = workers is not None
        self._is_open = False
        lent = {} if workers is None else workers
        self._worker = lent.setdefault(_WORKER, Worker(_SERVICE, memory_bytes=limits.memory_bytes))
        self._values: frozenset[str] = frozenset()
        self._outputs: tuple[str, ...] = ()
        self.evaluator: str | None = None
        self.failure: str | None = None

    def close(self) -> None:
        """End the process; a lent process only drops the model."""
        if not self._is_lent:
            self._worker.kill()
        elif self._is_open and self._worker.alive:
            self._worker.call("drop", self._limits.run_s)

    def run(self, values: ValueStore, names: Iterable[str] = ()) -> int:
        """Run the model on the inputs in a store; the results stay in the process.

        Args:
            values: Holds the inputs.
            names: Values in between that are going to be compared; those that the original lacks are left out.

        Returns:
            The number of elements of its outputs that are NaN or infinite.

        Raises:
            ToolchainError: It cannot be run on these inputs, or takes too much memory or time.
        """
        with build_lock():
            if not (self._is_open and self._worker.alive):
                opened = self._worker.call("open", self._limits.compile_s, model=str(self.path))
                self._is_open = True
                self._values, self._outputs = frozenset(opened["values"]), tuple(opened["outputs"])
                self.evaluator = str(opened["evaluator"])
            wanted = [name for name in names if name in self._values]
            found: int = self._worker.call("run", self._limits.run_s, values=str(values.folder), names=wanted)
        return found

    def settle(self, values: ValueStore, names: Iterable[str], tolerance: float, inputs: str) -> list[Mismatch]:
        """Compare the latest run with the prepared model's values.

        If nothing differs, the original's outputs are kept beside the prepared model's, see ``ValueStore.answers``.

        Args:
            values: The prepared model's values on the same inputs.
            names: Values in between to compare, in the order of the model; its outputs are compared in any case.
            tolerance: Largest difference, see ``collage.numerics.judge``.
            inputs: Name of the inputs in a mismatch.

        Raises:
            ToolchainError: The process died.
        """
        wanted = list(dict.fromkeys([*(name for name in names if name in self._values), *self._outputs]))
        with build_lock():
            found = self._worker.call(
                "settle", self._limits.run_s, values=str(values.folder), names=wanted, tolerance=tolerance
            )
        values.reload()
        return [Mismatch(str(name), str(reason), inputs) for name, reason, _ in found]

    def keep_outputs(self, values: ValueStore) -> None:
        """Put the latest run's outputs into a store that holds the inputs alone."""
        with build_lock():
            self._worker.call("keep_outputs", self._limits.run_s, values=str(values.folder))
        values.reload()
