"""Collage: the four phases of the specification, and the checks of their result.

``compile`` is the whole story:

1. **gather**: the targets on the menu are asked for their fusion specs;
2. **collect**: the fusion rules propose candidate kernels on the dataflow graph;
3. **search**: a cheapest cover is found, measuring only candidates that may lie on it;
4. **partition**: the model is rewritten into one function per kernel;

and then the best partitionings are compared, end to end, with every toolchain alone. ``compiler/opening.py`` reads and surveys
the model. Phases 1 and 2 are ``compiler/candidates.py``. ``compiler/plan_search.py`` is phase 3 and all that derives plans from
it, ``compiler/plans.py`` phase 4, ``compiler/final_comparison.py`` the comparison. ``compiler/result_store.py`` keeps the result.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from collage._errors import LimitNotMet, NothingCanRun, WrongAnswer
from collage.compiler.as_today import as_today
from collage.compiler.assumptions import assumed_options
from collage.compiler.batch import batch_dimension, compile_batched
from collage.compiler.body_search import estimated_bodies
from collage.compiler.candidates import collect, gather_specs
from collage.compiler.effective_options import options_and_menu
from collage.compiler.estimated_search import plan_by_estimator
from collage.compiler.final_comparison import (
    FinalComparison,
    unmeasured,
)
from collage.compiler.given_plan import earlier_candidates, given_plan
from collage.compiler.kept_artefacts import KeptArtefact
from collage.compiler.kernel_metadata import write_metadata
from collage.compiler.lab import Lab
from collage.compiler.objective import with_final_size
from collage.compiler.opening import open_model
from collage.compiler.past import keep_compilation
from collage.compiler.plan_search import search_plans
from collage.compiler.planned import plan_file_of
from collage.compiler.precision_borders import around_sensitive
from collage.compiler.problem import Part, Problem
from collage.compiler.refusals import (
    check_chosen,
    check_menu,
    check_reference,
    told_once,
)
from collage.compiler.remembered import recalled
from collage.compiler.report import compile_report
from collage.compiler.result_store import CompileResult, ResultStore
from collage.compiler.specialised import add_plan, compile_specialised, is_specialised
from collage.compiler.survey import Survey
from collage.compiler.tried import record_of_plan, record_of_trials
from collage.compiler.variants import with_one_thread, with_variants
from collage.database.database import Database
from collage.explain import write_record
from collage.frontend import as_onnx, model_digest
from collage.fusion import CandidateKernelIndex, FusionReport
from collage.measure.estimator import CostEstimator
from collage.option_keywords import OptionKeywords
from collage.options import CompileOptions, compile_options
from collage.report import SpecialisedRow
from collage.runtime import Executable, Recipe, write_condensed
from collage.status import Status
from collage.system.progress import Progress, ProgressEvent, is_notebook, shown
from collage.system.scratch import make_scratch, scratch
from collage.target import Target, TargetLike
from collage.toolchains import Registry, registry
from collage.workers.worker import Worker

__all__ = ["CompileOptions", "compile", "find_plan", "settle", "specialise"]

Say = Callable[[str], None]

_BY_ESTIMATES = "no kernel was timed: an estimator's costs decided, or there was nothing to measure"
_PHASES = ("read", "search", "compare")


def compile(
    source: Any,
    targets: Iterable[TargetLike] | None = None,
    *,
    example_inputs: Sequence[Any] | None = None,
    example_kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    options: CompileOptions | Mapping[str, Any] | None = None,
    estimator: CostEstimator | None = None,
    toolchains: Registry | None = None,
    workers: dict[str, Worker] | None = None,
    progress: Callable[[ProgressEvent], None] | None = None,
    **fields: Unpack[OptionKeywords],
) -> Executable:
    """Compile a model into the fastest measured mix of toolchains.

    Args:
        source: A path, bytes, ``onnx.ModelProto``, ``onnx_ir.Model``, ``torch.nn.Module``, ``torch.export.ExportedProgram``
            or ``torch.onnx.ONNXProgram``.
        targets: The menu: targets or aliases, preferred ones first. None takes those of ``choose_menu``.
        example_inputs: Positional inputs with which a ``torch.nn.Module`` is exported.
        example_kwargs: Its inputs by keyword.
        dynamic_shapes: Symbolic dimensions of these inputs, as for ``torch.export.export``.
        options: A ``CompileOptions``, or a dict of its fields.
        estimator: Returns the cost of a kernel, in any unit. With an estimator, no kernel is timed and no plans are compared:
            the plan with the lowest estimated cost is built and checked. None measures.
        toolchains: The registry of toolchains; the installed ones by default.
        workers: Worker processes to use and to leave running, for callers that compile many models.
        progress: Called with an event for each step. The logger ``collage.progress`` gets it in any case. With None, a
            notebook or a terminal shows a line with the time.
        fields: Fields of ``CompileOptions``, such as ``time_budget_s=60``. They take precedence over ``options``.

    Returns:
        The executable. Its outputs were checked. Unless an estimator decides, it is never slower than the fastest single
        target of the menu, beyond the noise that its ``report`` states.

    Raises:
        UsageError: A path that does not exist, an unknown target, an option that makes no sense, inputs that do not fit.
        ModelError: The source is not a valid model, not a safe one, or cannot be run.
        NothingCanRun: No target and no fallback can run an operator, or no target runs any operator. Its subclass
            ``LimitNotMet`` is raised if no plan keeps the limits.
        WrongAnswer: Every way of running the model gives wrong outputs.
    """
    toolchains = toolchains or registry()
    options = compile_options(options, fields)
    options, menu = options_and_menu(options, targets, toolchains, is_estimated=estimator is not None)
    with ExitStack() as stack:
        if progress is None and (is_notebook() or sys.stderr.isatty()):
            progress = stack.enter_context(shown())
        told = Progress(progress, _PHASES, options.time_budget_s)
        told.enter("read")
        told("reading the model")
        source = as_onnx(source, example_inputs, example_kwargs, dynamic_shapes)
        one = partial(
            _compile_one, source, menu, estimator=estimator, toolchains=toolchains, is_named=targets is not None
        )
        if estimator is not None:
            return one(options, told, workers)
        batch = batch_dimension(options, source)
        if batch is None and not is_specialised(options, source):
            return one(options, told, workers)
        lent = {} if workers is None else workers  # A toolchain is imported once for all compilations.
        if workers is None:
            stack.callback(_kill_all, lent)

        def again(options: CompileOptions, part: Part) -> Executable:
            seconds = None if options.time_budget_s is None else part.budget * options.time_budget_s
            return one(options, told if part == Part() else Progress(progress, _PHASES, seconds), lent, part)

        if batch is not None:
            return compile_batched(again, options, source, batch, told)
        return compile_specialised(again, options, told)


def specialise(
    executable: Executable,
    shapes: Mapping[str, Sequence[int]],
    targets: Iterable[TargetLike] | None = None,
    *,
    options: CompileOptions | Mapping[str, Any] | None = None,
) -> SpecialisedRow:
    """Add a plan for a set of lengths to an executable, if it is faster there beyond doubt.

    Args:
        executable: The executable, whose report gets a row for the set in any case.
        shapes: The shapes of inputs with these lengths, by name.
        targets: The menu: targets or aliases. None takes those of ``choose_menu``.
        options: A ``CompileOptions``, or a dict of its fields.

    Returns:
        The row of the set.

    Raises:
        UsageError: An option that makes no sense, or an unknown target.
    """
    options, menu = options_and_menu(compile_options(options, {}), targets, registry(), is_estimated=False)
    model, is_named = executable.workspace / executable.recipe.model_file, targets is not None

    def one(options: CompileOptions, part: Part) -> Executable:
        told = Progress(None, _PHASES, options.time_budget_s)
        return _compile_one(
            model, menu, options, told, None, part, estimator=None, toolchains=registry(), is_named=is_named
        )

    return add_plan(one, executable, shapes, options)


def _kill_all(workers: Mapping[str, Worker]) -> None:
    for worker in workers.values():
        worker.kill()


def _compile_one(
    source: Any,
    menu: tuple[Target, ...],
    options: CompileOptions,
    told: Progress,
    workers: dict[str, Worker] | None,
    part: Part = Part(),  # noqa: B008 (frozen)
    *,
    estimator: CostEstimator | None,
    toolchains: Registry,
    is_named: bool,
) -> Executable:
    """Return the executable of one plan; see ``compile``."""
    is_timed = estimator is None
    for note in assumed_options(options, menu) if is_timed and part.rival is None else ():
        told(note)
    with ExitStack() as stack:
        workspace = stack.enter_context(scratch())
        database = stack.enter_context(Database(options.db))
        place = None
        if is_timed:
            place = KeptArtefact.of(database, source, menu, options, toolchains, part, is_named=is_named)
            if place is not None and (again := place.load(toolchains, told.elapsed_s)) is not None:
                told("an equal compilation is kept, and nothing that it depends on has changed")
                return again
        survey, session, facts = open_model(
            source,
            menu,
            options,
            toolchains,
            workspace,
            database,
            stack,
            workers=workers,
            say=told,
            is_timed=is_timed,
            ends_at=told.ends_at,
            part=part,
        )
        survey_s = told.elapsed_s
        lab, result = find_plan(Lab(survey, session), estimator, told, may_choose_threads=True)
        survey = lab.survey
        finals = result.finals
        assert finals.recipe is not None and finals.plan is not None
        facts["nodes"] = len(survey.problem.graph)
        report = compile_report(lab, facts, result, told.elapsed_s, survey_s, is_named=is_named)
        keep_compilation(lab, report)
        recipe = replace(finals.recipe, model=facts, report=report)
        if options.plan_out is not None:
            plan_file_of(survey.problem, finals.plan, model_digest(survey.problem.model)).save(options.plan_out)
        write_record(result.tried or record_of_plan(survey.problem, finals.plan, _BY_ESTIMATES), workspace)
        write_metadata(workspace / recipe.model_file, {row.name: row.time_us for row in recipe.report.kernels})
        survey.problem.kernels.put_weights(finals.plan.kernels)
        executable = settle(recipe, workspace, toolchains, is_small=options.counts_bytes)
        with_final_size(executable, options)
        if place is not None and result.is_final:
            place.keep(executable)
        return executable


def find_plan(
    lab: Lab, estimator: CostEstimator | None = None, told: Progress | None = None, *, may_choose_threads: bool = False
) -> tuple[Lab, CompileResult]:
    """Return the plan of a model, built and checked, and the lab with all targets that were tried.

    All of this `compile` and the pass `CollageFuseOps` share.

    Raises:
        ModelError: The model cannot be run.
        NothingCanRun: No target of the menu runs any of it, or an operator is run by nothing.
        WrongAnswer: Every way of running the model gives wrong outputs.
    """
    survey, session = lab.survey, lab.session
    told = told or Progress(None, _PHASES, survey.problem.options.time_budget_s)
    told.counts = lambda: (session.counters.measured, None)
    check_reference(survey, session)
    if survey.reference.failure is not None:
        if limits := ", ".join(limit.text for limit in survey.problem.options.bounds):
            raise LimitNotMet(f"{limits}: nothing can be measured, since {survey.reference.failure}")
        if survey.reference.checking.lacks_inputs and survey.problem.options.finals:
            raise NothingCanRun(survey.reference.failure)
        finals = unmeasured(survey, session)
        tried = record_of_trials(lab, finals)
        result = replace(CompileResult.unmeasured(finals), tried=tried)
    elif estimator is not None:
        inner = estimated_bodies(lab, partial(find_plan, estimator=estimator))
        result = plan_by_estimator(survey, session, estimator, inner)
    else:
        check_menu(survey, session)
        is_given = survey.problem.options.plan is not None
        # How many threads a kernel has changes neither its bytes nor what it holds in memory.
        if may_choose_threads and not is_given and survey.problem.options.time_decides:
            survey = with_one_thread(survey, session)
        lab = Lab(with_variants(survey, session), session)
        result = given_plan(lab) if is_given else _plan(lab, told)
    if result.finals.recipe is None:
        error = _nothing_finished(lab.survey, result.finals)
        today = as_today(lab.survey, session, result.finals) if isinstance(error, WrongAnswer) else None
        if today is None:
            raise error
        result = CompileResult.unmeasured(today)
    check_chosen(lab.survey, session, result.finals)
    return lab, result


def _plan(lab: Lab, told: Progress) -> CompileResult:
    """Return the result of an earlier equal compilation, if it still holds, or the result of a search."""
    survey, session, problem, fusion = lab.survey, lab.session, lab.problem, FusionReport()
    told.enter("search")
    session.say("collecting candidate kernels")
    if (candidates := earlier_candidates(survey)) is None:
        specs = gather_specs(survey)
        sensitive = problem.choices.within(around_sensitive(survey, specs))
        candidates = CandidateKernelIndex([*collect(problem, specs, fusion), *sensitive])
    problem.choices.check(problem.graph, candidates, survey.why_refused)
    store = ResultStore(problem, session, candidates)
    options = problem.options
    is_fresh = options.remeasure or options.tune_s or options.front or not options.is_plain
    known = None if is_fresh else store.load()
    if known is not None and (holds := recalled(lab, known, store)) is not None:
        return holds
    result = search_plans(lab, candidates, fusion, told, find_plan)
    is_unfinished = survey.is_cut_short or _is_unfinished(problem, result)
    if result.finals.recipe is not None and options.is_plain and not is_unfinished:
        store.keep(result)
        result = replace(result, is_final=result.finals.is_final)
    return result


def _is_unfinished(problem: Problem, result: CompileResult) -> bool:
    """Return True if the user, a budget or a faulty strategy ended the search early. The same command then continues it."""
    options, stopped_by = problem.options, result.search.stopped_by
    has_budget = options.measure_budget is not None or options.time_budget_s is not None or problem.part.search < 1
    is_cut_short = has_budget and stopped_by in ("deadline", "max_measured")
    return stopped_by == "should_stop" or is_cut_short or bool(result.strategy_faults)


def _nothing_finished(survey: Survey, finals: FinalComparison) -> Exception:
    """Return the error for a model that no plan runs rightly."""
    standings = finals.standings
    refused = {} if survey.precision is None else survey.precision.refusals
    told = {name: [s.reason] for name, s in standings.items() if s.reason}
    reasons = told_once(told | {name: [reason] for name, reason in refused.items()}) or "no target took it"
    if any(s.status is Status.WRONG for s in standings.values()):
        return WrongAnswer(f"every way of running the model gives wrong outputs: {reasons}")
    return NothingCanRun(f"nothing can run the model: {reasons}")


def settle(recipe: Recipe, workspace: Path, toolchains: Registry, *, is_small: bool = False) -> Executable:
    """Return an executable whose files are moved out of the workspace, which goes away with everything else in it.

    If it is to be small, weights that no kernel reads are left behind.
    """
    home = make_scratch()
    if is_small:
        recipe = write_condensed(recipe, workspace, home)
    else:
        for name in recipe.files_with_weights(workspace):
            shutil.move(workspace / name, home / name)
    model_file = "model.onnx"
    (home / recipe.model_file).rename(home / model_file)
    return Executable(replace(recipe, model_file=model_file), home, owns_workspace=True, toolchains=toolchains)
