"""Each way in which a task may end, and what the driver makes of it."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.unit.fleet.artefacts import model, zipped
from tests.unit.fleet.fake_ray import ERRORS, FakeRay, Reference

from collage._errors import CollageError
from collage.fleet import driver
from collage.fleet.cluster import ClusterLost
from collage.fleet.driver import Driver
from collage.fleet.machines import MachineType
from collage.fleet.orders import Order, Work
from collage.fleet.tasks import Task, TaskStore

ARTEFACT = zipped()
SMALL, BIG = (MachineType(name, "0123456789abcdef", {}) for name in ("small", "big"))


class Fleet:
    """Tasks, a store, and what came of a run."""

    def __init__(self, folder: Path, models: int, machines: tuple[MachineType, ...] = (SMALL,), **more: Any) -> None:
        self.store = TaskStore(f"sqlite:///{folder / 't.sqlite'}")
        works = []
        for number in range(models):
            path = folder / f"m{number}.onnx"
            path.write_bytes(f"{number}".encode())
            for machine in machines:
                file = f"m{number}/{machine.name}.zip"
                task = Task(f"{number}-{machine.name}", str(folder), path.stem, f"{number}", machine.name, file=file)
                works.append(Work(task, model(path)))
        self.store.plan(work.task for work in works)
        limits = {"tries": 3, "limit_s": 1000.0, "patience_s": 60.0, **more}
        machines_ = {machine.name: machine for machine in machines}
        self.order = Order("ray", "db", folder, machines_, tuple(works), **limits)
        self.told: list[str] = []

    def run(self, ends: Callable[[Reference], Any], nodes: Mapping[str, str]) -> FakeRay:
        ray = FakeRay(ends, nodes)
        Driver(self.order, self.store, ray, self.told.append).run()
        return ray

    @property
    def tasks(self) -> dict[str, Task]:
        return {task.digest: task for task in self.store.all()}

    def states(self) -> list[str]:
        return [self.tasks[work.task.digest].state for work in self.order.work]


def done(reference: Reference, **more: Any) -> dict[str, Any]:
    return {"kind": "done", "node": reference.node, "host": reference.node, "artefact": ARTEFACT, "took_s": 2.0, **more}


def name_of(reference: Reference) -> str:
    return next(iter(reference.files))


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_LOOK_S", 0.001)


def test_each_model_ends_as_an_artefact_for_each_type_and_no_node_has_two_at_once(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, 5, (SMALL, BIG))
    ray = fleet.run(done, {"a": "small", "b": "small", "c": "big"})
    assert fleet.states() == ["done"] * 10
    for task in fleet.tasks.values():
        assert (tmp_path / task.file).read_bytes() == ARTEFACT
        assert task.artefact and task.took_s == 2.0 and "collage" in task.versions
    assert ray.most_at_once == 3 and not ray.busy
    assert [line.split()[0] for line in fleet.told] == [f"[{number}/10]" for number in range(1, 11)]


def test_a_lost_node_costs_a_try_and_nothing_else(tmp_path: Path) -> None:
    fleet, lost = Fleet(tmp_path, 3), set[int]()

    def ends(reference: Reference) -> Any:
        if name_of(reference) == "m1.onnx" and len(lost | {id(reference)}) <= 2:
            lost.add(id(reference))
            raise ERRORS.NodeDiedError("gone")
        return done(reference)

    fleet.run(ends, {"a": "small"})
    assert fleet.states() == ["done"] * 3
    assert fleet.tasks["1-small"].tries == 2 and fleet.tasks["0-small"].tries == 0


def test_a_model_that_crashes_everything_is_tried_elsewhere_a_bounded_number_of_times(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, 3)

    def ends(reference: Reference) -> Any:
        if name_of(reference) == "m0.onnx":
            return {
                "kind": "failed",
                "code": -11,
                "reason": "signal 11",
                "node": reference.node,
                "host": reference.node,
            }
        return done(reference)

    ray = fleet.run(ends, {"a": "small", "b": "small"})
    assert fleet.states() == ["failed", "done", "done"]
    task = fleet.tasks["0-small"]
    assert task.tries == 3 and task.reason == "signal 11"
    assert len(ray.started) == 3 + 2


def test_each_try_is_on_a_node_that_was_not_tried_as_long_as_there_is_one(tmp_path: Path) -> None:
    fleet, tried = Fleet(tmp_path, 1), list[str]()

    def ends(reference: Reference) -> Any:
        tried.append(reference.node)
        return {"kind": "failed", "code": 1, "reason": "no", "node": reference.node}

    fleet.run(ends, {"a": "small", "b": "small", "c": "small"})
    assert set(tried) == {"a", "b", "c"}


@pytest.mark.parametrize("code", [2, 3, 4, 5])
def test_a_model_that_is_at_fault_has_a_second_try_only(tmp_path: Path, code: int) -> None:
    fleet = Fleet(tmp_path, 1)
    ray = fleet.run(lambda r: {"kind": "failed", "code": code, "reason": "no model", "node": r.node}, {"a": "small"})
    assert len(ray.started) == 2 and fleet.states() == ["failed"]


def test_a_node_of_another_fingerprint_is_refused_once_and_costs_no_try(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, 4)

    def ends(reference: Reference) -> Any:
        if reference.node == "liar":
            return {"kind": "refused", "reason": "other fingerprint", "node": "liar"}
        return done(reference)

    ray = fleet.run(ends, {"liar": "small", "honest": "small"})
    assert fleet.states() == ["done"] * 4
    assert [node for node, _ in ray.started].count("liar") == 1
    assert all(task.tries == 0 for task in fleet.tasks.values())


def test_without_any_right_node_the_driver_gives_up_after_its_patience_and_tasks_wait(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, 2, patience_s=0.5)
    with pytest.raises(CollageError, match="no node for small"):
        fleet.run(lambda r: {"kind": "refused", "reason": "no", "node": r.node}, {"liar": "small", "x": "big"})
    assert "done" not in fleet.states() and "failed" not in fleet.states()


def test_a_task_that_does_not_come_back_is_called_off_and_tried_again(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(driver, "_GRACE_S", 0.0)
    fleet, calls = Fleet(tmp_path, 1, limit_s=0.05), list[Reference]()

    def ends(reference: Reference) -> Any:
        if not calls or calls[0] is reference:
            calls[:] = [reference]
            return None
        return done(reference)

    fleet.run(ends, {"a": "small"})
    assert calls[0].is_cancelled
    assert fleet.states() == ["done"] and fleet.tasks["0-small"].tries == 1


def test_a_cancelled_task_is_called_off_and_stays_cancelled(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, 3)
    started = threading.Event()

    def ends(reference: Reference) -> Any:
        if name_of(reference) == "m0.onnx":
            if not started.is_set():
                started.set()
                with TaskStore(f"sqlite:///{tmp_path / 't.sqlite'}") as other:
                    assert other.move(["0-small", "2-small"], ("waiting", "running"), "cancelled") == 2
            return None
        return done(reference)

    fleet.run(ends, {"a": "small"})
    assert fleet.states() == ["cancelled", "done", "cancelled"]


@pytest.mark.parametrize(
    "sent",
    [
        {"kind": "done"},
        {"kind": "done", "artefact": b"no zip"},
        {"kind": "done", "artefact": "text"},
        {"kind": "done", "artefact": ARTEFACT[:-50]},
        {"kind": "done", "artefact": b"PK" + b"\0" * (300 << 20)},
        {"kind": "done", "artefact": ARTEFACT, "took_s": "long"},
        {"kind": "done", "artefact": ARTEFACT, "took_s": 10**400},
        {"kind": ["odd"]},
        {"kind": "failed", "reason": "half of a character: \udc80, and none: \0", "host": "\udc80"},
        {},
        "no mapping",
        None.__class__,
    ],
)
def test_whatever_a_hostile_node_sends_fails_its_task_only(tmp_path: Path, sent: Any) -> None:
    fleet = Fleet(tmp_path, 2)

    def ends(reference: Reference) -> Any:
        return done(reference) if name_of(reference) == "m1.onnx" else sent

    fleet.run(ends, {"a": "small"})
    assert fleet.states() == ["failed", "done"]
    assert not (tmp_path / "m0" / "small.zip").exists()


def test_a_database_does_not_choose_where_artefacts_go(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    fleet = Fleet(tmp_path / "out", 1)
    with sqlite3.connect(tmp_path / "out" / "t.sqlite") as database:
        database.execute("UPDATE fleet_task SET file = '../elsewhere.zip', machine = 'big', folder = '/'")
    fleet.run(done, {"a": "small"})
    assert fleet.states() == ["done"]
    assert (tmp_path / "out" / "m0" / "small.zip").is_file()
    assert not (tmp_path / "elsewhere.zip").exists()


def test_an_answer_that_ray_cannot_read_fails_its_task_only(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, 2)

    def ends(reference: Reference) -> Any:
        if name_of(reference) == "m1.onnx":
            return done(reference)
        raise ERRORS.RayError("it holds an object of a module that is not here")

    fleet.run(ends, {"a": "small"})
    assert fleet.states() == ["failed", "done"]
    assert "cannot be read: it holds an object" in fleet.tasks["0-small"].reason


def test_the_artefact_of_another_model_is_refused(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, 1)
    (work,) = fleet.order.work
    other = Work(work.task, model(work.model.path, "f" * 64))
    fleet.order = Order(**{**_fields(fleet.order), "work": (other,)})
    fleet.run(done, {"a": "small"})
    assert fleet.states() == ["failed"]
    assert "of another model" in fleet.tasks["0-small"].reason
    assert not list(tmp_path.rglob("*.zip"))


def test_a_lost_cluster_loses_nothing_and_the_next_driver_continues(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, 4)

    def ends(reference: Reference) -> Any:
        if name_of(reference) == "m2.onnx":
            raise ConnectionError("the head is gone")
        return done(reference)

    with pytest.raises(ClusterLost):
        fleet.run(ends, {"a": "small"})
    assert fleet.states() == ["done", "done", "running", "waiting"]
    kept = {task.digest: task for task in fleet.tasks.values() if task.state == "done"}
    ray = fleet.run(done, {"a": "small"})
    assert fleet.states() == ["done"] * 4
    assert len(ray.started) == 2
    assert {digest: fleet.tasks[digest] for digest in kept} == kept


def test_a_model_that_cannot_be_read_any_more_fails_and_its_slot_is_free(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, 3, tries=1)
    (tmp_path / "m0.onnx").unlink()
    fleet.run(done, {"a": "small"})
    assert fleet.states() == ["failed", "done", "done"]


def test_a_node_of_two_types_takes_one_task_at_a_time(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, 3, (SMALL, BIG))

    class Both(FakeRay):
        def nodes(self) -> list[dict[str, Any]]:
            (node,) = super().nodes()
            return [{**node, "Resources": {"machine:small": 1.0, "machine:big": 1.0, "measure": 1.0}}]

        def _options(self, resources: Mapping[str, float], label_selector: Any = None) -> Any:
            self.types = {"a": next(name[8:] for name in resources if name.startswith("machine:"))}
            return super()._options(resources, label_selector)

    ray = Both(done, {"a": "small"})
    Driver(fleet.order, fleet.store, ray, fleet.told.append).run()
    assert fleet.states() == ["done"] * 6 and ray.most_at_once == 1


def _fields(order: Order) -> dict[str, Any]:
    return {name: getattr(order, name) for name in order.__slots__}
