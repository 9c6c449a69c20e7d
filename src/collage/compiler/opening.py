"""The beginning of a compilation: a model is read, prepared and surveyed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx_ir as ir

from collage._errors import ConfigError, WrongAnswer
from collage.compiler.device_placement import prepare_and_plan_devices
from collage.compiler.partitioned_model import read_partitioned
from collage.compiler.precision_session import with_data, with_limits
from collage.compiler.preparation import (
    OPSET_CONVERSION,
    PREPARED,
    Preparation,
    PreparationDiffers,
    Verdict,
    preparation_fact,
)
from collage.compiler.problem import Part, Problem, with_reduced_precision
from collage.compiler.survey import Survey, survey_model
from collage.database.database import Database
from collage.frontend import (
    MIN_OPSET,
    REWRITTEN,
    check_given,
    demanded_lengths,
    fix_lengths,
    model_digest,
    place_weights,
    read_model,
    separate_lengths,
    with_lengths_of,
    write_original,
)
from collage.graph import copy_model
from collage.measure.original_model import OriginalModel
from collage.measure.session import MeasureSession
from collage.measure.worker_pool import Limits
from collage.options import CompileOptions
from collage.runtime._decoder import with_length_0
from collage.system.progress import Progress
from collage.target import Target
from collage.toolchains import Registry
from collage.transform import code_digest
from collage.workers.worker import Worker

__all__ = ["measure_session", "on_given_inputs", "open_model", "told_path", "with_lengths"]

Say = Callable[[str], None]

LIMITS = Limits()
"""The limits of workers."""


def open_model(
    source: Any,
    menu: Sequence[Target],
    options: CompileOptions,
    toolchains: Registry,
    workspace: Path,
    database: Database,
    stack: ExitStack,
    *,
    workers: dict[str, Worker] | None,
    say: Say,
    is_timed: bool = True,
    keeps_kernels: bool = False,
    ends_at: float | None = None,
    part: Part = Part(),  # noqa: B008 (frozen)
) -> tuple[Survey, MeasureSession, dict[str, Any]]:
    """Read, prepare and survey a model. Passes that change its results are left out.

    With ``keeps_kernels`` kernels that the model has stay as they are. Otherwise they are expanded.

    With ``is_timed`` False, targets only state what they support, and nothing is timed. The search and the comparison of plans
    end by ``ends_at``, a value of ``time.monotonic()``, as far as they can; None counts the time budget from now. The limits are
    those of a part of the compilation.

    Returns:
        The survey, the session to be closed with ``stack``, and the origin of the model for the report.
    """
    if ends_at is None:
        ends_at = Progress(None, (), options.time_budget_s).ends_at
    model = read_partitioned(source)[0] if keeps_kernels else read_model(source)
    facts: dict[str, Any] = {
        "path": told_path(source),
        "sha256": model_digest(model),
    }
    is_rewritten = bool(model.meta.get(REWRITTEN))
    original = OriginalModel(write_original(source, workspace, is_rewritten=is_rewritten), LIMITS, workers)
    stack.callback(original.close)
    model = with_lengths(model, options)
    options = on_given_inputs(with_limits(with_data(options, model, workspace, fitting=part.rival is not None)), model)
    fact = preparation_fact(facts["sha256"], options, code_digest())
    known = None if options.remeasure else database.local_fact(PREPARED, **fact)
    verdict = known or Verdict()
    while True:
        if OPSET_CONVERSION in verdict.left_out:
            model = with_lengths(read_model(source, convert_opset=False), options)
        passes = [name for name in verdict.left_out if name != OPSET_CONVERSION]
        prepared, placement = prepare_and_plan_devices(copy_model(model), options.devices, passes, options.passes)
        if placement is not None and (reason := placement.why_no_target(menu)) is not None:
            raise ConfigError(reason)
        if placement is not None and not options.threads:
            options = replace(options, threads=placement.threads)
        preparation = Preparation(original, verdict, known is not None, partial(_prepared_without, model, options))
        with ExitStack() as attempt:
            session = attempt.enter_context(
                measure_session(toolchains, database, workspace, options, workers=workers, say=say)
            )
            session.model = facts["sha256"]
            if options.allows_reduced:
                menu = with_reduced_precision(menu, session, options)
            problem = Problem.of(place_weights(prepared, workspace), menu, toolchains, options, placement)
            problem = replace(problem.ending_at(ends_at).as_part(part), source=facts["sha256"])
            try:
                survey = survey_model(problem, session, preparation, stack, is_timed=is_timed)
            except PreparationDiffers as found:
                verdict = _left_out(found, verdict, model)
                known = None
                say(f"preparing the model without {', '.join(verdict.left_out)}")
                continue
            stack.push(attempt.pop_all())
        if survey.reference.failure is None and original.failure is None:
            database.keep_local_fact(PREPARED, verdict, **fact)
        return survey, session, facts


def measure_session(
    toolchains: Registry,
    database: Database,
    workspace: Path,
    options: CompileOptions,
    *,
    workers: dict[str, Worker] | None = None,
    say: Say = lambda _: None,
) -> MeasureSession:
    """Return a session that builds and measures under these options."""
    return MeasureSession(
        toolchains,
        database,
        workspace,
        threads=options.search_threads,
        limits=LIMITS,
        remeasure=options.remeasure,
        workers=workers,
        say=say,
    )


def with_lengths(model: ir.Model, options: CompileOptions) -> ir.Model:
    """Return a model whose dimensions have the lengths, and share the symbols, that the options and operators allow."""
    model = separate_lengths(model, options.inputs, options.dims)
    demanded = {name: length for name, length in demanded_lengths(model).items() if name not in options.dims}
    return fix_lengths(model, {**demanded, **options.fixed})


def told_path(source: Any) -> str:
    """Return a model's path for an artefact, without the folders of this machine; empty if the model has no path."""
    if not isinstance(source, str | Path):
        return ""
    path = Path(source)
    told = path.name if path.is_absolute() or ".." in path.parts else str(path)
    # A name in bytes that the locale does not know would make the manifest a text that nothing can read.
    return os.fsencode(told).decode("utf-8", "replace")


def _prepared_without(model: ir.Model, options: CompileOptions, left_out: Sequence[str]) -> ir.Model:
    names = [name for name in left_out if name != OPSET_CONVERSION]
    return prepare_and_plan_devices(copy_model(model), options.devices, names, options.passes)[0]


def _left_out(found: PreparationDiffers, verdict: Verdict, model: ir.Model) -> Verdict:
    """Return the passes to leave out of the next preparation.

    Raises:
        WrongAnswer: Nothing is left to leave out.
    """
    if found.guilty:
        return verdict.without(found.guilty, found.mismatch)
    if OPSET_CONVERSION in verdict.left_out or model.opset_imports.get("") != MIN_OPSET:
        raise WrongAnswer(f"reading the model changes its results: {found.mismatch}; please report it")
    # What the passes changed, they changed of a converted model: they get another chance.
    return Verdict().without((OPSET_CONVERSION,), found.mismatch)


def on_given_inputs(options: CompileOptions, model: ir.Model) -> CompileOptions:
    """Options with their inputs as the model takes them, from which lengths follow."""
    given = check_given(model, options.inputs)
    dims = with_lengths_of(model, given, options.dims)
    if not given and (options.data or not options.dims):
        dims = with_length_0(model, dims)
    return replace(options, inputs=given, dims=dims)
