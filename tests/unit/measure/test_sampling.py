"""How often a kernel is run before something is said of it, by a clock that says what it is told to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from tests.unit.runtime.test_device_chain import PretendedDevice

from collage.measure.sampling import SamplingPlan, sample

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


def test_steady_kernels_are_run_seldom_and_shaky_ones_often() -> None:
    assert timed([QUICK_S])[0] == [QUICK_S] * SamplingPlan().least
    shaky = [QUICK_S, 2 * QUICK_S] * 40
    assert len(timed(shaky, abandon_above_s=float("inf"))[0]) == SamplingPlan().most


def test_the_first_run_warms_up_and_does_not_count() -> None:
    assert sample(lambda: None, [], SamplingPlan(most=1), Clock([SLOW_S / 2, QUICK_S])) == [QUICK_S]
