"""Workers of a session: what is asked of a toolchain is asked for the kind of device that a target is for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from collage._errors import ToolchainError, Unsupported, WorkerTimeout
from collage.database.database import Database
from collage.measure.overheads import Overheads, measure_overheads
from collage.measure.session import MeasureSession
from collage.target import Target
from collage.testing import FakeToolchain
from collage.toolchains import Registry, availability_for, registry, revision_of
from collage.toolchains._contract import Availability
from collage.workers.worker import Worker


class Bare:
    """A toolchain that does not say more than the contract demands."""

    def availability(self) -> Availability:
        return Availability(True, "1", "bare 1")


@pytest.mark.parametrize("pair", [("llvm", "cuda"), ("onnxruntime", "cuda:onnxruntime")])
def test_each_kind_of_device_has_an_availability_of_its_own(pair: tuple[str, str], tmp_path: Path) -> None:
    toolchains = registry()
    targets = [toolchains.parse_target(text) for text in pair]
    with Database("sqlite:///:memory:") as database, MeasureSession(toolchains, database, tmp_path) as measure_session:
        found = [measure_session.availability(target) for target in targets]
        # Options make no other device, and no other build.
        assert measure_session.availability(targets[0].with_options(threads="1")) == found[0]
    assert found == [availability_for(toolchains.for_target(target), target) for target in targets]
    assert found[0].available
    assert not found[1].available or found[1].build != found[0].build


def test_what_another_integration_took_is_not_taken_for_this_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolchains, target = Registry(()), Target.parse("llvm -compiler=fake")
    toolchains.add(FakeToolchain())
    with Database("sqlite:///:memory:") as database, MeasureSession(toolchains, database, tmp_path) as measure_session:
        measured, overheads = list[str](), measure_session.overheads

        def counted(*arguments: Any) -> Any:
            measured.append(measure_session.build_of(target))
            return overheads(*arguments)

        monkeypatch.setattr(measure_session, "overheads", counted)
        measure_overheads(target, measure_session)
        measure_overheads(target, measure_session)
        monkeypatch.setattr("collage.measure.worker_pool.revision_of", lambda toolchain: "another")
        measure_overheads(target, measure_session)
        build, ours = measure_session.availability(target).build, revision_of(toolchains.get("fake"))
    assert ours and measured == [f"{build}, integration {ours}", f"{build}, integration another"]


@pytest.mark.parametrize(("error", "times"), [(Unsupported("no"), 1), (WorkerTimeout("late"), 2)])
def test_overheads_are_kept_unless_an_accident_hid_them(
    error: ToolchainError, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolchains, target, asked = Registry(()), Target.parse("llvm -compiler=fake"), list[Any]()
    toolchains.add(FakeToolchain())

    def overheads(*arguments: Any) -> Any:
        asked.append(arguments)
        raise error

    with Database("sqlite:///:memory:") as database, MeasureSession(toolchains, database, tmp_path) as measure_session:
        monkeypatch.setattr(measure_session, "overheads", overheads)
        assert all(measure_overheads(target, measure_session) == Overheads(0.0, 0.0) for _ in range(2))
        assert len(asked) == times
    with (
        Database("sqlite:///:memory:") as database,
        MeasureSession(toolchains, database, tmp_path, remeasure=True) as measure_session,
    ):
        assert measure_overheads(target, measure_session).dispatch_s > 0
        monkeypatch.setattr(measure_session, "overheads", overheads)
        assert not measure_overheads(target, measure_session).dispatch_s


def test_a_toolchain_that_serves_one_kind_need_not_tell_targets_apart() -> None:
    assert availability_for(Bare(), Target.parse("llvm -compiler=bare")).build == "bare 1"  # type: ignore[arg-type]


def test_lent_workers_outlive_the_session(tmp_path: Path) -> None:
    toolchains, lent = Registry(()), dict[str, Worker]()
    toolchains.add(FakeToolchain())
    target = Target.parse("llvm -compiler=fake")
    with Database("sqlite:///:memory:") as database:
        with MeasureSession(toolchains, database, tmp_path, workers=lent) as measure_session:
            measure_overheads(target, measure_session)
        assert lent["fake"].alive
        lent["fake"].kill()


def test_a_lent_worker_that_serves_another_toolchain_of_the_same_name_is_replaced(tmp_path: Path) -> None:
    lent, target = dict[str, Worker](), Target.parse("llvm -compiler=fake")

    def build(misbehaviour: str) -> str:
        toolchains = Registry(())
        toolchains.add(FakeToolchain(misbehaviour))
        with (
            Database("sqlite:///:memory:") as database,
            MeasureSession(toolchains, database, tmp_path, workers=lent) as measure_session,
        ):
            return measure_session.availability(target).build

    healthy, first = build(""), lent["fake"]
    assert build("") == healthy and lent["fake"] is first
    assert build("run:stuck") != healthy and not first.alive
    assert lent["fake"].alive
    lent["fake"].kill()
