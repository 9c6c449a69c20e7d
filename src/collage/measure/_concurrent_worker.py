"""Executables as they are used for throughput: several runs at once, in one process. Runs in the child."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from collage.measure._executable_worker import ArtefactWorker, ExecutableWorker, OriginalFileWorker, VendorWorker

__all__ = ["ConcurrentArtefactWorker", "ConcurrentExecutableWorker", "ConcurrentVendorWorker", "OriginalAtOnceWorker"]

_MOST_SAMPLES = 200_000
"""Latencies that one stream keeps; of more runs, every later one is only counted."""
_MIXED = 1024
"""Runs after which a stream's drawn order of inputs begins again."""
_LOOK_S = 0.25
"""Seconds for which each of two ways to call the original file is tried."""

Call = Callable[[], object]


class _Streams:
    """Several callers of a model, each in a thread of its own.

    Args:
        calls: For each stream, a call for each set of inputs that counts.
        weights: The share of each set of inputs.
    """

    def __init__(self, calls: Sequence[Sequence[Call]], weights: Sequence[float]) -> None:
        self._orders = [
            random.Random(number).choices(own, list(weights)[: len(own)], k=_MIXED) if len(own) > 1 else list(own)
            for number, own in enumerate(calls)
        ]
        self._all = calls
        self._samples: list[np.ndarray[Any, Any]] = []
        self._done = 0

    def warm_up(self) -> None:
        """Run each stream once on each of its sets of inputs, one after the other."""
        for own in self._all:
            for call in own:
                call()

    def run(self, runs: int) -> float:
        """Return the seconds that each of ``runs`` runs takes, with all streams busy: the inverse of the throughput."""
        return 1.0 / _rate(self._measured(lambda done, _: done < runs))

    def serve(self, seconds: float, more: bool = False) -> dict[str, Any]:
        """Keep all streams busy for a time.

        Args:
            seconds: The time.
            more: True if percentiles and the number of runs are of the calls before, too.

        Returns:
            ``runs_per_s`` of all streams, percentiles of the latencies in seconds, and the number of runs.
        """
        end = time.perf_counter() + seconds
        found = self._measured(lambda _, now: now < end)
        before = self._samples if more else []
        self._samples = [*before, np.array([sample for _, _, samples in found for sample in samples])]
        percentiles = np.percentile(np.concatenate(self._samples), [10, 50, 90, 95, 99]).tolist()
        self._done = sum(done for done, _, _ in found) + (self._done if more else 0)
        named = dict(zip(("p10_s", "p50_s", "p90_s", "p95_s", "p99_s"), percentiles, strict=True))
        return {"runs_per_s": _rate(found), **named, "runs": self._done}

    def _measured(self, goes_on: Callable[[int, float], bool]) -> list[tuple[int, float, list[float]]]:
        """Return for each stream its number of runs, its seconds, and the latency of each run."""
        start = threading.Barrier(len(self._orders))
        found: list[tuple[int, float, list[float]]] = []
        errors: list[BaseException] = []

        def stream(order: Sequence[Call]) -> None:
            try:
                found.append(_runs(order, goes_on, start))
            except BaseException as error:
                start.abort()  # The others would wait for ever.
                errors.append(error)

        threads = [threading.Thread(target=stream, args=(order,)) for order in self._orders[1:]]
        for thread in threads:
            thread.start()
        stream(self._orders[0])
        for thread in threads:
            thread.join()
        told = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
        for error in (*told, *errors):
            raise error
        return found


def _runs(
    order: Sequence[Call], goes_on: Callable[[int, float], bool], start: threading.Barrier
) -> tuple[int, float, list[float]]:
    clock, samples, done, length = time.perf_counter, [], 0, len(order)
    start.wait()
    began = before = clock()
    while True:
        order[done % length]()
        after = clock()
        if done < _MOST_SAMPLES:
            samples.append(after - before)
        before, done = after, done + 1
        if not goes_on(done, after):
            return done, after - began, samples


def _rate(found: Sequence[tuple[int, float, list[float]]]) -> float:
    """Return runs per second: the sum over streams. Each stream ends with a whole run."""
    return sum(done / max(seconds, 1e-9) for done, seconds, _ in found)


