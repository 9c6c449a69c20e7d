"""The race of whole executables, end to end and in turns.

Every finalist lives in a process of its own, which loads only the runtimes that it uses. So a crash costs one finalist. All
run in turns, in blocks so short that slow drifts of the machine meet all of them alike. There are three phases:

1. **qualify**: each finalist is loaded and checked, and runs in turns with the others for up to a second. One is put aside
   if it is far slower than the best. It is left out only if a second sample, after the choosing phase, says so again.
2. **choose**: the finalists run in turns until it is decided which one to return, or the time is up. Those that were clearly
   slower in each of the first rounds run no more.
3. **report**: new processes run again in as many turns; a mix that leads, in more, until that is certain. All figures of
   what is returned are from this phase alone, since the best of several noisy figures is too good to be true. The place of
   a process in memory makes it some per cent faster or slower. A mix that was slower beyond doubt, and a single toolchain that
   was not close, keep their ratios of the choosing phase.

A plan of several kernels is returned only if it is faster than every single toolchain beyond doubt, in both phases.

A race that has to end by some time runs shorter blocks and leaves out the last finalists. If there is no time to start
the processes again, the reporting phase runs in those of the choosing phase.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from collage._errors import ToolchainError
from collage.cost.statistics import Interval, summarise
from collage.measure.finalist import LATENCY, NO_TIME, Figure, Finalist, FinalistResult
from collage.measure.neighbour import neighbour
from collage.measure.track import ComparisonPlan, Runner, Track, alive_of, loading_s
from collage.measure.turns import ratio_of
from collage.status import Status
from collage.workers.machine_lock import measurement_lock

__all__ = ["SHORT_S", "Comparison", "near_again", "race"]

SHORT_S = 0.002
"""Nothing whose runs are shorter is left out. Its turns cost little, and a disturbed thread pool makes it ten times as slow for
seconds."""
# Turns of a qualifying sample, if they take a second at most.
_SAMPLE_ROUNDS = 4
# The least lead that is worth more rounds of choosing than those before a decision. In simulated races with 2 % of noise, a
# mix that is faster by 2 % wins 43 of 60. If it were decided after 7 rounds instead of 15, it would win 34.
_WORTH_A_ROUND = 1.01
# A finalist that is so many times as slow as the best in each of the first rounds of choosing loses.
_FIRST_LOOK, _CLEAR = 3, 1.1
# A single toolchain that loses by more has no second process, which may be luckier. Both rules save a fifth of the running, and
# cost nothing in `python -m benchmarks.simulated_races`.
_CLOSE = 1.02
# If a reported round takes longer, the choice, the best single toolchain and the baseline alone have more than the fewest.
_LONG_ROUND_S = 0.5
# Times that the reporting phase is held at most: again if it contradicted the choice.
_ATTEMPTS = 2
# Limits of the winner's profile: a second, and runs enough for a median.
_PROFILED_S, _PROFILED_RUNS = 1.0, 200
_USUAL = ComparisonPlan()


def _median_s(runner: Runner) -> float:
    return runner.median_s


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of a race.

    Attributes:
        winner: The result of the finalist to return; None if none finished.
        best_single: The result of the fastest single toolchain, if one is known.
        speedup: Time of the fastest single toolchain over the winner's, and its interval.
        standings: All results, in the order given.
        rivals: Candidates that may be as fast as the winner, by name: the interval of their time over the winner's.
        overruled: Name of the finalist that the choosing phase chose, if the reporting phase contradicted it.
        shares: Share of the winner's run that each of its kernels takes, if that was asked for.
    """

    winner: FinalistResult | None
    best_single: FinalistResult | None
    speedup: tuple[float, Interval] | None
    standings: Sequence[FinalistResult]
    rivals: Mapping[str, Interval] = field(default_factory=dict)
    overruled: str | None = None
    shares: tuple[float, ...] = ()


