"""The judge: answers of a model, a plan or anything else to samples, compared with the original model's.

Answers of the original are kept, so that each sample is asked once. Samples are read one at a time.
"""

from __future__ import annotations

import math
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from collage._errors import InputError, ToolchainError, UsageError, WorkerTimeout
from collage.calibration.metrics import Metric, Perplexity, PythonMetric
from collage.calibration.samples import CalibrationData, Sample, holds_nan, put_values
from collage.numerics.value_store import ValueStore
from collage.workers.worker import Worker

__all__ = ["Judge"]

_METRIC = "collage.calibration._metric_worker:MetricService"
_METRIC_S = 10.0
_FIRST_METRIC_S = 30.0
"""Seconds for the first call, in which the user's module is imported."""
_RUN_S = 180.0
_MOST_KEPT_BYTES = 4 << 30
_MOST_S = 60.0
"""Seconds after which no further samples are looked at."""
_MOST_SHARE = 1 / 3
_NO_TEXT = ("position", "token_type")
"""Beginnings of names of inputs that end as those of tokens do."""
_CHUNK = 16
"""So many samples are answered with one call; these are judged however long they take."""


class Judge:
    """Compares answers with the original model's.

    Args:
        data: The samples.
        original: A worker whose service has ``answer(values, into)``: the model that is right.
        metrics: Metrics to compare by.
        folder: Folder for inputs and answers while they are compared.
        left_s: Returns the seconds that are left; judging takes at most a third of them, if that allows ``_CHUNK`` samples.

    Attributes:
        data: The samples.
        metrics: Metrics that answers are compared by.
        with_nan: Names of samples whose inputs hold NaN, by index, as far as they were looked at.
    """

    def __init__(
        self,
        data: CalibrationData,
        original: Worker,
        metrics: Sequence[Metric],
        folder: Path,
        left_s: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self.metrics = tuple(metrics)
        self.data = data
        self._original = original
        self._left_s = left_s
        self._folder = folder
        self._kept_bytes = 0
        self.with_nan: dict[int, str] = {}
        self._own_scores: dict[tuple[str, int], float | None] = {}
        self._functions = {
            metric.name: Worker(_METRIC, {"module": metric.module, "function": metric.function, "paths": _paths()})
            for metric in metrics
            if isinstance(metric, PythonMetric)
        }

    def close(self) -> None:
        """End all processes, and drop the kept answers."""
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
            except WorkerTimeout as error:
                raise UsageError(f"metric {name}: importing its module took more than {_FIRST_METRIC_S:g} s") from error
            except ToolchainError as error:
                raise UsageError(f"metric {name}: {error}") from error

    def rehearse(self, index: int) -> None:
        """Have the original answer one sample, and score its answer by every metric.

        So a wrong metric or label is found before anything is compiled.

        Raises:
            InputError: A metric finds nothing to compare by, or a label that does not fit.
            ToolchainError: The original does not run on the sample.
            UsageError: A function of the user's failed.
        """
        self._clear()
        sample = self.data.read(index)
        self._answer_originally([index], [str(put_values(self._folder / "asked_0", sample.feeds).folder)])
        expected = ValueStore(self._expected_at(index))
        for metric in self.metrics:
            self._drop(metric, _Asked.of(sample), index, expected)

    def score_of_original(self, metric: Metric, indices: Sequence[int]) -> float | None:
        """Return the original's own mean score on samples for which drops are known; None if the metric only compares."""
        found = [self._own_scores.get((metric.name, index)) for index in indices]
        known = [score for score in found if score is not None]
        return statistics.fmean(known) if known and len(known) == len(found) else None

    def drops(
        self, answers: Worker, indices: Sequence[int], metrics: Sequence[Metric] | None = None
    ) -> dict[str, list[float]]:
        """Return the drop on each sample, by metric.

        Args:
            answers: A worker whose service has ``answer(values, into)``.
            indices: Samples. If they take long, the last ones are left out.
            metrics: Metrics to compare by, instead of the judge's own.

        Raises:
            ToolchainError: A sample could not be answered.
            UsageError: A metric failed.
        """
        metrics = self.metrics if metrics is None else metrics
        found: dict[str, list[float]] = {metric.name: [] for metric in metrics}
        started, most_s = time.monotonic(), min(_MOST_S, _MOST_SHARE * self._left_s())
        for start in range(0, len(indices), _CHUNK):
            if start and time.monotonic() - started > most_s:
                break
            self._clear()
            chunk, asked, told = indices[start : start + _CHUNK], list[str](), list[_Asked]()
            for i, index in enumerate(chunk):
                sample = self.data.read(index)
                if holds_nan(sample.feeds):
                    self.with_nan[index] = sample.name
                asked.append(str(put_values(self._folder / f"asked_{i}", sample.feeds).folder))
                told.append(_Asked.of(sample))
            self._answer_originally(chunk, asked)
            places = [self._folder / f"answer_{i}" for i in range(len(chunk))]
            answers.call("answer", _CHUNK * _RUN_S, values=asked, into=[str(place) for place in places])
            for place, index, each in zip(places, chunk, told, strict=True):
                for metric in metrics:
                    found[metric.name].append(self._drop(metric, each, index, ValueStore(place)))
        return found

    def _answer_originally(self, indices: Sequence[int], asked: Sequence[str]) -> None:
        """Run the original on samples that have no reference answers yet. Answers are kept, up to a size."""
        fresh = [
            (values, place)
            for index, values in zip(indices, asked, strict=True)
            if not [*ValueStore(place := self._expected_at(index))]  # A run that failed may leave an empty one.
        ]
        if not fresh:
            return
        values, places = zip(*fresh, strict=True)
        self._original.call("answer", _CHUNK * _RUN_S, values=list(values), into=[str(place) for place in places])
        self._kept_bytes += sum(store.nbytes(name) for store in map(ValueStore, places) for name in store)

    def _expected_at(self, index: int) -> Path:
        return self._folder / f"expected_{index}"

    def _clear(self) -> None:
        """Remove inputs and answers of the last samples, and the answers of the original if they take too much space."""
        kinds = ["asked_*", "answer_*"]
        if self._kept_bytes > _MOST_KEPT_BYTES:
            kinds, self._kept_bytes = [*kinds, "expected_*"], 0
        for kind in kinds:
            for folder in self._folder.glob(kind):
                shutil.rmtree(folder, ignore_errors=True)

    def _drop(self, metric: Metric, sample: _Asked, index: int, answer: ValueStore) -> float:
        expected, key = ValueStore(self._expected_at(index)), (metric.name, index)
        if isinstance(metric, PythonMetric):
            own = self._own_scores.get(key)
            if own is None:
                own = self._own_scores[key] = self._score(metric, sample, expected, expected)
            return own - self._score(metric, sample, answer, expected)
        label = sample.following if isinstance(metric, Perplexity) and sample.label is None else sample.label
        try:
            if key not in self._own_scores:
                self._own_scores[key] = metric.score(_arrays(expected), label)
            return metric.drop(_arrays(answer), _arrays(expected), label)
        except InputError as error:
            raise InputError(f"metric {metric.name}, on {sample.name}: {error}") from error

    def _score(self, metric: PythonMetric, sample: _Asked, answer: ValueStore, expected: ValueStore) -> float:
        worker = self._functions[metric.name]
        label = None if sample.label is None else put_values(self._folder / "label", {"label": sample.label})
        most_s = _METRIC_S if worker.jobs_done else _FIRST_METRIC_S
        try:
            score: float = worker.call(
                "score",
                most_s,
                outputs=str(answer.folder),
                expected=str(expected.folder),
                label=None if label is None else str(label.folder),
            )
        except WorkerTimeout as error:
            raise UsageError(
                f"metric {metric.name}, on {sample.name}: the function ran for {most_s:g} s, longer than it may for one "
                "sample; give a faster one"
            ) from error
        except ToolchainError as error:
            raise UsageError(f"metric {metric.name}, on {sample.name}: {error}") from error
        return score


@dataclass(frozen=True, slots=True)
class _Asked:
    """A sample whose inputs lie in a file: many of them do not sit in memory."""

    name: str
    label: np.ndarray[Any, Any] | None
    following: np.ndarray[Any, Any] | None

    @classmethod
    def of(cls, sample: Sample) -> _Asked:
        return cls(sample.name, sample.label, _following(sample.feeds))


def _following(feeds: Mapping[str, Any]) -> np.ndarray[Any, Any] | None:
    """Return the token that follows each token of a text, -1 behind the last one; None if the inputs are not a text's tokens."""
    texts = {
        name: value
        for name, value in feeds.items()
        if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.ndim in (1, 2)
    }
    named = {name: value for name, value in texts.items() if name.endswith("ids") and not name.startswith(_NO_TEXT)}
    found = list((texts if len(texts) == 1 else named).values())
    if len(found) != 1:
        return None
    ids = found[0].astype(np.int64)
    return np.concatenate([ids[..., 1:], np.full_like(ids[..., :1], -1)], axis=-1)


def _arrays(store: ValueStore) -> Mapping[str, np.ndarray[Any, Any]]:
    return {name: store.get(name) for name in store}


def _paths() -> list[str]:
    """Return the search path of modules in this process, and the current folder."""
    return [*(path for path in sys.path if path), str(Path.cwd())]
