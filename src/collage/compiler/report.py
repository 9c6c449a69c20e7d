"""The report of a compilation: the plan, the comparison, and the checks behind it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from collage._version import __version__
from collage.compiler.comparison_rows import comparison_rows, named_but_failed
from collage.compiler.final_comparison import FinalComparison
from collage.compiler.lab import Lab
from collage.compiler.precision_report import with_precision
from collage.compiler.problem import Problem
from collage.compiler.refusals import one_choice, over_time, placement_costs, unsearched_bodies
from collage.compiler.result_store import CompileResult
from collage.compiler.survey import Reference, Survey
from collage.frontend import lengths_as_json
from collage.measure.body_kernels import kernels_inside
from collage.measure.finalist import FinalistResult
from collage.measure.session import MeasureSession
from collage.numerics.nan_check import nan_shares
from collage.numerics.sizes import is_mixed
from collage.numerics.value_store import ValueStore
from collage.options import command_text
from collage.plan import Plan, PlannedKernel
from collage.report import (
    BodyKernelRow,
    KernelRow,
    ModelFacts,
    Numerics,
    Occasion,
    ReferenceFacts,
    Report,
    SearchFacts,
)
from collage.report import Machine as MachineFacts
from collage.status import Status
from collage.system.machine import Machine, this_machine, thread_count
from collage.target import HOST_TARGET

__all__ = ["compile_report"]

_VAGUE = 0.2
_NOTEWORTHY = 1e-2
"""Share of the largest output; kernels that quantise alike differ by about one step of 256."""


def compile_report(
    lab: Lab,
    model: Mapping[str, Any],
    result: CompileResult,
    wall_s: float,
    survey_s: float,
    *,
    is_named: bool = False,
) -> Report:
    """Return the report of a compilation; seconds become µs.

    Args:
        lab: The known facts about the model, and the measurements.
        model: The origin of the model.
        result: The result of the compilation.
        wall_s: Seconds that it took.
        survey_s: Seconds until the model was read and timed on every target.
        is_named: True if the user named the targets of the menu.
    """
    survey, session, problem, finals = lab.survey, lab.session, lab.problem, result.finals
    assert finals.plan is not None
    assert finals.recipe is not None
    plan = finals.plan
    standing = finals.standings.get(plan.name)
    no_numbers = nan_shares(problem.model, session.values)
    rows = comparison_rows(survey, result)
    used = [str(target) for target in plan.targets]
    shares = finals.shares if len(finals.shares) == len(plan.kernels) else [None] * len(plan.kernels)
    report = Report(
        ModelFacts(**model),
        tuple(target.title for target in problem.menu),
        plan.name,
        rows,
        finals.overruled,
        tuple(
            KernelRow(
                record.name,
                record.target,
                _operators(place),
                tuple(str(node.name) for node in place.sub_graph.nodes),
                place.rule,
                _us(seconds),
                record.device,
                record.branch,
                _bodies(place, record.name),
                None if share is None or finals.time is None else _us(share * finals.time.median_s),
                share,
            )
            for record, place, seconds, share in zip(
                finals.recipe.kernels, plan.kernels, result.estimates_s[plan.name], shares, strict=True
            )
        ),
        _us(result.predicted_s[plan.name]),
        finals.additive_error,
        _search(problem, session, result, wall_s),
        _numerics(survey, session, result, standing, no_numbers),
        tuple(
            [
                *result.strategy_faults,
                *survey.reference.checking.notes,
                *_preparation(survey.reference),
                *_left_to_the_host(survey, finals.plan),
                *(named_but_failed(rows, used) if is_named else ()),
                *_says_little(problem, no_numbers),
                *_mixes_magnitudes(problem, session),
                *([] if finals.warning is None else [finals.warning]),
                *_drops_nan(standing),
                *_saturates(problem.tolerance, problem.strict_tolerance, standing),
                *_warnings(finals, problem.options.threads, this_machine()),
            ]
        ),
        lengths_as_json({**problem.options.dims, **problem.options.fixed}),
        _occasions(problem, session),
        None if problem.placement is None else problem.placement.as_json(),
        _machine(problem, session),
        objective=finals.objective or {"name": problem.options.objective},
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        command=command_text(
            problem.options, str(model.get("path", "")), [target.short for target in problem.menu] if is_named else ()
        ),
    )
    report = with_precision(report, survey, session, finals)
    more = [*placement_costs(survey, finals), *unsearched_bodies(survey)]
    more += over_time(problem.options.time_budget_s, wall_s, survey_s)
    more += [] if is_named else one_choice(survey)
    return replace(report, warnings=(*report.warnings, *more))


def _machine(problem: Problem, session: MeasureSession) -> MachineFacts:
    machine = this_machine()
    builds = {target.title: session.build_of(target) for target in problem.menu}
    return MachineFacts(machine.cpu, machine.cores, machine.memory_bytes, machine.system, __version__, builds)


def _search(problem: Problem, session: MeasureSession, result: CompileResult, wall_s: float) -> SearchFacts:
    counters = session.counters
    return replace(
        result.search,
        mode=problem.options.search,
        built=counters.built,
        measured=counters.measured,
        cache_hits=counters.recorded,
        raced=not result.is_remembered,
        wall_s=wall_s,
    )


def _numerics(
    survey: Survey,
    session: MeasureSession,
    result: CompileResult,
    standing: FinalistResult | None,
    no_numbers: Mapping[str, float],
) -> Numerics:
    """Error of the whole model if it was compared, else of its worst kernel; ``ok`` is None where nothing was checked."""
    return Numerics(
        ok=result.kernels_ok if standing is None else standing.status is Status.OK,
        max_abs_error=None if standing is None else standing.max_abs,
        max_rel_error=result.kernels_error if standing is None else standing.max_rel,
        tolerance=survey.problem.tolerance,
        noise=session.noise(survey.problem.model),
        reference=_reference(survey, session),
        unsettled={} if standing is None else dict(standing.excused),
        nan=dict(no_numbers),
        other_lengths=_other_lengths(survey.problem, session),
    )


def _reference(survey: Survey, session: MeasureSession) -> ReferenceFacts:
    """Return the reference of the outputs, the sets of inputs, and the passes that were left out of the preparation."""
    original, values, problem = survey.reference.original, session.values, survey.problem
    outputs = [str(value.name) for value in problem.model.graph.outputs]
    return ReferenceFacts(
        model="original" if original is not None and original.failure is None else "prepared",
        evaluator=None if original is None else original.evaluator,
        reason=None if original is None else original.failure,
        probes=tuple(survey.reference.checking.probes),
        left_out=tuple(survey.reference.verdict.left_out),
        random=tuple(name for name in outputs if name in values and not values.is_repeatable(name)),
    )


def _preparation(reference: Reference) -> list[str]:
    """Warn of passes that were left out, and of an original that could not be run."""
    told = [
        f"preparation is done without {name}, which changed the results of the model: {reason}"
        for name, reason in zip(reference.verdict.left_out, reference.verdict.reasons, strict=True)
    ]
    original = reference.original
    if original is not None and original.failure is not None:
        told.append(
            f"outputs are compared with the prepared model's, since the original cannot be run: {original.failure}"
        )
    return told


def _occasions(problem: Problem, session: MeasureSession) -> tuple[Occasion, ...]:
    """Return the inputs' shapes at which everything was timed, and the share of each."""
    names = [str(value.name) for value in problem.model.graph.inputs]
    return tuple(
        Occasion(weight, {name: tuple(values.shape(name)) for name in names if name in values})
        for values, weight in session.occasions
    )


