"""Tuning as an anytime second phase: kernels whose toolchain can tune are tuned while the time lasts.

1. A plan of untuned kernels is found.
2. The search is asked what it would choose if every kernel gained from tuning as much as kernels have gained so far.
3. Of the kernels of that plan, the one with the greatest expected gain per second of tuning is tuned and measured. It
   becomes a candidate for a target of its own.
4. Steps 2 and 3 are repeated until the time is used up, or no expected gain is worth its time.

How long tuning takes is estimated from how long the kernel took to build and to run, and from earlier tunings. Tuned kernels
take part in every later compilation.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace

from collage._errors import ToolchainError
from collage.compiler.cost_table import CostTable
from collage.compiler.problem import Problem
from collage.cost.cost import Cost
from collage.fusion import CandidateKernel, CandidateKernelIndex
from collage.measure.jobs import Job
from collage.measure.tuning_records import TunedKernel, TuningRecords, effort_s
from collage.search import NoCover, shortest_path
from collage.target import Target
from collage.toolchains import TUNED

__all__ = ["TRIALS", "autotune", "known_autotuned"]

TRIALS = 16
"""Trials for each workload of a kernel."""

_LEAST_EFFORT_S = 1e-3


def known_autotuned(
    problem: Problem, costs: CostTable, records: TuningRecords, candidates: Iterable[CandidateKernel]
) -> list[CandidateKernel]:
    """Return candidates with tuned code, for those candidates whose kernels were tuned before in any model.

    Nothing is tuned, built or measured here. Timings that the database holds are used; the search measures the others.
    """
    if not problem.options.use_tuned:
        return []
    if not records.any():
        return []
    groups: dict[Hashable, list[CandidateKernel]] = {}
    for candidate in candidates:
        if records.can_tune(candidate.target):
            groups.setdefault(problem.key_of(candidate), []).append(candidate)
    found = []
    for alike in groups.values():
        if (known := records.find(_tuned_job(problem, costs, alike[0]))) is not None:
            found += _introduced(problem, costs, alike, known.records)
    costs.recall(found)
    return found


def autotune(
    problem: Problem, costs: CostTable, records: TuningRecords, index: CandidateKernelIndex
) -> tuple[CandidateKernelIndex, str]:
    """Tune the kernels that promise most; return the candidates with the tuned ones, measured, and a sentence on the gain.

    An interrupt ends it. Kernels that were tuned before it are kept.

    Args:
        problem: The model.
        costs: Costs of kernels; a search was held before.
        records: Tunes kernels, and remembers the tuned ones.
        index: The candidates of that search.
    """
    within_budget = problem.options.time_budget_s is not None
    budget_s = min(problem.options.tune_s, costs.search_s_left) if within_budget else problem.options.tune_s
    until_s = time.monotonic() + budget_s
    tried, tuned, ratios = set[Hashable](), list[CandidateKernel](), list[float]()
    try:
        while (left_s := until_s - time.monotonic()) > 0 and not costs.is_interrupted:
            wanted = _most_promising(problem, costs, records, [*index, *tuned], tried, left_s)
            if wanted is None:
                break
            costs.say(f"tuning {wanted.sub_graph.summary} for {wanted.target.short}, {left_s:.0f} s left")
            tried.add(_key(problem, wanted))
            alike = [c for c in index if _key(problem, c) == _key(problem, wanted)]
            try:
                fresh = _tune(problem, costs, records, alike, left_s)
                ratios += [_seconds(costs, kernel) / _seconds(costs, wanted) for kernel in fresh[:1]]
                tuned += fresh
            except ToolchainError as error:
                costs.say(f"not tuned: {error}")
    except KeyboardInterrupt:
        costs.is_interrupted = True
        costs.say("interrupted: continuing with the kernels that were tuned so far")
    return CandidateKernelIndex([*index, *tuned]), _gain_in_words(problem, len(tried), ratios)


def _gain_in_words(problem: Problem, tried: int, ratios: Sequence[float]) -> str:
    """Return a sentence on the kernels that were tuned, or on the reason that none was."""
    if ratios:
        return (
            f"kernels tuned: {len(ratios)} of {tried}; a tuned kernel takes {min(ratios):.2f} to {max(ratios):.2f} of its "
            "time untuned"
        )
    if tried:
        return f"kernels tuned: none of {tried}: the time was too short, or nothing in them can be tuned"
    return f"kernels tuned: none, since no plan is expected to be {problem.options.min_gain:.0%} faster by it"


def _most_promising(
    problem: Problem,
    costs: CostTable,
    records: TuningRecords,
    candidates: Sequence[CandidateKernel],
    tried: set[Hashable],
    left_s: float,
) -> CandidateKernel | None:
    """The kernel with the greatest expected gain per second; None if no plan would be better by enough.

    Kernels that can be tuned through in the remaining time come first. Of the others only a part would be tuned.
    """

    def is_open(candidate: CandidateKernel) -> bool:
        if not records.can_tune(candidate.target) or _key(problem, candidate) in tried:
            return False
        known = costs.outcome_of(replace(candidate, target=_tuned_target(problem, candidate.target)))
        return known is None and costs.measured_cost(candidate).is_known

    def hoped(candidate: CandidateKernel) -> Cost:
        cost = costs.measured_cost(candidate)
        return Cost(seconds=cost.seconds * ratio_of(candidate)) if is_open(candidate) else cost

    def ratio_of(candidate: CandidateKernel) -> float:
        return records.forecast(_tuned_target(problem, candidate.target)).ratio

    plans = [
        shortest_path(
            len(problem.graph),
            candidates,
            cost_of,
            launch_penalty_of=lambda candidate: costs.launch_penalty_s(candidate.target),
            priority_of=lambda candidate: problem.priority(candidate.target),
        )
        for cost_of in (costs.measured_cost, hoped)
    ]
    now, then = plans
    if isinstance(now, NoCover) or isinstance(then, NoCover):
        return None
    if then.cost.seconds > (1 - problem.options.min_gain) * min(now.cost.seconds, costs.best_single_s):
        return None
    gains_s: dict[Hashable, float] = {}
    chosen: dict[Hashable, CandidateKernel] = {}
    for candidate in filter(is_open, then.candidates):
        key = _key(problem, candidate)
        chosen.setdefault(key, candidate)
        gains_s[key] = gains_s.get(key, 0.0) + _seconds(costs, candidate) * (1 - ratio_of(candidate))
    takes_s = {key: _expected_to_take_s(problem, costs, records, candidate) for key, candidate in chosen.items()}
    return max(
        chosen.values(),
        key=lambda c: (takes_s[_key(problem, c)] <= left_s, gains_s[_key(problem, c)] / takes_s[_key(problem, c)]),
        default=None,
    )


def _expected_to_take_s(
    problem: Problem, costs: CostTable, records: TuningRecords, candidate: CandidateKernel
) -> float:
    """Estimated seconds for tuning a measured kernel. A kernel that was tuned before has only to be built and run."""
    job = _tuned_job(problem, costs, candidate)
    efforts = 1.0 if records.find(job) is not None else records.forecast(job.target).efforts
    return efforts * _effort_s(costs, candidate)


def _effort_s(costs: CostTable, candidate: CandidateKernel) -> float:
    untuned = costs.outcome_of(candidate)
    return max(_LEAST_EFFORT_S, effort_s(untuned) if untuned is not None else 0.0)


def _tune(
    problem: Problem, costs: CostTable, records: TuningRecords, alike: Sequence[CandidateKernel], budget_s: float
) -> list[CandidateKernel]:
    """Tune one of several equal kernels; the records are valid for all of them.

    Raises:
        ToolchainError: It could not be tuned.
    """
    first = alike[0]
    job = _tuned_job(problem, costs, first)
    costs.introduce_variant(job.target, first.target)
    found = records.tune(job.kernel, job.target, budget_s)
    if found is None:
        return []
    text, took_s = found
    tuned = _introduced(problem, costs, alike, text)
    if not costs.measure(tuned[:1])[0].is_known:
        return []
    ratio = _seconds(costs, tuned[0]) / _seconds(costs, first)
    records.keep(job, TunedKernel(text, took_s, _effort_s(costs, first), ratio))
    return tuned


def _introduced(
    problem: Problem, costs: CostTable, alike: Sequence[CandidateKernel], text: str
) -> list[CandidateKernel]:
    """Equal kernels as candidates with tuned code, which the search may use."""
    target = _tuned_target(problem, alike[0].target)
    costs.introduce_variant(target, alike[0].target)
    problem.kernels.annotate(alike[0].sub_graph, target, {TUNED: text})
    tuned = [replace(candidate, target=target, rules=(*candidate.rules, "tuned")) for candidate in alike]
    costs.introduce(tuned)
    return tuned


def _tuned_target(problem: Problem, target: Target) -> Target:
    # Options that are numbers begin with 1.
    return target.with_options(trials=str(TRIALS), seed=str(problem.options.seed + 1))


def _tuned_job(problem: Problem, costs: CostTable, untuned: CandidateKernel) -> Job:
    """The job of measuring a candidate's kernel once it is tuned; the kernel in it does not carry its records yet."""
    return costs.job(untuned, _tuned_target(problem, untuned.target))


def _key(problem: Problem, candidate: CandidateKernel) -> Hashable:
    return problem.key_of(candidate)


def _seconds(costs: CostTable, candidate: CandidateKernel) -> float:
    return costs.measured_cost(candidate).seconds
