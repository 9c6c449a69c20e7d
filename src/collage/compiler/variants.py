"""Variants of targets, which are on the menu only if they may be worth their while.

* On one thread: each time a kernel divides its work, waking a helper thread takes tens of microseconds. So models of a few
  milliseconds can be faster on one thread, and so can single kernels.
* Of reduced precision: targets whose most sensitive operators stay in finer types, if the plain ones are too far off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from collage.compiler.candidates import gather_specs
from collage.compiler.precision_cuts import secure_floats
from collage.compiler.precision_sensitivity import FLOATS, add_variants
from collage.compiler.precision_session import MAX_ERROR
from collage.compiler.survey import Survey, baselines_of
from collage.measure.session import MeasureSession
from collage.system.machine import this_machine, thread_count
from collage.target import Target
from collage.toolchains import option_values

__all__ = ["finer_floats", "with_one_thread", "with_variants"]

# Shares of the budget between which a whole model in bf16 errs if finer floats for a few operators may help. The error counts
# with its interval, so it has to lie well below the budget.
_NEAR, _FAR = 0.5, 4.0


# A second core saves at most half of the time. Waking its thread costs tens of microseconds for each operator. For about a
# hundred operators this is as much as a gain of 3 ms. The trial costs a build and a second, so larger models have none.
_SMALL_S = 0.003


def with_one_thread(survey: Survey, session: MeasureSession) -> Survey:
    """Return a survey with targets of one thread on the menu, if the model is small.

    Every exact target that takes the whole model is tried, since times alone do not tell which gains. The race decides. A
    reduced one, of which there are many, is not tried if it is far behind.
    """
    options, placement = survey.problem.options, survey.problem.placement
    if options.search_threads or placement is not None or (thread_count() or this_machine().physical_cores) < 2:
        return survey
    targets = _whole_takers(survey) if survey.best_single_s < _SMALL_S else []
    if not targets:
        return survey
    session.say(f"trying {', '.join(target.short for target in targets)} on one thread")
    of_one = {target: target.with_options(threads="1") for target in targets}
    for target, one in of_one.items():
        survey.problem.kernels.keep_in_float(one, survey.problem.kernels.in_float(target))
    return _with(survey, [*of_one.values()], session)


def with_variants(survey: Survey, session: MeasureSession) -> Survey:
    """Return a survey with variants of reduced targets on the menu, if they may be worth their while.

    A plan in coarser floats comes first, since what makes variants in 8 bits takes long, and a time budget may end it.
    """
    precision = survey.precision
    if precision is None:
        return survey
    survey = _with(survey, finer_floats(survey), session)
    first = partial(secure_floats, survey, session, gather_specs(survey))
    variants = add_variants(precision, survey.problem, survey.baselines, session, first)
    return _with(survey, variants, session)


def finer_floats(survey: Survey) -> list[Target]:
    """Return variants of targets in bf16 that keep the operators in float32 which bf16 hurts most, and which take little time.

    There is one if a target is faster in bf16 and errs too much, though not by far.
    """
    problem, precision = survey.problem, survey.precision
    assert precision is not None
    is_told = all(limit.metric.name == MAX_ERROR for limit in precision.limits)
    wholes = {target: found.whole for target, found in survey.baselines.items() if found.whole.time is not None}
    exact_s = min(
        (whole.time.median_s for t, whole in wholes.items() if whole.time and not t.is_reduced), default=math.inf
    )
    found = []
    for target, whole in wholes.items():
        if target.option("precision") != "bf16" or target.option(FLOATS) is not None or whole.time is None:
            continue
        values = option_values(problem.toolchains.get(target.toolchain), target).get(FLOATS) or ()
        error = (whole.error or 0.0) / problem.tolerance
        # What another metric says of a small error is seen when samples are answered.
        is_near = _NEAR < error < _FAR if is_told else error < _FAR
        if "f32" in values and is_near and whole.time.median_s < (1 - problem.options.min_gain) * exact_s:
            found.append(target.with_options(**{FLOATS: "f32"}))
    return [target for target in found if target not in problem.menu]


def _whole_takers(survey: Survey) -> list[Target]:
    """Return the targets that take the whole model, and could take it on one thread."""
    toolchains = survey.problem.toolchains
    return [
        target
        for target, baseline in survey.baselines.items()
        if baseline.whole.time is not None and survey.is_right(baseline.whole)
        if not (target.is_reduced and survey.is_far_behind(target))
        if target.kind == "llvm" and target.option("threads") is None
        if "threads" in toolchains.for_target(target).options
        if target.with_options(threads="1") not in survey.baselines
    ]


def _with(survey: Survey, variants: Sequence[Target], session: MeasureSession) -> Survey:
    if not variants:
        return survey
    measured = baselines_of(survey.problem, variants, session)
    problem = replace(survey.problem, menu=(*survey.problem.menu, *variants))
    return replace(survey, problem=problem, baselines={**survey.baselines, **measured})