def race(
    finalists: Sequence[Finalist],
    tolerance: float,
    plan: ComparisonPlan = _USUAL,
    say: Callable[[str], None] = lambda _: None,
    *,
    figure: Figure = LATENCY,
    winner: str | None = None,
    has_profile: bool = False,
) -> Comparison:
    """Race finalists, and choose the one to return.

    Args:
        finalists: At least one; more than one may be an incumbent. If time is short, the last candidates are left out.
        tolerance: Largest difference of outputs from the reference (see ``collage.numerics.compare``).
        plan: The length of the race.
        say: Called with a line for each step.
        figure: The quantity that they are compared by.
        winner: Name of the finalist that counts as the winner, whatever its time.
        has_profile: True if the shares of the winner's kernels are measured too.

    Returns:
        The winner and all results. A finalist that crashes or is wrong loses, and the others go on.
    """
    return _Race(Track(finalists, tolerance, plan, say, figure), say).run(winner, has_profile=has_profile)


def near_again(
    best: Finalist,
    finalists: Sequence[Finalist],
    tolerance: float,
    plan: ComparisonPlan = _USUAL,
    say: Callable[[str], None] = lambda _: None,
) -> list[str]:
    """Return the names of finalists that are not slow beside the best in a new sample.

    Args:
        best: The finalist that they are compared with.
        finalists: Finalists that an earlier race left out.
        tolerance: See ``race``.
        plan: See ``race``.
        say: See ``race``.
    """
    track = Track([best, *finalists], tolerance, plan, say)
    try:
        track.load()
        with neighbour(plan.neighbour):
            return _Race(track, say).near_again()
    finally:
        track.close()


