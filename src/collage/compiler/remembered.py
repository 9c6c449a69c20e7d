"""A result that an earlier compilation kept: its plan is built again, and raced again with what it may have missed."""

from __future__ import annotations

from dataclasses import replace

from collage._errors import ToolchainError
from collage.compiler.accuracy_budget import judged
from collage.compiler.final_comparison import (
    FinalComparison,
    baseline_of,
    compare_again,
    finalist_of,
    lowered_again,
)
from collage.compiler.lab import Lab
from collage.compiler.plans import lower
from collage.compiler.result_store import CompileResult, ResultStore
from collage.measure.bench_findings import faster_targets, keep_faster
from collage.measure.race import near_again
from collage.system.load import is_busy

__all__ = ["recalled"]


def recalled(lab: Lab, known: CompileResult, store: ResultStore) -> CompileResult | None:
    """Build the plan of an earlier compilation. Race it again if the choice may have been another one.

    That is so if a disturbed machine chose among plans that it could not tell apart, if a target that was left out is not
    slow any more, or if ``collage bench`` found a target that is faster.

    Returns:
        The result; None if that plan cannot be built now, is wrong, or lacks a target that was faster.
    """
    survey, session, problem, database = lab.survey, lab.session, lab.problem, lab.database
    finals = lowered_again(problem, session, known.finals)
    if finals is None or finals.plan is None or not judged(problem, session, survey.precision, [finals.plan]):
        return None
    faster = faster_targets(database, problem.source)
    singles = {str(plan.single): plan.name for plan in finals.plans if plan.single is not None}
    if any(target not in singles and target in map(str, problem.menu) for target in faster):
        session.say(f"bench found {', '.join(faster)} faster; searching again")
        keep_faster(database, problem.source, ())
        return None
    more = {singles[target] for target in faster if target in singles} - {finals.plan.name}
    more |= set(_near_again(lab, finals))
    is_in_doubt = finals.is_in_doubt and not is_busy()
    again = finals
    if more or is_in_doubt:
        again = compare_again(problem, session, finals, baseline_of(survey, session), more)
    if again is finals:
        return replace(known, finals=finals, is_final=not finals.is_in_doubt)
    if faster:
        keep_faster(database, problem.source, ())
    result = replace(known, finals=again, is_remembered=False, is_final=again.is_final)
    store.keep(result)
    return result


def _near_again(lab: Lab, finals: FinalComparison) -> list[str]:
    """Return the plans that were left out of the race, and are not slow in a new sample."""
    problem, session, entries = lab.problem, lab.session, []
    assert finals.plan is not None and finals.recipe is not None
    for plan in finals.plans:
        if (standing := finals.standings.get(plan.name)) is None or not standing.slower:
            continue
        try:
            entries.append(finalist_of(problem, session, plan, lower(problem, session, plan)))
        except ToolchainError as error:
            session.say(f"{plan.name} cannot be built any more: {error}")
    if not entries:
        return []
    session.say(f"qualifying again: {', '.join(entry.name for entry in entries)}")
    returned = finalist_of(problem, session, finals.plan, finals.recipe)
    return near_again(returned, entries, problem.tolerance, problem.comparison_plan, session.say)
