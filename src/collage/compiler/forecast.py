"""``predict``: the gain and the time of a compilation, expected before any kernel is built."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import onnx_ir as ir

from collage._errors import ModelError
from collage.compiler.assumptions import assumed_lengths
from collage.compiler.effective_options import options_and_menu
from collage.compiler.opening import on_given_inputs, with_lengths
from collage.database import Database
from collage.frontend import as_onnx, bind_dims, describe_inputs, fix_lengths, read_model, shape_misfit, shape_profiles
from collage.graph import DataflowGraph
from collage.measure.operator_work import work_of
from collage.measure.roofline import measured_rates
from collage.measure.work import stated_shape
from collage.options import CompileOptions, compile_options
from collage.prediction import PREDICTOR, Rates, correction, default_predictor, name_of, timings_of
from collage.system.machine import this_machine
from collage.target import Target, TargetLike
from collage.toolchains import Availability, Registry, availability_for, registry, support_for
from collage.transform import prepare

__all__ = ["predict"]


def predict(
    source: Any,
    targets: Iterable[TargetLike] | None = None,
    *,
    options: CompileOptions | Mapping[str, Any] | None = None,
    toolchains: Registry | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Return what a compilation is expected to gain and to take, as JSON values. No kernel is built, run or timed.

    Toolchains are asked what they support, not to try.

    Args:
        source: As for ``compile``.
        targets: As for ``compile``.
        options: As for ``compile``: lengths, threads and the database.
        toolchains: As for ``compile``.
        say: Called with each line of progress.

    Raises:
        ModelError: The model is not valid, not safe, or cannot be run.
        UsageError: A target, an option or the database cannot be used.
    """
    toolchains = toolchains or registry()
    options, menu = options_and_menu(compile_options(options), targets, toolchains)
    with ThreadPoolExecutor(len(menu)) as threads, Database(options.db) as database:
        # Each waits for its packages to be imported elsewhere, which takes seconds.
        asked = {target: threads.submit(availability_for, toolchains.for_target(target), target) for target in menu}
        say("reading the model")
        model, notes = _at_lengths(with_lengths(read_model(as_onnx(source)), options), options)
        prepared = prepare(model)
        if (misfit := shape_misfit(prepared)) is not None:
            raise ModelError(f"the model cannot be run: {misfit}")
        graph = DataflowGraph(prepared)
        work = work_of(graph.nodes, stated_shape)
        say("reading the timings of this machine")
        rates = Rates(*measured_rates(database))
        predictor = database.local_fact(PREDICTOR) or default_predictor()
        machine = this_machine().fingerprint
        factors = correction(predictor, (each for each in timings_of(database) if each.machine == machine))
        say("asking toolchains")
        refusals = {target: _refusal(graph, toolchains, target, asked[target].result()) for target in menu}
    names = {
        target.title: name_of(str(target), options.search_threads, int(rates.threads))
        for target, refusal in refusals.items()
        if refusal is None
    }
    found = predictor.forecast(work, names, rates, factors)
    inside, of = predictor.score()
    return {
        "schema": 1,
        "operators": len(graph),
        "notes": notes,
        "singles": [
            {
                "target": target.title,
                "ms": _scaled(found.singles_s.get(target.title), 1e3),
                "reason": refusal or (None if target.title in found.singles_s else "not among what it learned from"),
            }
            for target, refusal in refusals.items()
        ],
        "gain": _scaled(found.gain),
        "compile_s": _scaled(found.wall_s),
        "unlike": list(found.unlike),
        "score": {"inside": inside, "of": of},
        "learned_from": {"timings": predictor.timings, "models": of, "command": predictor.command},
        "corrected_by": {name: round(factor, 3) for name, factor in factors.items()},
    }


def _at_lengths(model: ir.Model, options: CompileOptions) -> tuple[ir.Model, list[str]]:
    """Return a model at its most frequent lengths, and the sentence on those that are assumed."""
    options = on_given_inputs(options, model)
    note = assumed_lengths(model, options.dims, options.dims)
    shapes = bind_dims(model, shape_profiles(options.dims)[0].dims)
    lengths = {
        dim if dim and dim.isidentifier() else f"{spec.name}[{axis}]": shapes[spec.name][axis]
        for spec in describe_inputs(model)
        for axis, dim in enumerate(spec.shape or ())
        if not isinstance(dim, int)
    }
    return fix_lengths(model, lengths), [] if note is None else [str(note).replace("timed at", "predicted at", 1)]


def _refusal(graph: DataflowGraph, toolchains: Registry, target: Target, found: Availability) -> str | None:
    """Return the reason why a target does not take the whole model, None if it states that it does."""
    if not found.available:
        return f"not usable: {found.reason}"
    toolchain = toolchains.for_target(target)
    refused = sorted({node.op_type for node in graph.nodes if not support_for(toolchain, node, target).ok})
    return f"does not take {', '.join(refused)}" if refused else None


def _scaled(figures: Any, factor: float = 1.0) -> dict[str, float] | None:
    return None if figures is None else {name: value * factor for name, value in asdict(figures).items()}
