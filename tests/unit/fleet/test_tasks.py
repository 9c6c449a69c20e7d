"""The states of tasks in the database, on each engine."""

from __future__ import annotations

import sqlite3
from dataclasses import fields, replace
from pathlib import Path

import pytest

from collage._errors import UsageError
from collage.database.database import Database
from collage.fleet.tasks import Task, TaskStore, absolute_url, replaced, stale


def task(number: int, **more: object) -> Task:
    return Task(f"t{number}", "out", f"m{number}", "a" * 64, "small", **more)  # type: ignore[arg-type]


def test_planning_again_changes_nothing_that_is_known(database_url: str) -> None:
    with TaskStore(database_url) as store, TaskStore(database_url) as other:
        store.plan([task(1), task(2)])
        (first,) = store.of(["t1"])
        kept = store.change(first, state="done", artefact="f" * 64, time_us=1.5, versions={"collage": "1"})
        other.plan([task(1), task(2), task(3)])
        assert {each.digest: each.state for each in other.all()} == {"t1": "done", "t2": "waiting", "t3": "waiting"}
        assert other.of(["t1"]) == [kept]
        assert other.all("elsewhere") == []


def test_timings_and_tasks_share_a_database(database_url: str) -> None:
    with Database(database_url), TaskStore(database_url) as store:
        store.plan([task(1)])
    with Database(database_url) as database, TaskStore(database_url) as store:
        assert database.complaints() is None and len(store.all()) == 1


def test_tasks_move_only_from_the_states_that_are_named(database_url: str) -> None:
    with TaskStore(database_url) as store:
        states = ("waiting", "running", "done", "failed", "cancelled")
        store.plan(task(number, state=state, tries=2) for number, state in enumerate(states))
        digests = [f"t{number}" for number in range(5)]
        assert store.move(digests, ("waiting", "running"), "cancelled", "cancelled") == 2
        assert store.cancelled("out") == {"t0", "t1", "t4"} and store.cancelled("elsewhere") == set()
        assert store.move(digests, ("failed", "cancelled"), "waiting") == 4
        assert {each.tries for each in store.all() if each.state == "waiting"} == {0}


@pytest.mark.parametrize("value", ["'text'", "x'ff'", "1e999", "-1", "'[]'", "'1'"])
def test_rows_that_make_no_sense_are_read_as_far_as_they_do(tmp_path: Path, value: str) -> None:
    file = tmp_path / "t.sqlite"
    columns = [each.name for each in fields(Task) if each.name not in ("digest", "folder")]
    with TaskStore(f"sqlite:///{file}") as store:
        store.plan([task(1), task(2, state="done")])
        with sqlite3.connect(file) as database:
            database.execute(f"UPDATE fleet_task SET {', '.join(f'{name} = {value}' for name in columns)}")
            database.execute("UPDATE fleet_task SET state = 'done'")
        found = store.all()
        assert stale(found) | replaced(found) <= {"t1", "t2"}
        for each in found:
            assert isinstance(each.tries, int) and each.tries >= 0 and isinstance(each.reason, str)
            assert each.time_us is None or 0 <= each.time_us < float("inf")
            assert store.change(each, state="failed", tries=each.tries + 1).state == "failed"


def test_texts_of_nodes_and_names_of_files_need_not_be_text(database_url: str) -> None:
    with TaskStore(database_url) as store:
        store.plan([task(1, state="failed", reason="\udc80\0", node="\udc80")])
        assert [(each.reason, each.node) for each in store.all()] == [("?", "?")]
        with pytest.raises(UsageError, match="cannot use the tasks"):
            store.plan([replace(task(2), name="\udc80")])


def test_a_task_that_was_cancelled_meanwhile_neither_waits_nor_runs_again(database_url: str) -> None:
    with TaskStore(database_url) as store:
        store.plan([task(1)])
        (known,) = store.of(["t1"])
        store.move(["t1"], ("waiting",), "cancelled")
        for state in ("running", "waiting"):
            assert store.change(known, state=state).state == "cancelled"
            assert store.of(["t1"])[0].state == "cancelled"
        assert store.change(known, state="done", artefact="f" * 64).state == "done"


def test_thousands_of_tasks_are_planned_and_found(database_url: str) -> None:
    with TaskStore(database_url) as store:
        store.plan(task(number) for number in range(1200))
        assert len(store.all()) == len(store.of([f"t{number}" for number in range(1300)])) == 1200


def test_an_artefact_is_stale_if_a_newer_one_of_its_machine_was_made_by_other_versions() -> None:
    old = task(1, state="done", versions={"collage": "1", "tvm": "5"}, changed_at_s=1.0)
    new = task(2, state="done", versions={"collage": "1", "tvm": "6"}, changed_at_s=2.0)
    apart = task(3, state="done", versions={"collage": "1", "openvino": "1"}, changed_at_s=0.0)
    elsewhere = Task("t4", "out", "m", "a", "big", state="done", versions={"tvm": "5"})
    failed = task(5, state="failed", versions={"tvm": "4"}, changed_at_s=3.0)
    assert stale([new, old, apart, elsewhere, failed]) == {"t1"}
    assert stale([old, apart]) == set()


def test_an_artefact_whose_file_a_newer_one_took_is_replaced_and_never_stale() -> None:
    old = task(1, state="done", versions={"tvm": "5"}, file="m/small.zip", changed_at_s=1.0)
    new = task(2, state="done", versions={"tvm": "6"}, file="m/small.zip", changed_at_s=2.0)
    other = task(3, state="done", versions={"tvm": "5"}, file="n/small.zip", changed_at_s=0.0)
    failed = task(4, state="failed", file="n/small.zip", changed_at_s=3.0)
    elsewhere = replace(new, digest="t5", folder="another")
    tasks = [new, failed, elsewhere, other, old]
    assert replaced(tasks) == {"t1"}
    assert stale(tasks) == {"t3"}


def test_a_file_is_named_alike_in_every_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute_url("t.sqlite") == absolute_url("sqlite:///t.sqlite") == f"sqlite:///{tmp_path}/t.sqlite"
    assert absolute_url("postgresql://me@db/t") == "postgresql://me@db/t"
    with pytest.raises(UsageError, match="in memory"):
        absolute_url("sqlite:///:memory:")
