"""The command ``collage fleet compile``: plans the tasks, and has those that are left done."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from collage._errors import CollageError, UsageError
from collage.cost.workload_key import digest_of
from collage.database import await_server
from collage.fleet.cluster import ClusterLost, join
from collage.fleet.driver import Driver
from collage.fleet.machines import LOCAL, Fleet
from collage.fleet.models import ModelFiles, describe_model
from collage.fleet.orders import Order, Work
from collage.fleet.returned import file_digest
from collage.fleet.tasks import Task, TaskStore, absolute_url, as_planned, is_file
from collage.system.machine import this_machine

__all__ = ["compile_fleet"]

Say = Callable[[str], None]
_LOCK = ".collage-fleet.lock"
# Tasks that a node of a cluster started here takes at once: each of them measures.
_SLOTS = 1


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
        CollageError: The cluster was lost, or there was no progress for too long. The same command continues.
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
    await_server(db)
    with _alone(folder), TaskStore(db) as store:
        planned, works = _plan(models, fleet, folder, say)
        store.plan(planned)
        by_digest = {task.digest: task for task in planned}
        known = {task.digest: as_planned(task, by_digest[task.digest]) for task in store.of(list(by_digest))}
        for task in known.values():
            if task.state == "done" and file_digest(folder / task.file) != task.artefact:
                say(f"{folder / task.file} is missing, or was changed: it is compiled again")
                known[task.digest] = store.change(task, state="waiting", tries=0, reason="")
        left = [work for work in works if known[work.task.digest].state in ("waiting", "running")]
        order = Order(address, db, folder, fleet.machines, tuple(left), tries, limit_s, patience_s)
        if left:
            say(f"{len(left)} of {len(planned)} tasks are left")
            _drive(order, store, say)
        return store.of([task.digest for task in planned])


def _drive(order: Order, store: TaskStore, say: Say) -> None:
    try:
        with join(order.address, order.machines, _SLOTS) as ray:
            Driver(order, store, ray, say).run()
    except ClusterLost as error:
        raise CollageError(f"{error}; the same command continues") from error


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
