"""What the end-to-end times say about the machine, on figures of their own."""

from __future__ import annotations

from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import pytest

from collage.calibration import additive_error, calibrate, machine_drift, reconsider
from collage.cost.cost import Correction
from collage.cost.outcome import Status
from collage.cost.race import Contestant, Standing
from collage.cost.statistics import Summary
from collage.finals import Finals

PREDICTED_S = {"a": 1e-3, "b": 2e-3, "failed": 1e-3, "mix": 1e-3, "mix 2": 3e-3, "glimpsed": 9e-3}
GLIMPSED = {"glimpsed"}
TWICE_AS_SLOW = 1.06 * 2.0 ** (1 / 0.9)


def finals_of(measured_s: dict[str, float | None], pace: float = 1.0) -> Finals:
    kernel = SimpleNamespace(device=None)
    plans: list[Any] = [
        SimpleNamespace(name=name, kernels=(kernel, kernel) if "mix" in name else (kernel,)) for name in measured_s
    ]
    standings = {
        name: Standing(
            Contestant(name, "", {}, 1),
            Status.OK if seconds else Status.CRASH,
            time=Summary(seconds, seconds, seconds, 3 if name in GLIMPSED else 9, 0.0) if seconds else None,
        )
        for name, seconds in measured_s.items()
    }
    return Finals(None, None, plans, standings, None, None, pace=pace)


@pytest.fixture(autouse=True)
def predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collage.calibration.predicted_s", lambda _, plan: PREDICTED_S[plan.name])


def test_the_machine_drifted_as_far_as_its_pace_tells() -> None:
    assert machine_drift(finals_of({"a": 1.5e-3})) == 1.0
    assert machine_drift(finals_of({"a": 1.5e-3}, pace=1.06)) == pytest.approx(1.0)
    assert machine_drift(finals_of({"a": 1.5e-3}, pace=TWICE_AS_SLOW)) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("measured_s", "pace", "name", "error"),
    [
        ({"a": 1e-3, "mix": 1.25e-3}, 1.0, "mix", 0.2),
        ({"mix": 1.25e-3}, 1.0, "mix", 0.2),
        # The machine was twice as slow, and the sum is right.
        ({"a": 2e-3, "mix": 2e-3}, TWICE_AS_SLOW, "mix", 0.0),
        ({"a": 2e-3, "mix": 1e-3}, TWICE_AS_SLOW, "mix", -1.0),
        # What the toolchains alone are off by does not excuse a chain.
        ({"a": 2e-3, "mix": 2e-3}, 1.0, "mix", 0.5),
        ({"a": 1.5e-3, "mix": 9e-3}, 1.0, "a", 0.0),
        ({"a": 1e-3, "mix": None}, 1.0, "mix", None),
    ],
)
def test_the_additive_error_is_what_the_machine_does_not_explain(
    measured_s: dict[str, float | None], pace: float, name: str, error: float | None
) -> None:
    finals = finals_of(measured_s, pace)
    plan = next(plan for plan in finals.plans if plan.name == name)
    found = additive_error(None, finals, plan)  # type: ignore[arg-type]
    assert found == (error if error is None else pytest.approx(error))


def test_plans_are_compared_by_their_turns_where_they_were_raced() -> None:
    finals = finals_of({"a": 1e-3, "mix": 2e-3})
    finals.standings["mix"] = replace(finals.standings["mix"], paired_s=1.25e-3)
    mix = next(plan for plan in finals.plans if plan.name == "mix")
    assert additive_error(None, finals, mix) == pytest.approx(0.2)  # type: ignore[arg-type]


class Learner:
    """What ``calibrate`` needs of a ``Tuning``."""

    def __init__(self, correction: Correction | None = None) -> None:
        self.correction = correction or Correction()
        self.kept: dict[str, Any] = {}
        self.database = SimpleNamespace(keep_local_fact=lambda value, **_: self.kept.update(value))

    def say(self, _: str) -> None: ...

    def look_again(self, _: list[Any]) -> bool:
        return False  # All was seen twice.

    def fact_of_menu(self, name: str) -> dict[str, Any]:
        return {"fact": name}


