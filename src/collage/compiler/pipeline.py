"""Collage: the four phases of the specification, and the checks of their result.

``compile`` is the whole story:

1. **gather**: the targets on the menu are asked for their fusion specs;
2. **collect**: the fusion rules propose candidate kernels on the dataflow graph;
3. **search**: a cheapest cover is found, measuring only candidates that may lie on it;
4. **partition**: the model is rewritten into one function per kernel;

and then the best partitionings are compared, end to end, with every toolchain alone. ``compiler/opening.py`` reads and surveys
the model. Phases 1 and 2 are ``compiler/candidates.py``, phase 3 is ``compiler/partition_search.py``, phase 4
``compiler/plans.py``, the comparison ``compiler/final_comparison.py``. ``compiler/result_store.py`` keeps the result.
"""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from collage._errors import LimitNotMet, NothingCanRun, WrongAnswer
from collage.compiler.accuracy_budget import judged, within_budget
from collage.compiler.additive_error import additive_error
from collage.compiler.autotune import autotune, known_autotuned
from collage.compiler.body_search import body_candidates, estimated_bodies
from collage.compiler.candidates import collect, gather_specs
from collage.compiler.cost_table import CostTable
from collage.compiler.effective_options import check_estimator_options, effective_options, with_planned_targets
from collage.compiler.estimated_search import plan_by_estimator
from collage.compiler.final_comparison import (
    FinalComparison,
    baseline_of,
    compare_again,
    lowered_again,
    unmeasured,
)
from collage.compiler.given_plan import given_plan, targets_of_plan, with_read_plan
from collage.compiler.kernel_metadata import write_metadata
from collage.compiler.lab import Lab
from collage.compiler.objective import choose_finals, with_final_size
from collage.compiler.opening import open_model
from collage.compiler.partition_search import best_plans, in_one_process, search_until_stable, searched_again
from collage.compiler.planned import plan_file_of
from collage.compiler.plans import estimate_s, predicted_s, single_plans, with_costs
from collage.compiler.precision_borders import around_sensitive
from collage.compiler.precision_cuts import plans_by_cuts
from collage.compiler.precision_front import find_front
from collage.compiler.precision_report import with_precision
from collage.compiler.precision_variants import with_variants
from collage.compiler.problem import Problem
from collage.compiler.refinement import Refinement
from collage.compiler.refusals import (
    check_chosen,
    check_menu,
    check_reference,
    one_choice,
    over_time,
    placement_costs,
    told_once,
    unsearched_bodies,
    with_named_targets,
)
from collage.compiler.report import compile_report
from collage.compiler.result_store import CompileResult, ResultStore, SearchSummary
from collage.compiler.side_by_side import side_by_side
from collage.compiler.survey import Survey
from collage.compiler.thread_counts import with_one_thread
from collage.compiler.tried import record_of_trials, renamed
from collage.cost.outcome import Status
from collage.database.database import Database
from collage.explain import write_record
from collage.frontend import as_onnx, model_digest
from collage.fusion import CandidateKernel, CandidateKernelIndex, FusionReport
from collage.measure.estimator import CostEstimator
from collage.measure.process_compat import ProcessCompatibility
from collage.measure.session import MeasureSession
from collage.measure.tuning_records import TuningRecords
from collage.option_keywords import OptionKeywords
from collage.options import CompileOptions, compile_options
from collage.plan import Plan
from collage.runtime import Executable, Recipe
from collage.search import SearchResult
from collage.system.load import is_busy
from collage.system.progress import Progress, ProgressEvent, is_notebook, shown
from collage.system.scratch import make_scratch, scratch
from collage.target import TargetLike
from collage.toolchains import Registry, choose_menu, registry
from collage.workers.worker import Worker

__all__ = ["CompileOptions", "compile", "decide", "find_plan", "settle"]

