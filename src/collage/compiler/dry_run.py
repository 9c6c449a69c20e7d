"""Preview of a compilation: candidates and an estimate of its time, without building or measuring."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any

import onnx_ir as ir

from collage.compiler.budget import SearchBudget
from collage.compiler.candidates import collect
from collage.compiler.device_placement import prepare_and_plan_devices
from collage.compiler.effective_options import options_and_menu
from collage.compiler.opening import measure_session, on_given_inputs
from collage.compiler.planned import plan_of_file
from collage.compiler.problem import Problem, with_reduced_precision
from collage.database.database import Database
from collage.frontend import (
    as_onnx,
    check_lengths,
    fix_lengths,
    model_digest,
    place_weights,
    read_model,
    shape_profiles,
)
from collage.fusion import FusionReport, gather_fusion_specs
from collage.measure.session import MeasureSession
from collage.options import CompileOptions, compile_options
from collage.plan_file import PlanFile
from collage.system.scratch import scratch
from collage.target import HOST_TARGET, Target, TargetLike
from collage.toolchains import Registry, Support, registry, support_for

__all__ = ["dry_run"]

_START_S = 8.0
"""Starting toolchains, and reading and running the model for reference."""

_BASELINE_S = 3.0
"""Building and timing the whole model on one target, at least."""

_KERNEL_S = 0.6, 2.5
"""Building and timing one kernel: of a small model, and of a large one."""

_MOST_SEARCH_S = 35.0
_LARGE = 500
"""Operators from which a model counts as large."""


def dry_run(
    source: Any,
    targets: Iterable[TargetLike] | None = None,
    *,
    options: CompileOptions | Mapping[str, Any] | None = None,
    toolchains: Registry | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Return the candidates and the estimated time of a compilation, as JSON values; nothing is built, run or measured.

    Toolchains are asked what they support, not to try. So they may refuse more when it comes to building.

    Args:
        source: As for ``compile``.
        targets: As for ``compile``.
        options: As for ``compile``.
        toolchains: As for ``compile``.
        say: Called with each line of progress.

    Raises:
        CollageError: ``compile`` would raise it too: a model, menu, plan or choice that cannot be.
    """
    toolchains = toolchains or registry()
    options, menu = options_and_menu(compile_options(options), targets, toolchains)
    say("reading the model")
    model = fix_lengths(read_model(as_onnx(source)), options.fixed)
    options = on_given_inputs(options, model)
    for profile in shape_profiles(options.dims):
        check_lengths(model, profile.dims, options.inputs)
    prepared, placement = prepare_and_plan_devices(model, options.devices, [])
    with ExitStack() as stack:
        workspace = stack.enter_context(scratch())
        database = stack.enter_context(Database(options.db))
        session = stack.enter_context(measure_session(toolchains, database, workspace, options, say=say))
        say("listing the operators that toolchains support")
        if options.accuracy_budget is not None:
            menu = with_reduced_precision(menu, session, options)
        problem = Problem.of(place_weights(prepared, workspace), menu, toolchains, options, placement)
        if isinstance(options.plan, PlanFile):
            plan = plan_of_file(problem, options.plan, model_digest(problem.model))
            return _as_json(problem, session, Counter(place.target for place in plan.kernels), len(plan.kernels), [])
        fusion, usable = FusionReport(), [t for t in menu if session.availability(t).available]
        specs = gather_fusion_specs(usable, toolchains.for_target, _supports(problem), options.fusion)
        candidates = collect(problem, specs, fusion)
        problem.choices.check(problem.graph, candidates, lambda i: _why_refused(problem, usable, i))
        keys = {problem.key_of(c) for c in candidates if c.target != HOST_TARGET}
        return _as_json(problem, session, Counter(c.target for c in candidates), len(keys), fusion.notes)


def _supports(problem: Problem) -> Callable[[Target], Callable[[ir.Node], Support]]:
    def of_target(target: Target) -> Callable[[ir.Node], Support]:
        toolchain = problem.toolchains.for_target(target)
        return lambda node: support_for(toolchain, node, target)

    return of_target


def _why_refused(problem: Problem, usable: Iterable[Target], index: int) -> str:
    node, supports = problem.graph.node(index), _supports(problem)
    answers = {target.short: supports(target)(node) for target in usable}
    return "; ".join(f"{name}: {answer.reason}" for name, answer in answers.items() if not answer.ok)


def _as_json(
    problem: Problem, session: MeasureSession, candidates: Counter[Target], keys: int, notes: list[str]
) -> dict[str, Any]:
    """Return the answer; times are a low and a high estimate."""
    options, rows = problem.options, []
    for target in problem.menu:
        found, supports = session.availability(target), _supports(problem)(target)
        taken = sum(supports(node).ok for node in problem.graph.nodes) if found.available else 0
        rows.append(
            {
                "target": str(target),
                "available": found.available,
                "reason": found.reason,
                "operators": taken,
                "candidates": candidates[target],
            }
        )
    usable = sum(session.availability(target).available for target in problem.menu)
    is_given = options.plan is not None
    at_most = keys if is_given else min(keys, SearchBudget(options, problem.comparison_plan).kernels(keys))
    is_searched = usable > 1 or is_given or bool(problem.choices) or problem.placement is not None
    at_most = at_most if is_searched else 0
    low_s, high_s = _seconds(problem, usable, at_most)
    return {
        "schema": 1,
        "operators": len(problem.graph),
        "targets": rows,
        "candidates": candidates.total(),
        "distinct": keys,
        "measured_at_most": at_most,
        "expected_minutes": [round(low_s / 60.0, 1), round(high_s / 60.0, 1)],
        "notes": notes,
    }


def _seconds(problem: Problem, usable: int, kernels: int) -> tuple[float, float]:
    """Return a low and a high estimate of the time of a compilation for which no timing is known yet."""
    options, plan = problem.options, problem.comparison_plan
    size = max(1.0, len(problem.graph) / _LARGE)
    low_s, high_s = (kernels * each_s for each_s in _KERNEL_S)
    if not options.proves and options.plan is None:
        low_s, high_s = min(low_s, _MOST_SEARCH_S), min(high_s, _MOST_SEARCH_S)
    plans = 1 if options.plan is not None else usable + options.finalists
    rounds = plan.rounds + plan.reporting_rounds
    race_s = plans * rounds * plan.block_s if options.finals and plans > 1 else 0.0
    low_s += _START_S + usable * _BASELINE_S + race_s
    high_s += _START_S * size + usable * _BASELINE_S * size * 4 + 3 * race_s + options.tune_s
    if options.time_budget_s is not None:
        low_s, high_s = min(low_s, options.time_budget_s), min(high_s, options.time_budget_s)
    return low_s, high_s
