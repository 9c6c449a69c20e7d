"""The finals, with contestants whose latencies are drawn instead of measured."""

from __future__ import annotations

import contextlib
import random
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collage._errors import WorkerDied
from collage.cost.statistics import Interval
from collage.measure import race as race_module
from collage.measure import track as track_module
from collage.measure import turns as turns_module
from collage.measure.finalist import THROUGHPUT, Finalist
from collage.measure.race import Comparison, near_again, race
from collage.measure.track import ComparisonPlan
from collage.status import Status


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
            return {"max_abs": 0.0, "max_rel": 0.0, "wrong": self.arguments.get("wrong"), "doubts": []}
        self.rounds += 1
        if self.rounds > self.arguments.get("dies_after", 10**9):
            raise WorkerDied("gone")
        seconds = self.arguments["seconds"] if self.rounds < 3 + self.arguments.get("honest", 10**9) else 0.02
        if self.processes == 1:
            seconds *= self.arguments.get("first_process", 1.0)
        drift = self.random.lognormvariate(0.0, self.arguments.get("noise", 0.02))
        return [seconds * drift * self.random.lognormvariate(0.0, 0.01) for _ in range(params["runs"])]

    def start(self) -> None:
        pass

    def kill(self) -> None:
        self.processes += 1


@pytest.fixture(autouse=True)
def _no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(track_module, "Worker", Track)
    # Nothing is measured here that others could disturb.
    monkeypatch.setattr(track_module, "build_lock", contextlib.nullcontext)
    for module in (race_module, turns_module):
        monkeypatch.setattr(module, "measurement_lock", contextlib.nullcontext)


def run(*entries: Finalist, **options: Any) -> Comparison:
    return race(entries, 1e-4, **options)


def entry(name: str, seconds: float, kernels: int = 1, seed: int = 0, **more: Any) -> Finalist:
    return Finalist(name, f"{name} {seed}", {"seconds": seconds, **more}, kernels, incumbent=kernels == 1)


def test_one_slow_moment_after_loading_does_not_disqualify() -> None:
    class Slow(Track):
        def call(self, method: str, timeout_s: float, **params: Any) -> Any:
            found = super().call(method, timeout_s, **params)
            slow = self.processes == 1 and self.rounds <= 3 and "mix" in self.service
            return [1.9 * seconds for seconds in found] if slow and method == "run" else found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(track_module, "Worker", Slow)
        result = run(entry("single", 0.010), entry("mix", 0.009, 3), entry("far", 0.030))
    assert result.winner is not None
    assert result.winner.finalist.name == "mix"
    assert result.standings[2].time is None
    assert all(ratio == pytest.approx(3.0, rel=0.2) for ratio in result.standings[2].slower)
    assert len(result.standings[2].slower) == 2


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

    short, long = wins(ComparisonPlan(deciding_rounds=7, most_rounds=7, reporting_rounds=7)), wins(ComparisonPlan())
    assert long > 2 * short
    assert long > 25


@pytest.mark.parametrize(("gain", "least", "most"), [(0.0, 15, 16), (0.005, 15, 18), (0.02, 15, 20)])
def test_a_lead_of_less_than_a_hundredth_is_worth_no_more_rounds(gain: float, least: int, most: int) -> None:
    lines: list[str] = []
    for seed in range(50):
        run(entry("single", 0.010, seed=seed), entry("mix", 0.010 * (1 - gain), 2, seed=seed), say=lines.append)
    assert least <= sum("choosing" in line for line in lines) / 50 <= most


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

    monkeypatch.setattr(track_module, "Worker", Large)
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


def blocks_by_name(
    monkeypatch: pytest.MonkeyPatch, *entries: Finalist, **options: Any
) -> tuple[Counter[str], Comparison]:
    """In how many rounds each ran, and the result."""
    ran: Counter[str] = Counter()

    class Counting(Track):
        def call(self, method: str, timeout_s: float, **params: Any) -> Any:
            ran[self.service.split()[0]] += method == "run" and params["runs"] > 1
            if method == "run" and ran[self.service.split()[0]] in self.arguments.get("slow_in", ()):
                return [1.3 * seconds for seconds in super().call(method, timeout_s, **params)]
            return super().call(method, timeout_s, **params)

    monkeypatch.setattr(track_module, "Worker", Counting)
    return ran, run(*entries, **options)