def _calls(run: Callable[[Mapping[str, Any]], object], feeds: Sequence[Mapping[str, Any]]) -> list[Call]:
    return [lambda given=given: run(given) for given in feeds]  # type: ignore[misc]


def _copied(feeds: Mapping[str, Any]) -> dict[str, Any]:
    # Other values than tensors are lists, which NumPy would make one tensor of, or None.
    return {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in feeds.items()}


class ConcurrentExecutableWorker(ExecutableWorker):
    """Runs one executable on stored inputs, in as many streams as its recipe says. Takes what ``ExecutableWorker`` does."""

    def __init__(self, recipe: Mapping[str, Any], **arguments: Any) -> None:
        super().__init__(recipe, **arguments)
        self._count = max(1, int(recipe.get("streams", 0)))
        self._streams: _Streams | None = None

    def _ready(self) -> _Streams:
        if self._streams is None:
            self._executable.warm_up()
            timed = self.timed_feeds
            calls = [_calls(self._run, list(map(_copied, timed))) for _ in range(self._count)]
            self._streams = _Streams(calls, self._weights)
            for _ in range(self._count):  # The context that was used last is the last in the queue.
                self._streams.warm_up()
        return self._streams

    def serve(self, seconds: float, more: bool = False) -> dict[str, Any]:
        """Keep all streams busy for a time; see ``_Streams.serve``."""
        streams = self._ready()
        streams.run(1)
        return streams.serve(seconds, more)


class ConcurrentArtefactWorker(ArtefactWorker):
    """An artefact as its users load it, called from several threads at once.

    Args:
        concurrency: Number of callers.
        arguments: See ``ArtefactWorker``.
    """

    def __init__(self, concurrency: int, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._executable.warm_up()
        timed = self.timed_feeds
        self._streams = _Streams(
            [_calls(self._run, list(map(_copied, timed))) for _ in range(concurrency)], self._weights
        )
        for _ in range(concurrency):
            self._streams.warm_up()

    def serve(self, seconds: float, more: bool = False) -> dict[str, Any]:
        """Keep all callers busy for a time; see ``_Streams.serve``."""
        self._streams.run(1)
        return self._streams.serve(seconds, more)


class ConcurrentVendorWorker:
    """The original model on one toolchain, in several sessions that run at once.

    Args:
        concurrency: Number of sessions.
        threads: Threads of each session; 0 is the toolchain's default.
        arguments: See ``VendorWorker``.
    """

    def __init__(self, concurrency: int, threads: int, **arguments: Any) -> None:
        exclusive = concurrency == 1
        self._sessions = [VendorWorker(**arguments, threads=threads, exclusive=exclusive) for _ in range(concurrency)]
        self._streams = _Streams([_timed(each) for each in self._sessions], self._sessions[0].weights)
        self._streams.warm_up()

    def check(self, tolerance: float) -> dict[str, Any]:
        """Check the first session; see ``VendorWorker``."""
        return self._sessions[0].check(tolerance)

    def serve(self, seconds: float, more: bool = False) -> dict[str, Any]:
        """Keep all sessions busy for a time; see ``_Streams.serve``."""
        self._streams.run(1)
        return self._streams.serve(seconds, more)


class OriginalAtOnceWorker(OriginalFileWorker):
    """The original file on ONNX Runtime with its defaults, under load: one session, called by several threads or by one.

    Args:
        concurrency: Number of callers. If a single one has a higher throughput, that counts.
        arguments: See ``OriginalFileWorker``.
    """

    def __init__(self, concurrency: int, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._ways = [_Streams([_timed(self)] * count, self._weights) for count in dict.fromkeys((1, concurrency))]
        self._best: _Streams | None = None

    def _ready(self) -> _Streams:
        if self._best is None:
            self._ways[0].warm_up()
            self._best = max(self._ways, key=lambda way: float(way.serve(_LOOK_S)["runs_per_s"]))
        return self._best

    def serve(self, seconds: float, more: bool = False) -> dict[str, Any]:
        """Keep the session busy for a time; see ``_Streams.serve``."""
        return self._ready().serve(seconds, more)


def _timed(service: VendorWorker | OriginalFileWorker) -> list[Call]:
    return _calls(service.call, [_copied(feeds) for feeds in service.timed_feeds])
