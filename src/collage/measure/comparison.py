"""The finals: whole executables against each other, end to end, taking turns.

Every contestant lives in a process of its own, which loads only the runtimes that it uses, so that a crash costs a
contestant and nobody is slowed by a neighbour that it would not have. They run in turns, in blocks short enough for slow
drifts of the machine to meet all of them alike. The rounds that choose the winner are not the rounds that are reported:
the best of several noisy figures is too good to be true. They do not even run in the same processes, since where a process
happens to find its memory makes it some per cent faster or slower for as long as it lives. Where contestants tie, the one wins
that loses least beside a busy neighbour.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np

from collage._errors import ToolchainError, Unsupported, WorkerDied, WorkerOutOfMemory, WorkerTimeout
from collage.cost.outcome import Status
from collage.cost.statistics import Interval, Summary, ratio_of_medians, summarise
from collage.measure.noisy_neighbor import under_load
from collage.workers.machine_lock import build_lock, measurement_lock
from collage.workers.worker import Worker

__all__ = ["Comparison", "ComparisonPlan", "Finalist", "FinalistResult", "compare_end_to_end", "why_wrong"]


_LARGE_BYTES = 256 << 20
_COPIES = 24
"""How often a model's weights may be in memory while all contestants are: up to eight, each with what it packs them into."""
_A_TIE = 2
_Phase = Literal["choosing", "beside", "reporting"]
_SLOW_S = 1.0
"""Runs of models are not repeated for good measure from here on."""


@dataclass(frozen=True, slots=True)
class Finalist:
    """Something that can be raced.

    Attributes:
        name: For people; unique.
        service: ``module:attribute`` of a service with ``check`` and ``run``.
        arguments: Its arguments, JSON values.
        kernels: Number of kernels; where times cannot be told apart, fewer win.
        incumbent: One of the single-toolchain executables, against which the speed-up is reported.
    """

    name: str
    service: str
    arguments: Mapping[str, Any]
    kernels: int = 1
    incumbent: bool = False


