"""How fast a machine is, and waiting for a noisy one, with products whose times are given."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from collage.database.database import Database
from collage.measure import noise_monitor as noise_monitor_module
from collage.measure.noise_monitor import PATIENCE_VARIABLE, NoiseMonitor
from collage.workers.worker import Worker


class Machine(NoiseMonitor):
    """Takes what it is told for a product, the last figure for ever; is known to have taken 0.2 ms, or what is known of it."""

    def __init__(self, database: Database, *milliseconds: float, patience_s: float = 30.0, known: bool = True) -> None:
        self.said: list[str] = []
        super().__init__(database, self.said.append, patience_s)
        self.times: Iterator[float] = iter(milliseconds)
        self.last = 0.0
        self.probes = 0
        if known and database.local_fact(**self._name) is None:
            database.keep_local_fact(0.2e-3, **self._name)

    def _probe(self) -> tuple[float, float]:
        self.probes += 1
        self.last = next(self.times, self.last)
        return self.last * 1e-3, self.last * 1e-3


@pytest.fixture
def database() -> Iterator[Database]:
    with Database("sqlite:///:memory:") as opened:
        yield opened


@pytest.fixture(autouse=True)
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    pauses: list[float] = []
    monkeypatch.setattr(noise_monitor_module.time, "sleep", pauses.append)
    return pauses


def test_a_calm_machine_is_not_waited_for(database: Database, slept: list[float]) -> None:
    machine = Machine(database, 0.2, 0.21, 0.19, 0.21)
    assert all(machine.wait() for _ in range(4))
    assert not slept
    assert not machine.said


def test_a_noisy_one_is_waited_for_and_said_once(database: Database, slept: list[float]) -> None:
    machine = Machine(database, 0.2, 0.3, 0.3, 0.31, 0.2)
    assert machine.wait()
    assert machine.wait()
    assert len(slept) == 3
    assert machine.said == ["waiting for the machine to calm down"]


def test_the_fastest_product_is_remembered(database: Database) -> None:
    assert Machine(database, 0.2).is_quiet()
    assert not Machine(database, 0.3).is_quiet()
    assert Machine(database, 0.1).is_quiet()
    assert not Machine(database, 0.2).is_quiet()


def test_patience_ends(database: Database, slept: list[float]) -> None:
    machine = Machine(database, 0.2, 0.9, patience_s=5.0)
    assert machine.wait()
    assert [machine.wait() for _ in range(4)] == [False, False, True, True]
    assert sum(slept) == machine.waited_s == pytest.approx(5.0, abs=0.11)
    probes = machine.probes
    assert machine.wait()
    assert machine.probes == probes


def test_a_machine_that_stays_slow_is_waited_for_less_and_less(database: Database, slept: list[float]) -> None:
    slow = [0.9] * 150
    machine = Machine(database, 0.2, *slow, 0.2, *slow, patience_s=1000.0)
    assert machine.wait()
    waits = []
    for _ in range(8):
        before_s = machine.waited_s
        machine.wait()
        waits.append(machine.waited_s - before_s)
    assert waits == pytest.approx([3.0, 1.5, 0.8, 0.4, 0.2, 0.1, 0.1, 0.1], abs=0.11)
    while not machine.wait():
        pass
    before_s = machine.waited_s
    assert not machine.wait()
    assert machine.waited_s - before_s == pytest.approx(3.0, abs=0.11)


def test_what_the_machine_was_not_calm_after_is_measured_again(database: Database) -> None:
    machine = Machine(database, 0.2, 0.2, 0.9, 0.2, 0.2)
    assert machine.wait()
    results = iter([0.3, 0.2, 0.1])
    assert machine.samples(lambda: [next(results)]) == [0.2]
    # A few times only; then the fastest counts. What takes long is not tried again.
    machine = Machine(database, 0.2, 0.9, patience_s=100.0)
    assert machine.wait()
    results = iter([0.2, 0.3, 0.4, 1.1, 0.1])
    assert machine.samples(lambda: [next(results)]) == [0.2]
    assert machine.samples(lambda: [next(results)]) == [1.1]
    assert list(results) == [0.1]


def test_what_was_timed_has_the_pace_of_before_and_after(database: Database) -> None:
    machine = Machine(database, 0.2, 0.22, 0.2, 0.2, 0.2, 0.9, 0.2, 0.2, 0.22, 0.22, 0.22)
    assert machine.slowdown_met == 1.0
    machine.samples(lambda: [0.2])
    assert machine.slowdown_met == pytest.approx(1.1**0.5)
    machine.samples(lambda: [0.2])
    assert machine.slowdown_met == pytest.approx((1.0 + 1.1**0.5) / 2)
    # Timed again, the pace is that of what counts.
    results = iter([0.3, 0.2])
    assert machine.samples(lambda: [next(results)]) == [0.2]
    assert machine.slowdown_met == pytest.approx(1.0)
    machine.renew()
    assert machine.slowdown_met == 1.0
    machine.samples(lambda: [0.2])
    assert machine.slowdown_met == pytest.approx(1.1)
    # Where nobody waits any longer, nobody looks before: what was seen last is not long ago.
    machine = Machine(database, 0.2, 0.28, 0.22, 0.3, patience_s=0.05)
    assert [machine.wait() for _ in range(3)] == [True, True, True]
    assert machine.samples(lambda: [0.2]) == [0.2]
    assert machine.slowdown_met == pytest.approx((1.4 * 1.1) ** 0.5)


def test_patience_can_be_renewed(database: Database) -> None:
    machine = Machine(database, 0.2, 0.9, patience_s=8.0)
    assert machine.wait()
    while machine.probes < 1000 and not machine.wait():
        pass
    assert machine.waited_s == pytest.approx(8.0, abs=0.11)
    machine.renew()
    assert not machine.is_quiet()
    while machine.probes < 1000 and not machine.wait():
        pass
    assert machine.waited_s == pytest.approx(16.0, abs=0.21)


def test_without_patience_nobody_looks(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(database, 0.2, patience_s=0.0)
    assert machine.wait()
    assert machine.slowdown() == 1.0
    assert not machine.probes
    for said, left_s in {"7": 7.0, "none": 4.0, "0": 0.0}.items():
        monkeypatch.setenv(PATIENCE_VARIABLE, said)
        assert NoiseMonitor(database, print)._patience_s == left_s


@pytest.mark.parametrize(
    ("product_ms", "patience_s", "is_known"), [(0.2, 30.0, True), (0.28, 30.0, False), (0.2, 0.0, False)]
)
def test_a_machine_is_known_to_be_quiet_only_if_it_was_looked_at(
    database: Database, product_ms: float, patience_s: float, is_known: bool
) -> None:
    assert Machine(database, product_ms, patience_s=patience_s).is_known_quiet() == is_known


def test_the_pace_is_how_many_times_as_long_a_product_takes_as_the_fastest_ever(database: Database) -> None:
    machine = Machine(database, 0.2, 0.3, 0.25, 0.15, 0.3, 0.1)
    assert [machine.slowdown() for _ in range(5)] == pytest.approx([1.0, 1.5, 1.25, 1.0, 2.0])
    # What takes longer than twice as long was interrupted: that says nothing of how fast the machine is.
    assert Machine(database, 1.5).slowdown() == 2.0
    # Patience is for races. When it is at an end, paces are told all the same.
    machine = Machine(database, 0.3, patience_s=1.0)
    while machine.wait() is False:
        pass
    assert machine.slowdown() == 2.0


def test_a_machine_is_looked_at_for_a_while_before_it_is_known(database: Database, slept: list[float]) -> None:
    machine = Machine(database, 0.4, 0.4, 0.4, 0.2, 0.4, known=False)
    assert machine.slowdown() == 2.0
    assert sum(slept) == pytest.approx(2.0)
    assert machine.said == ["seeing how fast the machine is"]
    assert Machine(database, 0.3, known=False).slowdown() == pytest.approx(1.5)
    assert sum(slept) == pytest.approx(2.0)


def test_where_nothing_can_be_multiplied_nobody_waits(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> Worker:
        return Worker("collage.cost.no_such_module:Service", {})

    monkeypatch.setattr(noise_monitor_module, "Worker", fail)
    noise_monitor = NoiseMonitor(database, print, 30.0)
    assert noise_monitor.slowdown() == 1.0
    assert noise_monitor.is_quiet()
    assert noise_monitor.wait()
    assert database.local_fact(**noise_monitor._name) is None


def test_a_real_product_takes_some_time(database: Database) -> None:
    machine = NoiseMonitor(database, print, 1.0)
    try:
        assert 1.0 <= machine.slowdown() <= 2.0
        took_s = database.local_fact(**machine._name)
        assert 1e-6 < took_s < 30.0
    finally:
        machine.close()
