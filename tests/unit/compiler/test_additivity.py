"""What plans that run beside their kernels say about costs, on figures of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from collage.compiler.additivity import (
    additive_error,
    correct_costs,
    correction_of,
    estimate_correction,
    machine_drift,
    with_additive_error,
)
from collage.compiler.final_comparison import FinalComparison
from collage.cost.cost import Correction
from collage.cost.outcome import Status
from collage.cost.statistics import Summary
from collage.measure.additivity import AdditivityCheck
from collage.measure.comparison import Finalist, FinalistResult

TWICE_AS_SLOW = 1.06 * 2.0 ** (1 / 0.9)
LAUNCH_S = 1e-6


def plan_of(name: str) -> Any:
    kernel = SimpleNamespace(device=None, target="t")
    kernels, single = ((kernel, kernel), None) if "mix" in name else ((kernel,), name)
    return SimpleNamespace(name=name, kernels=kernels, single=single)


def finals_of(
    measured_s: dict[str, float | None], winner: str = "mix", slowdown: float = 1.0, count: int = 9
) -> FinalComparison:
    plans = [plan_of(name) for name in measured_s]
    standings = {
        name: FinalistResult(
            Finalist(name, "", {}, 1),
            Status.OK if seconds else Status.CRASH,
            time=Summary(seconds, seconds, seconds, count, 0.0) if seconds else None,
        )
        for name, seconds in measured_s.items()
    }
    plan = next((plan for plan in plans if plan.name == winner), None)
    return FinalComparison(None, plan, plans, standings, None, None, slowdown=slowdown)


class Learner:
    """Costs that can be corrected and measured again."""

    def __init__(self, correction: Correction | None = None) -> None:
        self.correction = correction or Correction()
        self.said: list[str] = []
        self.looks: list[int] = []
        self.has_looked_again = False

    def remeasure(self, kernels: Sequence[Any]) -> bool:
        self.looks.append(len(kernels))
        return self.has_looked_again

    def say(self, line: str) -> None:
        self.said.append(line)

    def launch_penalty_s(self, _: Any) -> float:
        return LAUNCH_S + self.correction.chain_s


class Checks:
    """What kernels take of each plan.

    Attributes:
        told: By a plan's name, or its name and the occasion; of others it cannot be told.
        asked: Plans and occasions that were asked for.
        predicted: Seconds that a plan is predicted to take.
    """

    def __init__(self) -> None:
        self.told: dict[str, float | None] = {}
        self.asked: list[tuple[str, int]] = []
        self.predicted: Callable[[Any], float | None] = lambda _: 1e-3

    def update(self, told: dict[str, float | None]) -> None:
        self.told.update(told)

    def predicted_s(self, plan: Any) -> float | None:
        return self.predicted(plan)

    def check(self, plan: Any, occasion: int) -> AdditivityCheck | None:
        self.asked.append((plan.name, occasion))
        share = self.told.get(f"{plan.name}, {occasion}", self.told.get(plan.name))
        return None if share is None else AdditivityCheck(share, 1e-3)


@pytest.fixture
def shares() -> Any:
    return Checks()


def test_the_machine_drifted_as_far_as_its_pace_tells() -> None:
    assert machine_drift(finals_of({"a": 1.5e-3})) == 1.0
    assert machine_drift(finals_of({"a": 1.5e-3}, slowdown=1.06)) == pytest.approx(1.0)
    assert machine_drift(finals_of({"a": 1.5e-3}, slowdown=TWICE_AS_SLOW)) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("share", "correction"),
    [
        # Launch penalties are two thousandths of the whole.
        (1.0, Correction()),
        (0.95, Correction()),
        (1.045, Correction()),
        (0.798, Correction(chain_s=0.1e-3)),
        (0.398, Correction(chain_s=0.3e-3)),
        (1.1, Correction(parts=0.998 / 1.1)),
        (1.25, Correction(parts=0.998 / 1.25)),
        # No cache does that: something was measured badly.
        (3.0, Correction(parts=0.6)),
    ],
)
def test_chains_are_corrected_by_what_is_missing(share: float, correction: Correction) -> None:
    found = correction_of(Learner(), plan_of("mix"), AdditivityCheck(share, 1e-3))  # type: ignore[arg-type]
    assert found.chain_s == pytest.approx(correction.chain_s)
    assert found.parts == pytest.approx(correction.parts)


@pytest.mark.parametrize("share", [0.5, 0.8, 1.2, 1.5])
def test_with_the_correction_that_it_taught_a_chain_adds_up(share: float) -> None:
    mix, found = plan_of("mix"), AdditivityCheck(share, 1e-3)
    session: Any = Learner()
    before = additive_error(session, mix, found)
    assert before == pytest.approx(1.0 - share - 0.002)
    session.correction = correction_of(session, mix, found)
    assert additive_error(session, mix, found) == pytest.approx(0.0, abs=1e-9)


def test_the_fastest_chain_that_was_raced_teaches(shares: Any) -> None:
    session: Any = Learner()
    shares.update({"mix 2": 1.25, "mix": 1.0, "mix 3": 1.0})
    assert correct_costs(session, shares, finals_of({"a": 1e-3, "mix": 3e-3, "mix 2": 2e-3, "mix 3": None}))
    assert shares.asked == [("mix 2", 1), ("mix 2", 2)]
    assert session.correction.parts == pytest.approx(0.998 / 1.25)
    assert not correct_costs(session, shares, finals_of({"mix": 1e-3}))  # Once in a compilation.
    assert len(shares.asked) == 2


@pytest.mark.parametrize(
    ("first", "second", "correction"),
    [
        (1.2, 1.3, Correction(parts=0.998 / 1.2)),
        (1.3, 1.2, Correction(parts=0.998 / 1.2)),
        (0.6, 0.8, Correction(chain_s=0.099e-3)),
        # On one occasion something else was slow, or fast.
        (1.2, 1.0, Correction()),
        (0.6, 1.3, Correction()),
        (1.3, 0.6, Correction()),
        (1.3, None, Correction()),
    ],
)
def test_what_a_chain_said_twice_is_believed_and_of_that_the_less(
    first: float, second: float | None, correction: Correction, shares: Any
) -> None:
    shares.update({"mix, 1": first, "mix, 2": second})
    found = estimate_correction(Learner(), shares, plan_of("mix"))  # type: ignore[arg-type]
    assert found.chain_s == pytest.approx(correction.chain_s)
    assert found.parts == pytest.approx(correction.parts)


@pytest.mark.parametrize(
    ("measured_s", "count"), [({"a": 1e-3}, 9), ({"a": 1e-3, "mix": None}, 9), ({"a": 1e-3, "mix": 1e-3}, 3), ({}, 9)]
)
def test_without_a_chain_that_was_raced_nothing_is_learned(
    measured_s: dict[str, float | None], count: int, shares: Any
) -> None:
    session: Any = Learner()
    assert not correct_costs(session, shares, finals_of(measured_s, count=count))
    assert shares.asked == []


@pytest.mark.parametrize(
    ("single_s", "mix_s", "is_asked"),
    [
        (1e-3, 1.0e-3, False),
        # The machine was half as slow again, for both.
        (1.5e-3, 1.4e-3, False),
        (1e-3, 1.15e-3, True),
        (1e-3, 0.85e-3, True),
        (1.5e-3, 1.0e-3, True),
        # With nothing to compare it with there is no telling.
        (None, 1e-3, True),
    ],
)
def test_a_chain_that_did_against_the_single_as_predicted_is_not_asked(
    single_s: float | None, mix_s: float, is_asked: bool, shares: Any
) -> None:
    shares.told["mix"] = 1.2
    assert correct_costs(Learner(), shares, finals_of({"a": single_s, "mix": mix_s})) == is_asked  # type: ignore[arg-type]
    assert bool(shares.asked) == is_asked


@pytest.mark.parametrize(
    ("mix_s", "share", "correction"),
    [
        (0.8e-3, 1.0, Correction(parts=0.8)),
        (0.8e-3, None, Correction(parts=0.8)),
        # They add up to less than the chain takes, and were measured while everything took longer still.
        (0.8e-3, 0.8, Correction(parts=0.8)),
        (0.8e-3, 1.25, Correction(parts=0.998 / 1.25)),
        # Machines are rarely slower than that for a while.
        (0.3e-3, 1.0, Correction(parts=0.6)),
        # What did worse than predicted hides nothing.
        (1.3e-3, 1.0, Correction()),
        (1.3e-3, 0.8, Correction(chain_s=0.099e-3)),
    ],
)
def test_parts_that_were_measured_while_the_machine_was_slow_count_as_less(
    mix_s: float, share: float | None, correction: Correction, shares: Any
) -> None:
    shares.told["mix"] = share
    session: Any = Learner()
    assert correct_costs(session, shares, finals_of({"a": 1e-3, "mix": mix_s})) == (correction != Correction())
    assert session.correction.chain_s == pytest.approx(correction.chain_s)
    assert session.correction.parts == pytest.approx(correction.parts)


def test_before_that_they_are_measured_again_where_that_was_not_done(
    shares: Any,
) -> None:
    session: Any = Learner()
    session.has_looked_again = True
    predicted_s = iter([1.5e-3, 1e-3])
    found: dict[int, float] = {}
    shares.predicted = lambda plan: 1e-3 if plan.single else found.setdefault(len(session.looks), next(predicted_s))
    shares.told["mix"] = 1.0
    assert correct_costs(session, shares, finals_of({"a": 1e-3, "mix": 1e-3})), (
        "what was measured again is searched with"
    )
    assert (session.looks, session.correction) == ([2], Correction())


def test_what_adds_up_or_cannot_be_told_is_not_corrected(shares: Any) -> None:
    session: Any = Learner()
    assert not correct_costs(session, shares, finals_of({"mix": 1e-3}))
    shares.told["mix"] = 1.04
    assert not correct_costs(session, shares, finals_of({"mix": 1e-3}))
    assert session.correction == Correction()


def test_the_winner_is_judged_by_its_kernels_beside_it(shares: Any) -> None:
    shares.told["mix"] = 0.97
    found = with_additive_error(Learner(), shares, finals_of({"a": 1e-3, "mix": 1e-3}))  # type: ignore[arg-type]
    assert found.additive_error == pytest.approx(0.028)
    assert shares.asked == [("mix", 1)]


def test_where_one_occasion_is_a_contradiction_two_are_believed(shares: Any) -> None:
    shares.update({"mix, 1": 0.9, "mix, 2": 1.0})
    found = with_additive_error(Learner(), shares, finals_of({"a": 1e-3, "mix": 1e-3}))  # type: ignore[arg-type]
    assert found.additive_error == pytest.approx(0.048)
    shares.told["mix, 2"] = None
    found = with_additive_error(Learner(), shares, finals_of({"a": 1e-3, "mix": 1e-3}))  # type: ignore[arg-type]
    assert found.additive_error == pytest.approx(0.098)


def test_one_kernel_has_nothing_to_add_up(shares: Any) -> None:
    assert with_additive_error(Learner(), shares, finals_of({"a": 1e-3}, winner="a")).additive_error == 0.0  # type: ignore[arg-type]
    assert with_additive_error(Learner(), shares, finals_of({"a": None}, winner="")).additive_error is None  # type: ignore[arg-type]
    assert shares.asked == []


def test_a_correction_is_judged_on_another_occasion(shares: Any) -> None:
    shares.update({"mix": 1.25, "mix, 3": 1.2})
    session: Any = Learner()
    finals = finals_of({"a": 1e-3, "mix": 0.8e-3})
    assert correct_costs(session, shares, finals)
    found = with_additive_error(session, shares, finals)
    assert found.additive_error == pytest.approx(0.998 - 0.998 / 1.25 * 1.2)
    assert session.correction != Correction()
    assert shares.asked == [("mix", 1), ("mix", 2), ("mix", 3)]


def test_where_the_winner_adds_up_better_without_a_correction_costs_are_stated_without(shares: Any) -> None:
    shares.update({"mix": 1.02})
    session: Any = Learner(Correction(parts=0.8))
    found = with_additive_error(session, shares, finals_of({"a": 1e-3, "mix": 1e-3}))
    assert found.additive_error == pytest.approx(-0.022)
    assert session.correction == Correction()


@pytest.mark.parametrize(
    ("paired_s", "slowdown", "error"), [(None, 1.0, 0.2), (None, TWICE_AS_SLOW, -0.6), (2e-3, TWICE_AS_SLOW, 0.0)]
)
def test_where_kernels_cannot_be_timed_beside_it_a_plan_is_compared_with_its_prediction(
    paired_s: float | None, slowdown: float, error: float, shares: Any
) -> None:
    finals = finals_of({"a": 1e-3, "mix": 1.25e-3}, slowdown=slowdown)
    finals.standings["mix"] = replace(finals.standings["mix"], paired_s=paired_s)
    assert with_additive_error(Learner(), shares, finals).additive_error == pytest.approx(error)  # type: ignore[arg-type]
    shares.predicted = lambda _: None
    assert with_additive_error(Learner(), shares, finals).additive_error is None  # type: ignore[arg-type]
