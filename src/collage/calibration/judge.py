"""The judge: answers of a model, a plan or anything else to samples, compared with the original model's.

Answers of the original are kept, so that each sample is asked once. Samples are read one at a time.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from collage._errors import InputError, ToolchainError, UsageError
from collage.calibration.metrics import Metric, PythonMetric
from collage.calibration.samples import CalibrationData, Sample, put_values
from collage.numerics.value_store import ValueStore
from collage.workers.worker import Worker

__all__ = ["Judge"]

_METRIC = "collage.calibration._metric_worker:MetricService"
_METRIC_S = 10.0
_FIRST_METRIC_S = 30.0
"""Seconds for the call that imports what the user's module imports."""
_RUN_S = 180.0
_MOST_KEPT_BYTES = 4 << 30
_MOST_REFERENCE_S = 90.0
_LEAST = 16
"""So many samples are judged however long they take."""


class Judge:
    """Compares answers with the original model's.

    Args:
        data: The samples.
        original: A worker whose service has ``outputs(values, into)``: the model that is right.
        metrics: What to compare by.
        folder: Where inputs and answers lie meanwhile.
    """

    def __init__(self, data: CalibrationData, original: Worker, metrics: Sequence[Metric], folder: Path) -> None:
        self.metrics = tuple(metrics)
        self._data = data
        self._original = original
        self._folder = folder
        self._kept_bytes = 0
        self._spent_s = 0.0
        self._own_scores: dict[tuple[str, int], float] = {}
        self._functions = {
            metric.name: Worker(_METRIC, {"module": metric.module, "function": metric.function, "paths": _paths()})
            for metric in metrics
            if isinstance(metric, PythonMetric)
        }

    def close(self) -> None:
        """End all processes, and give up what was kept."""
        for worker in (self._original, *self._functions.values()):
            worker.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def find_functions(self) -> None:
        """Import the user's functions.

        Raises:
            UsageError: One cannot be imported; the message is a sentence.
        """
        for name, worker in self._functions.items():
            try:
                worker.call("find", _FIRST_METRIC_S)
            except ToolchainError as error:
                raise UsageError(f"metric {name}: {error}") from error

    def drops(
        self, answers: Worker, indices: Sequence[int], metrics: Sequence[Metric] | None = None
    ) -> dict[str, list[float]]:
        """Return the drop on each sample, by metric.

        Args:
            answers: A worker whose service has ``outputs(values, into)``.
            indices: Samples. If the original takes long, the last ones are left out.
            metrics: What to compare by, instead of the judge's own.

        Raises:
            ToolchainError: A sample could not be answered.
            UsageError: A metric failed.
        """
        metrics = self.metrics if metrics is None else metrics
        found: dict[str, list[float]] = {metric.name: [] for metric in metrics}
        for number, index in enumerate(indices):
            if self.is_spent(number, index):
                break
            sample = self._data.read(index)
            asked = put_values(self._folder / "asked", sample.feeds)
            answers.call("outputs", _RUN_S, values=str(asked.folder), into=str(self._empty("answer")))
            expected = self.expected(index, asked)
            for metric in metrics:
                found[metric.name].append(self._drop(metric, sample, index, expected))
        return found

    def is_spent(self, number: int, index: int) -> bool:
        """Return True if enough samples were looked at for the time and the disk that a further one would take."""
        is_known = (self._folder / f"expected_{index}").exists()
        is_over = self._spent_s > _MOST_REFERENCE_S or self._kept_bytes > _MOST_KEPT_BYTES
        return number >= _LEAST and is_over and not is_known

    def expected(self, index: int, asked: ValueStore) -> ValueStore:
        """Return what the original answers to a sample whose inputs are in a store."""
        store = ValueStore(self._folder / f"expected_{index}")
        if not list(store):
            started = time.monotonic()
            self._original.call("outputs", _RUN_S, values=str(asked.folder), into=str(store.folder))
            self._spent_s += time.monotonic() - started
            store.reload()
            self._kept_bytes += sum(store.nbytes(name) for name in store)
        return store

    def _drop(self, metric: Metric, sample: Sample, index: int, expected: ValueStore) -> float:
        answer = ValueStore(self._folder / "answer")
        if not isinstance(metric, PythonMetric):
            try:
                return metric.drop(_arrays(answer), _arrays(expected), sample.label)
            except InputError as error:
                raise InputError(f"metric {metric.name}, on {sample.name}: {error}") from error
        if (metric.name, index) not in self._own_scores:
            self._own_scores[metric.name, index] = self._score(metric, sample, expected, expected)
        return self._own_scores[metric.name, index] - self._score(metric, sample, answer, expected)

    def _score(self, metric: PythonMetric, sample: Sample, answer: ValueStore, expected: ValueStore) -> float:
        worker = self._functions[metric.name]
        label = None if sample.label is None else put_values(self._folder / "label", {"label": sample.label})
        try:
            score: float = worker.call(
                "score",
                _METRIC_S if worker.jobs_done else _FIRST_METRIC_S,
                outputs=str(answer.folder),
                expected=str(expected.folder),
                label=None if label is None else str(label.folder),
            )
        except ToolchainError as error:
            raise UsageError(f"metric {metric.name}, on {sample.name}: {error}") from error
        return score

    def _empty(self, name: str) -> Path:
        folder = self._folder / name
        shutil.rmtree(folder, ignore_errors=True)
        return folder


def _arrays(store: ValueStore) -> Mapping[str, np.ndarray[Any, Any]]:
    return {name: store.get(name) for name in store}


def _paths() -> list[str]:
    """Return where this process finds modules, and the folder that the user is in."""
    return [*(path for path in sys.path if path), str(Path.cwd())]
