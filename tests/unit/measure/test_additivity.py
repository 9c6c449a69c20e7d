"""Kernels beside the plan that they make, on a machine that is never the same for long."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from collage._errors import WorkerDied
from collage.measure import additivity as additivity_module
from collage.measure.additivity import TimedPart, check_additivity
from collage.measure.comparison import Finalist


class Machine:
    """Drifts by a tenth from moment to moment, and by half from the beginning to the end."""

    def __init__(self) -> None:
        self.random = random.Random(1)
        self.slowness, self.drift = 1.0, 1.003
        self.runs: list[int] = []

    def seconds(self, calm_s: float) -> float:
        self.slowness = min(self.slowness * self.drift, 1.5)
        return calm_s * self.slowness * self.random.uniform(0.95, 1.05)

    def kernel(self, calm_s: float) -> Callable[[], float]:
        return lambda: self.seconds(calm_s)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()

    class Whole:
        def __init__(self, service: str, arguments: Mapping[str, Any]) -> None:
            self.arguments = arguments

        def __enter__(self) -> Whole:
            return self

        def __exit__(self, *_: object) -> None: ...

        def call(self, method: str, timeout_s: float, runs: int, warm_up: int) -> list[float]:
            assert method == "run"
            if self.arguments.get("dies"):
                raise WorkerDied("gone")
            machine.runs.append(runs)
            return [machine.seconds(self.arguments["seconds"]) for _ in range(runs)]

    monkeypatch.setattr(additivity_module, "Worker", Whole)
    return machine


def whole(seconds: float, **more: Any) -> Finalist:
    return Finalist("whole", "service", {"seconds": seconds, **more})


def test_what_the_machine_does_to_both_is_no_error(machine: Machine) -> None:
    parts = [TimedPart(machine.kernel(seconds)) for seconds in (0.001, 0.004, 0.003)]
    found = check_additivity(whole(0.010), parts)
    assert found is not None
    assert found.parts == pytest.approx(0.8, rel=0.04)
    assert machine.slowness > 1.3
    assert 0.010 < found.whole_s < 0.010 * machine.slowness


def test_times_count_for_which_the_whole_was_fastest(machine: Machine) -> None:
    machine.drift, visits = 1.0, iter([1.0, 1.0, 1.4, 1.4, 1.4])

    def kernel() -> float:
        # What disturbs the whole disturbs the kernel more, as kernels on all cores are.
        machine.slowness = next(visits)
        return 0.005 * machine.slowness**2

    found = check_additivity(whole(0.010), [TimedPart(kernel)])
    assert found is not None
    assert found.parts == pytest.approx(0.5, rel=0.05)


def test_it_waits_for_a_calm_machine_before_each_kernel(machine: Machine) -> None:
    waited: list[int] = []
    check_additivity(whole(0.010), [TimedPart(machine.kernel(0.001))] * 3, wait=lambda: waited.append(1))
    assert len(waited) == 3


def test_equal_kernels_are_timed_once_and_count_as_often_as_there_are(machine: Machine) -> None:
    found = check_additivity(whole(0.010), [TimedPart(machine.kernel(0.002), 3), TimedPart(machine.kernel(0.004))])
    assert found is not None
    assert found.parts == pytest.approx(1.0, rel=0.04)


def test_many_kernels_are_visited_once_each(machine: Machine) -> None:
    called: list[int] = []

    def kernel(number: int) -> Callable[[], float]:
        return lambda: called.append(number) or 0.001 * (1 + len(called) % 2)  # type: ignore[func-returns-value]

    check_additivity(whole(0.001), [TimedPart(kernel(n)) for n in range(100)])
    assert called == list(range(100))
    called.clear()
    check_additivity(whole(0.001), [TimedPart(kernel(0)), TimedPart(kernel(1))])
    assert called == [0] * 5 + [1] * 5


def test_where_the_first_visits_agree_there_are_no_others(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[int] = []
    monkeypatch.setattr(machine.random, "uniform", lambda *_: 1.0)
    machine.drift = 1.0
    check_additivity(whole(0.001), [TimedPart(lambda: called.append(1) or 0.001)])  # type: ignore[func-returns-value]
    assert len(called) == 3


def test_what_would_take_minutes_is_not_done(machine: Machine) -> None:
    called: list[int] = []
    assert check_additivity(whole(3.0), [TimedPart(lambda: called.append(1) or 1.0)] * 5) is None  # type: ignore[func-returns-value]
    assert called == []


def test_a_whole_that_dies_is_an_error(machine: Machine) -> None:
    with pytest.raises(WorkerDied):
        check_additivity(whole(0.01, dies=True), [TimedPart(machine.kernel(0.01))])


def test_short_runs_are_run_more_often(machine: Machine) -> None:
    check_additivity(whole(0.001), [TimedPart(machine.kernel(0.001))])
    assert machine.runs[1] > 50
    machine.runs.clear()
    check_additivity(whole(0.5), [TimedPart(machine.kernel(0.1))])
    assert set(machine.runs) == {1}
