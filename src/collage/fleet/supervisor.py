"""The command ``collage fleet compile``: plans the tasks, and keeps a driver running until all are settled."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from collage._errors import CollageError, UsageError
from collage.cost.workload_key import digest_of
from collage.fleet.machines import LOCAL, Fleet
from collage.fleet.models import ModelFiles, describe_model
from collage.fleet.orders import Order, Work
from collage.fleet.returned import file_digest
from collage.fleet.tasks import Task, TaskStore, absolute_url, is_file
from collage.system.machine import this_machine

__all__ = ["compile_fleet"]

Say = Callable[[str], None]
_LOCK = ".collage-fleet.lock"
_LOG = ".collage-fleet.log"
_PAUSE_S = 2.0
_MOST_LIVES = 20
"""Drivers in a row that may end without having settled anything: a model may end each of them."""


def compile_fleet(
    models: Sequence[Path],
    fleet: Fleet,
    folder: Path,
    *,
    address: str = LOCAL,
    db: str | None = None,
    tries: int = 4,
    limit_s: float = 4 * 3600.0,
    patience_s: float = 1800.0,
    say: Say = lambda _: None,
) -> list[Task]:
    """Compile each model for each type of machine of a fleet; tasks that are settled stay as they are.

    Args:
        models: ONNX files. Files of equal name are told apart by the names of their folders.
        fleet: The types of machines.
        folder: Folder of the artefacts, which are called ``MODEL/MACHINE.collage.zip``.
        address: See ``collage.fleet.cluster.join``.
        db: The database; None is the user's own. Machines other than this one need PostgreSQL.
        tries: Number of tries that may fail for one task.
        limit_s: Seconds that one try may take.
        patience_s: Seconds without any progress, such as without a node, after which the command ends.
        say: Called with each line of progress.

    Returns:
        All tasks of the command, settled.

    Raises:
        UsageError: Paths or options make no sense, or another command writes to the folder.
        CollageError: There was no progress for too long. The same command continues.
    """
    db = absolute_url(db)
    if address != LOCAL and is_file(db):
        raise UsageError("a fleet on several machines needs a database that all reach: --db postgresql://...")
    here = this_machine().fingerprint
    if address == LOCAL and (other := [each for each in fleet.machines.values() if each.fingerprint != here]):
        raise UsageError(
            f"this machine has the fingerprint {here}, so it is not of the type {other[0].name!r}; see --on"
        )
    if missing := [path for path in models if not path.is_file()]:
        raise UsageError(f"{missing[0]} does not exist")
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    with _alone(folder), TaskStore(db) as store:
        planned, works = _plan(models, fleet, folder, say)
        store.plan(planned)
        known = {task.digest: task for task in store.of([task.digest for task in planned])}
        for task in known.values():
            if task.state == "done" and file_digest(folder / task.file) != task.artefact:
                say(f"{folder / task.file} is missing, or was changed: it is compiled again")
                known[task.digest] = store.change(task, state="waiting", tries=0, reason="")
        left = [work for work in works if known[work.task.digest].state in ("waiting", "running")]
        order = Order(address, db, folder, fleet.machines, tuple(left), tries, limit_s, patience_s)
        if left:
            say(f"{len(left)} of {len(planned)} tasks are left")
            _supervise(order, say)
        return store.of([task.digest for task in planned])


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold an output folder, to which one command writes at a time."""
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(f"another `collage fleet compile` writes to {folder}") from None
        yield
    finally:
        os.close(descriptor)


def _plan(models: Sequence[Path], fleet: Fleet, folder: Path, say: Say) -> tuple[list[Task], list[Work]]:
    """Return the tasks of some models, and the work that those of readable models are."""
    tasks: list[Task] = []
    works: list[Work] = []
    for path, name in _names(models).items():
        say(f"reading {path}")
        try:
            model: ModelFiles | None = describe_model(path)
            reason = ""
        except UsageError:
            raise
        except CollageError as error:
            model, reason = None, str(error)
        digest = file_digest(path) if model is None else model.digest
        for machine in fleet.machines.values():
            parts = {"model": digest, "name": name, "machine": machine.name, "options": dict(machine.options)}
            key = digest_of({**parts, "fingerprint": machine.fingerprint, "folder": str(folder)})
            task = Task(key, str(folder), name, digest, machine.name, file=f"{name}/{machine.name}.collage.zip")
            tasks.append(replace(task, state="failed", reason=reason) if model is None else task)
            works += [] if model is None else [Work(task, model)]
    return tasks, works