@dataclass(frozen=True, slots=True)
class ComparisonPlan:
    """How long to race.

    Attributes:
        trial_rounds: After so many rounds, who was ``eliminate_ratio`` in each of them leaves the race.
        eliminate_ratio: A contestant that takes this many times as long as the best incumbent, in the same round.
        choosing_rounds: After how many rounds to look whether it can be told who wins. A later look is taken only
            while a contestant with more kernels leads, but not beyond doubt. Three looks at 95 % each let a slower one win
            in at most 5 % of races.
        choosing_s: Seconds of running after which no further look is planned.
        worthwhile: Share by which the leader has to lead to be worth another look; who is closer ties with it.
        under_load_rounds: Rounds beside a busy neighbour, where contestants of equally few kernels tie; 0 is none.
        reporting_rounds: Rounds that are reported.
        legs: Into how many parts the reporting rounds are divided; new processes run each.
        near: Singles up to this many times slower than the winner are reported on again.
        block_s: Seconds that one contestant runs before the next has its turn.
        abandon_ratio: A contestant this many times slower than the best of the first round does not run again.
        timeout_s: Seconds that loading, checking or one block may take.
        one_at_a_time: Whether a contestant's process is there only while it runs, for models of which several in memory
            would be too much. Loading takes its time, so there are fewer rounds, and longer blocks.
    """

    trial_rounds: int = 3
    eliminate_ratio: float = 1.1
    choosing_rounds: tuple[int, ...] = (7, 15, 31)
    choosing_s: float = 60.0
    worthwhile: float = 0.005
    under_load_rounds: int = 3
    reporting_rounds: int = 11
    legs: int = 1
    near: float = 1.1
    block_s: float = 0.12
    abandon_ratio: float = 1.6
    timeout_s: float = 300.0
    one_at_a_time: bool = False

    @classmethod
    def of_model(cls, weight_bytes: int, free_bytes: int = 0) -> ComparisonPlan:
        """The plan for a model with so many bytes of weights, of which every contestant holds copies, and so much memory."""
        if weight_bytes < max(_LARGE_BYTES, free_bytes // _COPIES):
            return cls()
        return cls(choosing_rounds=(7,), under_load_rounds=0, reporting_rounds=7, block_s=0.5, one_at_a_time=True)


@dataclass(frozen=True, slots=True)
class FinalistResult:
    """How one contestant did.

    Attributes:
        finalist: Who.
        status: ``OK``, or why it has no time.
        time: End-to-end latency; from the reporting rounds where it took part in them.
        reason: One sentence, where it has no time.
        max_abs: Largest absolute difference from the reference outputs.
        max_rel: The same relative to the largest output.
        paired_s: Latency as compared, turn by turn, with the best incumbent: the median of the rounds' ratios, times what
            that one takes. Free of the machine's drift from turn to turn; None where it was not raced against one.
        under_load_s: Latency beside a busy neighbour; None where there was no tie to be broken.
        p95_s: Ninety-fifth percentile of the latencies; None if it has no time.
        p99_s: Ninety-ninth percentile; likewise.
    """

    finalist: Finalist
    status: Status
    time: Summary | None = None
    reason: str | None = None
    max_abs: float | None = None
    max_rel: float | None = None
    paired_s: float | None = None
    under_load_s: float | None = None
    p95_s: float | None = None
    p99_s: float | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The outcome of a race.

    Attributes:
        winner: The chosen contestant's standing; None if nobody finished.
        best_single: The fastest incumbent's standing, or None.
        speedup: Time of the best incumbent over the winner's, and its interval.
        standings: Everybody's, in the order given.
        rivals: The others that may be as fast as the winner, by name: the interval of their time over the winner's
            reaches down to 1.
    """

    winner: FinalistResult | None
    best_single: FinalistResult | None
    speedup: tuple[float, Interval] | None
    standings: Sequence[FinalistResult]
    rivals: Mapping[str, Interval] = field(default_factory=dict)


@dataclass(slots=True)
class _RunningFinalist:
    """A contestant on the track."""

    finalist: Finalist
    worker: Worker
    max_abs: float = 0.0
    max_rel: float = 0.0
    block: int = 1
    qualifying: list[float] = field(default_factory=list)
    choosing: list[list[float]] = field(default_factory=list)
    beside: list[list[float]] = field(default_factory=list)
    reporting: list[list[float]] = field(default_factory=list)
    failure: tuple[Status, str] | None = None

    @property
    def rounds(self) -> list[list[float]]:
        """What is known so far; from the reporting rounds where there are any."""
        return self.reporting or self.choosing or [self.qualifying]

    @property
    def median_s(self) -> float:
        return summarise([s for samples in self.rounds for s in samples]).median_s

    @property
    def under_load_s(self) -> float | None:
        return summarise([s for samples in self.beside for s in samples]).median_s if self.beside else None

    def standing(self, reference: _RunningFinalist | None = None) -> FinalistResult:
        if self.failure:
            return FinalistResult(self.finalist, self.failure[0], None, self.failure[1], self.max_abs, self.max_rel)
        latencies = [s for samples in self.rounds for s in samples]
        time, (p95_s, p99_s) = summarise(latencies), np.percentile(latencies, [95, 99]).tolist()
        paired_s = None if reference is None else self.paired_s(reference)
        return FinalistResult(
            self.finalist, Status.OK, time, None, self.max_abs, self.max_rel, paired_s, self.under_load_s, p95_s, p99_s
        )

    def paired_s(self, reference: _RunningFinalist) -> float | None:
        """See ``FinalistResult``; some may have run in fewer rounds than others.

        The rounds of choosing and of reporting ran in different processes. Where both are known, what one took in the former
        tells nothing of what it is compared with in the latter.
        """
        pairs = self.pairs_with(reference)
        if not pairs:
            return None
        return ratio_of_medians([own for own, _ in pairs], [other for _, other in pairs])[0] * reference.median_s

    def pairs_with(self, other: _RunningFinalist) -> list[tuple[list[float], list[float]]]:
        """Return the rounds that both ran in the same turns: reporting ones, or else choosing ones."""
        pairs = [*zip(self.reporting, other.reporting, strict=False)]
        return pairs or [*zip(self.choosing, other.choosing, strict=False)]


def compare_end_to_end(
    finalists: Sequence[Finalist],
    tolerance: float,
    plan: ComparisonPlan = ComparisonPlan(),
    say: Callable[[str], None] = lambda _: None,
    *,
    winner: str | None = None,
) -> Comparison:
    """Races contestants and picks the winner.

    Args:
        finalists: At least one; more than one may be an incumbent.
        tolerance: What the outputs may differ from the reference (see ``collage.numerics.compare``).
        plan: How long.
        say: Told what is going on.
        winner: Name of the contestant that counts as the winner whatever its time: a comparison, not a choice.

    Returns:
        Who won, and how all did. A contestant that crashes or is wrong loses; the others go on.
    """
    runners = [_RunningFinalist(finalist, Worker(finalist.service, dict(finalist.arguments))) for finalist in finalists]
    try:
        for number, runner in enumerate(runners, 1):
            say(f"finalist {number} of {len(runners)}: {runner.finalist.name}")
            with build_lock():
                _guard(runner, partial(_qualify, runner, tolerance, plan))
            _leave(runner, plan)
        _requalify(runners, plan)
        track, rivals = _until_decided(_with_a_chance(runners, plan.abandon_ratio), plan, say)
        # Whoever was too slow to be raced still finishes before those that did not finish at all.
        rivals = rivals or [runner for runner in runners if runner.failure is None]
        if not rivals:
            return Comparison(None, None, None, [runner.standing() for runner in runners])
        chosen = next((r for r in track if r.finalist.name == winner), None) or _choose(rivals)
        if winner is None:
            chosen = _break_tie(rivals, chosen, plan, say)
            track = _witnesses(track, chosen, plan.near)
        for leg in range(plan.legs):
            track = _started_afresh(track, plan)
            rounds = len(range(leg, plan.reporting_rounds, plan.legs))
            track = _run_rounds(track, "reporting", rounds, plan, say)
        return _result(runners, chosen, plan, free=winner is None)
    finally:
        for runner in runners:
            runner.worker.kill()


def why_wrong(finalist: Finalist, tolerance: float, plan: ComparisonPlan = ComparisonPlan()) -> str | None:
    """Why a contestant fails, or computes something else than the reference; None if it does not."""
    runner = _RunningFinalist(finalist, Worker(finalist.service, dict(finalist.arguments)))
    with runner.worker, build_lock():
        _guard(runner, partial(_check, runner, tolerance, plan))
    return runner.failure and runner.failure[1]


def _check(runner: _RunningFinalist, tolerance: float, plan: ComparisonPlan) -> None:
    found = runner.worker.call("check", plan.timeout_s, tolerance=tolerance)
    runner.max_abs, runner.max_rel = found["max_abs"], found["max_rel"]
    if found["reason"]:
        runner.failure = (Status.WRONG, found["reason"])


def _qualify(runner: _RunningFinalist, tolerance: float, plan: ComparisonPlan) -> None:
    """Loads, checks and times once."""
    _check(runner, tolerance, plan)
    if runner.failure is not None:
        return
    worker = runner.worker
    once = worker.call("run", plan.timeout_s, runs=1, warm_up=0)[0]
    runner.qualifying = worker.call("run", plan.timeout_s, runs=3, warm_up=1) if once < _SLOW_S else [once]
    runner.block = min(max(math.ceil(plan.block_s / max(min(runner.qualifying), 1e-6)), 1), 2000)


def _requalify(runners: Sequence[_RunningFinalist], plan: ComparisonPlan) -> None:
    """Times once more who seems hopeless, but not by far: a process that has just come up may be slow for a moment."""
    running = [runner for runner in runners if runner.failure is None]
    limit_s = plan.abandon_ratio * min((runner.median_s for runner in running), default=0.0)
    for runner in running:
        if limit_s < runner.median_s <= plan.abandon_ratio * limit_s:
            with measurement_lock():
                _guard(runner, partial(_requalify_one, runner, plan))
            _leave(runner, plan)


def _requalify_one(runner: _RunningFinalist, plan: ComparisonPlan) -> None:
    samples = runner.worker.call("run", plan.timeout_s, runs=len(runner.qualifying), warm_up=1)
    runner.qualifying = min(runner.qualifying, samples, key=lambda found: summarise(found).median_s)


def _with_a_chance(runners: Sequence[_RunningFinalist], abandon_ratio: float) -> list[_RunningFinalist]:
    """Those that are not hopelessly slow; the best single is always among them, to compare with and to fall back on."""
    track = [runner for runner in runners if runner.failure is None]
    limit_s = abandon_ratio * min((runner.median_s for runner in track), default=0.0)
    best = min((r for r in track if r.finalist.incumbent), key=lambda r: r.median_s, default=None)
    return [runner for runner in track if runner.median_s <= limit_s or runner is best]


def _until_decided(
    track: list[_RunningFinalist], plan: ComparisonPlan, say: Callable[[str], None]
) -> tuple[list[_RunningFinalist], list[_RunningFinalist]]:
    """Runs the choosing rounds: as many as it takes to tell who wins, within reason.

    Returns:
        Who is left, and who of them ran in all rounds: among these the winner is to be chosen.
    """
    rivals, retired, done = track, list[_RunningFinalist](), 0
    looks = [look for look in plan.choosing_rounds if look > plan.trial_rounds]
    if len(track) > 1 and looks:
        rivals, done = _run_rounds(rivals, "choosing", plan.trial_rounds, plan, say), plan.trial_rounds
        retired = _eliminated(rivals, plan.eliminate_ratio)
        rivals = [runner for runner in rivals if runner not in retired]
    for number, look in enumerate(looks if len(rivals) > 1 else ()):
        seconds = sum(runner.block * runner.median_s for runner in rivals) * (look - done)
        if number and seconds > plan.choosing_s:
            break
        rivals = _run_rounds(rivals, "choosing", look - done, plan, say)
        done = look
        if not (undecided := _undecided(rivals, plan.worthwhile)):
            break
        retired += [runner for runner in rivals if runner not in undecided]
        rivals = undecided
    return [*rivals, *retired], rivals


def _eliminated(track: Sequence[_RunningFinalist], eliminate_ratio: float) -> list[_RunningFinalist]:
    """Those that were far behind the best incumbent in every round so far: nothing that they do will let them win."""
    best = min((runner for runner in track if runner.finalist.incumbent), key=lambda r: r.median_s, default=None)
    if best is None:
        return []
    return [
        runner
        for runner in track
        if runner is not best
        and all(
            summarise(own).median_s > eliminate_ratio * summarise(other).median_s
            for own, other in zip(runner.choosing, best.choosing, strict=True)
        )
    ]


def _undecided(track: Sequence[_RunningFinalist], worthwhile: float) -> list[_RunningFinalist]:
    """Who would win as things are, and those that lead it, but not beyond doubt; empty if nobody does."""
    if not track:
        return []
    chosen = _choose(track)
    ahead = [runner for runner in track if runner.median_s < (1.0 - worthwhile) * chosen.median_s]
    return [chosen, *ahead] if ahead else []


def _witnesses(track: Sequence[_RunningFinalist], chosen: _RunningFinalist, near: float) -> list[_RunningFinalist]:
    """The chosen one, and the singles that it has to be compared with: the best, and those near it."""
    singles = [runner for runner in track if runner.finalist.incumbent and runner is not chosen]
    best = min(singles, key=lambda runner: runner.median_s, default=None)
    return [*(r for r in singles if r is best or r.median_s <= near * chosen.median_s), chosen]


def _started_afresh(track: Sequence[_RunningFinalist], plan: ComparisonPlan) -> list[_RunningFinalist]:
    """Gives each runner a new process; those that come up again."""
    if plan.one_at_a_time:
        return list(track)
    for runner in track:
        runner.worker.kill()
        with build_lock():
            _guard(runner, partial(runner.worker.call, "run", plan.timeout_s, runs=1, warm_up=1))
    return [runner for runner in track if runner.failure is None]


def _run_rounds(
    track: list[_RunningFinalist],
    phase: _Phase,
    rounds: int,
    plan: ComparisonPlan,
    say: Callable[[str], None],
) -> list[_RunningFinalist]:
    order = random.Random(0)
    for number in range(rounds):
        say(f"finals, {phase}: round {number + 1} of {rounds}, finalists: {len(track)}")
        order.shuffle(track)
        with measurement_lock():
            for runner in track:
                _guard(runner, partial(_run_block, runner, phase, plan))
                _leave(runner, plan)
        track = [runner for runner in track if runner.failure is None]
    return track


def _run_block(runner: _RunningFinalist, phase: _Phase, plan: ComparisonPlan) -> None:
    # The first run of a block finds the caches of others and sleeping threads: a tenth slower or faster from turn to turn,
    # for models of 200 ms too. Where a run takes seconds, that is little, and one run more is much.
    warm_up = 0 if min(runner.qualifying) > _SLOW_S and not plan.one_at_a_time else 1
    samples = runner.worker.call("run", plan.timeout_s, runs=runner.block, warm_up=warm_up)
    getattr(runner, phase).append(samples)


def _leave(runner: _RunningFinalist, plan: ComparisonPlan) -> None:
    """Ends a runner's turn; the next call starts its process anew."""
    if plan.one_at_a_time:
        runner.worker.kill()


def _guard(runner: _RunningFinalist, action: Callable[[], Any]) -> None:
    """Does something with a runner; what goes wrong disqualifies it."""
    try:
        action()
    except WorkerTimeout as error:
        runner.failure = (Status.TIMEOUT, str(error))
    except WorkerOutOfMemory as error:
        runner.failure = (Status.OUT_OF_MEMORY, str(error))
    except WorkerDied as error:
        runner.failure = (Status.CRASH, str(error))
    except Unsupported as error:
        runner.failure = (Status.UNSUPPORTED, str(error))
    except ToolchainError as error:
        runner.failure = (Status.COMPILE_ERROR, str(error))


def _choose(track: Sequence[_RunningFinalist]) -> _RunningFinalist:
    """The fastest; among those whose times cannot be told apart from its, the one with the fewest kernels."""
    fastest = min(track, key=lambda runner: runner.median_s)
    equals = [
        runner for runner in track if runner is fastest or ratio_of_medians(runner.rounds, fastest.rounds)[1].low <= 1.0
    ]
    fewest = min(runner.finalist.kernels for runner in equals)
    return min(
        (runner for runner in equals if runner.finalist.kernels == fewest),
        key=lambda runner: runner.median_s,
    )


def _break_tie(
    rivals: Sequence[_RunningFinalist], chosen: _RunningFinalist, plan: ComparisonPlan, say: Callable[[str], None]
) -> _RunningFinalist:
    """Of those that are as fast as the chosen one, with as few kernels: who loses least beside a busy neighbour."""
    limit_s = (1.0 + plan.worthwhile) * chosen.median_s
    few = [runner for runner in rivals if runner.finalist.kernels == chosen.finalist.kernels]
    ties = [runner for runner in few if runner.median_s <= limit_s]
    if len(ties) < _A_TIE or not plan.under_load_rounds:
        return chosen
    with under_load() as is_there:
        if is_there:
            _run_rounds(ties, "beside", plan.under_load_rounds, plan, say)
    alive = [runner for runner in ties if runner.failure is None]
    return min(alive, key=lambda runner: runner.under_load_s or math.inf, default=chosen)


def _result(
    runners: Sequence[_RunningFinalist], chosen: _RunningFinalist, plan: ComparisonPlan, *, free: bool
) -> Comparison:
    """The result; a free choice that does not lead in the reporting rounds too falls back to the best single."""
    alive = [runner for runner in runners if runner.failure is None]
    alive = [runner for runner in alive if runner.reporting] or alive
    best = min((r for r in alive if r.finalist.incumbent), key=lambda r: r.median_s, default=None)
    standings = [runner.standing(best) for runner in runners]
    if not alive:
        return Comparison(None, None, None, standings)
    # It may have died while being reported on: the best of those that finished takes its place.
    winner = chosen if chosen in alive else min(alive, key=lambda r: r.median_s)
    if best is None or not (best.reporting and winner.reporting):
        return Comparison(winner.standing(best), None, None, standings, _rivals(runners, winner))
    speedup = ratio_of_medians(best.reporting, winner.reporting)
    if free and speedup[0] < _least_speedup(winner, best, plan.worthwhile):
        winner, speedup = best, ratio_of_medians(best.reporting, best.reporting)
    return Comparison(winner.standing(best), best.standing(best), speedup, standings, _rivals(runners, winner))


def _rivals(runners: Sequence[_RunningFinalist], winner: _RunningFinalist) -> dict[str, Interval]:
    """Return the finalists that may be as fast as the winner, with the interval of their time over the winner's."""
    found = {}
    for runner in runners:
        pairs = runner.pairs_with(winner) if runner is not winner and runner.failure is None else []
        if pairs:
            interval = ratio_of_medians([own for own, _ in pairs], [other for _, other in pairs])[1]
            if interval.low <= 1.0:
                found[runner.finalist.name] = interval
    return found


def _least_speedup(winner: _RunningFinalist, best: _RunningFinalist, worthwhile: float) -> float:
    """How far the chosen one has to lead the best single in the reporting rounds.

    With more kernels, by what is worth them; a single that broke a tie need not lead, but be as good as the best.
    """
    if winner.finalist.kernels > best.finalist.kernels:
        return 1.0 + worthwhile
    return 1.0 - 2 * worthwhile if winner.finalist.incumbent and winner.under_load_s is not None else 1.0
