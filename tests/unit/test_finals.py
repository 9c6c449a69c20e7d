"""What the end-to-end times say about the machine, on figures of their own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from collage.cost.outcome import Status
from collage.cost.race import Contestant, Standing
from collage.cost.statistics import Summary
from collage.finals import Finals, machine_drift

PREDICTED_S = {"a": 1e-3, "b": 2e-3, "failed": 1e-3, "mix": 1e-3}


def finals_of(measured_s: dict[str, float | None]) -> Finals:
    plans: list[Any] = [SimpleNamespace(name=name, kernels=(1, 2) if name == "mix" else (1,)) for name in measured_s]
    standings = {
        name: Standing(
            Contestant(name, "", {}, 1),
            Status.OK if seconds else Status.CRASH,
            time=Summary(seconds, seconds, seconds, 9, 0.0) if seconds else None,
        )
        for name, seconds in measured_s.items()
    }
    return Finals(None, None, plans, standings, None, None)


@pytest.fixture(autouse=True)
def predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collage.finals.predicted_s", lambda _, plan: PREDICTED_S[plan.name])


@pytest.mark.parametrize(
    ("measured_s", "drift"),
    [
        ({"a": 1.5e-3}, 1.5),
        ({"a": 1.5e-3, "b": 2e-3}, 1.25),
        (
            {"a": 0.5e-3, "failed": None, "mix": 9e-3},
            0.5,
        ),  # What is made of several kernels tells nothing of the machine.
        ({"mix": 9e-3, "failed": None}, None),
    ],
)
def test_the_machine_drifted_as_far_as_the_singles_are_off(
    measured_s: dict[str, float | None], drift: float | None
) -> None:
    assert machine_drift(None, finals_of(measured_s)) == drift  # type: ignore[arg-type]
