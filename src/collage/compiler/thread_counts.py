"""Thread counts as a choice: on the default menu, a small model is tried on one thread too.

Each time a kernel divides its work, waking a helper thread takes tens of microseconds. So models of a few milliseconds
can be faster on one thread, and so can single kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from collage.compiler.survey import HOPELESS, Survey, baselines_of
from collage.measure.baselines import Baselines
from collage.measure.session import MeasureSession
from collage.system.machine import this_machine, thread_count
from collage.target import Target

__all__ = ["with_one_thread"]

_SMALL_S = 0.003
"""A second core saves at most half of the time. Waking its thread costs tens of microseconds for each operator.

For about a hundred operators this is as much as a gain of 3 ms. The trial costs a build and a second, so larger models
have none.
"""
_NEAR = 1.25
"""Two timings that were not taken in turns differ by up to this ratio on a shared machine.

The final comparison decides between closer ones.
"""


def with_one_thread(survey: Survey, session: MeasureSession) -> Survey:
    """Return a survey with targets of one thread on the menu, if the model is small and gains by it.

    The fastest target that takes the whole model is tried first, which costs a build and a measurement. The others follow only
    if it is about as fast or faster on one thread.
    """
    options, placement = survey.problem.options, survey.problem.placement
    if options.search_threads or placement is not None or (thread_count() or this_machine().physical_cores) < 2:
        return survey
    if not survey.best_single_s < _SMALL_S:
        return survey
    targets = _by_time(survey)
    if not targets:
        return survey
    (fastest, best_s), *others = targets
    session.say(f"trying {fastest.short} on one thread")
    (tried,) = (found := _measured(survey, [fastest], session)).values()
    if tried.whole.time is None or tried.whole.time.median_s > _NEAR * best_s:
        return survey
    hopeful = [target for target, seconds in others if seconds <= HOPELESS * best_s]
    found = {**found, **_measured(survey, hopeful, session)}
    problem = replace(survey.problem, menu=(*survey.problem.menu, *found))
    return replace(survey, problem=problem, baselines={**survey.baselines, **found})


def _by_time(survey: Survey) -> list[tuple[Target, float]]:
    """Return the targets that take the whole model, and could take it on one thread, with their seconds, the fastest first."""
    toolchains = survey.problem.toolchains
    found = [
        (target, baseline.whole.time.median_s)
        for target, baseline in survey.baselines.items()
        if baseline.whole.time is not None and survey.is_right(baseline.whole)
        if target.kind == "llvm" and target.option("threads") is None
        if "threads" in toolchains.for_target(target).options
    ]
    return sorted(found, key=lambda each: each[1])


def _measured(survey: Survey, targets: Sequence[Target], session: MeasureSession) -> Baselines:
    of_one = {target: target.with_options(threads="1") for target in targets}
    for target, one in of_one.items():
        survey.problem.kernels.keep_in_float(one, survey.problem.kernels.in_float(target))
    return baselines_of(survey.problem, [*of_one.values()], session)
