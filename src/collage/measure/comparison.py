"""The comparison of whole executables, end to end and in turns.

Every finalist lives in a process of its own, which loads only the runtimes that it uses. So a crash costs one finalist. All
run in turns, in blocks so short that slow drifts of the machine meet all of them alike. There are three phases:

1. **qualify**: each finalist is loaded, checked and timed briefly. Those that are far too slow go no further.
2. **choose**: the finalists run in turns until it is decided which one to return, or the time is up.
3. **report**: new processes run again in as many turns. All figures of a report are from this phase alone, since the best
   of several noisy figures is too good to be true. The place of a process in memory makes it some per cent faster or slower.

A plan of several kernels is returned only if it is faster than every single toolchain beyond doubt, in both phases.

A comparison that has to end by some time runs shorter blocks and leaves out the last finalists. If there is no time to start
the processes again, the reporting phase runs in those of the choosing phase.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from collage._errors import ToolchainError
from collage.cost.outcome import Status, failed
from collage.cost.statistics import Interval, median_interval, summarise
from collage.measure.arbiter import Arbiter
from collage.measure.finalist import Finalist, FinalistResult
from collage.workers.machine_lock import build_lock, measurement_lock
from collage.workers.worker import Worker

__all__ = ["Comparison", "ComparisonPlan", "checked", "compare_end_to_end", "why_wrong"]

_LARGE_BYTES = 256 << 20
_COPIES = 24
"""Copies of a model's weights that may be in memory while all finalists are: up to eight, each with its packed weights."""
_SLOW_S = 1.0
"""Models whose runs take longer are qualified by one run."""
_TRIES = 3
_ATTEMPTS = 2
"""Times that the reporting phase is held at most: again if it contradicted the choice."""
_Phase = Literal["choosing", "reporting"]


