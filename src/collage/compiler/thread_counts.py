"""Thread counts as a choice: a small model is tried on one thread too.

Each time a kernel divides its work, waking a helper thread takes tens of microseconds. So models of a few milliseconds
can be faster on one thread, and so can single kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from collage.compiler.survey import Survey, baselines_of
from collage.measure.baselines import Baselines
from collage.measure.session import MeasureSession
from collage.system.machine import this_machine, thread_count
from collage.target import Target

__all__ = ["with_one_thread"]

# A second core saves at most half of the time. Waking its thread costs tens of microseconds for each operator. For about a
# hundred operators this is as much as a gain of 3 ms. The trial costs a build and a second, so larger models have none.
_SMALL_S = 0.003


def with_one_thread(survey: Survey, session: MeasureSession) -> Survey:
    """Return a survey with targets of one thread on the menu, if the model is small.

    Every target that takes the whole model is tried, since times alone do not tell which gains. The race decides.
    """
    options, placement = survey.problem.options, survey.problem.placement
    if options.search_threads or placement is not None or (thread_count() or this_machine().physical_cores) < 2:
        return survey
    targets = _whole_takers(survey) if survey.best_single_s < _SMALL_S else []
    if not targets:
        return survey
    session.say(f"trying {', '.join(target.short for target in targets)} on one thread")
    found = _measured(survey, targets, session)
    problem = replace(survey.problem, menu=(*survey.problem.menu, *found))
    return replace(survey, problem=problem, baselines={**survey.baselines, **found})


def _whole_takers(survey: Survey) -> list[Target]:
    """Return the targets that take the whole model, and could take it on one thread."""
    toolchains = survey.problem.toolchains
    return [
        target
        for target, baseline in survey.baselines.items()
        if baseline.whole.time is not None and survey.is_right(baseline.whole)
        if target.kind == "llvm" and target.option("threads") is None
        if "threads" in toolchains.for_target(target).options
        if target.with_options(threads="1") not in survey.baselines
    ]


def _measured(survey: Survey, targets: Sequence[Target], session: MeasureSession) -> Baselines:
    of_one = {target: target.with_options(threads="1") for target in targets}
    for target, one in of_one.items():
        survey.problem.kernels.keep_in_float(one, survey.problem.kernels.in_float(target))
    return baselines_of(survey.problem, [*of_one.values()], session)