Say = Callable[[str], None]

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
    options = with_read_plan(compile_options(options, fields))
    named = targets_of_plan(options, targets)
    menu = choose_menu(named, toolchains)
    if named is None:
        menu = with_planned_targets(menu, options)
    options = effective_options(options, menu, toolchains)
    if estimator is not None:
        check_estimator_options(options)
    if options.baseline not in ("none", "onnxruntime"):
        toolchains.parse_targets([options.baseline])  # Says what is wrong with it.
    started = time.monotonic()
    with ExitStack() as stack:
        if progress is None and (is_notebook() or sys.stderr.isatty()):
            progress = stack.enter_context(shown())
        told = Progress(progress, _PHASES, options.time_budget_s)
        told.enter("read")
        told("reading the model")
        source = as_onnx(source, example_inputs, example_kwargs, dynamic_shapes)
        workspace = stack.enter_context(scratch())
        database = stack.enter_context(Database(options.db))
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
            is_timed=estimator is None,
            ends_at=told.ends_at,
        )
        survey_s = time.monotonic() - started
        lab, result = find_plan(Lab(survey, session), estimator, told, may_choose_threads=targets is None)
        survey = lab.survey
        finals = result.finals
        assert finals.recipe is not None
        facts["nodes"] = len(survey.problem.graph)
        took_s = time.monotonic() - started
        report = compile_report(survey, session, facts, result, took_s, is_named=targets is not None)
        report = with_precision(report, survey, session, finals)
        more = [*placement_costs(survey, finals), *unsearched_bodies(survey)]
        more += over_time(options.time_budget_s, took_s, survey_s)
        more += one_choice(survey) if targets is None else []
        report = replace(report, warnings=(*report.warnings, *more))
        recipe = replace(finals.recipe, model=facts, report=report)
        if options.plan_out is not None and finals.plan is not None:
            plan_file_of(survey.problem, finals.plan, model_digest(survey.problem.model)).save(options.plan_out)
        if result.tried is not None:
            write_record(renamed(result.tried, survey.problem, finals), workspace)
        write_metadata(workspace / recipe.model_file, {row.name: row.estimate_us for row in recipe.report.kernels})
        executable = settle(recipe, workspace, toolchains)
        with_final_size(executable, options)
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
        if may_choose_threads and not is_given:
            survey = with_one_thread(survey, session)
        lab = Lab(with_variants(survey, session), session)
        result = given_plan(lab) if is_given else _plan(lab, told)
    if result.finals.recipe is None:
        raise _nothing_finished(lab.survey, result.finals)
    check_chosen(lab.survey, session, result.finals)
    return lab, result


def _plan(lab: Lab, told: Progress) -> CompileResult:
    """Return the result of an earlier equal compilation, if it still holds, or the result of a search."""
    survey, session, problem, fusion = lab.survey, lab.session, lab.problem, FusionReport()
    told.enter("search")
    session.say("collecting candidate kernels")
    specs = gather_specs(survey)
    sensitive = problem.choices.within(around_sensitive(survey, specs))
    candidates = CandidateKernelIndex([*collect(problem, specs, fusion), *sensitive])
    problem.choices.check(problem.graph, candidates, survey.why_refused)
    store = ResultStore(problem, session, candidates)
    options = problem.options
    is_fresh = options.remeasure or options.tune_s or options.front or not options.is_plain
    known = None if is_fresh else store.load()
    if known is not None and (holds := _recalled(survey, session, known, store)) is not None:
        return holds
    result = _searched(lab, candidates, fusion, told)
    is_unfinished = survey.is_cut_short or _is_unfinished(options, result)
    if result.finals.recipe is not None and options.is_plain and not is_unfinished:
        store.keep(result)
    return result