class _Race:
    """One race: its runners, and the phases."""

    def __init__(self, track: Track, say: Callable[[str], None]) -> None:
        self._track, self._plan, self._say = track, track.plan, say

    def run(self, winner: str | None, *, has_profile: bool) -> Comparison:
        try:
            loaded = self._track.load()
            with neighbour(self._plan.neighbour):
                return self._compare(loaded, winner, has_profile=has_profile)
        finally:
            self._track.close()

    def _compare(self, loaded: Sequence[Runner], winner: str | None, *, has_profile: bool) -> Comparison:
        began = time.monotonic()
        entrants, slow = self._qualify(alive_of(loaded))
        self._say(f"qualified: {len(entrants)} of {len(entrants) + len(slow)}, {time.monotonic() - began:.1f} s")
        fixed = next((runner for runner in alive_of(loaded) if runner.finalist.name == winner), None)
        chosen = fixed or self._choose(entrants)
        if back := self._second_chance(slow, chosen or min(alive_of(entrants), key=_median_s, default=None)):
            entrants = [*entrants, *back]
            chosen = fixed or self._choose([runner for runner in alive_of(entrants) if not runner.lost])
        rounds = max(self._plan.reporting_rounds, len(chosen.choosing)) if chosen else 0
        entrants, first = [runner for runner in alive_of(entrants) if not runner.lost], chosen
        if chosen is not None and (self._plan.is_brief or fixed is None):
            needed = _needed(entrants, chosen)
            near = [] if self._plan.is_brief else [r for r in entrants if not self._is_far(r, chosen)]
            entrants = [runner for runner in entrants if runner in [*needed, *near]]
        for _ in range(_ATTEMPTS):
            self._report(entrants, chosen, rounds if len(entrants) > 1 else min(rounds, self._plan.rounds))
            # Rounds that contradict a choice make another one, and rounds that choose are not reported.
            before, chosen = chosen, _confirmed(entrants, chosen, is_fixed=fixed is not None)
            if chosen is before:
                break
        shares = self._shares(chosen) if has_profile and chosen is not None else ()
        return _result(loaded, chosen, first, shares)

    def _qualify(self, runners: Sequence[Runner]) -> tuple[list[Runner], list[Runner]]:
        """Take the first sample of all candidates. The others are never left out.

        Returns:
            The runners that go on, and those that are so slow that a second sample decides. The fastest one goes on in any
            case, and the fastest single toolchain, in the model's own precision too.
        """
        candidates = self._sample([runner for runner in runners if runner.finalist.is_candidate])
        singles = [runner for runner in candidates if runner.finalist.incumbent]
        own = [runner for runner in singles if not runner.finalist.is_reduced]
        needed = [min(group, key=_median_s) for group in (candidates, singles, own) if group]
        slow = self._far_from(needed[0], [runner for runner in candidates if runner not in needed]) if needed else []
        return [runner for runner in alive_of(runners) if runner not in slow], slow

    def _sample(self, runners: Sequence[Runner]) -> list[Runner]:
        """Run all in turns for up to a second, if any takes so long that it may be left out; return those that are alive."""
        self._track.first_runs(runners)
        track = alive_of(runners)
        if not self._plan.one_at_a_time and any(runner.least_s >= SHORT_S for runner in track):
            quarter = replace(self._plan, ends_at=time.monotonic() + (self._plan.left_s - loading_s(track)) / 4)
            self._track.run_rounds(track, "sample", self._sample_rounds(track), fewest=1, plan=quarter)
        for runner in (track := alive_of(track)):
            runner.sample = runner.sample or {0: runner.least_s}
        return track

    def _sample_rounds(self, track: Sequence[Runner]) -> int:
        """Return the rounds of a sample: as many as the fastest runs in a second, with the run before each, but two at least."""
        return max(2, min(_SAMPLE_ROUNDS, round(0.5 / min(runner.least_s for runner in track))))

    def _far_from(self, best: Runner, runners: Sequence[Runner]) -> list[Runner]:
        """Return the runners that were far slower than the best in every turn of the first sample."""
        found = {runner.finalist.name: self._slowness(runner.sample, best.sample, runner) for runner in runners}
        for runner in runners:
            if (ratio := found[runner.finalist.name]) is not None:
                runner.slower = (ratio,)
        return [runner for runner in runners if runner.slower]

    def near_again(self) -> list[str]:
        """Return the names of the runners after the first that are not far from it in a new sample."""
        first, *others = self._track.runners
        track = self._sample(alive_of([first, *others]))
        if first not in track:
            return []
        far = self._far_from(first, others := [runner for runner in others if runner in track])
        return [runner.finalist.name for runner in others if runner not in far]

    def _slowness(self, sample: Mapping[int, float], best: Mapping[int, float], runner: Runner) -> float | None:
        """Return how many times as slow one was as the best; None if it may have been near in one of the rounds."""
        found = ratio_of(sample, best)
        if runner.least_s < SHORT_S or found is None or found[1].low < self._plan.abandon_ratio:
            return None
        return found[0]

    def _second_chance(self, slow: Sequence[Runner], best: Runner | None) -> list[Runner]:
        """Take the second sample of those that were slow in the first one, and return those that were not slow again."""
        if not slow or best is None:
            return list(slow)
        if self._plan.left_s <= loading_s([*slow, best]):
            for runner in slow:
                runner.slower, runner.reason = (), NO_TIME
            return []
        rounds = 1 if self._plan.one_at_a_time else self._sample_rounds([best, *slow])
        self._track.run_rounds([best, *slow], "again", rounds, fewest=1)
        back = []
        for runner in alive_of(slow):
            found = self._slowness(runner.again, best.again, runner)
            runner.slower = () if found is None else (*runner.slower, found)
            if found is None:
                self._say(f"{runner.finalist.name} was slow for a moment only, and is compared")
                back.append(runner)
        return back

    def _choose(self, track: Sequence[Runner]) -> Runner | None:
        """Run candidates in turns until one is the one to return beyond doubt, or the time is up."""
        plan = self._plan
        rivals = [runner for runner in track if runner.finalist.is_candidate]
        began, spent_s, had, rounds = time.monotonic(), 0.0, 0, _FIRST_LOOK
        hurried = replace(plan, ends_at=began + (plan.left_s - loading_s(track)) / 2)
        while len(rivals) > 1:
            fewest = max(plan.rounds - had, rounds)
            spent_s += self._track.run_rounds(rivals, "choosing", rounds, fewest=fewest, plan=hurried)
            rivals, had, rounds = alive_of(rivals), had + rounds, 1
            chosen = _choose(rivals)
            if chosen is None:
                return None
            if had < plan.rounds:
                rivals, rounds = _without_clear_losers(rivals), plan.rounds - had
                continue
            needed = _needed(rivals, chosen)
            for runner in rivals:
                runner.lost = runner not in needed and _has_lost(runner, chosen)
            leads = [chosen.over(runner)[0] for runner in rivals if runner is not chosen and not chosen.beats(runner)]
            is_open = any(lead > _WORTH_A_ROUND for lead in leads) or (leads and had < plan.deciding_rounds)
            is_late = spent_s >= plan.phase_s or hurried.left_s <= 0
            if not is_open or had >= plan.most_rounds or is_late:
                return chosen
            rivals = [runner for runner in rivals if not chosen.beats(runner)]
        return rivals[0] if rivals else None

    def _report(self, runners: Sequence[Runner], chosen: Runner | None, rounds: int) -> None:
        """Run the rounds that are reported, in new processes as far as the time allows.

        What the choice beats beyond doubt takes part in the fewest rounds only: more would not change what is said of it. The
        gain is told of the fastest single toolchain and the baseline, which have all unless they are far slower. If a round takes
        long, nothing else has.
        """
        for runner in runners:
            runner.reporting, runner.samples = {}, []
        for leg in range(self._plan.legs):
            if loading_s(runners) + self._track.fewest_s(runners) <= self._plan.left_s:
                self._track.start_afresh(alive_of(runners))
            share = len(range(leg, rounds, self._plan.legs))
            first = min(share, self._plan.rounds)
            spent_s = self._track.run_rounds(alive_of(runners), "reporting", first, fewest=first)
            rest = replace(self._plan, phase_s=self._plan.phase_s - spent_s)
            near = alive_of(runners)
            if chosen is not None:
                needed = [runner for runner in _needed(near, chosen) if not self._is_far(runner, chosen)]
                near = [runner for runner in near if runner in needed or not chosen.beats(runner)]
                near = needed if self._track.fewest_s(near) > self._plan.rounds * _LONG_ROUND_S else near
            if len(near) > 1:
                self._track.run_rounds(near, "reporting", share - first, fewest=0, plan=rest)
        if chosen is not None and not chosen.finalist.incumbent:
            self._prove(chosen, [runner for runner in runners if runner.finalist.incumbent])

    def _prove(self, mix: Runner, singles: Sequence[Runner]) -> None:
        """Report further rounds of a mix that leads, until it beats all single toolchains beyond doubt, or leads no more.

        The choosing phase ends as soon as a mix is faster beyond doubt. As many rounds again are too few in half of all cases:
        in simulated races with 5 % of noise, a mix that is faster by 5 % passed 41 of 100 times. With up to 63 rounds it
        passes 80 times, and one that is as fast as the single toolchain passes once.
        """
        spent_s = 0.0
        while mix.status is Status.OK and spent_s < self._plan.phase_s and self._plan.left_s > 0:
            open_ = [runner for runner in alive_of(singles) if not mix.beats(runner)]
            leads = [runner.over(mix)[0] for runner in open_]
            if not leads or min(leads) <= _WORTH_A_ROUND or len(mix.reporting) >= self._plan.most_rounds:
                return
            spent_s += self._track.run_rounds([mix, *open_], "reporting", 1, fewest=0)

    def _is_far(self, runner: Runner, chosen: Runner) -> bool:
        return runner is not chosen and runner.over(chosen)[1].low >= self._plan.abandon_ratio

    def _shares(self, winner: Runner) -> tuple[float, ...]:
        """Return the share of each kernel in the winner's run; none if it cannot be traced, or there is no time."""
        runs = min(max(math.ceil(_PROFILED_S / max(winner.median_s, 1e-6)), 1), _PROFILED_RUNS)
        if self._plan.left_s < 0:
            return ()
        try:
            with measurement_lock():
                return tuple(winner.worker.call("shares", self._plan.timeout_s, runs=runs))
        except ToolchainError:
            return ()  # The winner ran all its rounds. A figure beside the result may be lacking.