def _names(models: Iterable[Path]) -> dict[Path, str]:
    """Return a name of its own for each model: that of its file, with as many folders before it as tell models apart."""
    tails = {path: (*path.parts[1:-1], path.stem.lstrip(".") or "model") for path in map(Path.absolute, models)}
    lengths = dict.fromkeys(tails, 1)
    while True:
        names = {path: "-".join(tail[-lengths[path] :]) for path, tail in tails.items()}
        counts = Counter(names.values())
        alike = [path for path, name in names.items() if counts[name] > 1]
        longer = [path for path in alike if lengths[path] < len(tails[path])]
        if not longer:  # Those that are still alike differ in the kind of file, or in a dash for a slash.
            return names | {path: f"{names[path]}-{digest_of({'path': str(path)})[:8]}" for path in alike}
        lengths |= {path: lengths[path] + 1 for path in longer}


def _supervise(order: Order, say: Say) -> None:
    """Start drivers until one settles everything."""
    lost_s: float | None = None  # Since when no driver has found the cluster.
    lives = 0  # Drivers in a row that found it, and settled nothing.
    counted = {"done": 0, "of": len(order.work)}
    while True:
        before = counted["done"]
        code, told = _drive(order, say, counted)
        if code == 0:
            return
        has_joined, has_moved = "joined" in told, counted["done"] > before
        lives = 0 if has_moved else lives + has_joined
        lost_s = time.monotonic() if lost_s is None or has_joined else lost_s
        if "error" in told:
            raise (UsageError if code == UsageError.exit_code else CollageError)(told["error"])
        reason = told.get("lost") or f"the driver ended with code {code}; {order.folder / _LOG} holds its output"
        if time.monotonic() - lost_s > order.patience_s or lives > _MOST_LIVES:
            raise CollageError(f"{reason}; the same command continues")
        say(f"{reason}; trying again")
        time.sleep(_PAUSE_S)


def _drive(order: Order, say: Say, counted: dict[str, int]) -> tuple[int, Mapping[str, str]]:
    """Run one driver; return its exit code, and the last of its words on joining, on losing the cluster, and on errors."""
    last: dict[str, str] = {}
    with (order.folder / _LOG).open("ab") as log:
        driver = subprocess.Popen(
            [sys.executable, "-m", "collage.fleet.driver"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,  # An interrupt is for this process, which then lets go of the driver.
        )
    assert driver.stdin is not None and driver.stdout is not None
    try:
        with contextlib.suppress(BrokenPipeError):
            driver.stdin.write(order.to_json().encode() + b"\n")
            driver.stdin.flush()
        for line in driver.stdout:
            event = _event(line)
            if "settled" in event:
                counted["done"] += 1
                say(f"[{counted['done']}/{counted['of']}] {_told(event['settled'])}")
            elif "say" in event:
                say(str(event["say"]))
            last |= {name: str(event[name]) for name in ("error", "joined", "lost") if name in event}
        return driver.wait(), last
    finally:
        with contextlib.suppress(BrokenPipeError):
            driver.stdin.close()
        driver.wait()


def _event(line: bytes) -> dict[str, Any]:
    """Return an event that a driver printed; None for other lines, which libraries print to the same pipe."""
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


def _told(task: Mapping[str, Any]) -> str:
    where = f"{task['name']} for {task['machine']}"
    if task["state"] != "done":
        return f"{where}: {task['state']}: {task['reason']}"
    time_ = "" if task["time_us"] is None else f", {task['time_us'] / 1e3:.3f} ms"
    return f"{where}: {task['file']}{time_}"