def _searched(lab: Lab, candidates: CandidateKernelIndex, fusion: FusionReport, told: Progress) -> CompileResult:
    """Search for the cheapest plans, and compare them end to end with every target alone."""
    survey, session, problem, costs = lab.survey, lab.session, lab.problem, lab.costs
    tune_s, records = problem.options.tune_s, TuningRecords(session)
    costs.learn()
    costs.introduce(candidates)
    keys = len({problem.key_of(candidate) for candidate in candidates})
    told.counts = lambda: (costs.budget.asked, min(keys, costs.budget.kernels(keys)))
    inner = body_candidates(lab, find_plan)
    candidates = CandidateKernelIndex([*candidates, *known_autotuned(problem, costs, records, candidates), *inner])

    def priced(plans: Sequence[Plan]) -> list[Plan]:
        return [with_costs(plan, [estimate_s(costs, kernel) for kernel in plan.kernels]) for plan in plans]

    search = partial(search_until_stable, lab, records)
    tuning = ""
    if tune_s:
        candidates, _ = search(candidates)
        candidates, tuning = autotune(problem, costs, records, candidates)
    if math.isfinite(survey.best_single_s):
        told.best = f"best single {survey.best_single_s * 1e3:.3f} ms"

    def choose_(plans: Sequence[Plan]) -> FinalComparison:
        told.enter("compare")
        return choose_finals(lab, plans)

    singles = [plan for plan in single_plans(problem, survey, candidates) if _is_allowed(problem, plan)]
    found = None
    expected_s = partial(predicted_s, problem, costs)
    judge = partial(judged, problem, session, survey.precision, seconds=expected_s)
    compat = ProcessCompatibility(problem.toolchains, lab.database, session.build_of, session.say)

    def may_share(plan: Plan) -> bool:
        return compat.can_share(plan.leaves)

    is_bound = bool(problem.choices) or any(problem.is_bound(target) for target in survey.takers)
    is_several = len(survey.takers) > 1 or bool(inner)
    if is_several or is_bound or problem.placement is not None or tune_s or costs.has_variants:
        refinement = Refinement(lab, may_share)

        def finalists(index: CandidateKernelIndex, result: SearchResult[CandidateKernel]) -> Sequence[Plan]:
            plans = in_one_process(problem, costs, compat, index, best_plans(problem, costs, index, result))
            if any(target.is_reduced for target in problem.menu):
                again = partial(searched_again, problem, costs, index)
                by_cuts = partial(plans_by_cuts, survey, costs, index, may_share)
                plans = within_budget(lab, plans, again, by_cuts)
            mixes = _mixes(survey, plans, singles)
            refined = refinement.plans(index, [*mixes, *singles])
            mixes += [plan for plan in refined if not _is_among([*mixes, *singles], plan)]
            mixes += side_by_side(problem, costs, [*mixes, *singles], may_share)
            return priced(with_named_targets(survey, judge([*singles, *mixes])))

        found, finals = decide(candidates, search, finalists, choose_, costs)
    else:
        plans = [*singles, *side_by_side(problem, costs, singles, may_share)]
        finals = choose_(priced(with_named_targets(survey, judge(plans))))
    if survey.precision is not None and problem.options.front:
        again = partial(searched_again, problem, costs, candidates)
        survey.precision.front = find_front(lab, finals, again)
    summary = replace(SearchSummary.of(problem, candidates, found, fusion), tuning=tuning)
    if problem.options.objective != "throughput":  # There, a plan is not timed as its kernels are.
        finals = replace(finals, additive_error=additive_error(finals, partial(predicted_s, problem, costs)))
    result = CompileResult.of(problem, costs, finals, summary)
    if finals.recipe is None:
        return result
    tried = record_of_trials(lab, finals, has_costs=True, found=found, fusion=fusion)
    return replace(result, tried=tried)


def _recalled(
    survey: Survey, session: MeasureSession, known: CompileResult, store: ResultStore
) -> CompileResult | None:
    """Build the plan of an earlier compilation. Compare it again if that choice was in doubt and the machine is calm.

    Returns:
        The result; None if that plan cannot be built now, or is wrong.
    """
    problem = survey.problem
    finals = lowered_again(problem, session, known.finals)
    if finals is None or finals.plan is None or not judged(problem, session, survey.precision, [finals.plan]):
        return None
    if not finals.is_in_doubt or is_busy():
        return replace(known, finals=finals)
    again = compare_again(problem, session, finals, baseline_of(survey, session))
    if again is finals:
        return replace(known, finals=finals)
    result = replace(known, finals=again, is_remembered=False)
    store.keep(result)
    return result


