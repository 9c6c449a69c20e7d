"""Under load: an artefact, and every toolchain alone, each called by several callers at once, in turns."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from collage._errors import ToolchainError, UsageError
from collage.benchmark import OURS, artefact_on, open_track, opened, row_of, vendors_on
from collage.cost.outcome import Status, failed
from collage.cost.statistics import median_interval
from collage.frontend import Lengths
from collage.inspection import describe_environment
from collage.measure.comparison import checked
from collage.measure.estimator import model_tolerance
from collage.measure.finalist import Finalist, FinalistResult
from collage.system.machine import this_machine, thread_count
from collage.system.scratch import scratch
from collage.target import TargetLike
from collage.toolchains import registry
from collage.workers.machine_lock import build_lock, measurement_lock
from collage.workers.worker import Worker

__all__ = ["bench_serving"]

_ARTEFACT = "collage.measure._concurrent_worker:ConcurrentArtefactWorker"
_VENDOR = "collage.measure._concurrent_worker:ConcurrentVendorWorker"
_MOST_CALLERS = 256
_LEAST_S, _MOST_S = 0.1, 24 * 3600.0
_DEFAULT_S = 10.0
_TIMEOUT_S = 300.0
_PERCENTILES = ("p10", "p50", "p90", "p95", "p99")


@dataclass(slots=True)
class _Contestant:
    """A contestant with its process, and the runs of its turns."""

    finalist: Finalist
    worker: Worker
    result: FinalistResult
    rates: list[float] = field(default_factory=list)
    latest: Mapping[str, Any] = field(default_factory=dict)
    runs: int = 0

    @property
    def is_timed(self) -> bool:
        """True if it runs, and is right or only compared with."""
        return self.result.status is Status.OK


def bench_serving(
    artefact: Path,
    against: Iterable[TargetLike] | None = None,
    *,
    concurrency: int = 1,
    duration_s: float | None = None,
    rounds: int = 15,
    dims: Lengths | None = None,
    inputs: Mapping[str, Any] = MappingProxyType({}),
    model: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Keep an artefact and single toolchains busy with several callers, in turns.

    The artefact is loaded as its users load it, and called by all callers. A toolchain has a session for each caller, which
    share the cores: with two callers on two cores, each session has one thread.

    Args:
        artefact: See ``collage.benchmark.bench``.
        against: The same.
        concurrency: Number of callers.
        duration_s: Seconds that each contestant is kept busy in all; None is ten.
        rounds: Number of turns that these are divided into.
        dims: See ``collage.benchmark.bench``.
        inputs: The same.
        model: The same.
        say: Called with each line of progress.

    Returns:
        ``rows`` of name, runs per second, latencies in µs at several percentiles, and the ratio of runs per second of the
        artefact over the row's with its interval. Then the speed-up over the best single, seconds, threads and environment.

    Raises:
        UsageError: A number of callers, or a duration, that makes no sense; a model that is another one.
    """
    duration_s = _DEFAULT_S if duration_s is None else duration_s
    if not 1 <= concurrency <= _MOST_CALLERS:
        raise UsageError(f"{concurrency} callers: there are between 1 and {_MOST_CALLERS}")
    if not _LEAST_S <= duration_s <= _MOST_S:
        raise UsageError(f"a duration of {duration_s:g} s: it is at least {_LEAST_S:g} s, and at most a day")
    began = time.monotonic()
    threads = max(1, (thread_count() or this_machine().physical_cores) // concurrency)
    with ExitStack() as stack:
        workspace = stack.enter_context(scratch())
        folder, recipe = opened(artefact, stack, say)
        targets = registry().parse_targets(list(against or ()) or list(recipe.report.get("menu", ())))
        track = open_track(stack, workspace, recipe, folder, model, dims, inputs, say)
        vendors, failures = vendors_on(track, targets, threads, say)
        entries = [(artefact_on(track, OURS, folder, recipe), _ARTEFACT), *((vendor, _VENDOR) for vendor in vendors)]
        track.session.close()
        contestants = []
        for finalist, service in entries:
            told = {**finalist.arguments, "concurrency": concurrency}
            worker = stack.enter_context(Worker(service, told))
            say(f"loading and checking {finalist.name}")
            result = _checked(replace(finalist, model=track.file), worker, model_tolerance(track.model))
            contestants.append(_Contestant(finalist, worker, result))
        _take_turns(contestants, rounds, duration_s, say)
    ours = contestants[0]
    rows = [_row(each, ours, row_of(each.result, recipe)) for each in contestants]
    rows += [{**_kept(row_of(failure, recipe)), **_NOTHING} for failure in failures.values()]
    best = max((each for each in contestants[1:] if _counts(each)), key=lambda each: _rate(each), default=None)
    speedup = None if best is None or not ours.rates else _ratio(ours, best)
    return {
        "schema": 1,
        "artefact": str(artefact),
        "concurrency": concurrency,
        "rows": rows,
        "speedup_vs_best_single": speedup and speedup["ratio"],
        "speedup_interval": speedup and speedup["ratio_interval"],
        "rounds": rounds,
        "seconds_each": duration_s,
        "duration_s": time.monotonic() - began,
        "threads": {"streams": recipe.streams, "artefact": recipe.threads, "each_session": threads},
        "environment": describe_environment(),
    }


_NOTHING: Mapping[str, Any] = {
    "runs_per_s": None,
    "runs": 0,
    **{f"{name}_us": None for name in _PERCENTILES},
    "ratio": None,
    "ratio_interval": None,
}


def _checked(finalist: Finalist, worker: Worker, tolerance: float) -> FinalistResult:
    try:
        with build_lock():
            found = checked(finalist, worker, tolerance, _TIMEOUT_S)
    except ToolchainError as error:
        outcome = failed(error, 0.0)
        return FinalistResult(finalist, outcome.status, reason=outcome.reason)
    is_wrong = found["wrong"] is not None and finalist.is_candidate
    return FinalistResult(
        finalist,
        Status.WRONG if is_wrong else Status.OK,
        reason=found["wrong"],
        max_abs=found["max_abs"],
        max_rel=found["max_rel"],
        precision=found.get("precision"),
    )


def _take_turns(contestants: list[_Contestant], rounds: int, duration_s: float, say: Callable[[str], None]) -> None:
    """Keep all busy in turns, in another order each round."""
    order = random.Random(0)
    for number in range(rounds):
        alive = [each for each in contestants if each.is_timed]
        say(f"round {number + 1} of {rounds}, contestants: {len(alive)}")
        order.shuffle(alive)
        with measurement_lock():
            for each in alive:
                serve = partial(each.worker.call, "serve", _TIMEOUT_S + duration_s)
                try:
                    each.latest = serve(seconds=duration_s / rounds, more=True)
                except ToolchainError as error:
                    outcome = failed(error, 0.0)
                    each.result = FinalistResult(each.finalist, outcome.status, reason=outcome.reason)
                    continue
                each.rates.append(each.latest["runs_per_s"])
                each.runs += each.latest["runs"]


def _rate(each: _Contestant) -> float:
    return statistics.median(each.rates)


def _counts(each: _Contestant) -> bool:
    """Return True for a single toolchain that computes rightly in the model's precision."""
    return each.is_timed and bool(each.rates) and each.finalist.incumbent and each.result.reason is None


def _ratio(ours: _Contestant, other: _Contestant) -> dict[str, Any]:
    ratios = [a / b for a, b in zip(ours.rates, other.rates, strict=False)]
    return {"ratio": statistics.median(ratios), "ratio_interval": median_interval(ratios).as_list()}


def _kept(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("name", "precision", "status", "reason", "max_rel_error")}


def _row(each: _Contestant, ours: _Contestant, row: Mapping[str, Any]) -> dict[str, Any]:
    if not each.is_timed or not each.rates:
        return {**_kept(row), **_NOTHING}
    return {
        **_kept(row),
        "runs_per_s": _rate(each),
        "runs": each.runs,
        **{f"{name}_us": each.latest[f"{name}_s"] * 1e6 for name in _PERCENTILES},
        **(_ratio(ours, each) if ours.rates else {"ratio": None, "ratio_interval": None}),
    }
