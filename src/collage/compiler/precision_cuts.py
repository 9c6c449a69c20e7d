"""Plans of two kernels: one end of the model in a coarser type, the other one in the finest that is needed.

A search that pays for each kernel's error finds the fastest plan, or one without any error, and little between: if errors
are spread evenly, every kernel is worth the same price. So the place of a single cut is looked for by halving, on choosing
samples.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from collage.compiler.candidates import may_have
from collage.compiler.cost_table import CostTable
from collage.compiler.plans import Plan, PlannedKernel, predicted_s
from collage.compiler.precision_sensitivity import EXEMPT
from collage.compiler.survey import Survey
from collage.fusion import CandidateKernel, CandidateKernelIndex, FusionSpec
from collage.graph import IndexSet, SubGraph
from collage.target import Target

__all__ = ["expected_share", "plans_by_cuts", "widest_kept"]

_PAIRS = 2
_TRIALS = 3
_UNKNOWN = 0.5
_NEAR = 0.03
"""Cuts whose shares differ by less count as equal. Among them, the one that the fewest bytes cross is taken."""
_RULE = "accuracy"


def plans_by_cuts(
    survey: Survey,
    costs: CostTable,
    index: CandidateKernelIndex,
    may_share: Callable[[Plan], bool],
    keeps: Callable[[Plan], bool],
) -> list[Plan]:
    """Return plans that keep the limits, with as much of the model in a coarser type as was found to be possible.

    Pairs of targets are tried: one keeps the budget on the whole model; the other one is faster but exceeds it. At most 12
    plans are built and run.

    Args:
        survey: The model and the menu.
        costs: Measures the kernels of plans that keep the limits.
        index: Holds the specs of targets.
        may_share: Says if the toolchains of a plan can share a process.
        keeps: Returns True if a plan keeps the limits.
    """
    if survey.problem.placement is not None:
        return []
    spec_of = {candidate.target: candidate.spec for candidate in index}
    everything = IndexSet.range(0, len(survey.problem.graph))

    def is_fine(target: Target) -> bool:
        whole = PlannedKernel(SubGraph(survey.problem.graph, everything), target, _RULE)
        return not target.is_reduced or keeps(Plan(str(target), (whole,), target))

    found: list[Plan] = []
    pairs = (pair for pair in _hopeful_pairs(survey, spec_of) if is_fine(pair[0]))
    for fine, coarse, share in itertools.islice(pairs, _PAIRS):
        shares = _shares(survey, costs, fine)
        for is_last in (True, False):
            places = [(1 - before, p) for before, p in reversed(shares)] if is_last else shares
            targets = (fine, coarse) if is_last else (coarse, fine)
            kept = _Kept(survey, costs, spec_of, [_plan(survey, p, targets) for _, p in places], keeps)
            if not places or not may_share(kept.tried[0]):
                continue
            costs.say(f"looking for a border between {coarse.short} and {fine.short}")
            widest_kept([share for share, _ in places], share, kept.try_)
            found += kept.plans
    return [plan for plan in found if predicted_s(survey.problem, costs, plan) is not None]


def _plan(survey: Survey, place: int, targets: Sequence[Target]) -> Plan:
    graph = survey.problem.graph
    parts = IndexSet.range(0, place), IndexSet.range(place, len(graph))
    kernels = [
        PlannedKernel(SubGraph(graph, inside), target, _RULE) for inside, target in zip(parts, targets, strict=True)
    ]
    return Plan("cut", tuple(kernels))


@dataclass(slots=True)
class _Kept:
    """Plans that were found to keep the limits."""

    survey: Survey
    costs: CostTable
    spec_of: Mapping[Target, FusionSpec]
    tried: Sequence[Plan]
    keeps: Callable[[Plan], bool]
    plans: list[Plan] = field(default_factory=list)

    def try_(self, number: int) -> bool:
        """Return True if a plan keeps the limits; then its kernels are measured."""
        plan, choices = self.tried[number], self.survey.problem.choices
        for kernel in plan.kernels:
            is_allowed = choices.allows(kernel.sub_graph, kernel.target)
            if not (is_allowed and may_have(self.survey, kernel.sub_graph, kernel.target)):
                return False
        is_late = self.survey.problem.options.time_budget_s is not None and self.costs.search_s_left <= 0
        if is_late or not self.keeps(plan):
            return False
        parts = [CandidateKernel(k.sub_graph, k.target, self.spec_of[k.target], (_RULE,)) for k in plan.kernels]
        self.costs.introduce(parts)
        self.costs.measure(parts)
        self.plans.append(plan)
        return True


def _shares(survey: Survey, costs: CostTable, fine: Target) -> list[tuple[float, int]]:
    """Return places of one cut, each with the share of the time before it; of places close together one is returned."""
    graph = survey.problem.graph
    everything = PlannedKernel(SubGraph(graph, IndexSet.range(0, len(graph))), fine, _RULE)
    seconds = costs.node_seconds([everything])
    total = sum(seconds) or 1.0
    before = [0.0, *itertools.accumulate(seconds)]
    shares = [(before[p] / total, p) for p in range(1, len(graph)) if graph.cuts[p].is_border]
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


def _hopeful_pairs(survey: Survey, known: Collection[Target]) -> list[tuple[Target, Target, float]]:
    """Return pairs of a fine and a coarse target, the most promising first, with the share that may be coarse."""
    problem, found = survey.problem, []
    wholes = {
        target: (baseline.whole.time.median_s, baseline.whole.error or 0.0)
        for target, baseline in survey.baselines.items()
        if target in known and target.option(EXEMPT) is None and baseline.whole.ok and baseline.whole.time is not None
    }
    for fine, (fine_s, fine_error) in wholes.items():
        for coarse, (coarse_s, coarse_error) in wholes.items():
            if fine_error > problem.tolerance or not coarse.is_reduced or coarse_error <= fine_error:
                continue
            share = expected_share(fine_error, coarse_error, problem.tolerance)
            # Of what misses a limit by another metric than the error, nothing is known.
            share = share if share < 1 else _UNKNOWN
            expected_s = share * coarse_s + (1 - share) * fine_s
            if expected_s < (1 - problem.options.min_gain) * fine_s:
                found.append((expected_s, str(fine), str(coarse), fine, coarse, share))
    return [(fine, coarse, share) for _, _, _, fine, coarse, share in sorted(found, key=lambda each: each[:3])]