def _other_lengths(problem: Problem, session: MeasureSession) -> tuple[Mapping[str, tuple[int, ...]], ...] | None:
    """Return the other shapes of inputs at which kernels were checked; empty if there are none, None if all is fixed."""
    inputs = problem.model.graph.inputs
    if all(value.shape is not None and value.shape.is_static() for value in inputs):
        return None
    stores = [ValueStore(folder) for folder in session.length_folders]
    return tuple({str(v.name): tuple(store.shape(str(v.name))) for v in inputs} for store in stores)


def _left_to_the_host(survey: Survey, plan: Plan) -> list[str]:
    """Warn if no requested target runs any of the model."""
    if plan.targets != (HOST_TARGET,):
        return []
    reasons = {target.short: survey.baselines[target].whole.reason for target in survey.problem.menu}
    told = "; ".join(f"{name}: {reason}" for name, reason in reasons.items() if reason)
    return [
        "no target of the menu runs any operator: the host runs the model, without optimisations"
        + (f" ({told})" if told else "")
    ]


def _says_little(problem: Problem, no_numbers: Mapping[str, float]) -> list[str]:
    """Warn about outputs that are NaN in the reference."""
    told = [f"{share:.0%} of output {name!r}" for name, share in no_numbers.items()]
    if not told:
        return []
    names = [str(value.name) for value in problem.model.graph.inputs]
    open_names = [name for name in names if name not in problem.options.inputs]
    advice = f"; give real inputs (--input {open_names[0]}=FILE.npy)" if open_names else ""
    return [f"{', '.join(told)} is NaN on these inputs, in the model itself: there, nothing can be checked{advice}"]


