"""The outcome of this compilation, kept for predictions of others."""

from __future__ import annotations

from functools import partial

from collage.compiler.lab import Lab
from collage.measure.operator_work import work_of
from collage.measure.work import shape_in
from collage.prediction import COMPILATION, Compilation
from collage.report import Report
from collage.system.machine import this_machine

__all__ = ["keep_compilation"]

# Later phases share what is left of a budget. A compilation that ends with less than this to spare may have hurried.
_MOST_OF_BUDGET = 0.9


def keep_compilation(lab: Lab, report: Report) -> None:
    """Keep what a compilation found, if it searched for the lowest latency among plans of the model's own precision."""
    problem, options, session = lab.problem, lab.problem.options, lab.session
    has_budget = options.time_budget_s is not None or options.measure_budget is not None or problem.part.search < 1
    is_late = options.time_budget_s is not None and report.search.wall_s > _MOST_OF_BUDGET * options.time_budget_s
    is_cut_short = has_budget and (is_late or report.search.stopped_by in ("deadline", "max_measured"))
    is_usual = options.is_plain and not options.allows_reduced and options.plan is None and options.search == "fast"
    singles = {row.name: row.time_us for row in report.rows if row.kind == "single" and row.time_us}
    for target, baseline in lab.survey.baselines.items():
        if (time := baseline.whole.time) is not None:
            singles.setdefault(target.title, time.median_s * 1e6)
    gain = report.gain("best_single")  # None if a budget left no time to compare.
    # A plan for a set of lengths had to beat another plan, not each toolchain.
    is_one_length = len(session.occasions) == 1 and problem.part.rival is None
    if gain is None or not is_usual or not is_one_length or not report.search.raced or not report.search.keys:
        return
    found = Compilation(
        report.model.path,
        work_of(problem.graph.nodes, partial(shape_in, session.values)),
        {name: time_us / 1e6 for name, time_us in singles.items() if time_us is not None},
        (gain.ratio.value, gain.ratio.low, gain.ratio.high),
        is_cut_short,
        report.search.measured,
        report.search.cache_hits,
        report.search.wall_s,
    )
    name = {
        "model": problem.source,
        "machine": this_machine().fingerprint,
        "menu": [target.title for target in problem.menu],
        "threads": session.threads,
        "lengths": report.dims,
    }
    lab.database.keep_fact(COMPILATION, found, **name)
