"""The track of a race: runners with processes of their own, which are loaded, checked, and run in turns."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from collage._errors import ToolchainError
from collage.cost.outcome import failed
from collage.cost.statistics import Interval
from collage.measure.arbiter import Arbiter
from collage.measure.finalist import LATENCY, Block, Figure, Finalist, Turn
from collage.measure.jobs import COPIES
from collage.measure.turns import ratio_of, take_turns
from collage.status import Status
from collage.workers.machine_lock import build_lock
from collage.workers.worker import Worker

__all__ = ["LEGS", "ComparisonPlan", "Runner", "Track", "alive_of", "checked", "loading_s", "why_wrong"]

_LARGE_BYTES = 256 << 20
# Finalists whose runs take longer have a single run a turn, without a run before it.
_SLOW_S = 1.0
# Single runs of each finalist after loading: a process that has just come up may be slow for a moment.
_TRIES = 3
# A turn of the fastest models would otherwise be tens of thousands of samples.
_MOST_RUNS = 2000
# Processes that start at a time. Most of a start is the import of packages, on one processor.
_STARTS = 2
LEGS = 3
"""Processes of each contestant, one after the other: the interval shows how much depends on the place of a process in memory."""
Phase = Literal["sample", "again", "choosing", "reporting"]


@dataclass(frozen=True, slots=True)
class ComparisonPlan:
    """The length of a race.

    Attributes:
        rounds: Rounds of the choosing phase before the first look at its result.
        deciding_rounds: Rounds of the choosing phase before what is within doubt is decided.
        most_rounds: Rounds of a phase if nothing is decided before. With 8 % of noise, a mix that is faster by 5 % is chosen
            in 67 of 100 simulated races, and in 47 with half as many.
        reporting_rounds: Rounds of the reporting phase; as many as the choosing phase took, if those were more.
        phase_s: Seconds after which a phase goes on only until it has had ``rounds``.
        legs: Number of parts of the reporting phase, each in new processes.
        is_brief: True if the reporting phase has the chosen candidate, the best single and the baseline alone.
        block_s: Seconds that one finalist runs before it is the next one's turn. Of two processes of one artefact, 15 rounds
            of 0.03 s told a difference of 1.4 % on three models, 7 rounds of 0.12 s one of 3 %, in more time.
        abandon_ratio: A finalist at least this many times as slow as the best one, in two samples, is left out.
        timeout_s: Seconds that loading, checking or one block may take.
        one_at_a_time: True if a process lives only during its turn, for models too large to keep several in memory.
        ends_at: Value of ``time.monotonic()`` by which the race should have ended.
        neighbour: The process beside which all run, see ``NEIGHBOURS``.
    """

    rounds: int = 7
    deciding_rounds: int = 15
    most_rounds: int = 63
    reporting_rounds: int = 15
    phase_s: float = 60.0
    legs: int = 1
    is_brief: bool = False
    block_s: float = 0.03
    abandon_ratio: float = 1.5
    timeout_s: float = 300.0
    one_at_a_time: bool = False
    ends_at: float = math.inf
    neighbour: str = "none"

    @property
    def left_s(self) -> float:
        """Seconds until the race should have ended; negative if that has passed."""
        return self.ends_at - time.monotonic()

    @classmethod
    def of_model(cls, weight_bytes: int, free_bytes: int = 0) -> ComparisonPlan:
        """Return the plan for a model, from the bytes of its weights (each finalist has copies) and the available memory."""
        if weight_bytes < max(_LARGE_BYTES, free_bytes // COPIES):
            return cls()
        return cls(deciding_rounds=7, most_rounds=7, reporting_rounds=7, block_s=0.5, one_at_a_time=True)


@dataclass(slots=True)
class Runner:
    """A finalist with its process, its figure in each round of each phase, and all samples of the reporting phase."""

    finalist: Finalist
    worker: Worker
    max_abs: float = 0.0
    max_rel: float = 0.0
    reason: str | None = None
    precision: str | None = None
    noise: float | None = None
    excused: Mapping[str, float] = field(default_factory=dict)
    drops_nan: str | None = None
    load_s: float = 0.0
    least_s: float = math.inf
    sample: dict[int, float] = field(default_factory=dict)
    again: dict[int, float] = field(default_factory=dict)
    choosing: dict[int, float] = field(default_factory=dict)
    reporting: dict[int, float] = field(default_factory=dict)
    samples: list[float] = field(default_factory=list)
    details: Mapping[str, Any] = field(default_factory=dict)
    status: Status = Status.OK
    lost: bool = False
    slower: tuple[float, ...] = ()

    @classmethod
    def of(cls, finalist: Finalist) -> Runner:
        """Return a runner whose process is started by the first call."""
        return cls(finalist, Worker(finalist.service, dict(finalist.arguments)))

    @property
    def median_s(self) -> float:
        """Its figure in the latest phase that it had a part in."""
        known = self.samples or self.choosing.values() or self.again.values() or self.sample.values()
        return statistics.median(known) if known else self.least_s

    def over(self, other: Runner) -> tuple[float, Interval]:
        """Return this one's time over another's, by the rounds of the latest phase that both ran."""
        found = ratio_of(self.reporting, other.reporting) or ratio_of(self.choosing, other.choosing)
        return found or (math.nan, Interval(0.0, math.inf))

    def beats(self, other: Runner) -> bool:
        """Return True if this one is faster beyond doubt."""
        return other is not self and other.over(self)[1].low > 1.0


class Track:
    """Runners on one machine.

    Args:
        finalists: The finalists. Each becomes a runner.
        tolerance: Largest difference of outputs from the reference.
        plan: The length of the race.
        say: Called with a line for each step.
        figure: The quantity that is measured.
    """

    def __init__(
        self,
        finalists: Sequence[Finalist],
        tolerance: float,
        plan: ComparisonPlan,
        say: Callable[[str], None] = lambda _: None,
        figure: Figure = LATENCY,
    ) -> None:
        self.runners = [Runner.of(each) for each in finalists]
        self.plan = plan
        self._tolerance, self._say, self._figure = tolerance, say, figure
        self._arbiter = Arbiter()

    def close(self) -> None:
        """End all processes."""
        self._arbiter.close()
        for runner in self.runners:
            runner.worker.kill()

    def load(self) -> list[Runner]:
        """Load and check all, and run each once.

        Returns:
            The runners for which there was time, in the order given.
        """
        loaded: list[Runner] = []
        first_single = next((runner for runner in self.runners if runner.finalist.incumbent), None)
        ahead = 0 if self.plan.one_at_a_time else _STARTS
        with ThreadPoolExecutor(_STARTS) as threads:
            started = list[Future[None]]()
            for number, runner in enumerate(self.runners, 1):
                is_needed = runner is first_single or not runner.finalist.is_candidate
                if not is_needed and self._is_too_late(loaded):
                    self._say(f"the time budget leaves no time to compare {runner.finalist.name}")
                    continue
                loaded.append(runner)
                self._say(f"finalist {number} of {len(self.runners)}: {runner.finalist.name}")
                if ahead:
                    coming = self.runners[len(started) : number + ahead]
                    started += [threads.submit(self._start, each) for each in coming]
                    started[number - 1].result()
                began = time.monotonic()
                with build_lock():
                    _guard(runner, partial(self._first, runner))
                runner.load_s += time.monotonic() - began
                self._leave(runner)
        return loaded

    def _start(self, runner: Runner) -> None:
        """Start a runner's process, which loads its kernels."""
        with build_lock():
            began = time.monotonic()
            _guard(runner, runner.worker.start)
        runner.load_s = time.monotonic() - began

    def _first(self, runner: Runner) -> None:
        if runner.status is not Status.OK:
            return
        _check(runner, self._tolerance, self.plan, self._arbiter)
        if runner.status is Status.OK:
            self.measure(runner, 1, 0, 0.0)
            # Its first sample. It would have to be loaded again for a later one.
            if self.plan.one_at_a_time and runner.least_s < _SLOW_S:
                runner.sample[0] = self.measure(runner, *self._block(runner, self.plan.block_s)).figure

    def first_runs(self, runners: Sequence[Runner]) -> None:
        """Run each a few times, unless a run takes as many blocks: the shortest run decides how many make up a block."""
        for number in range(0 if self.plan.one_at_a_time else _TRIES):
            short = [
                runner for runner in alive_of(runners) if not _TRIES * self.plan.block_s < runner.least_s < math.inf
            ]
            take_turns(short, number, lambda runner: _guard(runner, partial(self.measure, runner, 1, 1, 0.0)))

    def _is_too_late(self, loaded: Sequence[Runner]) -> bool:
        """Return True if there is no time to load one more finalist twice, and to run three phases with it.

        One candidate is loaded in any case.
        """
        track = alive_of(loaded)
        if not any(runner.finalist.is_candidate for runner in track):
            return False
        most_s = loading_s(track) * (1 + 2 / len(track))
        return self.plan.left_s < most_s + 3 * self.fewest_s([*track, track[-1]])

    def fewest_s(self, track: Sequence[Runner]) -> float:
        """Return the seconds of the fewest rounds of the shortest blocks."""
        return self.plan.rounds * sum((1 + self._warm_up(runner)) * runner.least_s for runner in track)

    def start_afresh(self, runners: Sequence[Runner]) -> None:
        """Give each runner a new process, unless it has one for each turn."""
        if self.plan.one_at_a_time:
            return
        for runner in runners:
            runner.worker.kill()
        with ThreadPoolExecutor(_STARTS) as threads:
            list(threads.map(self._start, runners))
        for runner in alive_of(runners):
            with build_lock():
                _guard(runner, partial(self.measure, runner, 1, 1, 0.0))

    def run_rounds(
        self,
        track: Sequence[Runner],
        phase: Phase,
        rounds: int,
        *,
        fewest: int,
        plan: ComparisonPlan | None = None,
    ) -> float:
        """Run all in turns; return the seconds of running.

        Args:
            track: The runners.
            phase: The phase that the rounds belong to.
            rounds: Number of rounds.
            fewest: Rounds that are run even if the time is up.
            plan: Limits of time, if they are not those of the race.
        """
        plan = plan or self.plan
        total_s, numbers = 0.0, [max(getattr(runner, phase), default=-1) for runner in self.runners]
        start = 1 + max(numbers, default=-1)
        block_s = self._block_s(track, rounds, fewest, plan)
        for number in range(start, start + rounds):
            if number - start >= fewest and (total_s >= plan.phase_s or plan.left_s <= 0):
                break
            alive = alive_of(track)
            if phase in ("choosing", "reporting"):
                self._say(f"comparison, {phase}: round {number + 1}, finalists: {len(alive)}")
            take_turns(alive, number, partial(self._turn, phase=phase, number=number, block_s=block_s))
            total_s += sum(
                self._block(runner, block_s)[0] * getattr(runner, phase)[number]
                for runner in alive
                if number in getattr(runner, phase)
            )
        return total_s

    def _turn(self, runner: Runner, phase: Phase, number: int, block_s: float) -> None:
        def run() -> None:
            turn = self.measure(runner, *self._block(runner, block_s), number)
            getattr(runner, phase)[number] = turn.figure
            if phase == "reporting":
                runner.samples += turn.samples
                runner.details = turn.details

        _guard(runner, run)
        self._leave(runner)

    def measure(self, runner: Runner, runs: int, warm_up: int, seconds: float, number: int = 0) -> Turn:
        """Let one run for a moment, and note its shortest run."""
        turn = self._figure.measure(runner.worker, Block(runs, warm_up, seconds, self.plan.timeout_s, number))
        runner.least_s = min(runner.least_s, *turn.samples)
        return turn

    def _block(self, runner: Runner, block_s: float) -> tuple[int, int, float]:
        """Return the runs of a turn, the runs before them, and the seconds."""
        runs = min(max(math.ceil(block_s / max(runner.least_s, 1e-6)), 1), _MOST_RUNS)
        return runs, self._warm_up(runner), block_s

    def _warm_up(self, runner: Runner) -> int:
        """Return the runs before those of a block that count.

        The first run finds the caches of others and sleeping threads: a tenth slower or faster from turn to turn, for models
        of 200 ms too. If a run takes seconds, that is little, and one run more is much.
        """
        return 0 if runner.least_s > _SLOW_S and not self.plan.one_at_a_time else 1

    def _block_s(self, track: Sequence[Runner], rounds: int, fewest: int, plan: ComparisonPlan) -> float:
        """Return the seconds of a block, such that the fewest rounds end in time."""
        if math.isinf(plan.ends_at) or not track or not rounds:
            return plan.block_s
        warming_s = sum(self._warm_up(runner) * runner.least_s for runner in track)
        round_s = plan.left_s / max(fewest, 1) - warming_s
        return min(plan.block_s, max(round_s, 0.0) / len(track))

    def _leave(self, runner: Runner) -> None:
        """End a runner's turn; if there is one at a time, its next call starts its process again."""
        if self.plan.one_at_a_time:
            runner.worker.kill()


