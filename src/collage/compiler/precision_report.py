"""The report's part on reduced precision: the precision of each kernel, and its effect on answers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from collage.compiler.accuracy_budget import plan_key
from collage.compiler.final_comparison import FinalComparison
from collage.compiler.plans import PlannedKernel
from collage.compiler.precision_sensitivity import is_product
from collage.compiler.precision_session import Precision, Verdict
from collage.compiler.survey import Survey
from collage.cost.outcome import Status
from collage.graph import IndexSet
from collage.measure.estimator import MeasuringCostEstimator
from collage.measure.jobs import weight_bytes
from collage.measure.session import MeasureSession
from collage.report import Report
from collage.target import Target

__all__ = ["with_precision"]

_SHOWN = 6
_MANY_OUTSIDE = 1e-3


def with_precision(report: Report, survey: Survey, session: MeasureSession, finals: FinalComparison) -> Report:
    """Return a report with its parts ``precision`` and ``front``; as it was if no target of the menu is reduced."""
    precision, plan = survey.precision, finals.plan
    if precision is None or plan is None or finals.recipe is None:
        return report
    verdict = precision.verdicts.get(plan_key(plan))
    kernels = [
        {
            "name": record.name,
            "precision": precision_of(place.target),
            "own_error": _own_error(survey, session, place),
            "in_float": _in_float(survey, place),
        }
        for record, place in zip(finals.recipe.kernels, plan.kernels, strict=True)
    ]
    operators = _operators(survey, plan.kernels)
    speedup = _speedup_over_float(survey, finals)
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
        "outside": precision.outside,
        "kernels": kernels,
        "operators": {name: dict(found) for name, found in operators.items()},
        "speedup_over_float32": speedup,
        "refused": dict(precision.refusals),
    }
    facts["summary"] = _summary(precision, verdict, facts)
    return replace(report, precision=facts, front={"points": precision.front} if precision.front else {})


def precision_of(target: Target) -> str:
    """Return the name of the precision that a target's kernels compute in."""
    return target.option("precision", "f32") or "f32"


def _metrics(precision: Precision, verdict: Verdict) -> dict[str, Any]:
    return {
        metric.name: {
            "drop": found.value,
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
    outcome = session.recall(estimator.job(*problem.kernel_of(place.sub_graph, place.target)))
    return None if outcome is None else outcome.error


def _in_float(survey: Survey, place: PlannedKernel) -> list[str]:
    """Return the products inside an 8-bit kernel that it computes in float32, by name."""
    problem = survey.problem
    bits = problem.kernels.in_float(place.target) & place.sub_graph.inside.bits
    nodes = [problem.graph.node(i) for i in IndexSet(bits)] if bits else []
    return [str(node.name) for node in nodes if is_product(node)]


def _operators(survey: Survey, places: Sequence[PlannedKernel]) -> Mapping[str, Counter[str]]:
    """Return how many convolutions and matrix products compute in what, by operator and precision."""
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for place in places:
        kept = set(_in_float(survey, place))
        for node in place.sub_graph.nodes:
            if is_product(node):
                found[node.op_type][
                    (place.target.option("floats") or "f32") if node.name in kept else precision_of(place.target)
                ] += 1
    return found


def _speedup_over_float(survey: Survey, finals: FinalComparison) -> float | None:
    """Return how many times as fast as the best target of the model's own precision the winner is."""
    if finals.time is None:
        return None
    times = []
    for target, found in survey.baselines.items():
        standing = finals.standings.get(str(target))
        if target.is_reduced:
            continue
        if standing is not None and standing.status is Status.OK and standing.time is not None:
            times.append(standing.time.median_s)
        elif found.whole.time is not None and survey.is_right(found.whole):
            times.append(found.whole.time.median_s)
    return min(times) / finals.time.median_s if times else None


def _summary(precision: Precision, verdict: Verdict | None, facts: Mapping[str, Any]) -> list[str]:
    lines = []
    speedup, data = facts["speedup_over_float32"], facts["data"]
    if verdict is None:
        lines.append(
            "everything computes in the model's own precision: nothing coarser was faster and within the limits"
        )
    else:
        fast = [] if speedup is None else [f"{speedup:.1f}x as fast as float32 on the best toolchain"]
        told = [
            f"{metric['told']} on {metric['samples']} samples that chose nothing"
            if data["is_independent"]
            else f"{metric['told']} on the samples that calibrated"
            for metric in facts["metrics"].values()
        ]
        lines.append("; ".join([*fast, *told, *_in_words(facts)]))
        few = [name for name, metric in facts["metrics"].items() if metric["too_few"]]
        if few:
            lines.append(f"there are too few judging samples for {', '.join(few)} to be certain; give more")
    if data["is_made_up"]:
        lines.append("samples were made up; real ones (--data FOLDER) would say more, and give better ranges")
    elif not data["is_independent"]:
        lines.append("there are too few samples to judge on others than those that calibrated; give at least three")
    outside = precision.outside
    if outside is not None and outside > _MANY_OUTSIDE and any(k["precision"] == "int8" for k in facts["kernels"]):
        lines.append(f"{outside:.1%} of values on judging samples lie outside the calibrated ranges; give more samples")
    return lines


def _in_words(facts: Mapping[str, Any]) -> list[str]:
    """Return sentences such as ``49 of 53 Conv in int8, 4 in f32 (a, b)``."""
    kept = [name for kernel in facts["kernels"] for name in kernel["in_float"]]
    shown = f" ({', '.join(kept[:_SHOWN])}{' and more' if len(kept) > _SHOWN else ''})" if kept else ""
    lines = []
    for operator, counts in facts["operators"].items():
        total = sum(counts.values())
        told = [f"{n} of {total} {operator} in {name}" for name, n in sorted(counts.items(), key=lambda c: -c[1])]
        lines.append(", ".join(told))
    if kept:
        lines.append(f"left in floats because 8 bits there changed the outputs most: {len(kept)}{shown}")
    return lines
