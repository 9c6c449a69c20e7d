"""Borders around sensitive regions: candidates that compute these as the model says, or in bf16, and all else in 8 bits."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from collage.compiler.survey import Survey
from collage.fusion import CandidateKernel, FusionSpec
from collage.graph import IndexSet, SubGraph

__all__ = ["around_sensitive"]

_MOST_RUNS = 8
"""If sensitive nodes lie in more places than this, kernels between them are too small to gain anything."""
_RULE = "sensitivity"


def around_sensitive(survey: Survey, specs: Sequence[FusionSpec]) -> list[CandidateKernel]:
    """Return candidates whose borders are those of sensitive regions; empty if there are none, or if devices are planned."""
    problem, precision = survey.problem, survey.precision
    if precision is None or not precision.sensitive or problem.placement is not None:
        return []
    runs = [
        (is_sensitive, IndexSet.range(members[0], members[-1] + 1))
        for is_sensitive, group in itertools.groupby(
            range(len(problem.graph)), lambda i: bool(precision.sensitive >> i & 1)
        )
        if (members := list(group))
    ]
    if not 1 < len(runs) <= _MOST_RUNS:
        return []
    found = []
    for is_sensitive, inside in runs:
        sub_graph = SubGraph(problem.graph, inside)
        if not (sub_graph.has_border and sub_graph.is_admissible):
            continue
        for spec in specs:
            found += [
                CandidateKernel(sub_graph, target, spec, (_RULE,))
                for target in spec.targets
                if target.is_calibrated != is_sensitive
                and all(survey.coverage_of(target)(node).ok for node in sub_graph.nodes)
            ]
    return found