def why_wrong(finalist: Finalist, tolerance: float, plan: ComparisonPlan = ComparisonPlan()) -> str | None:
    """Return the reason that a finalist fails or computes something else than the reference; None if it does not."""
    runner, arbiter = Runner.of(finalist), Arbiter()
    try:
        with runner.worker, build_lock():
            _guard(runner, partial(_check, runner, tolerance, plan, arbiter))
    finally:
        arbiter.close()
    return runner.reason


def alive_of(runners: Sequence[Runner]) -> list[Runner]:
    """Return the runners that did not fail and are not wrong."""
    return [runner for runner in runners if runner.status is Status.OK]


def loading_s(track: Sequence[Runner]) -> float:
    """Return the seconds that it took to load all of these."""
    return sum(runner.load_s for runner in track)


def checked(finalist: Finalist, worker: Worker, tolerance: float, timeout_s: float, arbiter: Arbiter) -> dict[str, Any]:
    """Have a finalist's process check itself, and settle doubts on its outputs; findings without doubts.

    Raises:
        ToolchainError: It failed.
    """
    found: dict[str, Any] = worker.call("check", timeout_s, tolerance=tolerance)
    if not found["doubts"]:
        return found
    return {**found, **arbiter.settle(found, None if finalist.model is None else Path(finalist.model))}


def _check(runner: Runner, tolerance: float, plan: ComparisonPlan, arbiter: Arbiter) -> None:
    found = checked(runner.finalist, runner.worker, tolerance, plan.timeout_s, arbiter)
    runner.max_abs, runner.max_rel, runner.reason = found["max_abs"], found["max_rel"], found["wrong"]
    runner.noise, runner.excused = found.get("noise"), found.get("excused", {})
    runner.drops_nan = found.get("drops_nan")
    runner.precision = found.get("precision")
    if runner.reason and runner.finalist.is_candidate:
        runner.status = Status.WRONG


def _guard(runner: Runner, action: Callable[[], Any]) -> None:
    """Do something with a runner; an error of its toolchain disqualifies it."""
    try:
        action()
    except ToolchainError as error:
        outcome = failed(error, 0.0)
        runner.status, runner.reason = outcome.status, outcome.reason
