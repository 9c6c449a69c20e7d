"""Tuning of TVM's loops: MetaSchedule's records, database and way of applying them, on a space of our own.

MetaSchedule's own space takes seconds for each trial, and needs hundreds of trials to reach the schedules of
``_tvm_schedules``. Tuning finds the values that those rules guess: the size of a tile, and the order of tiles. A function has
at most a few dozen such schedules, and a trial takes a fraction of a second: it is built in this process, without a linker.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm.s_tir import meta_schedule

from collage._errors import CompileError
from collage.toolchains._contract import TuningSession
from collage.toolchains.tvm.pipeline import loops_pipeline
from collage.toolchains.tvm.row_schedules import Rows
from collage.toolchains.tvm.tile_schedules import Cautious, tiled_otherwise

__all__ = ["apply_records", "tune_all", "use_tvm_threads", "workloads"]

_HAND_OVER_S = 20.0
"""Records are stored at least this often, so that a tuner that is killed loses no more."""
_REPEATS = 7
_SHARE_ALL_CORES = -3
"""TVM's affinity mode in which any of its threads may run on any of the processors named."""
_HOPELESS = 3.0
"""A schedule that is this many times slower than the best, on its first run, is not run again."""


def use_tvm_threads(count: int) -> None:
    """Have the pool of TVM's runtime, on which trials run, compute with ``count`` threads that are quiet between two trials.

    Left to itself it pins the caller to a processor, and takes every second processor for the other half of one before it.
    """
    # TVM reads the variables when it first needs threads.
    os.environ.setdefault("TVM_BIND_THREADS", "0")
    os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "0")
    configure = tvm_ffi.get_global_func("runtime.config_threadpool")
    configure(_SHARE_ALL_CORES, count, [str(number) for number in range(count)])


def workloads(module: Any, target: Any) -> dict[str, Any]:
    """The functions of a lowered module that can be tuned, each under a name that equal ones share in any model.

    Functions that go along rows are left out: each has a single schedule, which is better than any tile.
    """
    tasks = meta_schedule.relax_integration.extract_tasks(module, target)
    found = {_name_of(task.dispatched[0]): task.dispatched[0] for task in tasks}
    tiled = {name: workload for name, workload in found.items() if not _goes_along_rows(workload)}
    return {name: workload for name, workload in tiled.items() if len(tiled_otherwise(workload)) > 1}


def _goes_along_rows(workload: Any) -> bool:
    return Cautious(Rows()).apply(workload["main"], None, True) is not None


def _name_of(module: Any) -> str:
    """TVM's structural hash: equal for equal loops, regardless of names."""
    return f"{tvm_ffi.structural_hash(module) & (1 << 64) - 1:016x}"


def tune_all(
    tunable: Mapping[str, Any], target: Any, trials: int, seed: int, session: TuningSession
) -> Mapping[str, str]:
    """Return records of workloads: known ones, and then others tuned one by one until the time is up."""
    began = time.monotonic()
    found = {name: text for name, text in session.known.items() if name in tunable}
    for name in [name for name in tunable if name not in found]:
        record = _tune(tunable[name], target, trials, seed, began + session.budget_s, session)
        if record is None:
            break
        found[name] = record
        if time.monotonic() - began > _HAND_OVER_S:
            break
    return found


def _tune(workload: Any, target: Any, trials: int, seed: int, until_s: float, session: TuningSession) -> str | None:
    """Measure schedules of one function: the default first, then others in an order given by the seed.

    Args:
        workload: The function, as a module.
        target: TVM's target.
        trials: Most schedules to measure.
        seed: Decides which.
        until_s: The time to stop, on the monotonic clock.
        session: Whose slots are taken.

    Returns:
        The best one as MetaSchedule writes records, in JSON; None if not all could be measured in time.
    """
    with target:
        default, *others = tiled_otherwise(workload)
    random.Random(seed).shuffle(others)
    candidates = [default, *others][:trials]
    arguments = [_filled(argument) for argument in _arguments(workload)]
    best: tuple[float, Any] | None = None
    for schedule in candidates:
        if time.monotonic() > until_s:
            return None
        with session.building():
            run = _built(schedule, target)
        with session.measuring():
            seconds = _seconds(run, arguments, best[0] if best else float("inf"))
        if best is None or seconds < best[0]:
            best = seconds, schedule
    assert best is not None
    return _as_json(workload, target, *best)


def apply_records(records: Mapping[str, str], target: Any) -> Any:
    """A pass that schedules the functions of a lowered module for which there are records.

    It fails where a record is of no function: untuned code must not pass for tuned.
    """

    def apply(module: Any, context: Any) -> Any:
        known = meta_schedule.database.MemoryDatabase()
        tasks = meta_schedule.relax_integration.extract_tasks(module, target)
        there = {_name_of(task.dispatched[0]): task.dispatched[0] for task in tasks}
        if missing := records.keys() - there:
            raise CompileError(f"the tuning records {', '.join(sorted(missing))} are of another kernel")
        for name, text in records.items():
            workload = known.commit_workload(there[name])
            record = meta_schedule.database.TuningRecord.from_json(json.loads(text), workload)
            known.commit_tuning_record(record)
        with target, known:
            return tvm.relax.transform.MetaScheduleApplyDatabase()(module)

    return tvm.transform.module_pass(apply, opt_level=0)


def _built(schedule: Any, target: Any) -> Any:
    built = tvm.compile(schedule.mod, target=target, tir_pipeline=loops_pipeline())
    return (built.jit() if hasattr(built, "jit") else built)["main"]


def _seconds(run: Any, arguments: Sequence[Any], best_s: float) -> float:
    """Least latency, since other statistics depend on the load of the machine. Of one run only where that is hopeless."""
    times: list[float] = []
    for _ in range(_REPEATS + 1):
        began = time.perf_counter()
        run(*arguments)
        times.append(time.perf_counter() - began)
        if len(times) > 1 and times[1] > _HOPELESS * best_s:
            break
    return min(times[1:])


def _arguments(workload: Any) -> list[Any]:
    return list(meta_schedule.arg_info.ArgInfo.from_entry_func(workload, remove_preproc=True))


def _filled(argument: Any) -> Any:
    """A tensor of random numbers: zeros would be multiplied faster than real values on some processors."""
    tensor = tvm.runtime.empty(tuple(argument.shape), argument.dtype)
    tvm.get_global_func("tvm.contrib.random.random_fill_for_measure")(tensor)
    return tensor


def _as_json(workload: Any, target: Any, seconds: float, schedule: Any) -> str:
    kept = meta_schedule.database.Workload(workload)
    record = meta_schedule.database.TuningRecord(schedule.trace, kept, [seconds], target, _arguments(workload))
    return json.dumps(record.as_json())