@pytest.mark.parametrize(
    ("measured_s", "pace", "correction"),
    [
        ({"a": 1e-3, "mix": 1.09e-3}, 1.0, None),
        ({"a": 1e-3, "mix": 0.91e-3}, 1.0, None),
        # Half as long again: half of its prediction, divided between two kernels.
        ({"a": 1e-3, "mix": 1.5e-3}, 1.0, Correction(chain_s=0.25e-3)),
        # It was that much slower for all: no matter of adding up, whether the pace tells of it or not.
        ({"a": 1.5e-3, "mix": 1.5e-3}, 1.0, None),
        ({"a": 1e-3, "mix": 1.5e-3}, TWICE_AS_SLOW, None),
        ({"a": 1.5e-3, "mix": 1.4e-3}, TWICE_AS_SLOW, None),
        ({"a": 1.25e-3, "mix": 1e-3}, 1.0, None),
        # Beyond both: a quarter more than the single is off by, and more than twice as long.
        ({"a": 1.2e-3, "mix": 1.5e-3}, 1.0, Correction(chain_s=0.125e-3)),
        ({"a": 1.2e-3, "mix": 2.5e-3}, TWICE_AS_SLOW, Correction(chain_s=0.125e-3)),
        # With nothing raced alone, the pace is all that is known.
        ({"failed": None, "mix": 2.5e-3}, TWICE_AS_SLOW, Correction(chain_s=0.125e-3)),
        ({"a": 1e-3, "mix": 0.8e-3}, 1.0, Correction(parts=0.8)),
        ({"a": 1e-3, "mix": 0.8e-3, "mix 2": 2.64e-3}, 1.0, Correction(parts=0.88)),
        # One of two was as predicted: the other met a kernel that was measured badly.
        ({"a": 1e-3, "mix": 0.5e-3, "mix 2": 3e-3}, 1.0, None),
        ({"a": 1e-3, "mix": 0.2e-3}, 1.0, Correction(parts=0.75)),
        ({"a": 1e-3, "b": 2e-3}, 1.0, None),
        # What was only seen to be too slow tells nothing of the machine, unless there is nothing else.
        ({"a": 1e-3, "glimpsed": 18e-3, "mix": 1.5e-3}, 1.0, Correction(chain_s=0.25e-3)),
        ({"glimpsed": 13.5e-3, "mix": 1.5e-3}, 1.0, None),
    ],
)
def test_chains_are_corrected_as_far_as_they_are_off_and_singles_are_not(
    measured_s: dict[str, float | None], pace: float, correction: Correction | None
) -> None:
    tuning: Any = Learner()
    assert calibrate(tuning, finals_of(measured_s, pace)) == (correction is not None)
    expected = correction or Correction()
    assert tuning.correction.chain_s == pytest.approx(expected.chain_s)
    assert tuning.correction.parts == pytest.approx(expected.parts)
    assert tuning.kept == (asdict(tuning.correction) if correction else {})


def test_a_correction_is_not_corrected() -> None:
    tuning: Any = Learner(Correction(parts=0.9))
    assert not calibrate(tuning, finals_of({"a": 1e-3, "mix": 2e-3}))
    assert tuning.correction == Correction(parts=0.9)


@pytest.mark.parametrize(
    ("again_s", "correction"),
    [
        # Measured again, its kernels add up to what it took: no correction, but one more search with what is known now.
        (1.5e-3, None),
        (1.2e-3, Correction(chain_s=0.15e-3)),
    ],
)
def test_what_chains_contradict_is_measured_again_first(
    again_s: float, correction: Correction | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    predicted_s, looked_at = dict(PREDICTED_S), list[Any]()

    def look_again(kernels: list[Any]) -> bool:
        predicted_s["mix"] = again_s
        looked_at.extend(kernels)
        return True

    monkeypatch.setattr("collage.calibration.predicted_s", lambda _, plan: predicted_s[plan.name])
    tuning: Any = Learner()
    tuning.look_again = look_again
    finals = finals_of({"a": 1e-3, "mix": 1.5e-3})
    assert calibrate(tuning, finals)
    assert looked_at == list(finals.plans[1].kernels)
    assert tuning.correction.chain_s == pytest.approx((correction or Correction()).chain_s)
    assert bool(tuning.kept) == (correction is not None)


def test_what_is_not_contradicted_is_not_measured_again() -> None:
    looked_at: list[Any] = []
    tuning: Any = Learner()
    tuning.look_again = looked_at.append
    assert not calibrate(tuning, finals_of({"a": 1e-3, "mix": 1.05e-3}))
    assert not looked_at


@pytest.mark.parametrize(
    ("mix_s", "kept"),
    [
        # A chain of two, each said to cost 0.25 ms more: 1.5 ms, where 1 ms is the plain sum.
        (1.5e-3, Correction(chain_s=0.25e-3)),
        (1.3e-3, Correction(chain_s=0.25e-3)),
        (1.2e-3, Correction()),
        (1.0e-3, Correction()),
    ],
)
def test_a_correction_that_the_next_race_contradicts_is_forgotten(
    mix_s: float, kept: Correction, monkeypatch: pytest.MonkeyPatch
) -> None:
    def predicted_s(tuning: Learner, plan: Any) -> float:
        return PREDICTED_S[plan.name] + (2 * tuning.correction.chain_s if len(plan.kernels) > 1 else 0.0)

    monkeypatch.setattr("collage.calibration.predicted_s", predicted_s)
    tuning = Learner(Correction(chain_s=0.25e-3))
    reconsider(tuning, finals_of({"a": 1e-3, "mix": mix_s}))  # type: ignore[arg-type]
    assert tuning.correction == kept
    assert tuning.kept == ({} if kept.chain_s else asdict(Correction()))


def test_what_was_hardly_raced_corrects_nothing() -> None:
    tuning = Learner()
    GLIMPSED.add("mix 2")
    try:
        assert not calibrate(tuning, finals_of({"a": 1e-3, "mix": 1e-3, "mix 2": 9e-3}))  # type: ignore[arg-type]
    finally:
        GLIMPSED.discard("mix 2")
