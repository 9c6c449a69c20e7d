"""Variants of targets of reduced precision, which are on the menu only if the plain targets are too far off."""

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
from collage.target import Target
from collage.toolchains import option_values

__all__ = ["finer_floats", "with_variants"]

_NEAR, _FAR = 0.5, 4.0
"""Shares of the budget between which a whole model in bf16 errs if finer floats for a few operators may help. The error counts
with its interval, so it has to lie well below the budget."""


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


def _with(survey: Survey, variants: Sequence[Target], session: MeasureSession) -> Survey:
    if not variants:
        return survey
    measured = baselines_of(survey.problem, variants, session)
    problem = replace(survey.problem, menu=(*survey.problem.menu, *variants))
    return replace(survey, problem=problem, baselines={**survey.baselines, **measured})
