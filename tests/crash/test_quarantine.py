"""A toolchain that dies again and again is left alone; what was not tried is not held against a kernel."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from collage._errors import WorkerDied
from collage.cost.outcome import Outcome
from collage.database.database import Database
from collage.database.queries import listing, statistics
from collage.measure import quarantine as quarantine_module
from collage.measure.jobs import Job
from collage.measure.quarantine import Quarantine, Quarantined
from collage.measure.session import MeasureSession
from collage.measure.worker_pool import Limits
from collage.status import Status
from collage.target import Target
from collage.testing import FakeToolchain
from collage.toolchains import Registry

TARGET = Target.parse("llvm -compiler=fake")


def job(number: int) -> Job:
    """A kernel that no other is like."""
    kind = ir.TensorType(ir.DataType.FLOAT)
    x, y = (ir.Value(name=name, type=kind, shape=ir.Shape([4])) for name in "xy")
    graph = ir.Graph([x], [y], nodes=[ir.Node("", "Neg", [x], outputs=[y])], opset_imports={"": 17}, name=f"k{number}")
    return Job(ir.Model(graph, ir_version=10), f"structure {number}", TARGET, ("x",), ("y",), 1e-4)


def measure(database: Database, folder: Path, misbehaviour: str, numbers: range, **options: object) -> list[Outcome]:
    """What comes of measuring kernels, one after the other."""
    toolchains = Registry(())
    toolchains.add(FakeToolchain(misbehaviour))
    with MeasureSession(
        toolchains, database, folder, limits=Limits(memory_bytes=3 << 30), **options
    ) as measure_session:  # type: ignore[arg-type]
        if not measure_session.availability(TARGET).available:
            return [Outcome(Status.REFUSED, measure_session.availability(TARGET).reason)]
        measure_session.values.put("x", np.ones(4, np.float32))
        measure_session.values.put("y", -np.ones(4, np.float32))
        measure_session.values.flush()
        return [measure_session.measure([job(number)])[0] for number in numbers]


def test_after_three_jobs_it_is_left_alone_also_by_the_next_session(tmp_path: Path) -> None:
    with Database(str(tmp_path / "t.sqlite")) as database:
        outcomes = measure(database, tmp_path, "compile:exit", range(5))
        assert [outcome.status for outcome in outcomes] == [Status.CRASHED] * 5
        assert "code 3" in str(outcomes[2].reason)
        assert "not tried" in str(outcomes[3].reason)
        # What was not tried is not known.
        assert len(list(listing(database))) == 3
        assert [row["toolchain"] for row in statistics(database)["quarantined"]] == ["fake"]
        (later,) = measure(database, tmp_path, "compile:exit", range(5))
        assert later.status is Status.REFUSED
        assert "quarantined" in str(later.reason)
        assert "--remeasure" in str(later.reason)
        again = measure(database, tmp_path, "compile:exit", range(1), remeasure=True)
        assert "code 3" in str(again[0].reason)
        # Another build of the toolchain is another matter.
        assert measure(database, tmp_path, "", range(1))[0].ok


def died() -> WorkerDied:
    return WorkerDied("killed")


@pytest.fixture
def quarantine() -> Quarantine:
    return Quarantine(Database("sqlite:///:memory:"), 3, forgive=False, say=lambda _: None)


def test_a_job_that_ends_otherwise_wipes_the_slate(quarantine: Quarantine) -> None:
    for _ in range(5):
        quarantine.died("fake", "1", died())
        quarantine.died("fake", "1", died())
        quarantine.lived("fake")
    quarantine.check("fake")
    for _ in range(3):
        quarantine.died("fake", "1", died())
    with pytest.raises(Quarantined):
        quarantine.check("fake")
    quarantine.check("another")


def test_it_ends_with_the_day(quarantine: Quarantine, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        quarantine.died("fake", "1", died())
    assert quarantine.recorded("fake", "1") is not None
    assert quarantine.recorded("fake", "2") is None
    now = quarantine_module.time.time()
    monkeypatch.setattr(quarantine_module.time, "time", lambda: now + 86401)
    assert quarantine.recorded("fake", "1") is None