def _mixes_magnitudes(problem: Problem, session: MeasureSession) -> list[str]:
    """Warn if a budget is relative to several sizes within one output."""
    if problem.options.accuracy_budget is None:
        return []
    names = [str(value.name) for value in problem.model.graph.outputs]
    floats = [name for name in names if name in session.values and session.values.dtype(name).startswith("float")]
    mixed = [name for name in floats if is_mixed(*_magnitudes(session, name))]
    return [
        f"output {name!r} holds numbers of several magnitudes, such as fill values, or boxes beside scores: the accuracy "
        "budget is relative to the size of each"
        for name in mixed
    ]


def _magnitudes(session: MeasureSession, name: str) -> list[np.ndarray[Any, Any]]:
    """Return the magnitudes of an output on ordinary inputs, and on others if they have the same lengths."""
    stores = [session.values, *map(ValueStore, session.other_folders[:1])]
    found = [np.abs(store.right(name).astype(np.float64)) for store in stores if name in store]
    return [each for each in found if each.shape == found[0].shape]


def _drops_nan(standing: FinalistResult | None) -> list[str]:
    """Warn about NaN among the inputs that the plan does not keep, and name the option that keeps it."""
    if standing is None or standing.drops_nan is None:
        return []
    return [f"{standing.drops_nan}; --probe nan takes only what keeps NaN"]


def _saturates(tolerance: float, strict: float, standing: FinalistResult | None) -> list[str]:
    """Warn about saturating products of a quantised model, and name the option that avoids them."""
    error = None if standing is None else standing.max_rel
    if error is None or error <= _NOTEWORTHY or tolerance <= strict:
        return []
    return [
        f"this processor adds products of bytes in 16 bits, which saturates: outputs differ by {error:.1%} of the "
        f"largest from what the quantised model says; --accuracy-budget {strict:.2g} takes only what differs by less"
    ]


def _warnings(finals: FinalComparison, threads: int, machine: Machine) -> list[str]:
    """Return a sentence for each reason to believe the figures less than usual."""
    warnings = []
    if machine.quota is not None and threads > (enough := thread_count(machine)) > 0:
        warnings.append(
            f"a control group leaves {machine.quota:.0%} of one processor's time to kernels of up to {threads} threads: they "
            f"are stopped when it is spent, and some runs take far longer than most; --threads {enough} makes them alike"
        )
    elif machine.quota is not None and not threads and (chosen := thread_count(machine)):
        warnings.append(
            f"a control group leaves {machine.quota:.0%} of one processor's time: kernels use {chosen} of "
            f"{machine.physical_cores} cores, also where the artefact is loaded under such a limit"
        )
    if finals.time is not None and finals.is_noisy:
        warnings.append(
            f"this machine is noisy: a tenth of the runs took {finals.time.p90_s / finals.time.p10_s:.1f} times as long as "
            "another tenth; "
            "compile again, with --remeasure, when nothing else runs on it"
        )
    if finals.speedup is not None and (width := finals.speedup[1].high / finals.speedup[1].low - 1.0) > _VAGUE:
        warnings.append(f"the speed-up is only known to within {width:.0%}")
    return warnings


def _bodies(place: PlannedKernel, name: str) -> tuple[BodyKernelRow, ...]:
    """Return the kernels in the bodies of a kernel."""
    return tuple(
        BodyKernelRow(
            inner.name,
            str(inner.kernel.target),
            _operators(inner.kernel),
            tuple(str(node.name) for node in inner.kernel.sub_graph.nodes),
            inner.kernel.rule,
        )
        for inner in kernels_inside(place, name)
    )


def _operators(place: PlannedKernel) -> str:
    """Operators of a kernel in a few words: ``Conv, Relu`` or ``Conv … Softmax (12 operators)``."""
    op_types = [node.op_type for node in place.sub_graph.nodes]
    if len(op_types) <= 4:
        return ", ".join(op_types)
    return f"{op_types[0]} … {op_types[-1]} ({len(op_types)} operators)"


def _us(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e6