def test_a_plan_that_is_slower_beyond_doubt_is_not_reported_on(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = entry("single", 0.010), entry("other", 0.011), entry("bad", 0.01005, 5), entry("good", 0.0085, 4)
    ran, result = blocks_by_name(monkeypatch, *entries)
    assert ran["bad"] == 4 + 3 and ran["single"] == ran["good"] == 4 + 22
    assert result.winner is not None and result.winner.finalist.name == "good"
    times = {standing.finalist.name: standing for standing in result.standings}
    assert times["bad"].lost and times["bad"].time is None and times["bad"].ratio is not None
    assert times["bad"].ratio[0] == pytest.approx(10.05 / 8.5, rel=0.05)
    assert times["single"].time is not None


def test_a_single_toolchain_that_is_close_has_a_second_process(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = entry("best", 0.010), entry("close", 0.0104), entry("behind", 0.0112)
    ran, result = blocks_by_name(monkeypatch, *entries)
    assert ran["best"] >= 4 + 22 and ran["close"] >= 4 + 7 + 7 and ran["behind"] == 4 + 7
    best, close, behind = result.standings
    assert close.time is not None and not close.lost
    assert behind.lost and behind.ratio is not None and behind.ratio[0] == pytest.approx(1.12, rel=0.03)
    assert best.time is not None


def test_a_clear_loser_is_told_after_three_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    baseline = Finalist("file", "file 0", {"seconds": 0.013}, is_candidate=False)
    entries = (
        entry("single", 0.010),
        entry("other", 0.0115),
        entry("mix", 0.0081, 2),
        entry("slow", 0.0113, 3),
        baseline,
    )
    ran, result = blocks_by_name(monkeypatch, *entries)
    assert ran["other"] == ran["slow"] == 4 + 3
    # The gain is told of the best single toolchain and the baseline, however slow.
    assert ran["single"] == ran["mix"] == 4 + 22 and ran["file"] >= 7
    assert result.winner is not None and result.winner.finalist.name == "mix"
    assert [standing.lost for standing in result.standings] == [False, True, False, True, False]


def test_what_is_short_is_neither_lost_early_nor_left_out_of_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    # The thread pool of its first process is disturbed.
    entries = entry("single", 0.0010), entry("other", 0.0009, first_process=1.6), entry("mix", 0.0012, 3)
    ran, result = blocks_by_name(monkeypatch, *entries)
    assert ran["mix"] >= 7
    assert result.winner is not None and result.winner.finalist.name == "other"


def test_a_brief_race_reports_the_choice_the_best_single_and_the_rival(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rival = Finalist("rival", "rival 0", {"seconds": 0.012}, is_candidate=False)
    entries = entry("single", 0.010), entry("other", 0.0125), entry("near", 0.0085, 5), entry("good", 0.0085, 4), rival
    ran, result = blocks_by_name(monkeypatch, *entries, plan=ComparisonPlan(is_brief=True))
    assert ran["other"] == 4 + 3 and ran["near"] == 4 + 15
    assert ran["single"] == 4 + 7 + 15 and ran["good"] == 4 + 15 + 15
    assert result.winner is not None and result.winner.finalist.name == "good"
    times = {standing.finalist.name: standing for standing in result.standings}
    assert times["other"].time is None and times["other"].ratio is not None
    assert times["other"].ratio[0] == pytest.approx(12.5 / 8.5, rel=0.05)
    assert times["rival"].time is not None and times["rival"].ratio is not None
    assert times["rival"].ratio[0] == pytest.approx(12 / 8.5, rel=0.05)


def test_what_is_far_slower_is_reported_by_fewer_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    far = Finalist("file", "file 0", {"seconds": 0.08}, is_candidate=False)
    ran, result = blocks_by_name(monkeypatch, entry("single", 0.010), entry("other", 0.01001), far)
    assert ran["single"] == ran["other"] == 4 + 30 and ran["file"] < 4 + 15
    times = {standing.finalist.name: standing for standing in result.standings}
    assert times["file"].ratio is not None and times["file"].ratio[0] == pytest.approx(8.0, rel=0.05)
    assert times["other"].ratio is not None and len(times["other"].rounds_s) == 15
    assert len(times["file"].rounds_s) == 7


@pytest.mark.parametrize(("seconds", "factor", "rounds"), [(0.02, 1.05, 15), (0.2, 1.04, 7)])
def test_only_what_the_gain_is_told_of_has_all_rounds_if_they_take_long(
    seconds: float, factor: float, rounds: int
) -> None:
    baseline = Finalist("file", "file 0", {"seconds": 1.1 * seconds}, is_candidate=False)
    entries = entry("single", seconds), entry("other", factor * seconds), entry("near", 1.0005 * seconds), baseline
    single, other, near, file = (len(each.rounds_s) for each in run(*entries).standings)
    assert other == 7 and near == rounds and single == file == 15


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


def test_a_mix_has_to_lead_beyond_doubt_in_fresh_processes_too() -> None:
    level = run(entry("single", 0.01, seed=1, noise=0.0), entry("mix", 0.01, 3, noise=0.0, first_process=0.9))
    assert level.winner is not None and level.winner.finalist.name == "single"
    assert level.overruled == "mix"
    lead = run(entry("single", 0.01, noise=0.0), entry("mix", 0.0097, 3, noise=0.0))
    assert lead.winner is not None and lead.winner.finalist.name == "mix"
    assert lead.overruled is None


def test_a_mix_that_leads_is_given_rounds_to_prove_it() -> None:
    def wins(gain: float, plan: ComparisonPlan) -> int:
        count = 0
        for seed in range(60):
            single = entry("single", 0.010, seed=seed, noise=0.05)
            mix = entry("mix", 0.010 / gain, 2, seed=seed, noise=0.05)
            winner = run(single, mix, plan=plan).winner
            count += winner is not None and winner.finalist.kernels == 2
        return count

    short, usual = ComparisonPlan(most_rounds=15), ComparisonPlan()
    assert wins(1.05, usual) > 40 > wins(1.05, short) + 8
    assert wins(1.0, usual) <= 3


def test_all_that_is_reported_is_of_one_phase() -> None:
    # While the choosing rounds ran, everything took half as long again.
    slow = {"first_process": 1.5}
    result = run(entry("single", 0.010, **slow), entry("mix", 0.0098, 3, **slow), entry("far", 0.030, 2, **slow))
    single, mix, far = result.standings
    for standing, seconds in ((single, 0.010), (mix, 0.0098)):
        if standing.time is not None:
            assert standing.time.median_s == pytest.approx(seconds, rel=0.05)
            assert standing.paired_s == pytest.approx(seconds, rel=0.05)
            assert len(standing.rounds_s) >= 15
    assert far.time is None and far.paired_s is None and far.ratio is None


def test_what_is_only_compared_with_is_never_returned_and_may_be_wrong() -> None:
    baseline = Finalist("baseline", "baseline 0", {"seconds": 0.005, "wrong": "differs"}, is_candidate=False)
    result = run(entry("single", 0.010), entry("mix", 0.008, 3), baseline)
    assert result.winner is not None and result.winner.finalist.name == "mix"
    standing = result.standings[2]
    assert standing.ratio is not None and standing.ratio[0] == pytest.approx(5 / 8, rel=0.05)
    assert standing.reason == "differs" and "baseline" not in result.rivals


class Disturbed(Track):
    """A finalist that its thread pool slows for its first runs, and that then runs as fast as it can."""

    def call(self, method: str, timeout_s: float, **params: Any) -> Any:
        found = super().call(method, timeout_s, **params)
        is_slow = self.processes == 1 and self.rounds <= self.arguments.get("disturbed", 0)
        return [self.arguments.get("factor", 4.0) * each for each in found] if is_slow and method == "run" else found


# The first run, three more, and four turns of the first sample.
SAMPLED = 1 + 3 + 4


def test_what_was_slow_for_a_moment_is_compared_and_may_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(track_module, "Worker", Disturbed)
    said: list[str] = []
    fast = entry("fast", 0.008, disturbed=SAMPLED)
    result = run(entry("single", 0.010), entry("third", 0.011), fast, say=said.append)
    assert any("fast was slow for a moment only" in line for line in said)
    assert result.winner is not None and result.winner.finalist.name == "fast" and not result.winner.slower


def test_what_is_slow_in_both_samples_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(track_module, "Worker", Disturbed)
    result = run(entry("single", 0.010), entry("far", 0.016), entry("near", 0.014))
    far, near = result.standings[1:]
    assert far.time is None and far.slower == pytest.approx((1.6, 1.6), rel=0.05)
    assert near.ratio is not None and not near.slower


@given(st.lists(st.floats(0.00002, 0.0019), min_size=2, max_size=5), st.floats(1.0, 14.0), st.integers(0, SAMPLED))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_below_two_milliseconds_nothing_is_left_out(seconds: list[float], factor: float, disturbed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(track_module, "Worker", Disturbed)
        *_, last = seconds
        entries = [entry(f"e{i}", each) for i, each in enumerate(seconds[:-1])]
        result = run(*entries, entry("last", last, disturbed=disturbed, factor=min(factor, 0.0019 / last)))
    assert all(standing.ratio is not None and not standing.slower for standing in result.standings)


def test_what_was_left_out_is_qualified_again_beside_the_returned_plan() -> None:
    left_out = entry("far", 0.030), entry("near", 0.011), entry("dead", 0.005, dies_after=0)
    assert near_again(entry("mix", 0.010, 3), left_out, 1e-4) == ["near"]
    assert near_again(entry("mix", 0.010, 3, dies_after=0), left_out, 1e-4) == []


def test_a_figure_of_throughput_is_raced_like_a_latency() -> None:
    class Serving(Track):
        def call(self, method: str, timeout_s: float, **params: Any) -> Any:
            if method != "serve":
                return super().call(method, timeout_s, **params)
            (seconds,) = super().call("run", timeout_s, runs=1)
            return {"runs_per_s": 1.0 / seconds, "p99_s": 2 * seconds}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(track_module, "Worker", Serving)
        result = run(entry("single", 0.010), entry("mix", 0.008, 3), entry("far", 0.1), figure=THROUGHPUT)
    assert result.winner is not None and result.winner.finalist.name == "mix"
    assert result.winner.details["p99_s"] == pytest.approx(0.016, rel=0.2) and result.standings[2].slower


def test_the_best_single_of_the_models_own_precision_is_raced_however_slow() -> None:
    reduced = Finalist("bf16", "bf16 0", {"seconds": 0.002}, incumbent=True, is_reduced=True)
    result = run(reduced, entry("own", 0.010), entry("far", 0.011))
    assert [standing.ratio is not None for standing in result.standings] == [True, True, False]


def test_what_is_far_slower_than_the_choice_is_not_run_again_for_the_report() -> None:
    narrow = Finalist("w4", "w4 0", {"seconds": 0.0003}, incumbent=True, is_reduced=True)
    wide = Finalist("int8", "int8 0", {"seconds": 0.0009}, incumbent=True, is_reduced=True)
    result = run(narrow, wide, entry("own", 0.0010), entry("far", 0.0011))
    times = {standing.finalist.name: standing for standing in result.standings}
    # The gain is told of the fastest target in the model's own precision, too.
    assert [len(times[name].rounds_s) for name in ("w4", "int8", "own", "far")] == [7, 0, 7, 0]
    assert times["int8"].ratio is not None and times["int8"].ratio[0] == pytest.approx(3.0, rel=0.05)


def test_one_finalist_is_timed_in_new_processes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    ran, result = blocks_by_name(monkeypatch, entry("single", 0.010))
    assert ran["single"] == 4 + 7
    assert result.winner is not None and result.winner.time is not None and result.speedup == (1.0, Interval(1.0, 1.0))


def test_a_phase_ends_with_its_time() -> None:
    plan = ComparisonPlan(phase_s=1.5, block_s=0.05)
    result = run(entry("single", 0.010), entry("mix", 0.0101, 2, noise=0.2), plan=plan)
    assert result.standings[0].time is not None
    assert 7 <= len(result.standings[0].rounds_s) < 20


class Timed(Track):
    """A worker on a clock that goes on only while it loads and runs."""

    now = 0.0

    def call(self, method: str, timeout_s: float, **params: Any) -> Any:
        if self.processes > self.rounds_loaded:
            self.rounds_loaded = self.processes
            Timed.now += self.arguments.get("load_s", 0.5)
        samples = super().call(method, timeout_s, **params)
        if method == "run":
            Timed.now += sum(samples) * (1 + params["warm_up"] / params["runs"])
        return samples

    rounds_loaded = 0


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    budget_s=st.floats(2.0, 30.0),
    seconds=st.lists(st.floats(0.0005, 0.08), min_size=6, max_size=8),
    loads=st.lists(st.floats(0.5, 2.5), min_size=8, max_size=8),
)
def test_a_comparison_ends_in_time(
    monkeypatch: pytest.MonkeyPatch, budget_s: float, seconds: list[float], loads: list[float]
) -> None:
    monkeypatch.setattr(track_module, "Worker", Timed)
    monkeypatch.setattr(track_module.time, "monotonic", lambda: Timed.now)
    entries = [entry(f"e{i}", s, 1 + (i > 1), load_s=loads[i]) for i, s in enumerate(seconds)]
    Timed.now = 100.0
    result = run(*entries, plan=ComparisonPlan(ends_at=100.0 + budget_s))
    # What the first needs, it gets in any case; loads are not known before.
    least_s = loads[0] + (4 * 2 + 2 * 7 * 2) * seconds[0]
    assert Timed.now - 100.0 <= max(budget_s, least_s) * 1.1 + 2.5
    assert result.winner is not None
    assert result.standings[0].finalist.name == "e0"


def test_a_budget_that_is_ample_leaves_nothing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(track_module, "Worker", Timed)
    monkeypatch.setattr(track_module.time, "monotonic", lambda: Timed.now)
    entries = [entry("single", 0.010), entry("mix", 0.008, 3), entry("mix 2", 0.009, 3)]
    result = run(*entries, plan=ComparisonPlan(ends_at=Timed.now + 1000.0))
    assert result.winner is not None and result.winner.finalist.name == "mix"
    assert len(result.standings) == 3


def test_legs_are_run_by_new_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    started = list[str]()
    monkeypatch.setattr(Track, "kill", lambda self: started.append(self.arguments["called"]))
    run(entry("a", 0.010, called="a"), entry("b", 0.008, called="b"), plan=ComparisonPlan(legs=3), winner="a")
    # The last one is when the race is over.
    assert started.count("a") == started.count("b") == 4


def test_a_named_winner_is_a_comparison_and_no_choice() -> None:
    result = run(entry("single", 0.010), entry("ours", 0.012, 2), winner="ours")
    assert result.winner is not None
    assert result.winner.finalist.name == "ours"
    assert result.speedup is not None
    assert result.speedup[0] == pytest.approx(10 / 12, rel=0.05)


@pytest.mark.parametrize("after", [0, 1, 4, 12])
def test_whoever_dies_loses_and_the_others_go_on(after: int) -> None:
    result = run(entry("single", 0.010), entry("mix", 0.005, 3, dies_after=after))
    assert result.winner is not None
    assert result.winner.finalist.name == "single"
    assert [standing.status for standing in result.standings] == [Status.OK, Status.CRASHED]


def test_wrong_answers_never_run() -> None:
    result = run(entry("single", 0.010), entry("mix", 0.005, 3, wrong="differs"))
    assert result.winner is not None
    assert result.winner.finalist.name == "single"
    assert result.standings[1].status is Status.WRONG


def test_nobody_is_left() -> None:
    result = run(entry("single", 0.010, wrong="differs"), entry("mix", 0.005, 3, dies_after=0))
    assert result.winner is None
    assert result.speedup is None


def check_consistent(result: Comparison) -> None:
    """Nothing that is printed contradicts what is returned."""
    if result.winner is None:
        return
    winner = result.winner.finalist
    for standing in result.standings:
        if standing.ratio is None or standing.finalist.name == winner.name:
            continue
        value, interval = standing.ratio
        assert interval.low <= value <= interval.high
        if standing.finalist.is_candidate:
            assert interval.high >= 1.0, f"{standing.finalist.name} is faster beyond doubt than what is returned"
        if standing.finalist.incumbent and not winner.incumbent:
            assert interval.low > 1.0, "a mix is returned that is not faster beyond doubt than every single"
        if not standing.rounds_s:  # Of the choosing phase.
            assert interval.low > 1.0
            continue
        rounds = [a / b for a, b in zip(standing.rounds_s, result.winner.rounds_s, strict=True)]
        assert value == pytest.approx(statistics.median(rounds))
    if result.speedup is not None:
        assert result.speedup[0] == min(
            standing.ratio[0] for standing in result.standings if standing.finalist.incumbent and standing.ratio
        )


class Restless(Track):
    """A machine with a load that comes and goes, for some longer than for others, and processes that die."""

    def call(self, method: str, timeout_s: float, **params: Any) -> Any:
        found = super().call(method, timeout_s, **params)
        if method != "run" or (phases := self.arguments.get("phases")) is None:
            return found
        load = phases[self.rounds % len(phases)]
        return [load * seconds for seconds in found]


finalists = st.lists(
    st.tuples(
        st.floats(0.008, 0.0125),
        st.integers(1, 4),
        st.lists(st.sampled_from([1.0, 1.0, 1.0, 1.02, 1.3, 2.0]), min_size=1, max_size=7),
        st.sampled_from([10**9, 10**9, 10**9, 3, 9, 20]),
        st.booleans(),
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(finalists, st.integers(0, 5), st.sampled_from([0.0, 0.005, 0.05]))
def test_no_comparison_contradicts_itself(
    drawn: Sequence[tuple[float, int, list[float], int, bool]], seed: int, noise: float
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(track_module, "Worker", Restless)
        entries = []
        for i, (seconds, kernels, phases, dies_after, is_candidate) in enumerate(drawn):
            arguments = {"seconds": seconds, "phases": phases, "noise": noise, "dies_after": dies_after}
            more = {"is_candidate": is_candidate or i == 0}
            is_single = more["is_candidate"] and kernels == 1
            entries.append(Finalist(f"f{i}", f"f{i} {seed}", arguments, kernels, incumbent=is_single, **more))
        check_consistent(run(*entries, plan=ComparisonPlan(block_s=0.03)))


def test_if_the_rounds_themselves_are_a_circle_one_is_returned() -> None:
    """Of five plans, each faster than the next in four rounds of five, none is the fastest."""
    circle = [[1.0, 1.01, 1.02, 1.03, 1.04][i:] + [1.0, 1.01, 1.02, 1.03, 1.04][:i] for i in range(5)]

    class Circle(Track):
        def call(self, method: str, timeout_s: float, **params: Any) -> Any:
            if method == "check":
                return {"max_abs": 0.0, "max_rel": 0.0, "wrong": None, "doubts": []}
            self.rounds += 1
            return [0.01 * circle[int(self.service[1])][self.rounds % 5]] * params["runs"]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(track_module, "Worker", Circle)
        result = run(*(entry(f"f{i}", 0.01) for i in range(5)))
    assert result.winner is not None
