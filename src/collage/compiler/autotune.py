"""Tuning as an anytime second phase: kernels whose toolchain can tune are tuned while the time lasts (design section 7).

Once a plan of untuned kernels stands, the search is asked what it would choose if every kernel gained from tuning as much
as kernels have gained so far. Of the kernels that it names, that with the greatest gain per second of tuning is tuned and
measured, as a candidate for a target of its own. How long tuning takes is foretold from what building and running the
kernel took, and from how long earlier tunings took, in whichever model. This ends with the time, or where even such gains
would not pay. What was tuned takes part in every later compilation, whether that may tune or not.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace

from collage._errors import ToolchainError
from collage.compiler.session import CompileSession
from collage.cost.cost import Cost
from collage.fusion import CandidateKernel, CandidateKernelIndex
from collage.measure.jobs import Job
from collage.measure.tuning_records import TunedKernel, TuningRecords, effort_s
from collage.search import NoCover, shortest_path
from collage.target import Target
from collage.toolchains import TUNED

__all__ = ["TRIALS", "autotune", "known_autotuned"]

TRIALS = 16
"""What is tried for each workload of a kernel."""

_LEAST_EFFORT_S = 1e-3


def known_autotuned(session: CompileSession, candidates: Iterable[CandidateKernel]) -> list[CandidateKernel]:
    """Those of some candidates whose very kernels were tuned before, in whichever model, as candidates with tuned code.

    Nothing is tuned, built or measured here: what the database knows of their time is known from now on, the rest is for
    the search to find out.
    """
    if not session.options.use_tuned:
        return []
    records = TuningRecords(session.measure_session, session.database)
    if not records.any():
        return []
    groups: dict[Hashable, list[CandidateKernel]] = {}
    for candidate in candidates:
        if session.can_tune(candidate.target):
            groups.setdefault(session.key_of(candidate.sub_graph, candidate.target), []).append(candidate)
    found = []
    for alike in groups.values():
        if (known := records.find(_tuned_job(session, alike[0]))) is not None:
            found += _introduced(session, alike, known.records)
    session.recall(found)
    return found


def autotune(session: CompileSession, index: CandidateKernelIndex) -> CandidateKernelIndex:
    """Tunes what promises most, and returns the candidates together with the tuned ones, measured.

    An interrupt ends it; what was tuned before is kept.

    Args:
        session: The model and what is known of it; a search was held before.
        index: The candidates of that search.
    """
    within_budget = session.options.time_budget_s is not None
    budget_s = min(session.options.tune_s, session.search_s_left) if within_budget else session.options.tune_s
    records = TuningRecords(session.measure_session, session.database)
    until_s = time.monotonic() + budget_s
    tried, tuned = set[Hashable](), list[CandidateKernel]()
    try:
        while (left_s := until_s - time.monotonic()) > 0:
            wanted = _most_promising(session, [*index, *tuned], records, tried, left_s)
            if wanted is None:
                break
            session.say(f"tuning {wanted.sub_graph.summary} for {wanted.target.short}, {left_s:.0f} s left")
            tried.add(_key(session, wanted))
            tuned += _tune(session, records, [c for c in index if _key(session, c) == _key(session, wanted)], left_s)
    except KeyboardInterrupt:
        session.say("interrupted: going on with what was tuned so far")
    return CandidateKernelIndex([*index, *tuned])


def _most_promising(
    session: CompileSession,
    candidates: Sequence[CandidateKernel],
    records: TuningRecords,
    tried: set[Hashable],
    left_s: float,
) -> CandidateKernel | None:
    """The kernel with the greatest expected gain per second; None if no plan would be better by enough.

    Those that can be tuned through in the time that is left come first: of others only a part would be.
    """

    def is_open(candidate: CandidateKernel) -> bool:
        if not session.can_tune(candidate.target) or _key(session, candidate) in tried:
            return False
        known = session.outcome_of(candidate.sub_graph, _tuned_target(session, candidate.target))
        return known is None and session.measured_cost(candidate).is_known

    def hoped(candidate: CandidateKernel) -> Cost:
        cost = session.measured_cost(candidate)
        return Cost(seconds=cost.seconds * ratio_of(candidate)) if is_open(candidate) else cost

    def ratio_of(candidate: CandidateKernel) -> float:
        return records.forecast(_tuned_target(session, candidate.target)).ratio

    plans = [
        shortest_path(
            len(session.graph),
            candidates,
            cost_of,
            launch_penalty_of=lambda candidate: session.launch_penalty_s(candidate.target),
            priority_of=lambda candidate: session.priority(candidate.target),
        )
        for cost_of in (session.measured_cost, hoped)
    ]
    now, then = plans
    if isinstance(now, NoCover) or isinstance(then, NoCover):
        return None
    if then.cost.seconds > (1 - session.options.min_gain) * min(now.cost.seconds, session.best_single_s):
        return None
    gains_s: dict[Hashable, float] = {}
    chosen: dict[Hashable, CandidateKernel] = {}
    for candidate in filter(is_open, then.candidates):
        key = _key(session, candidate)
        chosen.setdefault(key, candidate)
        gains_s[key] = gains_s.get(key, 0.0) + _seconds(session, candidate) * (1 - ratio_of(candidate))
    takes_s = {key: _expected_to_take_s(session, records, candidate) for key, candidate in chosen.items()}
    return max(
        chosen.values(),
        key=lambda c: (takes_s[_key(session, c)] <= left_s, gains_s[_key(session, c)] / takes_s[_key(session, c)]),
        default=None,
    )


def _expected_to_take_s(session: CompileSession, records: TuningRecords, candidate: CandidateKernel) -> float:
    """Seconds that tuning a measured kernel should take; what was tuned before has only to be built and run."""
    job = _tuned_job(session, candidate)
    efforts = 1.0 if records.find(job) is not None else records.forecast(job.target).efforts
    return efforts * _effort_s(session, candidate)


def _effort_s(session: CompileSession, candidate: CandidateKernel) -> float:
    untuned = session.outcome_of(candidate.sub_graph, candidate.target)
    return max(_LEAST_EFFORT_S, effort_s(untuned) if untuned is not None else 0.0)


def _tune(
    session: CompileSession, records: TuningRecords, alike: Sequence[CandidateKernel], budget_s: float
) -> list[CandidateKernel]:
    """Tunes one of several equal kernels; what is found is for all of them."""
    first = alike[0]
    job = _tuned_job(session, first)
    session.introduce_variant(job.target, first.target)
    try:
        found = records.tune(job.kernel, job.target, budget_s)
    except ToolchainError as error:
        session.say(f"not tuned: {error}")
        return []
    if found is None:
        return []
    text, took_s = found
    tuned = _introduced(session, alike, text)
    if not session.measure(tuned[:1])[0].is_known:
        return []
    ratio = _seconds(session, tuned[0]) / _seconds(session, first)
    records.keep(job, TunedKernel(text, took_s, _effort_s(session, first), ratio))
    return tuned


def _introduced(session: CompileSession, alike: Sequence[CandidateKernel], text: str) -> list[CandidateKernel]:
    """Equal kernels as candidates with tuned code, of which the search may be told."""
    target = _tuned_target(session, alike[0].target)
    session.introduce_variant(target, alike[0].target)
    session.kernels.annotate(alike[0].sub_graph, target, {TUNED: text})
    tuned = [replace(candidate, target=target, rules=(*candidate.rules, "tuned")) for candidate in alike]
    session.introduce(tuned)
    return tuned


def _tuned_target(session: CompileSession, target: Target) -> Target:
    # Options that are numbers begin with 1.
    return target.with_options(trials=str(TRIALS), seed=str(session.options.seed + 1))


def _tuned_job(session: CompileSession, untuned: CandidateKernel) -> Job:
    """The job of measuring a candidate's kernel once it is tuned; the kernel in it does not carry its records yet."""
    kernel = session.kernels.model(untuned.sub_graph, untuned.target)
    return session.estimator.job(kernel, _tuned_target(session, untuned.target))


def _key(session: CompileSession, candidate: CandidateKernel) -> Hashable:
    return session.key_of(candidate.sub_graph, candidate.target)


def _seconds(session: CompileSession, candidate: CandidateKernel) -> float:
    return session.measured_cost(candidate).seconds
