"""Times against an anchor, of executables whose latencies are drawn instead of measured."""

from __future__ import annotations

import contextlib
import math
import random
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from collage._errors import WorkerDied
from collage.measure import track, turns
from collage.measure.finalist import Finalist
from collage.measure.paired_timer import PairedTimer

ALIVE: list[Track] = []


class Track:
    """Stands in for a worker: as slow as it is told to be, on a machine whose speed drifts."""

    speed = 1.0

    def __init__(self, service: str, arguments: Mapping[str, Any]) -> None:
        self.arguments, self.calls, self.random = arguments, 0, random.Random(service)
        ALIVE.append(self)

    def call(self, method: str, timeout_s: float, **params: Any) -> Any:
        if method == "check":
            return {"max_abs": 0.0, "max_rel": 0.0, "wrong": self.arguments.get("wrong"), "doubts": []}
        self.calls += 1
        if self.calls > self.arguments.get("dies_after", 10**9):
            raise WorkerDied("gone")
        Track.speed *= self.random.lognormvariate(0.0, 0.01)
        return [self.arguments["seconds"] * Track.speed for _ in range(params["runs"])]

    def start(self) -> None:
        pass

    def kill(self) -> None:
        if self in ALIVE:
            ALIVE.remove(self)


@pytest.fixture
def timer(monkeypatch: pytest.MonkeyPatch) -> Iterator[PairedTimer]:
    monkeypatch.setattr(track, "Worker", Track)
    # Nothing is measured here that others could disturb.
    monkeypatch.setattr(track, "build_lock", contextlib.nullcontext)
    monkeypatch.setattr(turns, "measurement_lock", contextlib.nullcontext)
    timer = PairedTimer(entry(0.01), 1e-4)
    yield timer
    assert len(ALIVE) == 1
    timer.close()
    assert not ALIVE


def entry(seconds: float, **more: Any) -> Finalist:
    return Finalist(f"plan {seconds}", f"service {seconds}", {"seconds": seconds, **more})


@pytest.mark.parametrize("share", [0.5, 0.9, 1.0, 1.1, 3.0])
def test_a_time_is_a_share_of_the_anchors(timer: PairedTimer, share: float) -> None:
    assert timer.ratio(entry(0.01 * share)) == pytest.approx(share, rel=0.05)


def test_what_fails_or_is_wrong_has_no_time_and_others_still_have_one(timer: PairedTimer) -> None:
    assert timer.ratio(entry(0.005, wrong="output 'y' differs")) == math.inf
    assert timer.ratio(entry(0.005, dies_after=0)) == math.inf
    assert timer.ratio(entry(0.005, dies_after=4)) == math.inf
    assert timer.ratio(entry(0.005)) == pytest.approx(0.5, rel=0.05)


def test_what_is_much_slower_has_one_turn_and_what_may_be_faster_has_most(
    timer: PairedTimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    for share in (2.0, 1.1, 0.8):
        before = ALIVE[0].calls
        timer.ratio(entry(0.01 * share))
        calls.append(ALIVE[0].calls - before)
    assert calls == [3 + 1, 3 + 4, 3 + 10], "three first runs, and the turns"


@pytest.mark.usefixtures("timer")
@pytest.mark.parametrize(("kind", "count"), [("none", 0), ("idle", 1)])
def test_both_run_beside_the_neighbour_of_the_race(monkeypatch: pytest.MonkeyPatch, kind: str, count: int) -> None:
    counts = set()
    run_rounds = track.Track.run_rounds

    def watched(*args: Any, **more: Any) -> float:
        counts.add(len(children()))
        return run_rounds(*args, **more)

    monkeypatch.setattr(track.Track, "run_rounds", watched)
    beside = PairedTimer(entry(0.01), 1e-4, kind)
    before = len(children())
    assert beside.ratio(entry(0.02)) == pytest.approx(2.0, rel=0.05)
    assert counts == {before + count} and len(children()) == before
    beside.close()


def children() -> list[str]:
    """The numbers of this process's children."""
    return Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()
