"""A session measures a kernel: it is checked before it is timed and after, also where it is timed twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from collage._errors import WorkerDied
from collage.database.database import Database
from collage.measure.builder import Built
from collage.measure.jobs import Job
from collage.measure.session import MeasureSession
from collage.status import Status
from collage.target import Target
from collage.toolchains import Registry

MODEL = ir.Model(ir.Graph([], [], nodes=[], opset_imports={"": 17}, name="model"), ir_version=10)
JOB = Job(MODEL, "structure", Target.parse("llvm"), (), (), 1e-4)
FINDINGS = {"max_abs": 0.0, "max_rel": 1e-6, "wrong": None, "doubts": []}


class Kernel:
    """Stands in for a worker with one kernel, which may die or turn wrong at a call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.seconds = [3.0, 2.0]
        self.wrong_after = self.dies_after = 99

    def call(self, owner: Target, method: str, limit_s: float, /, **more: Any) -> Any:
        self.calls.append((method, len(more["values"]) if method == "check" else 1))
        if len(self.calls) > self.dies_after:
            raise WorkerDied("gone")
        if method == "sample":
            return [self.seconds.pop(0)]
        return {**FINDINGS, "wrong": "it differs"} if len(self.calls) > self.wrong_after else FINDINGS


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MeasureSession]:
    monkeypatch.setattr(MeasureSession, "build_of", lambda *_: "1")
    with Database("sqlite:///:memory:") as database, MeasureSession(Registry(()), database, tmp_path) as found:
        found.other_folders = [tmp_path / "zeros", tmp_path / "other"]
        monkeypatch.setattr(found._builds, "build_all", lambda jobs: [Built({}, 0.5) for _ in jobs])
        monkeypatch.setattr(found._builds, "compiled", lambda *_: {})
        yield found


@pytest.fixture
def kernel(session: MeasureSession, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    found = Kernel()
    monkeypatch.setattr(session._pool, "call", found.call)
    return found


def test_a_second_measurement_runs_the_other_sets_of_inputs_no_more(session: MeasureSession, kernel: Kernel) -> None:
    (first,) = session.measure([JOB])
    assert first.ok and first.cost.seconds == 3.0 and first.error == 1e-6
    assert kernel.calls == [("check", 3), ("sample", 1), ("check", 1)]
    again = session.measure_again(JOB)
    assert kernel.calls[3:] == [("sample", 1), ("check", 1)]
    assert again is not None and again.ok and again.cost.seconds == 2.0
    assert (again.error, again.build_s) == (first.error, first.build_s)
    assert session.recall(JOB) == again


@pytest.mark.parametrize(("wrong_after", "calls"), [(0, 1), (2, 3), (4, 5)])
def test_a_kernel_is_wrong_whenever_it_turns_wrong(
    wrong_after: int, calls: int, session: MeasureSession, kernel: Kernel
) -> None:
    kernel.wrong_after = wrong_after
    (outcome,) = session.measure([JOB])
    if wrong_after == 4:
        assert outcome.ok
        again = session.measure_again(JOB)
        assert again is not None
        outcome = again
    assert outcome.status is Status.WRONG and outcome.reason == "it differs" and outcome.time is None
    assert len(kernel.calls) == calls


def test_a_kernel_that_dies_at_the_second_measurement_failed(session: MeasureSession, kernel: Kernel) -> None:
    kernel.dies_after = 3
    session.measure([JOB])
    again = session.measure_again(JOB)
    assert again is not None and again.status is Status.CRASHED and again.time is None


def test_what_was_not_measured_in_this_session_is_not_measured_again(session: MeasureSession, kernel: Kernel) -> None:
    assert session.measure_again(JOB) is None
    assert not kernel.calls
