"""The finals, with contestants whose latencies are drawn instead of measured."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from collage._errors import WorkerDied
from collage.cost.outcome import Status
from collage.measure import comparison as comparison_module
from collage.measure.comparison import Comparison, ComparisonPlan, Finalist, compare_end_to_end

_neighbours: list[str] = []
"""Busy ones, just now."""


class Track:
    """Stands in for a worker: takes the latency that it is told to, with the noise of a shared machine."""

    def __init__(self, service: str, arguments: Mapping[str, Any]) -> None:
        self.service = service
        self.random = random.Random(service)
        self.arguments = arguments
        self.rounds = 0
        self.processes = 1

    def call(self, method: str, timeout_s: float, **params: Any) -> Any:
        if method == "check":
            return {"max_abs": 0.0, "max_rel": 0.0, "reason": self.arguments.get("wrong")}
        self.rounds += 1
        if self.rounds > self.arguments.get("dies_after", 10**9):
            raise WorkerDied("gone")
        seconds = self.arguments["seconds"] if self.rounds < 3 + self.arguments.get("honest", 10**9) else 0.02
        if self.processes == 1:
            seconds *= self.arguments.get("first_process", 1.0)
        if _neighbours:
            seconds *= self.arguments.get("beside", 2.0)
        drift = self.random.lognormvariate(0.0, self.arguments.get("noise", 0.02))
        return [seconds * drift * self.random.lognormvariate(0.0, 0.01) for _ in range(params["runs"])]

    def kill(self) -> None:
        self.processes += 1


@pytest.fixture(autouse=True)
def _no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison_module, "Worker", Track)
    monkeypatch.setattr(comparison_module, "under_load", neighbour)


@contextmanager
def neighbour(comes: bool = True) -> Iterator[bool]:
    if comes:
        _neighbours.append("busy")
    try:
        yield comes
    finally:
        _neighbours.clear()


def run(*entries: Finalist, **options: Any) -> Comparison:
    return compare_end_to_end(entries, 1e-4, **options)


def entry(name: str, seconds: float, kernels: int = 1, seed: int = 0, **more: Any) -> Finalist:
    return Finalist(name, f"{name} {seed}", {"seconds": seconds, **more}, kernels, incumbent=kernels == 1)


def test_one_slow_moment_after_loading_does_not_disqualify() -> None:
    class Slow(Track):
        def call(self, method: str, timeout_s: float, **params: Any) -> Any:
            found = super().call(method, timeout_s, **params)
            slow = self.processes == 1 and self.rounds <= 2 and "mix" in self.service
            return [1.9 * seconds for seconds in found] if slow and method == "run" else found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison_module, "Worker", Slow)
        result = run(entry("single", 0.010), entry("mix", 0.009, 3), entry("far", 0.030))
    assert result.winner is not None
    assert result.winner.finalist.name == "mix"
    assert result.standings[2].time is not None
    assert result.standings[2].time.count == 3


def test_a_mix_that_is_clearly_faster_wins() -> None:
    result = run(entry("single", 0.010), entry("mix", 0.008, 3))
    assert result.winner is not None
    assert result.winner.finalist.name == "mix"
    assert result.speedup is not None
    assert 1.15 < result.speedup[1].low < result.speedup[0] < 1.35


def test_rivals_are_those_that_may_be_as_fast_as_the_winner() -> None:
    result = run(entry("single", 0.010), entry("near", 0.0101, 2), entry("slow", 0.0115), entry("hopeless", 0.1))
    assert result.winner is not None
    assert result.winner.finalist.name == "single"
    assert set(result.rivals) == {"near"}
    assert result.rivals["near"].low <= 1.0 <= result.rivals["near"].high


def test_a_winner_beyond_doubt_has_no_rivals() -> None:
    assert not run(entry("single", 0.010), entry("mix", 0.008, 3)).rivals
    assert not run(entry("single", 0.010)).rivals


def test_equal_things_are_told_apart_in_at_most_one_race_of_twenty() -> None:
    races = 200
    wins = sum(
        run(entry("single", 0.010, seed=seed), entry("mix", 0.010, 2, seed=seed)).winner.finalist.kernels > 1  # type: ignore[union-attr]
        for seed in range(races)
    )
    # Beyond 18 of 200, a rate of 5 % is ruled out at 99 %.
    assert wins <= 18


def test_a_small_gain_is_found_by_looking_longer() -> None:
    def wins(plan: ComparisonPlan) -> int:
        return sum(
            run(entry("single", 0.010, seed=s), entry("mix", 0.0098, 2, seed=s), plan=plan).winner.finalist.kernels  # type: ignore[union-attr]
            == 2
            for s in range(50)
        )

    short, long = wins(ComparisonPlan(choosing_rounds=(7,))), wins(ComparisonPlan())
    assert long > 2 * short
    assert long > 25


def test_contestants_that_are_large_are_never_there_together(monkeypatch: pytest.MonkeyPatch) -> None:
    there: set[str] = set()
    most = 0

    class Large(Track):
        def call(self, method: str, timeout_s: float, **params: Any) -> Any:
            nonlocal most
            there.add(self.service)
            most = max(most, len(there))
            return super().call(method, timeout_s, **params)

        def kill(self) -> None:
            there.discard(self.service)
            super().kill()

    monkeypatch.setattr(comparison_module, "Worker", Large)
    entries = entry("single", 0.010), entry("other", 0.011), entry("mix", 0.008, 3)
    assert run(*entries, plan=ComparisonPlan.of_model(1 << 20)).winner is not None
    assert most == len(entries)
    most = 0
    result = run(*entries, plan=ComparisonPlan.of_model(1 << 30))
    assert most == 1
    assert result.winner is not None
    assert result.winner.finalist.name == "mix"
    assert result.speedup is not None
    assert result.speedup[1].low > 1.1


def test_large_models_race_side_by_side_where_memory_is_plenty() -> None:
    gib = 1 << 30
    assert ComparisonPlan.of_model(gib // 2).one_at_a_time
    assert ComparisonPlan.of_model(gib // 2, 10 * gib).one_at_a_time
    assert not ComparisonPlan.of_model(gib // 2, 13 * gib).one_at_a_time
    assert not ComparisonPlan.of_model(gib // 8, gib).one_at_a_time


def blocks_by_name(monkeypatch: pytest.MonkeyPatch, *entries: Finalist) -> tuple[Counter[str], Comparison]:
    """In how many rounds each ran, and the result."""
    ran: Counter[str] = Counter()

    class Counting(Track):
        def call(self, method: str, timeout_s: float, **params: Any) -> Any:
            ran[self.service.split()[0]] += method == "run" and params["runs"] > 3
            if method == "run" and ran[self.service.split()[0]] in self.arguments.get("slow_in", ()):
                return [1.3 * seconds for seconds in super().call(method, timeout_s, **params)]
            return super().call(method, timeout_s, **params)

    monkeypatch.setattr(comparison_module, "Worker", Counting)
    return ran, run(*entries)


def test_who_is_beaten_in_each_of_the_first_rounds_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = entry("single", 0.010), entry("other", 0.0125), entry("bad", 0.012, 5), entry("good", 0.0085, 4)
    ran, result = blocks_by_name(monkeypatch, *entries)
    assert (ran["bad"], ran["other"]) == (3, 3)
    assert result.winner is not None and result.winner.finalist.name == "good"
    times = {standing.finalist.name: standing for standing in result.standings}
    assert times["bad"].time is not None and times["bad"].paired_s == pytest.approx(0.012, rel=0.05)


def test_who_keeps_up_in_one_of_them_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    ran, result = blocks_by_name(monkeypatch, entry("single", 0.010), entry("mix", 0.0085, 4, slow_in=(1, 3)))
    assert ran["mix"] > 7
    assert result.winner is not None and result.winner.finalist.name == "mix"


def test_a_choice_that_the_reporting_rounds_contradict_falls_back_to_the_best_single() -> None:
    result = run(entry("single", 0.010), entry("mix", 0.008, 3, honest=6))
    assert result.winner is not None
    assert result.winner.finalist.name == "single"
    assert result.speedup is not None
    assert result.speedup[0] == 1.0


def test_what_one_process_was_lucky_with_is_not_reported() -> None:
    result = run(entry("single", 0.010), entry("mix", 0.0105, 3, first_process=0.8))
    assert result.winner is not None
    assert result.winner.finalist.name == "single"
    small = run(entry("single", 0.010), entry("mix", 0.009, 3, first_process=0.8))
    assert small.speedup is not None
    assert small.speedup[0] == pytest.approx(10 / 9, rel=0.05)


def test_a_mix_has_to_lead_by_what_more_kernels_are_worth_in_fresh_processes_too() -> None:
    level = run(entry("single", 0.01, noise=0.0), entry("mix", 0.00998, 3, noise=0.0, first_process=0.9))
    assert level.winner is not None and level.winner.finalist.name == "single"
    lead = run(entry("single", 0.01, noise=0.0), entry("mix", 0.0097, 3, noise=0.0))
    assert lead.winner is not None and lead.winner.finalist.name == "mix"


def test_a_plan_is_compared_turn_by_turn_however_slow_the_machine_was_in_these_turns() -> None:
    # While the choosing rounds ran, everything took half as long again; the mix that loses them has no others.
    slow = {"first_process": 1.5}
    result = run(entry("single", 0.010, **slow), entry("mix", 0.012, 3, **slow), entry("far", 0.030, 2, **slow))
    single, mix, far = result.standings
    assert single.time is not None
    assert mix.time is not None
    assert mix.time.median_s == pytest.approx(0.018, rel=0.05)
    assert mix.paired_s == pytest.approx(0.012, rel=0.05)
    assert single.paired_s == pytest.approx(single.time.median_s)
    assert far.time is not None
    assert far.paired_s is None


def test_what_the_reference_took_in_another_process_does_not_count() -> None:
    # Where its first process found its memory made it half as slow again; that of the mix, which is raced in both, did not.
    result = run(entry("single", 0.010, first_process=1.5), entry("mix", 0.009, 3))
    mix = result.standings[1]
    assert mix.paired_s == pytest.approx(0.009, rel=0.05)


def test_legs_are_run_by_new_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    started = list[str]()
    monkeypatch.setattr(Track, "kill", lambda self: started.append(self.arguments["called"]))
    run(entry("a", 0.010, called="a"), entry("b", 0.008, called="b"), plan=ComparisonPlan(legs=3), winner="a")
    # The last one is when the race is over.
    assert started.count("a") == started.count("b") == 4


def test_a_single_far_from_the_winner_is_not_reported_on() -> None:
    result = run(entry("slow", 0.013), entry("single", 0.0105), entry("best", 0.010))
    slow, *near = [standing.time.count for standing in result.standings if standing.time]
    assert slow < min(near)


def test_a_named_winner_is_a_comparison_and_no_choice() -> None:
    result = run(entry("single", 0.010), entry("ours", 0.012, 2), winner="ours")
    assert result.winner is not None
    assert result.winner.finalist.name == "ours"
    assert result.speedup is not None
    assert result.speedup[0] == pytest.approx(10 / 12, rel=0.05)


TIE = (entry("first", 0.01, noise=0.0, beside=2.8), entry("second", 0.01001, noise=0.0, beside=1.9))


def test_of_those_that_tie_the_one_wins_that_loses_least_beside_a_busy_neighbour() -> None:
    result = run(*TIE)
    assert result.winner is not None and result.winner.finalist.name == "second"
    assert result.winner.under_load_s == pytest.approx(0.019, rel=0.02)
    assert result.speedup is not None and 0.99 <= result.speedup[0] < 1.01
    assert [standing.under_load_s is not None for standing in result.standings] == [True, True]
    assert not _neighbours


@pytest.mark.parametrize(
    "other", [entry("other", 0.0102, noise=0.0, beside=1.0), entry("other", 0.01, 2, noise=0.0, beside=1.0)]
)
def test_who_is_slower_alone_or_has_more_kernels_does_not_tie(other: Finalist) -> None:
    result = run(TIE[0], other)
    assert result.winner is not None and result.winner.finalist.name == "first"
    assert all(standing.under_load_s is None for standing in result.standings)


def test_a_tie_stays_one_where_no_neighbour_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison_module, "under_load", partial(neighbour, comes=False))
    result = run(*TIE)
    assert result.winner is not None and result.winner.under_load_s is None
    assert result.speedup is not None and result.speedup[0] >= 1.0


def test_who_broke_a_tie_and_falls_behind_afterwards_is_not_returned() -> None:
    rounds = 2 + 7 + 3  # Qualifying, choosing, beside a neighbour.
    result = run(TIE[0], entry("second", 0.01001, noise=0.0, beside=1.9, honest=rounds))
    assert result.winner is not None and result.winner.finalist.name == "first"


@pytest.mark.parametrize("after", [0, 1, 4, 12])
def test_whoever_dies_loses_and_the_others_go_on(after: int) -> None:
    result = run(entry("single", 0.010), entry("mix", 0.005, 3, dies_after=after))
    assert result.winner is not None
    assert result.winner.finalist.name == "single"
    assert [standing.status for standing in result.standings] == [Status.OK, Status.CRASH]


def test_wrong_answers_never_run() -> None:
    result = run(entry("single", 0.010), entry("mix", 0.005, 3, wrong="differs"))
    assert result.winner is not None
    assert result.winner.finalist.name == "single"
    assert result.standings[1].status is Status.WRONG


def test_nobody_is_left() -> None:
    result = run(entry("single", 0.010, wrong="differs"), entry("mix", 0.005, 3, dies_after=0))
    assert result.winner is None
    assert result.speedup is None