def _choose(candidates: Sequence[Runner]) -> Runner | None:
    """Return the candidate that none is faster than beyond doubt: of several, one of the fewest kernels, the fastest of these.

    A mix is chosen only if it is faster than every single toolchain beyond doubt.
    """
    singles = [runner for runner in candidates if runner.finalist.incumbent]
    fit = [r for r in candidates if r.finalist.incumbent or all(r.beats(single) for single in singles)]

    def rank(runner: Runner) -> tuple[int, int, float]:
        return sum(other.beats(runner) for other in candidates), runner.finalist.kernels, runner.median_s

    return min(fit, key=rank, default=None)


def _has_lost(runner: Runner, chosen: Runner) -> bool:
    """Return True if one is slower than the choice beyond doubt, and if it is a single toolchain, not close."""
    low = runner.over(chosen)[1].low
    return runner.least_s >= SHORT_S and low > _CLOSE if runner.finalist.incumbent else low > 1.0


def _without_clear_losers(rivals: Sequence[Runner]) -> list[Runner]:
    """Return the rivals without those of long runs that were clearly slower than the best in every round: these lose."""
    best = min(rivals, key=_median_s)
    needed = _needed(rivals, best)
    for runner in rivals:
        is_clear = runner.least_s >= SHORT_S and runner.over(best)[1].low >= _CLEAR
        runner.lost = is_clear and runner not in needed
    return [runner for runner in rivals if not runner.lost]


