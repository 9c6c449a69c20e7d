"""Tuning as an anytime second phase: kernels whose toolchain can tune are tuned while the time lasts (design section 7).

Once a plan of untuned kernels stands, the search is asked what it would choose if every kernel gained from tuning as much
as kernels have gained so far. Of the kernels that it names, that with the greatest gain is tuned and measured, as a candidate
for a target of its own: each kernel gets as many trials, whose time is mostly that of building, so that what gains most gains
most per second. This ends with the time, or where even such gains would not pay.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace

from collage._errors import ToolchainError
from collage.cost.cost import Cost
from collage.cost.tuned import TuningRecords
from collage.fusion import CandidateKernel, CandidateKernelIndex
from collage.search import NoCover, shortest_path
from collage.toolchains import TUNED
from collage.tuning import Tuning

__all__ = ["TRIALS", "with_tuned"]

TRIALS = 16
"""What is tried for each workload of a kernel."""

_FIRST_RATIO = 0.7
"""Time of a tuned kernel as a share of the untuned one, until a few were tuned."""


def with_tuned(tuning: Tuning, index: CandidateKernelIndex) -> CandidateKernelIndex:
    """Tunes what promises most, and returns the candidates together with the tuned ones, measured.

    An interrupt ends it; what was tuned before is kept.

    Args:
        tuning: The model and what is known of it; a search was held before.
        index: The candidates of that search.
    """
    within_budget = tuning.options.time_budget_s is not None
    budget_s = min(tuning.options.tune_s, tuning.search_budget_s) if within_budget else tuning.options.tune_s
    records = TuningRecords(tuning.workshop, tuning.database)
    until_s = time.monotonic() + budget_s
    ratios, tried, tuned = [_FIRST_RATIO], set[object](), list[CandidateKernel]()
    try:
        while (left_s := until_s - time.monotonic()) > 0:
            wanted = _most_promising(tuning, [*index, *tuned], statistics.median(ratios), tried)
            if wanted is None:
                break
            tuning.say(f"tuning {wanted.sub_graph.summary} for {wanted.target.short}, {left_s:.0f} s left")
            tried.add(tuning.key_of(wanted.sub_graph, wanted.target))
            found = _tune(tuning, records, [c for c in index if _alike(tuning, c, wanted)], left_s)
            if found:
                tuned += found
                ratios.append(_seconds(tuning, found[0]) / _seconds(tuning, wanted))
    except KeyboardInterrupt:
        tuning.say("interrupted: going on with what was tuned so far")
    return CandidateKernelIndex([*index, *tuned])


def _most_promising(
    tuning: Tuning, candidates: Sequence[CandidateKernel], ratio: float, tried: set[object]
) -> CandidateKernel | None:
    """The kernel with the greatest expected gain; None if no plan would be better by enough.

    The ratio is the expected time of a tuned kernel as a share of the untuned one.
    """

    def is_open(candidate: CandidateKernel) -> bool:
        key = tuning.key_of(candidate.sub_graph, candidate.target)
        return key not in tried and tuning.can_tune(candidate.target) and tuning.measured_cost(candidate).is_known

    def hoped(candidate: CandidateKernel) -> Cost:
        cost = tuning.measured_cost(candidate)
        return Cost(seconds=cost.seconds * ratio) if is_open(candidate) else cost

    plans = [
        shortest_path(
            len(tuning.graph),
            candidates,
            cost_of,
            launch_penalty_of=lambda candidate: tuning.launch_penalty_s(candidate.target),
            priority_of=lambda candidate: tuning.priority(candidate.target),
        )
        for cost_of in (tuning.measured_cost, hoped)
    ]
    now, then = plans
    if isinstance(now, NoCover) or isinstance(then, NoCover):
        return None
    if then.cost.seconds > (1 - tuning.options.min_gain) * min(now.cost.seconds, tuning.best_single_s):
        return None
    gains: dict[object, float] = {}
    chosen: dict[object, CandidateKernel] = {}
    for candidate in filter(is_open, then.candidates):
        key = tuning.key_of(candidate.sub_graph, candidate.target)
        chosen.setdefault(key, candidate)
        gains[key] = gains.get(key, 0.0) + _seconds(tuning, candidate) * (1 - ratio)
    return chosen[max(gains, key=lambda key: gains[key])] if gains else None


def _tune(
    tuning: Tuning, records: TuningRecords, alike: Sequence[CandidateKernel], budget_s: float
) -> list[CandidateKernel]:
    """Tunes one of several equal kernels; what is found is for all of them."""
    first = alike[0]
    # Options that are numbers begin with 1.
    target = first.target.with_options(trials=str(TRIALS), seed=str(tuning.options.seed + 1))
    tuning.introduce_variant(target, first.target)
    try:
        text = records.tune(tuning.kernels.model(first.sub_graph, first.target), target, budget_s)
    except ToolchainError as error:
        tuning.say(f"not tuned: {error}")
        return []
    if text is None:
        return []
    tuning.kernels.annotate(first.sub_graph, target, {TUNED: text})
    tuned = [replace(candidate, target=target, rules=(*candidate.rules, "tuned")) for candidate in alike]
    tuning.introduce(tuned)
    return tuned if tuning.measure(tuned[:1])[0].is_known else []


def _alike(tuning: Tuning, candidate: CandidateKernel, other: CandidateKernel) -> bool:
    return tuning.key_of(candidate.sub_graph, candidate.target) == tuning.key_of(other.sub_graph, other.target)


def _seconds(tuning: Tuning, candidate: CandidateKernel) -> float:
    return tuning.measured_cost(candidate).seconds