@dataclass(frozen=True, slots=True)
class ComparisonPlan:
    """The length of a comparison.

    Attributes:
        rounds: Rounds of the choosing phase before the first look at its result.
        most_rounds: Rounds of the choosing phase if nothing is decided before.
        reporting_rounds: Rounds of the reporting phase; as many as the choosing phase took, if those were more.
        phase_s: Seconds after which a phase goes on only until it has had ``rounds``.
        legs: Number of parts of the reporting phase, each in new processes.
        block_s: Seconds that one finalist runs before it is the next one's turn.
        abandon_ratio: A finalist this many times slower than the best one does not qualify.
        timeout_s: Seconds that loading, checking or one block may take.
        one_at_a_time: True if a process lives only during its turn, for models too large to keep several in memory.
        ends_at: Value of ``time.monotonic()`` by which the comparison should have ended.
    """

    rounds: int = 7
    most_rounds: int = 31
    reporting_rounds: int = 15
    phase_s: float = 60.0
    legs: int = 1
    block_s: float = 0.12
    abandon_ratio: float = 1.6
    timeout_s: float = 300.0
    one_at_a_time: bool = False
    ends_at: float = math.inf

    @property
    def left_s(self) -> float:
        """Seconds until the comparison should have ended; negative if that has passed."""
        return self.ends_at - time.monotonic()

    @classmethod
    def of_model(cls, weight_bytes: int, free_bytes: int = 0) -> ComparisonPlan:
        """Return the plan for a model, from the bytes of its weights (each finalist has copies) and the available memory."""
        if weight_bytes < max(_LARGE_BYTES, free_bytes // _COPIES):
            return cls()
        return cls(most_rounds=7, reporting_rounds=7, block_s=0.5, one_at_a_time=True)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of a comparison.

    Attributes:
        winner: The result of the finalist to return; None if none finished.
        best_single: The result of the fastest single toolchain, if one is known.
        speedup: Time of the fastest single toolchain over the winner's, and its interval.
        standings: All results, in the order given.
        rivals: Candidates that may be as fast as the winner, by name: the interval of their time over the winner's.
        overruled: Name of the finalist that the choosing phase chose, if the reporting phase contradicted it.
    """

    winner: FinalistResult | None
    best_single: FinalistResult | None
    speedup: tuple[float, Interval] | None
    standings: Sequence[FinalistResult]
    rivals: Mapping[str, Interval] = field(default_factory=dict)
    overruled: str | None = None


@dataclass(slots=True)
class _Runner:
    """A finalist with its process, the medians of its rounds, and all samples of the reporting phase."""

    finalist: Finalist
    worker: Worker
    max_abs: float = 0.0
    max_rel: float = 0.0
    reason: str | None = None
    precision: str | None = None
    noise: float | None = None
    excused: Mapping[str, float] = field(default_factory=dict)
    drops_nan: str | None = None
    block: int = 1
    load_s: float = 0.0
    alone: list[float] = field(default_factory=list)
    choosing: list[float] = field(default_factory=list)
    reporting: list[float] = field(default_factory=list)
    samples: list[float] = field(default_factory=list)
    status: Status = Status.OK
    lost: bool = False

    @property
    def median_s(self) -> float:
        return statistics.median(self.samples or self.choosing) if self.samples or self.choosing else min(self.alone)

    def over(self, other: _Runner) -> tuple[float, Interval]:
        """Return this one's time over another's, by the rounds of the latest phase that both ran."""
        pairs = [*zip(self.reporting, other.reporting, strict=False)]
        ratios = [a / b for a, b in pairs or zip(self.choosing, other.choosing, strict=False)]
        return statistics.median(ratios), median_interval(ratios)

    def beats(self, other: _Runner) -> bool:
        """Return True if this one is faster beyond doubt."""
        return other is not self and other.over(self)[1].low > 1.0


def compare_end_to_end(
    finalists: Sequence[Finalist],
    tolerance: float,
    plan: ComparisonPlan = ComparisonPlan(),
    say: Callable[[str], None] = lambda _: None,
    *,
    winner: str | None = None,
) -> Comparison:
    """Compare finalists, and choose the one to return.

    Args:
        finalists: At least one; more than one may be an incumbent. If time is short, the last candidates are left out.
        tolerance: Largest difference of outputs from the reference (see ``collage.numerics.judge``).
        plan: The length of the comparison.
        say: Called with a line for each step.
        winner: Name of the finalist that counts as the winner, whatever its time.

    Returns:
        The winner and all results. A finalist that crashes or is wrong loses, and the others go on.
    """
    every = [_Runner(finalist, Worker(finalist.service, dict(finalist.arguments))) for finalist in finalists]
    turns = partial(_run_rounds, plan=plan, say=say)
    try:
        runners = _qualify(every, tolerance, plan, say)
        track = _qualified(runners, plan.abandon_ratio)
        chosen = next((runner for runner in track if runner.finalist.name == winner), None)
        if chosen is None:
            chosen = _choose_in_turns(track, plan, turns)
        rounds = max(plan.reporting_rounds, len(chosen.choosing)) if chosen else 0
        track, first = [runner for runner in track if not runner.lost], chosen
        for _ in range(_ATTEMPTS if len(track) > 1 else 0):
            for runner in track:
                runner.reporting, runner.samples = [], []
            for leg in range(plan.legs):
                if _loading_s(track) + _least_s(track, plan) <= plan.left_s:
                    track = _started_afresh(track, plan)
                turns(track, "reporting", len(range(leg, rounds, plan.legs)))
            # Rounds that contradict a choice make another one, and rounds that choose are not reported.
            before, chosen = chosen, _confirmed(track, chosen, is_fixed=winner is not None)
            if chosen is before:
                break
        return _result(runners, chosen, first)
    finally:
        for runner in every:
            runner.worker.kill()


def why_wrong(finalist: Finalist, tolerance: float, plan: ComparisonPlan = ComparisonPlan()) -> str | None:
    """Return the reason that a finalist fails or computes something else than the reference; None if it does not."""
    runner = _Runner(finalist, Worker(finalist.service, dict(finalist.arguments)))
    with runner.worker, build_lock():
        _guard(runner, partial(_check, runner, tolerance, plan))
    return runner.reason


def checked(finalist: Finalist, worker: Worker, tolerance: float, timeout_s: float) -> dict[str, Any]:
    """Have a finalist's process check itself, and settle doubts on its outputs; findings without doubts.

    Raises:
        ToolchainError: It failed.
    """
    found: dict[str, Any] = worker.call("check", timeout_s, tolerance=tolerance)
    if not found["doubts"]:
        return found
    arbiter = Arbiter()
    try:
        return {**found, **arbiter.settle(found, None if finalist.model is None else Path(finalist.model))}
    finally:
        arbiter.close()


def _check(runner: _Runner, tolerance: float, plan: ComparisonPlan) -> None:
    found = checked(runner.finalist, runner.worker, tolerance, plan.timeout_s)
    runner.max_abs, runner.max_rel, runner.reason = found["max_abs"], found["max_rel"], found["wrong"]
    runner.noise, runner.excused = found.get("noise"), found.get("excused", {})
    runner.drops_nan = found.get("drops_nan")
    runner.precision = found.get("precision")
    if runner.reason and runner.finalist.is_candidate:
        runner.status = Status.WRONG


def _qualify(
    runners: Sequence[_Runner], tolerance: float, plan: ComparisonPlan, say: Callable[[str], None]
) -> Sequence[_Runner]:
    """Load and check all, and time each a few times, in turns: a process that has just come up may be slow for a moment.

    Returns:
        The runners for which there was time, in the order given.
    """

    def first(runner: _Runner) -> None:
        _check(runner, tolerance, plan)
        if runner.status is Status.OK:
            runner.alone += runner.worker.call("run", plan.timeout_s, runs=1, warm_up=0)

    def again(runner: _Runner) -> None:
        if runner.alone[0] < _SLOW_S:
            runner.alone += runner.worker.call("run", plan.timeout_s, runs=1, warm_up=1)

    loaded: list[_Runner] = []
    first_single = next((runner for runner in runners if runner.finalist.incumbent), None)
    for number, runner in enumerate(runners, 1):
        is_needed = runner is first_single or not runner.finalist.is_candidate
        if not is_needed and _is_too_late(loaded, plan):
            say(f"the time budget leaves no time to compare {runner.finalist.name}")
            continue
        loaded.append(runner)
        say(f"finalist {number} of {len(runners)}: {runner.finalist.name}")
        began = time.monotonic()
        with build_lock():
            _guard(runner, partial(first, runner))
        runner.load_s = time.monotonic() - began
        _leave(runner, plan)
    for _ in range(0 if plan.one_at_a_time else _TRIES):
        for runner in (runner for runner in loaded if runner.status is Status.OK):
            with measurement_lock():
                _guard(runner, partial(again, runner))
    return loaded


def _is_too_late(loaded: Sequence[_Runner], plan: ComparisonPlan) -> bool:
    """Return True if there is no time to load one more finalist twice, and to run two phases with it."""
    track = [runner for runner in loaded if runner.status is Status.OK]
    if not track:
        return False
    loading_s = _loading_s(track) * (1 + 2 / len(track))
    return plan.left_s < loading_s + 2 * _least_s([*track, track[-1]], plan)


def _loading_s(track: Sequence[_Runner]) -> float:
    """Return the seconds that it took to load all of these."""
    return sum(runner.load_s for runner in track)


def _least_s(track: Sequence[_Runner], plan: ComparisonPlan) -> float:
    """Return the seconds of the fewest rounds of the shortest blocks."""
    return plan.rounds * sum((1 + _warm_up(runner, plan)) * min(runner.alone) for runner in track)


def _qualified(runners: Sequence[_Runner], abandon_ratio: float) -> list[_Runner]:
    """Return those that are not far too slow, and those that the winner is to be compared with in any case."""
    track = [runner for runner in runners if runner.status is Status.OK]
    singles = [runner for runner in track if runner.finalist.incumbent]
    own = [runner for runner in singles if not runner.finalist.is_reduced]
    needed = [min(group, key=lambda runner: runner.median_s) for group in (singles, own) if group]
    limit_s = abandon_ratio * min((r.median_s for r in track if r.finalist.is_candidate), default=math.inf)
    return [r for r in track if r.median_s <= limit_s or r in needed or not r.finalist.is_candidate]


def _choose_in_turns(track: Sequence[_Runner], plan: ComparisonPlan, turns: Callable[..., float]) -> _Runner | None:
    """Run candidates in turns until one is the one to return beyond doubt, or the time is up."""
    rivals = [runner for runner in track if runner.finalist.is_candidate]
    spent_s, rounds = 0.0, plan.rounds
    half_s = (plan.left_s - _loading_s(track)) / 2
    hurried = replace(plan, ends_at=time.monotonic() + half_s)
    while len(rivals) > 1:
        spent_s += turns(rivals, "choosing", rounds, plan=hurried)
        rivals, rounds = [runner for runner in rivals if runner.status is Status.OK], 1
        chosen = _choose(rivals)
        if chosen is None:
            return None
        for runner in rivals:
            runner.lost = chosen.beats(runner) and not runner.finalist.incumbent
        is_open = any(runner.median_s < chosen.median_s and not chosen.beats(runner) for runner in rivals)
        is_late = spent_s >= plan.phase_s or hurried.left_s <= 0
        if not is_open or len(chosen.choosing) >= plan.most_rounds or is_late:
            return chosen
        rivals = [runner for runner in rivals if not chosen.beats(runner)]
    return rivals[0] if rivals else None


def _choose(candidates: Sequence[_Runner]) -> _Runner | None:
    """Return the candidate that none is faster than beyond doubt: of several, one of the fewest kernels, the fastest of these.

    A mix is chosen only if it is faster than every single toolchain beyond doubt.
    """
    singles = [runner for runner in candidates if runner.finalist.incumbent]
    fit = [r for r in candidates if r.finalist.incumbent or all(r.beats(single) for single in singles)]

    def rank(runner: _Runner) -> tuple[int, int, float]:
        return sum(other.beats(runner) for other in candidates), runner.finalist.kernels, runner.median_s

    return min(fit, key=rank, default=None)


def _started_afresh(track: Sequence[_Runner], plan: ComparisonPlan) -> list[_Runner]:
    """Give each runner a new process, and return those that come up again."""
    for runner in track if not plan.one_at_a_time else ():
        runner.worker.kill()
        with build_lock():
            _guard(runner, partial(runner.worker.call, "run", plan.timeout_s, runs=1, warm_up=1))
    return [runner for runner in track if runner.status is Status.OK]


def _run_rounds(
    track: Sequence[_Runner],
    phase: _Phase,
    rounds: int,
    *,
    plan: ComparisonPlan,
    say: Callable[[str], None],
) -> float:
    """Run all in turns, in another order each round; return the seconds of running."""
    order = random.Random(sum(len(getattr(runner, phase)) for runner in track))
    total_s, alive = 0.0, list(track)
    block_s = _block_s(track, rounds, plan)
    for runner in track:
        runner.block = min(max(math.ceil(block_s / max(min(runner.alone), 1e-6)), 1), 2000)
    for number in range(rounds):
        if number >= plan.rounds and (total_s >= plan.phase_s or plan.left_s <= 0):
            break
        alive = [runner for runner in alive if runner.status is Status.OK]
        done = max((len(getattr(runner, phase)) for runner in alive), default=0)
        say(f"comparison, {phase}: round {done + 1}, finalists: {len(alive)}")
        order.shuffle(alive)
        with measurement_lock():
            for runner in alive:
                _guard(runner, partial(_run_block, runner, phase, plan))
                _leave(runner, plan)
        total_s += sum(runner.block * getattr(runner, phase)[-1] for runner in alive if runner.status is Status.OK)
    return total_s


def _block_s(track: Sequence[_Runner], rounds: int, plan: ComparisonPlan) -> float:
    """Return the seconds of a block, such that the fewest rounds end in time."""
    if math.isinf(plan.ends_at):
        return plan.block_s
    warming_s = sum(_warm_up(runner, plan) * min(runner.alone) for runner in track)
    round_s = plan.left_s / min(rounds, plan.rounds) - warming_s
    return min(plan.block_s, max(round_s, 0.0) / len(track))


def _warm_up(runner: _Runner, plan: ComparisonPlan) -> int:
    """Return the runs before those of a block that count.

    The first run finds the caches of others and sleeping threads: a tenth slower or faster from turn to turn, for models of
    200 ms too. If a run takes seconds, that is little, and one run more is much.
    """
    return 0 if min(runner.alone) > _SLOW_S and not plan.one_at_a_time else 1


def _run_block(runner: _Runner, phase: _Phase, plan: ComparisonPlan) -> None:
    samples = runner.worker.call("run", plan.timeout_s, runs=runner.block, warm_up=_warm_up(runner, plan))
    getattr(runner, phase).append(statistics.median(samples))
    if phase == "reporting":
        runner.samples += samples


def _leave(runner: _Runner, plan: ComparisonPlan) -> None:
    """End a runner's turn; if there is one at a time, its next call starts its process again."""
    if plan.one_at_a_time:
        runner.worker.kill()


def _guard(runner: _Runner, action: Callable[[], Any]) -> None:
    """Do something with a runner; an error of its toolchain disqualifies it."""
    try:
        action()
    except ToolchainError as error:
        outcome = failed(error, 0.0)
        runner.status, runner.reason = outcome.status, outcome.reason


def _confirmed(track: Sequence[_Runner], chosen: _Runner | None, *, is_fixed: bool) -> _Runner | None:
    """Return the choice, or what the reporting phase chooses if that contradicts it or it died."""
    candidates = [r for r in track if r.status is Status.OK and r.finalist.is_candidate]
    if chosen in candidates and (is_fixed or not _is_contradicted(chosen, candidates)):
        return chosen
    return _choose(candidates)


def _result(runners: Sequence[_Runner], winner: _Runner | None, first: _Runner | None) -> Comparison:
    alive = [runner for runner in runners if runner.status is Status.OK and runner.reporting]
    candidates = [runner for runner in alive if runner.finalist.is_candidate]
    singles = [runner for runner in alive if runner.finalist.incumbent]
    if winner is None or winner.status is not Status.OK:
        return Comparison(None, None, None, [_standing(runner) for runner in runners])
    results = {runner.finalist.name: _standing(runner, winner) for runner in runners}
    best = min(singles, key=lambda runner: runner.over(winner)[0], default=None) if winner.reporting else None
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
    )


