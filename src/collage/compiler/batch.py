"""The batch at which the throughput is highest, if the model leaves it open and the user does not name it.

A batch is found by looking: the original file runs under load with more and more rows at a time, until more rows no longer
mean more rows per second, or a latency exceeds a limit. Then the model is compiled for the best batch. In the end the artefact
itself runs at that batch and at one row. If one row at a time is better there, the model is compiled for that.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from collage._errors import CollageError
from collage.compiler.objective import with_final_size
from collage.compiler.opening import LIMITS, with_lengths
from collage.compiler.problem import Part
from collage.cost.objective import QUANTITIES, Limit
from collage.frontend import (
    REWRITTEN,
    TensorSpec,
    describe_inputs,
    dimension_name,
    make_inputs,
    read_model,
    shape_profiles,
    write_original,
)
from collage.measure.figures import ARTEFACT_AT_ONCE, ORIGINAL_AT_ONCE, serving
from collage.measure.original_model import OriginalModel
from collage.numerics.judge import judge, tolerance_of
from collage.numerics.value_store import ValueStore
from collage.options import CompileOptions
from collage.runtime import Executable
from collage.system.machine import this_machine, thread_count
from collage.system.progress import Note
from collage.system.scratch import scratch

__all__ = ["batch_dimension", "compile_batched", "tried_batches"]

_BATCHES = (1, 2, 4, 8, 16, 32, 64)
_SECONDS = 0.5
"""Seconds under load at each batch."""
_MORE = 1.1
"""The least gain in rows per second for which a larger batch, and its latency, is worth it. With 1.02, a recogniser of the
direction of pages was compiled for 4 rows, with which the original gained 1.07 and the artefact nothing, and then for one."""
_LOOKING = 0.2
"""Share of a time budget for looking at batches, as far as the time of a look is known before."""
_HALF = Part((1 - _LOOKING) / 2)
_ROWS = 3
_TOLERANCE = 1e-3
"""Rows of a batch are not independent if they differ from the same rows alone by more than this share of their size, or
more than coarse floats may err."""


def batch_dimension(options: CompileOptions, source: Any) -> str | None:
    """Return the dimension of a model that may be a batch which the user leaves open; None if there is none.

    It is the first dimension of the first input, has a length of its own in every tensor among the inputs, and no length in the
    options.

    Args:
        options: The options of the user.
        source: The model, see ``collage.frontend.read_model``.

    Raises:
        ModelError: The source is not a valid model.
    """
    of_one_run = (options.plan, options.plan_out, options.devices, options.data)
    is_open = options.objective == "throughput" and options.finals and not options.inputs
    has_rate = any(limit.quantity == "throughput" for limit in options.bounds)
    if not is_open or has_rate or options.specialise or any(value is not None for value in of_one_run):
        return None
    inputs = describe_inputs(with_lengths(read_model(source), options))
    if not inputs or not inputs[0].shape:
        return None
    name = dimension_name(inputs[0].name, 0, inputs[0].shape[0])
    if name is None or name in options.dims or any(_axis(spec, name) is None for spec in inputs if spec.shape != ()):
        return None
    return name


def _axis(spec: TensorSpec, name: str) -> int | None:
    """Return the axis of an input whose length is the batch."""
    names = [dimension_name(spec.name, axis, dim) for axis, dim in enumerate(spec.shape or ())]
    return names.index(name) if name in names else None


def compile_batched(
    compile_one: Callable[[CompileOptions, Part], Executable],
    options: CompileOptions,
    source: Any,
    name: str,
    say: Callable[[str], None],
) -> Executable:
    """Compile a model for the batch with the most rows per second that keeps the limits.

    If that batch is not one, the user's budgets hold for looking and for two compilations together. What fails, or is
    interrupted, after the first of them leaves its result.

    Args:
        compile_one: Compiles the model with some options, as a part of this compilation.
        options: The options of the user.
        source: The model.
        name: Its dimension from ``batch_dimension``.
        say: Called with a line for each step.
    """
    with scratch() as folder:
        try:
            looks = tried_batches(options, source, name, folder, say)
        except CollageError as error:
            say(f"no batch was tried: {' '.join(str(error).split())}")
            looks = {}
        batch = max(looks, key=lambda batch: looks[batch].rows_per_s, default=1)
        one_row = replace(options, dims={**options.dims, name: 1})
        if batch == 1:
            return compile_one(one_row if looks else options, Part())
        rows = [f"{looks[each].rows_per_s:.1f} at batch {each}" for each in (batch, 1)]
        say(Note(f"rows per second of the original file: {' and '.join(rows)}"))
        try:
            found = compile_one(replace(options, dims={**options.dims, name: batch}), _HALF)
        except CollageError as error:
            say(f"{' '.join(str(error).split())}, at batch {batch}")
            return compile_one(one_row, _HALF)
        try:
            rates = {each: _rate_of(found, looks[each], folder) for each in (1, batch)}
            if rates[1] > rates[batch] and found.report.search.stopped_by != "should_stop":
                say(
                    f"one row at a time is better: {rates[1]:.1f} rows per second, and {rates[batch]:.1f} at batch {batch}"
                )
                return compile_one(one_row, _HALF)
        except (CollageError, KeyboardInterrupt) as error:
            reason = " ".join(str(error).split()) or "interrupted"
            say(f"{reason}: the plan for batch {batch} is returned")
            return found
    section = {
        "dimension": name,
        "batch": batch,
        "rows_per_s": rates[batch],
        "rows_per_s_at_1": rates[1],
        "original": [{"batch": each, "rows_per_s": look.rows_per_s} for each, look in looks.items()],
    }
    found.report = replace(found.report, objective={**found.report.objective, "batch": section})
    found.recipe = replace(found.recipe, report=found.report)
    with_final_size(found, options)
    return found


@dataclass(frozen=True, slots=True)
class Look:
    """The original file under load at one batch.

    Attributes:
        batch: Rows of a run.
        values: Folder of a ``ValueStore`` with its inputs.
        rows_per_s: Rows per second of all callers.
    """

    batch: int
    values: Path
    rows_per_s: float


def tried_batches(
    options: CompileOptions, source: Any, name: str, folder: Path, say: Callable[[str], None]
) -> dict[int, Look]:
    """Return a look at each batch that keeps the limits, in ascending order; nothing if its rows depend on each other.

    Args:
        options: The options of the user.
        source: The model.
        name: The dimension.
        folder: An existing folder for files.
        say: Called with a line for each step.

    Raises:
        CollageError: The original file cannot be run on inputs that are made up.
    """
    began = before = time.monotonic()
    left_s = math.inf if options.time_budget_s is None else _LOOKING * options.time_budget_s
    model = with_lengths(read_model(source), options)
    path = write_original(source, folder, is_rewritten=bool(model.meta.get(REWRITTEN)))
    make = partial(_stored, model, options, name, folder)
    if not _has_independent_rows(model, name, path, make):
        say(f"{name} does not count as a batch: rows of one run depend on each other, or the outputs have none")
        return {}
    looks: dict[int, Look] = {}
    best = 0.0
    for batch in _BATCHES:
        # Twice the rows take about twice as long as the last look; the first takes as long as it took to look at rows.
        now = time.monotonic()
        if now - began + (2 if looks else 1) * (now - before) > left_s:
            say(f"the time budget leaves no time to look at batch {batch}")
            break
        before = now
        say(f"the original file at batch {batch}")
        callers = thread_count() or this_machine().physical_cores
        try:
            values = make(batch).folder
            told = {"path": str(path), "values": [str(values)], "weights": [1.0], "threads": options.threads}
            served = serving(ORIGINAL_AT_ONCE, {**told, "concurrency": callers}, _SECONDS)
        except CollageError as error:
            if not looks:
                raise
            # There are models that take so many rows at most, and machines without memory for more.
            say(f"no batch from {batch} on was tried: {' '.join(str(error).split())}")
            break
        rate = batch * float(served["runs_per_s"])
        if not _keeps(served, options.bounds):
            break
        if rate > _MORE * best:
            looks[batch], best = Look(batch, values, rate), rate
        elif batch > 2 * max(looks):
            break
    return looks


def _keeps(served: Mapping[str, Any], limits: Iterable[Limit]) -> bool:
    """Return True if latencies under load exceed no limit."""
    return all(float(served.get(QUANTITIES[limit.quantity], 0.0)) <= limit.value for limit in limits)


def _stored(
    model: ir.Model, options: CompileOptions, name: str, folder: Path, batch: int, row: int | None = None
) -> ValueStore:
    """Return a store with inputs of a batch, or with one row of them."""
    usual = shape_profiles(options.dims)[0]
    made = make_inputs(model, options.seed, {**usual.dims, name: batch})
    store = ValueStore(folder / f"batch_{batch}{'' if row is None else f'_row_{row}'}")
    for spec in describe_inputs(model):
        value, axis = made[spec.name], _axis(spec, name)
        if row is not None and axis is not None:
            is_list = isinstance(value, list)
            value = [np.take(each, [row], axis) for each in value] if is_list else np.take(value, [row], axis)
        store.put_input(spec.name, value)
    store.flush()
    return store


def _has_independent_rows(model: ir.Model, name: str, path: Path, make: Callable[..., ValueStore]) -> bool:
    """Return True if the rows of a run are what runs of single rows return, for each output."""
    original = OriginalModel(path, LIMITS)
    try:
        stores = [make(_ROWS), *(make(_ROWS, row) for row in range(_ROWS))]
        inputs = {spec.name for spec in describe_inputs(model)}
        for store in stores:
            original.run(store)
            original.keep_outputs(store)
    finally:
        original.close()
    together, *alone = stores
    outputs = {str(value.name) for value in model.graph.outputs} - inputs
    if not outputs or not all(output in together for output in outputs):  # Lists have no rows.
        return False
    return all(_is_joined(together.get(each), [row.get(each) for row in alone]) for each in outputs)


def _is_joined(together: np.ndarray[Any, Any], rows: list[np.ndarray[Any, Any]]) -> bool:
    """Return True if an output of several rows is those of single rows, one after the other along some axis."""
    tolerance = max(_TOLERANCE, tolerance_of([together.dtype.name]))
    for axis in range(together.ndim):
        try:
            joined = np.concatenate(rows, axis)
        except ValueError:  # One row may have fewer axes, or another length than the next.
            continue
        if joined.shape == together.shape and judge(joined, together, tolerance).ok:
            return True
    return False


def _rate_of(executable: Executable, look: Look, folder: Path) -> float:
    """Return the rows per second of an artefact at a batch, with as many callers as it has streams."""
    artefact = folder / "batched.collage"
    if not artefact.exists():
        executable.save(artefact)
    told = {"artefact": str(artefact), "values": [str(look.values)], "weights": [1.0]}
    served = serving(ARTEFACT_AT_ONCE, {**told, "concurrency": max(1, executable.recipe.streams)}, _SECONDS)
    return look.batch * float(served["runs_per_s"])
