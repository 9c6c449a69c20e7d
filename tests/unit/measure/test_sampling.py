"""How often a kernel is run before something is said of it, by a clock that says what it is told to."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.runtime.test_device_chain import PretendedDevice

from collage.measure.sampling import SamplingPlan, normalize, sample, sample_in_bursts

QUICK_S, HICCUP_S, SLOW_S = 30e-6, 20e-3, 0.5


class Clock(PretendedDevice):
    """Says of runs what they took, the last of it ever after."""

    def __init__(self, told: Iterable[float]) -> None:
        super().__init__()
        self.told = list(told)
        self.runs = 0

    def seconds(self, work: Callable[[], Any]) -> float:
        self.runs += 1
        return self.told.pop(0) if len(self.told) > 1 else self.told[0]


def timed(told: Iterable[float], abandon_above_s: float = 100e-6) -> tuple[list[float], int]:
    clock = Clock(told)
    return sample(lambda: None, [], SamplingPlan(abandon_above_s=abandon_above_s), clock), clock.runs


@pytest.mark.parametrize("hiccups", [1, 2, 3])
def test_a_quick_kernel_that_had_to_wait_is_not_taken_for_a_slow_one(hiccups: int) -> None:
    samples, _ = timed([*[HICCUP_S] * hiccups, QUICK_S])
    assert sorted(samples)[len(samples) // 2] == QUICK_S


def test_what_is_slow_and_hopeless_is_run_once() -> None:
    assert timed([SLOW_S]) == ([SLOW_S], 1)


def test_what_is_hopeless_is_run_three_times_after_the_first() -> None:
    assert timed([HICCUP_S]) == ([HICCUP_S] * 3, 4)


def test_what_has_a_chance_is_run_until_it_is_known() -> None:
    assert len(timed([QUICK_S])[0]) == SamplingPlan().least
    assert len(timed([SLOW_S], abandon_above_s=float("inf"))[0]) >= 3


class Bursts:
    """Says of the runs of each burst what they took, the last ever after, and of the machine how fast it is between them."""

    def __init__(self, runs: Iterable[Sequence[float]], paces: Iterable[float] = (1.0,)) -> None:
        self.runs, self.paces = list(runs), list(paces)
        self.plans: list[SamplingPlan] = []

    def burst(self, plan: SamplingPlan) -> Sequence[float]:
        self.plans.append(plan)
        return self.runs.pop(0) if len(self.runs) > 1 else self.runs[0]

    def slowdown(self) -> float:
        return self.paces.pop(0) if len(self.paces) > 1 else self.paces[0]

    def samples(self, **plan: float) -> list[float]:
        return sample_in_bursts(self.burst, self.slowdown, SamplingPlan(burst_s=0.06, **plan))  # type: ignore[arg-type]


@given(paces=st.lists(st.floats(1.2, 2.0), min_size=2, max_size=8), seconds=st.floats(1e-6, 10.0))
def test_what_is_as_much_slower_as_the_machine_takes_as_long_as_ever(paces: list[float], seconds: float) -> None:
    slower = [(math.sqrt(before * after) / 1.06) ** 0.9 for before, after in pairwise(paces)]
    bursts = Bursts([[seconds * by] * 3 for by in slower], paces)
    found = bursts.samples(most=2 * len(slower), budget_s=1e9, least=1000)
    assert found == pytest.approx([seconds] * 3 * len(slower))


def test_a_calm_machine_changes_nothing() -> None:
    assert normalize(3e-3, 1.0) == normalize(3e-3, 1.06) == 3e-3
    assert normalize(3e-3, 1.59) == pytest.approx(3e-3 / 1.5**0.9)


def test_only_calm_bursts_count_where_there_are_enough_of_them() -> None:
    bursts = Bursts([[9.0] * 7, [9.0] * 7, [QUICK_S] * 7], [1.5, 1.5, 1.05, 1.05])
    assert bursts.samples() == [QUICK_S] * 7


def test_on_a_machine_that_is_never_calm_the_calmest_bursts_count() -> None:
    bursts = Bursts([[QUICK_S] * 30, [2 * QUICK_S] * 30, [3 * QUICK_S] * 30], [1.6, 1.6, 1.3, 1.3, 1.5])
    found = bursts.samples(budget_s=1e9)
    assert found == pytest.approx([normalize(3 * QUICK_S, 1.3)] * 30)
    assert len(bursts.plans) == 3  # Half as many runs again as on a calm one, and no more.


def test_bursts_go_on_until_the_kernel_is_known() -> None:
    steady = Bursts([[QUICK_S] * 7])
    assert steady.samples() == [QUICK_S] * 7
    shaky = Bursts([[QUICK_S, 2 * QUICK_S]])
    assert len(shaky.samples()) == SamplingPlan().most
    hopeless = Bursts([[HICCUP_S] * 3])
    assert hopeless.samples(abandon_above_s=100e-6) == [HICCUP_S] * 3
    assert Bursts([[SLOW_S]]).samples(abandon_above_s=0.1) == [SLOW_S]


def test_what_is_hopeless_only_because_the_machine_is_slow_is_measured_on() -> None:
    bursts = Bursts([[110e-6] * 3], [1.5])
    assert len(bursts.samples(abandon_above_s=100e-6)) > 3


def test_only_short_kernels_warm_up_before_every_burst() -> None:
    for seconds, expected in ((QUICK_S, [True, True, True]), (0.1, [True, False, False])):
        bursts = Bursts([[seconds, 2 * seconds, 3 * seconds]])
        bursts.samples(budget_s=1e9, most=9)
        assert [plan.warm_up for plan in bursts.plans] == expected


def test_a_burst_ends_in_time() -> None:
    for burst_s, least, most in ((0.02, 1, 1000), (1e9, 1000, 1000)):
        plan = SamplingPlan(budget_s=1e9, burst_s=burst_s, least=1000, most=1000)
        assert least <= len(sample(lambda: time.sleep(0.001), [], plan)) <= most
    assert len(sample(lambda: time.sleep(0.001), [], SamplingPlan(burst_s=0.02, least=1000, most=1000))) < 30


def test_without_a_warm_up_the_first_run_is_timed() -> None:
    clock = Clock([SLOW_S, QUICK_S])
    assert sample(lambda: None, [], SamplingPlan(warm_up=False, most=2), clock) == [SLOW_S, QUICK_S]
