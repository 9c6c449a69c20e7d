"""Plans of two kernels: one end of the model in a coarser type, the other one in the finest that is needed.

A search that pays for each kernel's error finds the fastest plan, or one without any error, and little between: if errors
are spread evenly, every kernel is worth the same price. So the place of a single cut is looked for by halving, on choosing
samples.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Sequence

from collage.compiler.accuracy_budget import judge_plan, keeps_limits
from collage.compiler.candidates import may_have
from collage.compiler.lab import Lab
from collage.compiler.plans import predicted_s
from collage.compiler.precision_sensitivity import EXEMPT
from collage.compiler.precision_session import Precision
from collage.compiler.survey import Survey
from collage.fusion import CandidateKernel, CandidateKernelIndex, FusionSpec
from collage.graph import IndexSet, SubGraph
from collage.measure.session import MeasureSession
from collage.plan import Plan, PlannedKernel
from collage.target import Target

__all__ = ["expected_share", "plans_by_cuts", "secure_floats", "widest_kept"]

_PAIRS = 2
_TRIALS = 3
_UNKNOWN = 0.5
_NEAR = 0.03
"""Cuts whose shares differ by less count as equal. Among them, the one that the fewest bytes cross is taken."""
_NOT_FAR = 2.0
"""Times its budget, the largest error of a whole model in coarser floats before 8 bits are looked into. Beyond, less than a
quarter of the model may be coarse."""
_SAFE = 0.8
"""Share of the budget below which the error of a whole model keeps it on other samples too. Measured on a vision transformer: an
error of 0.94 of the budget was within it on the choosing samples, and beyond it on the judging ones."""
_RULE = "accuracy"


def plans_by_cuts(
    lab: Lab,
    index: CandidateKernelIndex,
    may_share: Callable[[Plan], bool],
    keeps: Callable[[Plan], bool],
) -> list[Plan]:
    """Return plans that keep the limits, with as much of the model in a coarser type as was found to be possible.

    Pairs of targets are tried: one keeps the budget on the whole model; the other one is faster but exceeds it, so that both
    together may be faster than any target that keeps all limits. At most 12 plans are built and run. Borders that
    ``secure_floats`` found are not looked for again.

    Args:
        lab: The model and the menu; it measures the kernels of plans that keep the limits.
        index: Holds the specs of targets.
        may_share: Says if the toolchains of a plan can share a process.
        keeps: Returns True if a plan keeps the limits.
    """
    survey, costs, precision = lab.survey, lab.costs, lab.survey.precision
    if precision is None or survey.problem.placement is not None:
        return []
    spec_of = {candidate.target: candidate.spec for candidate in index}
    below_s = (1 - survey.problem.options.min_gain) * _fastest_s(lab, precision, keeps)
    pairs = (pair for pair in _hopeful_pairs(survey, spec_of, below_s=below_s) if _is_fine(survey, pair[0], keeps))
    found = []
    for pair in itertools.islice(pairs, _PAIRS):
        for plan in _borders(survey, pair, keeps, costs.say, lambda: costs.search_s_left, may_share):
            parts = [CandidateKernel(k.sub_graph, k.target, spec_of[k.target], (_RULE,)) for k in plan.kernels]
            costs.introduce(parts)
            # The fastest single target may be one that keeps no limit. A fine kernel may take longer than that.
            costs.measure(parts, math.inf)
            found.append(plan)
    return [plan for plan in found if predicted_s(survey.problem, costs, plan) is not None]


def secure_floats(survey: Survey, session: MeasureSession, specs: Sequence[FusionSpec]) -> None:
    """Look for a plan in coarser floats that keeps the limits, before 8 bits are looked into, which takes longer.

    A whole model in coarser floats is tried first. Where it misses a limit and not by far, borders are looked for. What is found
    stays in ``survey.precision``.
    """
    problem, precision = survey.problem, survey.precision
    if precision is None or problem.placement is not None:
        return
    known = {target for spec in specs for target in spec.targets}

    def keeps(plan: Plan) -> bool:
        return keeps_limits(problem, session, precision, plan)

    least_left_s = problem.comparison_plan.left_s / 2
    pairs = [pair for pair in _hopeful_pairs(survey, known, _NOT_FAR) if not pair[1].is_calibrated]
    safe = _SAFE * problem.tolerance
    wholes = dict.fromkeys(coarse for _, coarse, _ in pairs if (survey.baselines[coarse].whole.error or 0.0) <= safe)
    if pairs and not any(keeps(_whole(survey, coarse)) for coarse in wholes):
        _borders(survey, pairs[0], keeps, session.say, lambda: problem.comparison_plan.left_s - least_left_s)


def _fastest_s(lab: Lab, precision: Precision, keeps: Callable[[Plan], bool]) -> float:
    """Return the seconds of the fastest coarser target that keeps all limits on the whole model; infinite if none does."""
    survey = lab.survey
    wholes = [
        (found.whole.time.median_s, str(target), _whole(survey, target))
        for target, found in survey.baselines.items()
        if target.is_reduced and found.whole.ok and found.whole.time is not None and survey.is_right(found.whole)
    ]
    for seconds, _, plan in sorted(wholes, key=lambda each: each[:2]):
        if survey.problem.options.time_budget_s is not None and lab.costs.search_s_left <= 0:
            break
        if keeps(plan) and judge_plan(survey.problem, lab.session, precision, plan).reason is None:
            return seconds
    return math.inf


def _is_fine(survey: Survey, target: Target, keeps: Callable[[Plan], bool]) -> bool:
    return not target.is_reduced or keeps(_whole(survey, target))


def _whole(survey: Survey, target: Target) -> Plan:
    everything = SubGraph(survey.problem.graph, IndexSet.range(0, len(survey.problem.graph)))
    return Plan(str(target), (PlannedKernel(everything, target, _RULE),), target)


def _borders(
    survey: Survey,
    pair: tuple[Target, Target, float],
    keeps: Callable[[Plan], bool],
    say: Callable[[str], None],
    left_s: Callable[[], float],
    may_share: Callable[[Plan], bool] = lambda _: True,
) -> list[Plan]:
    """Return the plans of one border between a fine and a coarse target that keep the limits, the coarse one last or first.

    Args:
        survey: The model and the menu.
        pair: The fine target, the coarse one, and the share of the model that may be coarse.
        keeps: Returns True if a plan keeps the limits.
        say: Told what is looked for.
        left_s: Returns the seconds that are left; after these no further plan is tried.
        may_share: Says if the toolchains of a plan can share a process.
    """
    fine, coarse, share = pair
    assert survey.precision is not None
    borders = survey.precision.borders
    if (fine, coarse) in borders:
        return [plan for plan in borders[fine, coarse] if may_share(plan)]
    has_budget, found, is_cut_short = survey.problem.options.time_budget_s is not None, list[Plan](), False
    shares = _shares(survey, fine)
    for is_last in (True, False):
        places = [(1 - before, p) for before, p in reversed(shares)] if is_last else shares
        plans, tried = (
            [_plan(survey, p, (first, coarse) if is_last else (coarse, first)) for _, p in places]
            for first in (fine, _stand_in(survey, fine, coarse))
        )
        if not plans or not may_share(plans[0]):
            continue

        def try_(number: int, plans: Sequence[Plan] = plans, tried: Sequence[Plan] = tried) -> bool:
            nonlocal is_cut_short
            plan = plans[number]
            if not all(_is_possible(survey, kernel) for kernel in (*plan.kernels, *tried[number].kernels)):
                return False
            if has_budget and left_s() <= 0:
                is_cut_short = True
                return False
            if is_kept := keeps(tried[number]):
                found.append(plan)
            return is_kept

        say(f"looking for a border between {coarse.short} and {fine.short}")
        widest_kept([share for share, _ in places], share, try_)
    if is_cut_short:
        survey.precision.is_cut_short = True
    if found or not is_cut_short:
        borders[fine, coarse] = found
    return found


def _stand_in(survey: Survey, fine: Target, coarse: Target) -> Target:
    """Return the target that is tried in place of one in the model's own precision: that of the coarse one's toolchain.

    Errors of a border are those of its coarse side, and other toolchains may take ten times as long to build the fine one. Plans
    are judged as they are.
    """
    own = (t for t in survey.takers if not t.is_reduced and t.toolchain == coarse.toolchain)
    return fine if fine.is_reduced else next(own, fine)


def _is_possible(survey: Survey, kernel: PlannedKernel) -> bool:
    is_allowed = survey.problem.choices.allows(kernel.sub_graph, kernel.target)
    return is_allowed and may_have(survey, kernel.sub_graph, kernel.target)


def _plan(survey: Survey, place: int, targets: Sequence[Target]) -> Plan:
    graph = survey.problem.graph
    parts = IndexSet.range(0, place), IndexSet.range(place, len(graph))
    kernels = [
        PlannedKernel(SubGraph(graph, inside), target, _RULE) for inside, target in zip(parts, targets, strict=True)
    ]
    return Plan("cut", tuple(kernels))


def _shares(survey: Survey, fine: Target) -> list[tuple[float, int]]:
    """Return places of one cut, each with the share of the time before it; of places close together one is returned."""
    graph, baselines = survey.problem.graph, survey.baselines
    profiles = [baselines[fine].profile, *(found.profile for found in baselines.values())]
    # Without any profile, every operator counts alike.
    profile = next((each for each in profiles if sum(each.values()) > 0), dict.fromkeys(range(len(graph)), 1.0))
    before = [0.0, *itertools.accumulate(profile.get(node, 0.0) for node in range(len(graph)))]
    shares = [(before[p] / before[-1], p) for p in range(1, len(graph)) if graph.cuts[p].is_border]
    groups = itertools.groupby(shares, key=lambda each: int(each[0] / _NEAR))
    return [min(group, key=lambda each: graph.cuts[each[1]].nbytes) for _, group in groups]


def widest_kept(shares: Sequence[float], first: float, keeps: Callable[[int], bool]) -> int | None:
    """Return the index of the largest share for which ``keeps`` returns True, as found in three trials.

    Args:
        shares: Ascending. ``keeps`` is taken to be True up to one of them, and False beyond.
        first: Share near which the first trial is.
        keeps: Tries the share of this number.

    Returns:
        None if none of the trials was kept.
    """
    low, high, wanted = -1, len(shares), first
    for _ in range(_TRIALS):
        if high - low <= 1:
            break
        place = min(range(low + 1, high), key=lambda number: abs(shares[number] - wanted))
        low, high = (place, high) if keeps(place) else (low, place)
        wanted = ((shares[low] if low >= 0 else 0.0) + (shares[high] if high < len(shares) else 1.0)) / 2
    return low if low >= 0 else None


def expected_share(fine: float, coarse: float, tolerance: float) -> float:
    """Return the share of a model that may be coarse, if it is all the rest that is fine.

    Errors of rounding are independent of each other, so that their squares add.

    Args:
        fine: Error of the whole model in the fine type.
        coarse: The same in the coarse one.
        tolerance: Largest error that is acceptable.
    """
    if coarse <= tolerance:
        return 1.0
    return (tolerance**2 - fine**2) / (coarse**2 - fine**2) if fine < tolerance else 0.0


def _hopeful_pairs(
    survey: Survey, known: Collection[Target], most: float = math.inf, below_s: float = math.inf
) -> list[tuple[Target, Target, float]]:
    """Return pairs of a fine and a coarse target, the most promising first, with the share that may be coarse.

    Args:
        survey: Times and errors of targets on the whole model.
        known: Targets that may have kernels other than the whole model.
        most: Times the tolerance, the largest error of the coarse target.
        below_s: Seconds that a pair has to be expected to stay below.
    """
    problem, found = survey.problem, []
    safe = _SAFE * problem.tolerance
    wholes = {
        target: (baseline.whole.time.median_s, baseline.whole.error or 0.0)
        for target, baseline in survey.baselines.items()
        if target in known and target.option(EXEMPT) is None and baseline.whole.ok and baseline.whole.time is not None
    }
    for fine, (fine_s, fine_error) in wholes.items():
        for coarse, (coarse_s, coarse_error) in wholes.items():
            if fine_error > safe or not coarse.is_reduced or coarse_error <= fine_error:
                continue
            if coarse_error > most * problem.tolerance:
                continue
            share = expected_share(fine_error, coarse_error, safe)
            # Of what misses a limit by another metric than the error, nothing is known.
            share = share if share < 1 else _UNKNOWN
            expected_s = share * coarse_s + (1 - share) * fine_s
            if expected_s < min((1 - problem.options.min_gain) * fine_s, below_s):
                found.append((expected_s, str(fine), str(coarse), fine, coarse, share))
    return [(fine, coarse, share) for _, _, _, fine, coarse, share in sorted(found, key=lambda each: each[:3])]
