"""Under load: an artefact, and every toolchain alone, each called by several callers at once, in turns."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from collage._errors import UsageError
from collage.benchmark import OURS, row_of, vendors_on
from collage.frontend import Lengths
from collage.inspection import describe_environment
from collage.measure.artefact_race import artefact_on, open_track, opened, raced
from collage.measure.figures import ARTEFACT_AT_ONCE, VENDOR_AT_ONCE
from collage.measure.finalist import THROUGHPUT, FinalistResult
from collage.measure.track import ComparisonPlan
from collage.runtime import Recipe
from collage.system.machine import this_machine, thread_count
from collage.system.scratch import scratch
from collage.target import TargetLike
from collage.toolchains import registry

__all__ = ["bench_serving"]

_MOST_CALLERS = 256
_LEAST_S, _MOST_S = 0.1, 24 * 3600.0
_DEFAULT_S = 10.0
_PERCENTILES = ("p10", "p50", "p90", "p95", "p99")
_RATIO = ("ratio", "ratio_interval")


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
        folder, recipe, place = opened(artefact, stack, say)
        targets = registry().parse_targets(list(against or ()) or list(recipe.report.get("menu", ())))
        track = open_track(stack, workspace, recipe, folder, model, dims, inputs, say)
        vendors, failures = vendors_on(track, targets, threads, say)
        entries = [
            (artefact_on(track, OURS, place, recipe), ARTEFACT_AT_ONCE),
            *((vendor, VENDOR_AT_ONCE) for vendor in vendors),
        ]
        finalists = [
            replace(each, service=service, arguments={**each.arguments, "concurrency": concurrency})
            for each, service in entries
        ]
        turns = ComparisonPlan(rounds=1, reporting_rounds=rounds, phase_s=math.inf, block_s=duration_s / rounds)
        result, _ = raced(track, finalists, turns, OURS, say, THROUGHPUT)
    is_alive = result.winner is not None and result.winner.finalist.name == OURS
    speedup = result.speedup if is_alive else None
    rows = [_row(each, recipe) for each in (*result.standings, *failures.values())]
    return {
        "schema": 1,
        "artefact": str(artefact),
        "concurrency": concurrency,
        "rows": rows,
        "speedup_vs_best_single": speedup and speedup[0],
        "speedup_interval": speedup and speedup[1].as_list(),
        "rounds": rounds,
        "seconds_each": duration_s,
        "duration_s": time.monotonic() - began,
        "threads": {"streams": recipe.streams, "artefact": recipe.threads, "each_session": threads},
        "environment": describe_environment(),
    }


def _row(standing: FinalistResult, recipe: Recipe) -> dict[str, Any]:
    """Return how a contestant did. Its seconds for each run over the artefact's are the artefact's runs over its own."""
    row, served = row_of(standing, recipe), standing.details
    return {
        **{name: row[name] for name in ("name", "precision", "status", "reason", "max_rel_error", *_RATIO)},
        "runs_per_s": None if standing.time is None else 1.0 / standing.time.median_s,
        "runs": served.get("runs", 0),
        **{f"{name}_us": served[f"{name}_s"] * 1e6 if served else None for name in _PERCENTILES},
    }