def _needed(track: Sequence[Runner], chosen: Runner) -> list[Runner]:
    """Return the choice, the fastest single toolchain, in the model's own precision too, and the baseline."""
    singles = [runner for runner in track if runner.finalist.incumbent]
    own = [runner for runner in singles if not runner.finalist.is_reduced]
    kept = [chosen, *(min(group, key=_median_s) for group in (singles, own) if group)]
    return [runner for runner in track if runner in kept or not runner.finalist.is_candidate]


def _confirmed(track: Sequence[Runner], chosen: Runner | None, *, is_fixed: bool) -> Runner | None:
    """Return the choice, or what the reporting phase chooses if that contradicts it or it died."""
    candidates = [r for r in alive_of(track) if r.finalist.is_candidate]
    if chosen in candidates and (is_fixed or not _is_contradicted(chosen, candidates)):
        return chosen
    return _choose(candidates)


def _is_contradicted(chosen: Runner | None, candidates: Sequence[Runner]) -> bool:
    """Return True if a candidate is faster beyond doubt, or a mix is not faster than a single toolchain beyond doubt."""
    if chosen is None:
        return True
    singles = [] if chosen.finalist.incumbent else [runner for runner in candidates if runner.finalist.incumbent]
    return any(o.beats(chosen) for o in candidates) or not all(chosen.beats(single) for single in singles)


def _result(
    runners: Sequence[Runner], winner: Runner | None, first: Runner | None, shares: tuple[float, ...]
) -> Comparison:
    alive = [runner for runner in alive_of(runners) if runner.reporting]
    candidates = [runner for runner in alive if runner.finalist.is_candidate]
    singles = [runner for runner in alive if runner.finalist.incumbent]
    if winner is None or winner.status is not Status.OK:
        return Comparison(None, None, None, [_standing(runner) for runner in runners])
    best = min(singles, key=lambda runner: runner.over(winner)[0], default=None) if winner.reporting else None
    least = 1.0 if best is None else best.over(winner)[0]
    results = {runner.finalist.name: _standing(runner, winner, least) for runner in runners}
    overruled = first.finalist.name if first is not None and first is not winner else None
    return Comparison(
        results[winner.finalist.name],
        None if best is None else results[best.finalist.name],
        None if best is None else best.over(winner),
        list(results.values()),
        {
            runner.finalist.name: interval
            for runner in candidates
            if runner is not winner and (interval := runner.over(winner)[1]).low <= 1.0
        },
        overruled,
        shares,
    )


def _standing(runner: Runner, winner: Runner | None = None, least: float = 1.0) -> FinalistResult:
    """Return a result. A ratio of the choosing phase is one only if it agrees with the reported ones, of which none is less."""
    errors = runner.max_abs, runner.max_rel
    result = FinalistResult(runner.finalist, runner.status, None, runner.reason, *errors)
    result = replace(result, precision=runner.precision, lost=runner.lost, slower=runner.slower)
    result = replace(result, noise=runner.noise, excused=runner.excused, drops_nan=runner.drops_nan)
    if runner.status is not Status.OK or winner is None:
        return result
    ratio, is_reported = runner.over(winner), bool(runner.reporting and winner.reporting)
    if is_reported or (ratio[0] >= least and ratio[1].low > 1.0):
        result = replace(result, paired_s=ratio[0] * winner.median_s, ratio=ratio)
    if not is_reported:
        return result
    p95_s, p99_s = np.percentile(runner.samples, [95, 99]).tolist()
    return replace(
        result,
        time=summarise(runner.samples),
        rounds_s=tuple(runner.reporting.values()),
        p95_s=p95_s,
        p99_s=p99_s,
        details=runner.details,
    )
