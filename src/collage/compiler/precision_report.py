"""The report's part on reduced precision: the precision of each kernel, and its effect on answers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import onnx_ir as ir

from collage.calibration import touches_unbounded
from collage.compiler.accuracy_budget import judge_key
from collage.compiler.final_comparison import FinalComparison
from collage.compiler.precision_sensitivity import FLOATS, is_product
from collage.compiler.precision_session import Precision, Verdict
from collage.compiler.survey import LATE, Survey
from collage.measure.estimator import MeasuringCostEstimator
from collage.measure.jobs import weight_bytes
from collage.measure.session import MeasureSession
from collage.plan import PlannedKernel
from collage.report import Report
from collage.status import Status
from collage.target import Target
from collage.toolchains import IN_FLOATS, Compiled

__all__ = ["with_precision"]

_SHOWN = 6
_INT8 = "int8"
_MANY_OUTSIDE = 1e-3
_AS_ASKED = "faster"
_WHY = {
    "toolchain": "their toolchain computes them so",
    "sensitive": "8 bits there changed the outputs most",
    "unbounded": "8 bits cannot hold their values",
    "faster": "the plan is faster so, as measured",
}


def with_precision(report: Report, survey: Survey, session: MeasureSession, finals: FinalComparison) -> Report:
    """Return a report with its parts ``precision`` and ``front``; as it was if no target of the menu is reduced."""
    precision, plan = survey.precision, finals.plan
    if precision is None or plan is None or finals.recipe is None:
        return report
    verdict = precision.verdicts.get(judge_key(plan))
    kernels = [
        {
            "name": record.name,
            "precision": precision_of(place.target),
            "own_error": _own_error(survey, session, place),
            "in_float": [
                str(node.name)
                for node, name, _ in _products(survey, place, record.compiled)
                if name != precision_of(place.target)
            ],
        }
        for record, place in zip(finals.recipe.kernels, plan.kernels, strict=True)
    ]
    products = [
        each
        for record, place in zip(finals.recipe.kernels, plan.kernels, strict=True)
        for each in _products(survey, place, record.compiled)
    ]
    operators: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for node, name, _ in products:
        operators[node.op_type][name] += 1
    speedup = _speedup_over_float(finals)
    is_calibrated = any(place.target.is_calibrated for place in plan.kernels)
    facts: dict[str, Any] = {
        "data": {
            "origin": precision.data.origin,
            "is_made_up": precision.is_made_up,
            "calibrating": len(precision.split.calibrate),
            "choosing": len(precision.split.choose),
            "judging": len(precision.split.judge),
            "is_independent": precision.split.is_independent,
        },
        "limits": [{"metric": limit.metric.name, "most": limit.most} for limit in precision.limits],
        "metrics": {} if verdict is None else _metrics(precision, verdict),
        "outside": precision.outside() if is_calibrated else None,
        "kernels": kernels,
        "not_in_int8": _not_in_int8(products) if is_calibrated else [],
        "operators": {name: dict(found) for name, found in operators.items()},
        "speedup_over_float32": speedup,
        "refused": dict(precision.refusals),
    }
    late = [target.short for target, found in survey.baselines.items() if found.refusal == LATE]
    facts["summary"] = _summary(precision, verdict, facts, late)
    few = precision.too_few()
    front = {"points": precision.front} if precision.front else {}
    return replace(report, precision=facts, front=front, warnings=(*report.warnings, *([few] if few else [])))


def precision_of(target: Target) -> str:
    """Return the name of the precision that a target's kernels compute in."""
    return target.option("precision", "f32") or "f32"


def _metrics(precision: Precision, verdict: Verdict) -> dict[str, Any]:
    return {
        metric.name: {
            "drop": found.value,
            "original": found.original,
            "interval": [found.low, found.high],
            "samples": found.samples,
            "too_few": found.is_vague,
            "told": metric.told(found),
        }
        for metric in precision.judge.metrics
        if (found := verdict.estimates.get(metric.name)) is not None
    }


def _own_error(survey: Survey, session: MeasureSession, place: PlannedKernel) -> float | None:
    """Return a kernel's error on the values that it was checked on, where it was measured."""
    problem = survey.problem
    estimator = MeasuringCostEstimator(session, weight_bytes(problem.model))
    outcome = session.recall(estimator.job(*problem.kernel_of(place)))
    return None if outcome is None else outcome.error


