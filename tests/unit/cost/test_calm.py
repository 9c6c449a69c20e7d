"""Waiting for a noisy machine, with products whose times are given."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from collage.cost import calm as calm_module
from collage.cost.calm import PATIENCE_VARIABLE, Calm
from collage.cost.database import Database


class Machine(Calm):
    """Takes what it is told for a product, the last figure for ever."""

    def __init__(self, database: Database, *milliseconds: float, patience_s: float = 30.0) -> None:
        self.said: list[str] = []
        super().__init__(database, self.said.append, patience_s)
        self.times: Iterator[float] = iter(milliseconds)
        self.last = 0.0
        self.probes = 0

    def _probe(self) -> float | None:
        self.probes += 1
        self.last = next(self.times, self.last)
        return self.last * 1e-3


@pytest.fixture
def database() -> Iterator[Database]:
    with Database("sqlite:///:memory:") as opened:
        yield opened


@pytest.fixture(autouse=True)
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    pauses: list[float] = []
    monkeypatch.setattr(calm_module.time, "sleep", pauses.append)
    return pauses


def test_a_calm_machine_is_not_waited_for(database: Database, slept: list[float]) -> None:
    machine = Machine(database, 0.2, 0.21, 0.19, 0.22)
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
    assert Machine(database, 0.2).is_calm()
    assert not Machine(database, 0.3).is_calm()
    assert Machine(database, 0.1).is_calm()
    assert not Machine(database, 0.2).is_calm()


def test_patience_ends(database: Database, slept: list[float]) -> None:
    machine = Machine(database, 0.2, 0.9, patience_s=10.0)
    assert machine.wait()
    assert [machine.wait() for _ in range(4)] == [False, False, True, True]
    assert sum(slept) == machine.waited_s == pytest.approx(10.0, abs=0.11)
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
    assert waits == pytest.approx([6.0, 3.0, 1.5, 0.8, 0.4, 0.2, 0.1, 0.1], abs=0.11)
    while not machine.wait():
        pass
    before_s = machine.waited_s
    assert not machine.wait()
    assert machine.waited_s - before_s == pytest.approx(6.0, abs=0.11)


def test_what_the_machine_was_not_calm_after_is_measured_again(database: Database) -> None:
    machine = Machine(database, 0.2, 0.2, 0.9, 0.2, 0.2)
    assert machine.wait()
    results = iter([0.3, 0.2, 0.1])
    assert machine.samples(lambda: [next(results)]) == [0.2]
    # A few times only; then the fastest counts. What fails, or is hopeless, is not tried again.
    machine = Machine(database, 0.2, 0.9, patience_s=100.0)
    assert machine.wait()
    results = iter([0.2, 0.3, 0.4, 1.1, 0.1])
    assert machine.samples(lambda: [next(results)]) == [0.2]
    assert machine.samples(lambda: [next(results)]) == [1.1]
    assert machine.best(lambda: "failed", lambda _: None) == "failed"
    assert machine.best(lambda: 5.0, float, hopeless_s=4.0) == 5.0
    assert list(results) == [0.1]


def test_patience_can_be_renewed(database: Database) -> None:
    machine = Machine(database, 0.2, 0.9, patience_s=8.0)
    assert machine.wait()
    while machine.probes < 1000 and not machine.wait():
        pass
    assert machine.waited_s == pytest.approx(8.0, abs=0.11)
    machine.renew(0.5)
    assert not machine.is_calm()
    while machine.probes < 1000 and not machine.wait():
        pass
    assert machine.waited_s == pytest.approx(12.0, abs=0.21)


def test_without_patience_nobody_looks(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(database, 0.2, patience_s=0.0)
    assert machine.wait()
    assert not machine.probes
    for said, left_s in {"7": 7.0, "none": 12.0, "0": 0.0}.items():
        monkeypatch.setenv(PATIENCE_VARIABLE, said)
        assert Calm(database, print)._patience_s == left_s


def test_a_real_product_takes_some_time(database: Database) -> None:
    machine = Calm(database, print, 1.0)
    try:
        assert machine.is_calm()
        took_s = database.local_fact(**machine._name)
        assert 1e-6 < took_s < 30.0
    finally:
        machine.close()