def _is_unfinished(options: CompileOptions, result: CompileResult) -> bool:
    """Return True if the user, a budget or a faulty strategy ended the search early. The same command then continues it."""
    stopped_by = result.search.stopped_by
    has_budget = options.measure_budget is not None or options.time_budget_s is not None
    is_cut_short = has_budget and stopped_by in ("deadline", "max_measured")
    return result.finals.is_interrupted or stopped_by == "should_stop" or is_cut_short or bool(result.strategy_faults)


def decide(
    index: CandidateKernelIndex,
    search: Callable[[CandidateKernelIndex], tuple[CandidateKernelIndex, SearchResult[CandidateKernel]]],
    finalists: Callable[[CandidateKernelIndex, SearchResult[CandidateKernel]], Sequence[Plan]],
    compare: Callable[[Sequence[Plan]], FinalComparison],
    costs: CostTable,
) -> tuple[SearchResult[CandidateKernel], FinalComparison]:
    """Phase 3, then the comparison; both once more if building the finalists showed that a kernel is wrong.

    Args:
        index: The candidates.
        search: Finds the cheapest partitioning.
        finalists: The plans to compare.
        compare: Runs them end to end.
        costs: Costs of kernels; kernels that turned out to be wrong are left out of further searches.
    """
    finals, compared = None, list[Plan]()
    while True:
        index, result = search(index)
        plans = finalists(index, result)
        if finals is not None and all(_is_among(compared, plan) for plan in plans):
            return result, finals
        rejected = costs.rejections
        finals, compared = compare(plans), list(plans)
        if costs.rejections == rejected:
            return result, finals


def _mixes(survey: Survey, plans: Sequence[Plan], singles: Sequence[Plan]) -> list[Plan]:
    """Return the best plans of the search other than singles, by new names."""
    mixes = [plan for plan in plans if not _is_single_already(survey, plan) and not _is_among(singles, plan)]
    return [replace(plan, name=f"mix {i}") for i, plan in enumerate(mixes[: survey.problem.options.finalists], 1)]


def _is_allowed(problem: Problem, plan: Plan) -> bool:
    return all(problem.choices.allows(place.sub_graph, place.target) for place in plan.kernels)


def _is_among(plans: Sequence[Plan], plan: Plan) -> bool:
    return any(plan.same_kernels(one) for one in plans)


def _is_single_already(survey: Survey, plan: Plan) -> bool:
    """Return True if a plan is the whole model on one target as surveyed: not tuned, and without parts that the search chose."""
    first = plan.kernels[0]
    is_surveyed = first.target in survey.baselines and not survey.problem.is_bound(first.target)
    return len(plan.kernels) == 1 and is_surveyed and not first.sub_graph.nested


def _nothing_finished(survey: Survey, finals: FinalComparison) -> Exception:
    """Return the error for a model that no plan runs rightly."""
    standings = finals.standings
    refused = {} if survey.precision is None else survey.precision.refusals
    told = {name: [s.reason] for name, s in standings.items() if s.reason}
    reasons = told_once(told | {name: [reason] for name, reason in refused.items()}) or "no target took it"
    if any(s.status is Status.WRONG for s in standings.values()):
        return WrongAnswer(f"every way of running the model gives wrong outputs: {reasons}")
    return NothingCanRun(f"nothing can run the model: {reasons}")


def settle(recipe: Recipe, workspace: Path, toolchains: Registry) -> Executable:
    """Return an executable whose files are moved out of the workspace, which goes away with everything else in it."""
    home = make_scratch()
    for name in recipe.files_with_weights(workspace):
        shutil.move(workspace / name, home / name)
    model_file = "model.onnx"
    (home / recipe.model_file).rename(home / model_file)
    return Executable(replace(recipe, model_file=model_file), home, owns_workspace=True, toolchains=toolchains)