def _is_contradicted(chosen: _Runner | None, candidates: Sequence[_Runner]) -> bool:
    """Return True if a candidate is faster beyond doubt, or a mix is not faster than a single toolchain beyond doubt."""
    if chosen is None:
        return True
    singles = [] if chosen.finalist.incumbent else [runner for runner in candidates if runner.finalist.incumbent]
    return any(o.beats(chosen) for o in candidates) or not all(chosen.beats(single) for single in singles)


def _standing(runner: _Runner, winner: _Runner | None = None) -> FinalistResult:
    errors = runner.max_abs, runner.max_rel
    result = FinalistResult(runner.finalist, runner.status, None, runner.reason, *errors)
    result = replace(result, precision=runner.precision, lost=runner.lost, noise=runner.noise, excused=runner.excused)
    result = replace(result, drops_nan=runner.drops_nan)
    if runner.status is not Status.OK:
        return result
    result = replace(result, alone=summarise(runner.alone))
    if winner is None or not (runner.reporting and winner.reporting):
        return result
    ratio = runner.over(winner)
    p95_s, p99_s = np.percentile(runner.samples, [95, 99]).tolist()
    return replace(
        result,
        time=summarise(runner.samples),
        paired_s=ratio[0] * winner.median_s,
        ratio=ratio,
        rounds_s=tuple(runner.reporting),
        p95_s=p95_s,
        p99_s=p99_s,
    )
