"""The finals: whole executables against each other, end to end, taking turns (design section 4, step 5).

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

from collage._errors import ToolchainError, Unsupported, WorkerDied, WorkerOutOfMemory, WorkerTimeout
from collage.cost.outcome import Status
from collage.cost.statistics import Interval, Summary, ratio_of_medians, summarise
from collage.measure.noisy_neighbor import busy_neighbour
from collage.workers.machine_lock import building_slot, measuring_slot
from collage.workers.worker import Worker

__all__ = ["Contestant", "RacePlan", "Result", "Standing", "race", "why_wrong"]


InCalm = Callable[[Callable[[], list[float]]], list[float]]

_LARGE_BYTES = 256 << 20
_COPIES = 24
"""How often a model's weights may be in memory while all contestants are: up to eight, each with what it packs them into."""
_A_TIE = 2
_Phase = Literal["choosing", "beside", "reporting"]
_SLOW_S = 1.0
"""Runs of models are not repeated for good measure from here on."""


@dataclass(frozen=True, slots=True)
class Contestant:
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
class RacePlan:
    """How long to race.

    Attributes:
        trial_rounds: After so many rounds, who was ``beaten`` in each of them leaves the race.
        beaten: A contestant that takes this many times as long as the best incumbent, in the same round.
        choosing_rounds: After how many rounds to look whether it can be told who wins. A later look is taken only
            while a contestant with more kernels leads, but not beyond doubt. Three looks at 95 % each let a slower one win
            in at most 5 % of races.
        choosing_s: Seconds of running after which no further look is planned.
        worthwhile: Share by which the leader has to lead to be worth another look; who is closer ties with it.
        beside_rounds: Rounds beside a busy neighbour, where contestants of equally few kernels tie; 0 is none.
        reporting_rounds: Rounds that are reported.
        legs: Into how many parts the reporting rounds are divided; new processes run each.
        near: Singles up to this many times slower than the winner are reported on again.
        block_s: Seconds that one contestant runs before the next has its turn.
        hopeless: A contestant this many times slower than the best of the first round does not run again.
        timeout_s: Seconds that loading, checking or one block may take.
        one_at_a_time: Whether a contestant's process is there only while it runs, for models of which several in memory
            would be too much. Loading takes its time, so there are fewer rounds, and longer blocks.
    """

    trial_rounds: int = 3
    beaten: float = 1.1
    choosing_rounds: tuple[int, ...] = (7, 15, 31)
    choosing_s: float = 60.0
    worthwhile: float = 0.005
    beside_rounds: int = 3
    reporting_rounds: int = 11
    legs: int = 1
    near: float = 1.1
    block_s: float = 0.12
    hopeless: float = 1.6
    timeout_s: float = 300.0
    one_at_a_time: bool = False

    @classmethod
    def of_model(cls, weight_bytes: int, free_bytes: int = 0) -> RacePlan:
        """The plan for a model with so many bytes of weights, of which every contestant holds copies, and so much memory."""
        if weight_bytes < max(_LARGE_BYTES, free_bytes // _COPIES):
            return cls()
        return cls(choosing_rounds=(7,), beside_rounds=0, reporting_rounds=7, block_s=0.5, one_at_a_time=True)


@dataclass(frozen=True, slots=True)
class Standing:
    """How one contestant did.

    Attributes:
        contestant: Who.
        status: ``OK``, or why it has no time.
        time: End-to-end latency; from the reporting rounds where it took part in them.
        reason: One sentence, where it has no time.
        max_abs: Largest absolute difference from the reference outputs.
        max_rel: The same relative to the largest output.
        paired_s: Latency as compared, turn by turn, with the best incumbent: the median of the rounds' ratios, times what
            that one takes. Free of the machine's drift from turn to turn; None where it was not raced against one.
        beside_s: Latency beside a busy neighbour; None where there was no tie to be broken.
    """

    contestant: Contestant
    status: Status
    time: Summary | None = None
    reason: str | None = None
    max_abs: float | None = None
    max_rel: float | None = None
    paired_s: float | None = None
    beside_s: float | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a race.

    Attributes:
        winner: The chosen contestant's standing; None if nobody finished.
        best_single: The fastest incumbent's standing, or None.
        speedup: Time of the best incumbent over the winner's, and its interval.
        standings: Everybody's, in the order given.
    """

    winner: Standing | None
    best_single: Standing | None
    speedup: tuple[float, Interval] | None
    standings: Sequence[Standing]


@dataclass(slots=True)
class _Runner:
    """A contestant on the track."""

    contestant: Contestant
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
    def beside_s(self) -> float | None:
        return summarise([s for samples in self.beside for s in samples]).median_s if self.beside else None

    def standing(self, reference: _Runner | None = None) -> Standing:
        if self.failure:
            return Standing(self.contestant, self.failure[0], None, self.failure[1], self.max_abs, self.max_rel)
        time = summarise([s for samples in self.rounds for s in samples])
        paired_s = None if reference is None else self.paired_s(reference)
        return Standing(self.contestant, Status.OK, time, None, self.max_abs, self.max_rel, paired_s, self.beside_s)

    def paired_s(self, reference: _Runner) -> float | None:
        """See ``Standing``; some may have run in fewer rounds than others.

        The rounds of choosing and of reporting ran in different processes. Where both are known, what one took in the former
        tells nothing of what it is compared with in the latter.
        """
        pairs = [*zip(self.reporting, reference.reporting, strict=False)]
        pairs = pairs or [*zip(self.choosing, reference.choosing, strict=False)]
        if not pairs:
            return None
        return ratio_of_medians([own for own, _ in pairs], [other for _, other in pairs])[0] * reference.median_s


def race(
    contestants: Sequence[Contestant],
    tolerance: float,
    plan: RacePlan = RacePlan(),
    say: Callable[[str], None] = lambda _: None,
    *,
    winner: str | None = None,
    in_calm: InCalm = lambda measure: measure(),
) -> Result:
    """Races contestants and picks the winner.

    Args:
        contestants: At least one; more than one may be an incumbent.
        tolerance: What the outputs may differ from the reference (see ``collage.numerics.compare``).
        plan: How long.
        say: Told what is going on.
        winner: Name of the contestant that counts as the winner whatever its time: a comparison, not a choice.
        in_calm: Measures one block while the machine is fit for it.

    Returns:
        Who won, and how all did. A contestant that crashes or is wrong loses; the others go on.
    """
    runners = [
        _Runner(contestant, Worker(contestant.service, dict(contestant.arguments))) for contestant in contestants
    ]
    try:
        for number, runner in enumerate(runners, 1):
            say(f"finalist {number} of {len(runners)}: {runner.contestant.name}")
            with building_slot():
                _guard(runner, partial(_qualify, runner, tolerance, plan))
            _leave(runner, plan)
        _look_again(runners, plan, in_calm)
        track, rivals = _until_told(_with_a_chance(runners, plan.hopeless), plan, say, in_calm)
        # Whoever was too slow to be raced still finishes before those that did not finish at all.
        rivals = rivals or [runner for runner in runners if runner.failure is None]
        if not rivals:
            return Result(None, None, None, [runner.standing() for runner in runners])
        chosen = next((r for r in track if r.contestant.name == winner), None) or _choose(rivals)
        if winner is None:
            chosen = _break_tie(rivals, chosen, plan, say)
            track = _witnesses(track, chosen, plan.near)
        for leg in range(plan.legs):
            track = _started_afresh(track, plan)
            rounds = len(range(leg, plan.reporting_rounds, plan.legs))
            track = _run_rounds(track, "reporting", rounds, plan, say, in_calm)
        return _result(runners, chosen, plan, free=winner is None)
    finally:
        for runner in runners:
            runner.worker.kill()


def why_wrong(contestant: Contestant, tolerance: float, plan: RacePlan = RacePlan()) -> str | None:
    """Why a contestant fails, or computes something else than the reference; None if it does not."""
    runner = _Runner(contestant, Worker(contestant.service, dict(contestant.arguments)))
    with runner.worker, building_slot():
        _guard(runner, partial(_check, runner, tolerance, plan))
    return runner.failure and runner.failure[1]


def _check(runner: _Runner, tolerance: float, plan: RacePlan) -> None:
    found = runner.worker.call("check", plan.timeout_s, tolerance=tolerance)
    runner.max_abs, runner.max_rel = found["max_abs"], found["max_rel"]
    if found["reason"]:
        runner.failure = (Status.WRONG, found["reason"])


def _qualify(runner: _Runner, tolerance: float, plan: RacePlan) -> None:
    """Loads, checks and times once."""
    _check(runner, tolerance, plan)
    if runner.failure is not None:
        return
    worker = runner.worker
    once = worker.call("run", plan.timeout_s, runs=1, warm_up=0)[0]
    runner.qualifying = worker.call("run", plan.timeout_s, runs=3, warm_up=1) if once < _SLOW_S else [once]
    runner.block = min(max(math.ceil(plan.block_s / max(min(runner.qualifying), 1e-6)), 1), 2000)


def _look_again(runners: Sequence[_Runner], plan: RacePlan, in_calm: InCalm) -> None:
    """Times once more who seems hopeless, but not by far: a process that has just come up may be slow for a moment."""
    running = [runner for runner in runners if runner.failure is None]
    limit_s = plan.hopeless * min((runner.median_s for runner in running), default=0.0)
    for runner in running:
        if limit_s < runner.median_s <= plan.hopeless * limit_s:
            with measuring_slot():
                _guard(runner, partial(_qualify_again, runner, plan, in_calm))
            _leave(runner, plan)


def _qualify_again(runner: _Runner, plan: RacePlan, in_calm: InCalm) -> None:
    samples = in_calm(partial(runner.worker.call, "run", plan.timeout_s, runs=len(runner.qualifying), warm_up=1))
    runner.qualifying = min(runner.qualifying, samples, key=lambda found: summarise(found).median_s)


def _with_a_chance(runners: Sequence[_Runner], hopeless: float) -> list[_Runner]:
    """Those that are not hopelessly slow; the best single is always among them, to compare with and to fall back on."""
    track = [runner for runner in runners if runner.failure is None]
    limit_s = hopeless * min((runner.median_s for runner in track), default=0.0)
    best = min((r for r in track if r.contestant.incumbent), key=lambda r: r.median_s, default=None)
    return [runner for runner in track if runner.median_s <= limit_s or runner is best]


def _until_told(
    track: list[_Runner], plan: RacePlan, say: Callable[[str], None], in_calm: InCalm
) -> tuple[list[_Runner], list[_Runner]]:
    """Runs the choosing rounds: as many as it takes to tell who wins, within reason.

    Returns:
        Who is left, and who of them ran in all rounds: among these the winner is to be chosen.
    """
    rivals, retired, done = track, list[_Runner](), 0
    looks = [look for look in plan.choosing_rounds if look > plan.trial_rounds]
    if len(track) > 1 and looks:
        rivals, done = _run_rounds(rivals, "choosing", plan.trial_rounds, plan, say, in_calm), plan.trial_rounds
        retired = _beaten(rivals, plan.beaten)
        rivals = [runner for runner in rivals if runner not in retired]
    for number, look in enumerate(looks if len(rivals) > 1 else ()):
        seconds = sum(runner.block * runner.median_s for runner in rivals) * (look - done)
        if number and seconds > plan.choosing_s:
            break
        rivals = _run_rounds(rivals, "choosing", look - done, plan, say, in_calm)
        done = look
        if not (undecided := _undecided(rivals, plan.worthwhile)):
            break
        retired += [runner for runner in rivals if runner not in undecided]
        rivals = undecided
    return [*rivals, *retired], rivals


def _beaten(track: Sequence[_Runner], beaten: float) -> list[_Runner]:
    """Those that were far behind the best incumbent in every round so far: nothing that they do will let them win."""
    best = min((runner for runner in track if runner.contestant.incumbent), key=lambda r: r.median_s, default=None)
    if best is None:
        return []
    return [
        runner
        for runner in track
        if runner is not best
        and all(
            summarise(own).median_s > beaten * summarise(other).median_s
            for own, other in zip(runner.choosing, best.choosing, strict=True)
        )
    ]


def _undecided(track: Sequence[_Runner], worthwhile: float) -> list[_Runner]:
    """Who would win as things are, and those that lead it, but not beyond doubt; empty if nobody does."""
    if not track:
        return []
    chosen = _choose(track)
    ahead = [runner for runner in track if runner.median_s < (1.0 - worthwhile) * chosen.median_s]
    return [chosen, *ahead] if ahead else []


def _witnesses(track: Sequence[_Runner], chosen: _Runner, near: float) -> list[_Runner]:
    """The chosen one, and the singles that it has to be compared with: the best, and those near it."""
    singles = [runner for runner in track if runner.contestant.incumbent and runner is not chosen]
    best = min(singles, key=lambda runner: runner.median_s, default=None)
    return [*(r for r in singles if r is best or r.median_s <= near * chosen.median_s), chosen]


def _started_afresh(track: Sequence[_Runner], plan: RacePlan) -> list[_Runner]:
    """Gives each runner a new process; those that come up again."""
    if plan.one_at_a_time:
        return list(track)
    for runner in track:
        runner.worker.kill()
        with building_slot():
            _guard(runner, partial(runner.worker.call, "run", plan.timeout_s, runs=1, warm_up=1))
    return [runner for runner in track if runner.failure is None]


def _run_rounds(
    track: list[_Runner],
    phase: _Phase,
    rounds: int,
    plan: RacePlan,
    say: Callable[[str], None],
    in_calm: InCalm,
) -> list[_Runner]:
    order = random.Random(0)
    for number in range(rounds):
        say(f"finals, {phase}: round {number + 1} of {rounds}, finalists: {len(track)}")
        order.shuffle(track)
        with measuring_slot():
            for runner in track:
                _guard(runner, partial(_run_block, runner, phase, plan, in_calm))
                _leave(runner, plan)
        track = [runner for runner in track if runner.failure is None]
    return track


def _run_block(runner: _Runner, phase: _Phase, plan: RacePlan, in_calm: InCalm) -> None:
    # The first run of a block finds the caches of others and sleeping threads: a tenth slower or faster from turn to turn,
    # for models of 200 ms too. Where a run takes seconds, that is little, and one run more is much.
    warm_up = 0 if min(runner.qualifying) > _SLOW_S and not plan.one_at_a_time else 1
    samples = in_calm(partial(runner.worker.call, "run", plan.timeout_s, runs=runner.block, warm_up=warm_up))
    getattr(runner, phase).append(samples)


def _leave(runner: _Runner, plan: RacePlan) -> None:
    """Ends a runner's turn; the next call starts its process anew."""
    if plan.one_at_a_time:
        runner.worker.kill()


def _guard(runner: _Runner, action: Callable[[], Any]) -> None:
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


def _choose(track: Sequence[_Runner]) -> _Runner:
    """The fastest; among those whose times cannot be told apart from its, the one with the fewest kernels."""
    fastest = min(track, key=lambda runner: runner.median_s)
    equals = [
        runner for runner in track if runner is fastest or ratio_of_medians(runner.rounds, fastest.rounds)[1].low <= 1.0
    ]
    fewest = min(runner.contestant.kernels for runner in equals)
    return min(
        (runner for runner in equals if runner.contestant.kernels == fewest),
        key=lambda runner: runner.median_s,
    )


def _break_tie(rivals: Sequence[_Runner], chosen: _Runner, plan: RacePlan, say: Callable[[str], None]) -> _Runner:
    """Of those that are as fast as the chosen one, with as few kernels: who loses least beside a busy neighbour."""
    limit_s = (1.0 + plan.worthwhile) * chosen.median_s
    few = [runner for runner in rivals if runner.contestant.kernels == chosen.contestant.kernels]
    ties = [runner for runner in few if runner.median_s <= limit_s]
    if len(ties) < _A_TIE or not plan.beside_rounds:
        return chosen
    with busy_neighbour() as is_there:
        if is_there:
            _run_rounds(ties, "beside", plan.beside_rounds, plan, say, lambda measure: measure())
    alive = [runner for runner in ties if runner.failure is None]
    return min(alive, key=lambda runner: runner.beside_s or math.inf, default=chosen)


def _result(runners: Sequence[_Runner], chosen: _Runner, plan: RacePlan, *, free: bool) -> Result:
    """The result; a free choice that does not lead in the reporting rounds too falls back to the best single."""
    alive = [runner for runner in runners if runner.failure is None]
    alive = [runner for runner in alive if runner.reporting] or alive
    best = min((r for r in alive if r.contestant.incumbent), key=lambda r: r.median_s, default=None)
    standings = [runner.standing(best) for runner in runners]
    if not alive:
        return Result(None, None, None, standings)
    # It may have died while being reported on: the best of those that finished takes its place.
    winner = chosen if chosen in alive else min(alive, key=lambda r: r.median_s)
    if best is None or not (best.reporting and winner.reporting):
        return Result(winner.standing(best), None, None, standings)
    speedup = ratio_of_medians(best.reporting, winner.reporting)
    if free and speedup[0] < _least_speedup(winner, best, plan.worthwhile):
        winner, speedup = best, ratio_of_medians(best.reporting, best.reporting)
    return Result(winner.standing(best), best.standing(best), speedup, standings)


def _least_speedup(winner: _Runner, best: _Runner, worthwhile: float) -> float:
    """How far the chosen one has to lead the best single in the reporting rounds.

    With more kernels, by what is worth them; a single that broke a tie need not lead, but be as good as the best.
    """
    if winner.contestant.kernels > best.contestant.kernels:
        return 1.0 + worthwhile
    return 1.0 - 2 * worthwhile if winner.contestant.incumbent and winner.beside_s is not None else 1.0
