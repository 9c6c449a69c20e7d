"""``collage fleet status``, ``retry`` and ``cancel``: which tasks they list and move."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from collage.cli import main
from collage.fleet.tasks import Task, TaskStore, absolute_url

STATES = ("waiting", "running", "done", "failed", "cancelled")


@pytest.fixture
def db(tmp_path: Path) -> str:
    """One task in each state, of which the one that is done is stale, and another folder's task."""
    path = str(tmp_path / "t.sqlite")
    folder = str(tmp_path / "out")
    newer = {"machine": "small", "state": "done", "changed_at_s": 2.0}
    with TaskStore(absolute_url(path)) as store:
        store.plan(Task(state, folder, state, "a" * 64, "small", state=state, tries=3) for state in STATES)
        store.plan([Task("newer", str(tmp_path / "other"), "newer", "b" * 64, **newer)])  # type: ignore[arg-type]
        old, new = store.of(["done"]) + store.of(["newer"])
        store.change(
            old, state="done", reason="", time_us=1500.0, gain=1.25, versions={"collage": "0", "openvino": "1"}
        )
        store.change(new, state="done", versions={"collage": "0", "openvino": "2"})
    return path


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main(["fleet", *words])
    heard = capsys.readouterr()
    return int(stop.value.code or 0), heard.out, heard.err


def states(db: str) -> dict[str, str]:
    with TaskStore(absolute_url(db)) as store:
        return {task.digest: task.state for task in store.all()}


def test_status_lists_tasks_of_a_folder_or_a_state(db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, output, _ = said(capsys, "status", "--db", db)
    *lines, summary = output.splitlines()
    assert code == 0 and len(lines) == len(STATES) + 1
    counts = {"1 waiting", "1 running", "2 done", "1 failed", "1 cancelled", "1 stale"}
    assert set(summary.split(", ")) == counts
    assert any("stale" in line and "1.500 ms" in line and "1.25x" in line for line in lines)
    (tmp_path / "out").mkdir()
    found = json.loads(said(capsys, "status", "-o", str(tmp_path / "out"), "--json", "--db", db)[1])
    assert {task["name"]: task["stale"] for task in found["tasks"]} == {name: name == "done" for name in STATES}
    (failed,) = json.loads(said(capsys, "status", "--state", "failed", "--json", "--db", db)[1])["tasks"]
    assert failed["name"] == "failed"
    (old,) = json.loads(said(capsys, "status", "--state", "stale", "--json", "--db", db)[1])["tasks"]
    assert old["name"] == "done"


def test_retry_has_failed_and_cancelled_tasks_wait_and_stale_ones_on_request(
    db: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(capsys, "retry", "--db", db)[1] == "2 tasks waiting\n"
    left = dict.fromkeys(("waiting", "failed", "cancelled"), "waiting") | {"running": "running"}
    assert states(db) == {**left, "done": "done", "newer": "done"}
    said(capsys, "retry", "--stale", "--db", db)
    assert states(db) == {**left, "done": "waiting", "newer": "done"}


def test_cancel_leaves_what_is_settled(db: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "cancel", "running", "--db", db)[1] == "1 task cancelled\n"
    assert states(db)["waiting"] == "waiting"
    said(capsys, "cancel", "--db", db)
    assert states(db) == {name: name if name in ("done", "failed") else "cancelled" for name in STATES} | {
        "newer": "done"
    }


@pytest.mark.parametrize("command", ["retry", "cancel"])
def test_a_name_that_no_task_has_moves_nothing(command: str, db: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = states(db)
    code, _, errors = said(capsys, command, "nothing", "failed", "--db", db)
    assert code == 2 and "there is no task 'nothing'" in errors
    assert states(db) == before