def _products(survey: Survey, place: PlannedKernel, compiled: Compiled) -> list[tuple[ir.Node, str, str]]:
    """Return every convolution and matrix product of a kernel, its precision, and why it is that one."""
    problem, precision, target = survey.problem, survey.precision, place.target
    left = set(compiled.metadata.get(IN_FLOATS, ()))
    kept = problem.kernels.in_float(target)
    sensitive = 0 if precision is None else precision.sensitive
    ranges = None if precision is None else precision.ranges
    found = []
    for position, (index, node) in enumerate(zip(place.sub_graph.inside, place.sub_graph.nodes, strict=True)):
        if not is_product(node):
            continue
        if target.is_calibrated and kept >> index & 1:
            name, why = target.option(FLOATS) or "f32", "sensitive"
        elif position in left:
            name, why = "f32", "toolchain"
        else:
            name, why = precision_of(target), "sensitive" if sensitive >> index & 1 else _AS_ASKED
        if name != _INT8 and ranges is not None and touches_unbounded(node, ranges):
            why = "unbounded"
        found.append((node, name, why))
    return found


def _not_in_int8(products: Sequence[tuple[ir.Node, str, str]]) -> list[dict[str, Any]]:
    """Return the products that are not computed in 8 bits, by precision and reason."""
    found: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for node, name, why in products:
        if name != _INT8:
            found[name, why].append(str(node.name))
    return [{"precision": name, "why": why, "names": names} for (name, why), names in found.items()]


def _speedup_over_float(finals: FinalComparison) -> float | None:
    """Return how many times as fast as the best target of the model's own precision the winner is, in one comparison."""
    times = [
        standing.paired_s
        for plan in finals.plans
        if plan.single is not None
        and not plan.single.is_reduced
        and (standing := finals.standings.get(plan.name)) is not None
        and standing.status is Status.OK
        and standing.paired_s is not None
    ]
    return min(times) / finals.time.median_s if times and finals.time is not None else None


def _summary(precision: Precision, verdict: Verdict | None, facts: Mapping[str, Any], late: Sequence[str]) -> list[str]:
    lines = ["; ".join(precision.assumptions())]
    speedup, data = facts["speedup_over_float32"], facts["data"]
    if verdict is None:
        lines.append(
            "everything computes in the model's own precision: nothing coarser was faster and within the limits"
        )
    else:
        fast = [] if speedup is None else [f"{speedup:.1f}x as fast as float32 on the best toolchain"]
        metrics = facts["metrics"].values()
        told = " and ".join(metric["told"] for metric in metrics)
        count = max((metric["samples"] for metric in metrics), default=0)
        judging = "1 sample that chose" if count == 1 else f"{count} samples that chose"
        where = f"{judging} nothing" if data["is_independent"] else "the samples that calibrated"
        lines.append("; ".join([*fast, *([f"{told}, on {where}"] if told else []), *_in_words(facts)]))
        few = [name for name, metric in facts["metrics"].items() if metric["too_few"]]
        if few and precision.too_few() is None:  # Otherwise a warning says so, with the number.
            lines.append(f"there are too few judging samples for {', '.join(few)} to be certain; give more")
    if late:
        lines.append(f"the time budget left no time for {_some(late)}; the same command measures them")
    if data["is_made_up"]:
        lines.append(f"samples are {data['origin']}; real ones (--data FOLDER) would give better ranges and errors")
    elif not data["is_independent"]:
        lines.append(
            "there are too few samples to judge on others than those that calibrated; give at least three (--data FOLDER)"
        )
    if not precision.data.has_labels and precision.data.labelled:
        bare = precision.data.count - precision.data.labelled
        lines.append(f"{bare} of {precision.data.count} samples have no label, so that no label is used")
    if skipped := 0 if precision.ranges is None else precision.ranges.skipped:
        count = len(precision.split.calibrate)
        lines.append(f"{skipped} of {count} calibrating samples hold NaN, and no ranges were taken from them")
    if odd := [*precision.judge.with_nan.values()]:
        lines.append(f"the inputs of {_some(odd)} hold NaN, which 8-bit kernels do not pass on")
    outside = facts["outside"]
    if outside is not None and outside > _MANY_OUTSIDE and any(k["precision"] == _INT8 for k in facts["kernels"]):
        lines.append(
            f"{outside:.1%} of values on judging samples are outside of the calibrated ranges; give more samples"
        )
    return lines


def _in_words(facts: Mapping[str, Any]) -> list[str]:
    """Return sentences such as ``49 of 53 Conv in int8, 4 in bf16`` and ``a, b in bf16 because ...``."""
    lines = []
    for operator, counts in facts["operators"].items():
        total = sum(counts.values())
        (most, n), *others = sorted(counts.items(), key=lambda c: -c[1])
        lines.append(", ".join([f"{n} of {total} {operator} in {most}", *(f"{n} in {name}" for name, n in others)]))
    for each in facts["not_in_int8"]:
        lines.append(f"{_some(each['names'])} in {each['precision']} because {_WHY[each['why']]}")
    return lines


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"
