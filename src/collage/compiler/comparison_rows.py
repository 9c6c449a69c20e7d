"""The rows of a report: every plan, every target of the menu and the baseline, with the reason for being returned or not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from collage.compiler.final_comparison import BASELINE, FinalComparison
from collage.compiler.result_store import CompileResult
from collage.compiler.survey import LATE, Survey
from collage.cost.outcome import Outcome
from collage.cost.statistics import Summary
from collage.measure.baselines import TargetBaseline
from collage.measure.finalist import NO_TIME, FinalistResult
from collage.plan import Plan
from collage.report import Ratio, Row, Times
from collage.status import Status
from collage.target import Target

__all__ = ["comparison_rows", "named_but_failed"]


def comparison_rows(survey: Survey, result: CompileResult) -> tuple[Row, ...]:
    """Return the rows in the order of their ratios; those without one come last."""
    finals = result.finals
    rows = [_plan_row(survey, result, plan) for plan in finals.plans]
    told = {name for row in rows for name in (row.name, row.target)}
    rows += [_target_row(survey, finals, target) for target in survey.problem.menu if target.title not in told]
    rows += _baseline_row(finals)
    streams = {each["name"]: each for each in finals.objective.get("rows", ()) if each["streams"]}
    rows = [_with_streams(row, streams[row.name]) if row.name in streams else row for row in rows]
    return tuple(sorted(rows, key=lambda row: row.ratio.value if row.ratio else math.inf))


def _with_streams(row: Row, told: Mapping[str, Any]) -> Row:
    return replace(row, streams=told["streams"], threads=told["threads"])


def _plan_row(survey: Survey, result: CompileResult, plan: Plan) -> Row:
    finals, standing = result.finals, result.finals.standings.get(plan.name)
    verdict = Status.NOT_RACED if standing is None else _verdict(standing, plan)
    is_returned = finals.plan is not None and plan.name == finals.plan.name
    whole = None if plan.single is None else survey.baselines[plan.single].whole.time
    is_bound = plan.single is not None and survey.problem.is_bound(plan.single)
    return _with_standing(
        Row(
            plan.name,
            "mix" if plan.single is None else "single",
            Status.RETURNED if is_returned else verdict,
            None if plan.single is None else plan.single.title,
            len(plan.kernels),
            _precision(plan.targets),
            ratio=Ratio(1.0, 1.0, 1.0) if is_returned else None,
            estimate_us=_us(result.predicted_s.get(plan.name)),
            unbound_us=_times(whole) if is_bound else None,
            reason=NO_TIME if finals.standings and standing is None else None,
            differs=None if is_returned or finals.plan is None else _differing(plan, finals.plan),
        ),
        standing,
        is_returned,
    )


def _differing(plan: Plan, other: Plan) -> int:
    """Return the number of operators that two plans give to different kernels."""
    kernels = {(place.sub_graph.inside, place.target) for place in other.kernels}
    own = [place.sub_graph.inside for place in plan.kernels if (place.sub_graph.inside, place.target) not in kernels]
    return sum(map(len, own))


def _with_standing(row: Row, standing: FinalistResult | None, is_returned: bool = False) -> Row:
    if standing is None:
        return row
    ratio = row.ratio
    if standing.ratio is not None and not is_returned:
        ratio = Ratio(standing.ratio[0], standing.ratio[1].low, standing.ratio[1].high)
    return replace(
        row,
        ratio=ratio,
        time_us=_us(standing.paired_s),
        measured_us=_times(standing.time),
        rounds_us=tuple(1e6 * seconds for seconds in standing.rounds_s),
        max_rel_error=standing.max_rel,
        reason=_why_left_out(standing),
    )


def _why_left_out(standing: FinalistResult) -> str | None:
    """Return the reason that a finalist has no time: what it says, or its time in two samples of the race."""
    if not standing.slower:
        return standing.reason
    ratios = " and ".join(f"{ratio:.1f}" for ratio in standing.slower)
    return f"{ratios} times as slow as the best in two samples of this race"


def _verdict(standing: FinalistResult, plan: Plan) -> Status:
    """Return the reason that a plan is not the returned one."""
    if standing.status is not Status.OK:
        is_reduced = any(target.is_reduced for target in plan.targets)
        return Status.OVER_BUDGET if standing.status is Status.WRONG and is_reduced else standing.status
    if standing.slower:
        return Status.TOO_SLOW
    if standing.reason is not None:
        return Status.NOT_RACED if standing.reason == NO_TIME else Status.OVER_LIMIT
    if standing.ratio is None:
        return Status.SLOWER if standing.lost else Status.NOT_RACED
    interval = standing.ratio[1]
    if interval.high < 1.0:
        return Status.UNDECIDED
    return Status.SLOWER if interval.low > 1.0 else Status.TIE


def _target_row(survey: Survey, finals: FinalComparison, target: Target) -> Row:
    """Return the row of a target that was not among the plans, with the reason."""
    found = survey.baselines[target]
    outcome, reason = _telling(found), None
    verdict = Status.NOT_RACED
    if not found.availability.available:
        verdict, reason = Status.UNAVAILABLE, found.availability.reason
    elif not outcome.ok:
        verdict, reason = Status.FAILED if outcome.status is Status.OK else outcome.status, outcome.reason
    elif survey.precision is not None and str(target) in survey.precision.refusals:
        verdict, reason = Status.OVER_BUDGET, survey.precision.refusals[str(target)]
    elif not survey.is_right(outcome):
        verdict = Status.OVER_BUDGET if target.is_reduced else Status.WRONG
        reason = (
            f"differs by {outcome.error:.1e} of the largest output, more than {survey.problem.tolerance:.0e}; "
            "a larger accuracy budget would admit it"
        )
    elif survey.problem.is_bound(target):
        reason = "its kernels are bound to a rule; the time is that of the whole model without the rule"
    elif finals.standings and target.is_reduced:
        reason = "not judged, since another plan is expected to be clearly faster"
    return Row(
        target.title,
        "single",
        verdict,
        str(target),
        precision=_precision([target]),
        max_rel_error=outcome.error,
        reason=reason,
    )


def _telling(found: TargetBaseline) -> Outcome:
    """Return the outcome that says most of a target: a part that is wrong or crashes, rather than a refusal of the whole."""
    whole = found.whole
    if whole.status is not Status.REFUSED:
        return whole
    return next((each for each in found.outcomes if each.status not in (Status.OK, Status.REFUSED)), whole)


def _baseline_row(finals: FinalComparison) -> Iterator[Row]:
    standing = finals.standings.get(BASELINE)
    if standing is None:
        return
    is_ok = standing.status is Status.OK
    verdict = Status.BASELINE if is_ok else standing.status
    named = standing.finalist.arguments.get("target")
    row = Row(BASELINE, "baseline", verdict, str(named or "llvm -compiler=onnxruntime"), 1 if named else None)
    if named is not None:
        row = replace(row, precision=_precision([Target.parse(str(named))]))
    yield _with_standing(row, standing)


def _precision(targets: Sequence[Target]) -> str | None:
    """Return the coarser types that targets compute in, if any do."""
    found = dict.fromkeys(target.option("precision") for target in targets if target.is_reduced)
    if not found:
        return None
    told = ", ".join(filter(None, found))
    return told if all(target.is_reduced for target in targets) else f"{told} in parts"


def named_but_failed(rows: Sequence[Row], used: Sequence[str]) -> list[str]:
    """Return a warning for each target that a user named and that failed, was wrong, or refused and is not used at all.

    Targets for which there was no time are told of together, see ``collage.compiler.precision_report``.
    """
    names = {row.target: row for row in rows if row.kind == "single" and row.target is not None}
    return [
        f"{Target.parse(name).short}: {row.verdict}: {' '.join((row.reason or '').split())[:200]}; "
        f"`collage explain ARTEFACT --target '{Target.parse(name).short}'` has the details"
        for name, row in names.items()
        if row.reason != LATE
        if (row.verdict.is_fault and row.verdict is not Status.FAILED)
        or (row.verdict in (Status.REFUSED, Status.FAILED, Status.UNAVAILABLE) and name not in used)
    ]


def _times(time: Summary | None) -> Times | None:
    return None if time is None else Times(time.median_s * 1e6, time.p10_s * 1e6, time.p90_s * 1e6, time.count)


def _us(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e6
