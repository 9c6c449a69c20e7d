"""The tasks of fleets as rows of the database: one for each model, type of machine and output folder."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, TypeVar

import sqlalchemy as sa

from collage._errors import UsageError
from collage.database import begin_writing, clean_text, describe, open_engine, persistently
from collage.database.database import default_url, file_url, sqlite_file

__all__ = ["STATES", "Task", "TaskStore", "absolute_url", "as_planned", "is_file", "replaced", "stale"]

STATES = ("waiting", "running", "done", "failed", "cancelled")
_LOCK = 0x666C6565
"""PostgreSQL's lock while the table is made; the timing database has another."""
_BATCH = 500
_MOST_ROWS = 200_000
"""Rows that are read at once. A fleet of ten thousand models has a fifth of it."""
_T = TypeVar("_T")

_metadata = sa.MetaData()
_task = sa.Table(
    "fleet_task",
    _metadata,
    sa.Column("digest", sa.String(64), primary_key=True),
    sa.Column("folder", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("model", sa.String(64), nullable=False),
    sa.Column("machine", sa.String(64), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("tries", sa.Integer, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("node", sa.Text, nullable=False),
    sa.Column("artefact", sa.String(64), nullable=False),
    sa.Column("file", sa.Text, nullable=False),
    sa.Column("time_us", sa.Float),
    sa.Column("gain", sa.Float),
    sa.Column("versions", sa.Text, nullable=False),
    sa.Column("took_s", sa.Float),
    sa.Column("changed_at_s", sa.Float, nullable=False),
)


@dataclass(frozen=True, slots=True)
class Task:
    """One model, to be compiled for one type of machine.

    Attributes:
        digest: Its key: of the model, the type of machine, the options and the output folder.
        folder: The output folder.
        name: The model's name for people.
        model: The model's digest, see ``model_digest``.
        machine: The type of machine.
        state: One of ``STATES``.
        tries: Number of tries that failed.
        reason: The reason of the last failure; empty if there was none.
        node: The node of the last try.
        artefact: SHA-256 of the artefact's file; empty if there is none.
        file: The artefact's file, relative to the folder.
        time_us: Median latency.
        gain: Speed-up over the original model on ONNX Runtime.
        versions: The version of Collage, and the build of each toolchain that the artefact uses.
        took_s: Seconds of the try that succeeded.
        changed_at_s: The time of the last change, in seconds since 1970.
    """

    digest: str
    folder: str
    name: str
    model: str
    machine: str
    state: str = "waiting"
    tries: int = 0
    reason: str = ""
    node: str = ""
    artefact: str = ""
    file: str = ""
    time_us: float | None = None
    gain: float | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    took_s: float | None = None
    changed_at_s: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        return asdict(self)


class TaskStore:
    """The tasks in a database.

    Args:
        url: As for ``Database``.

    Raises:
        UsageError: It cannot be opened.
    """

    def __init__(self, url: str) -> None:
        self._engine = open_engine(url)
        self._shown = describe(url)
        with self._clearly(), begin_writing(self._engine) as connection:
            if self._engine.dialect.name == "postgresql":
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
            _metadata.create_all(connection)

    def __enter__(self) -> TaskStore:
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.dispose()

    def plan(self, tasks: Iterable[Task]) -> None:
        """Add tasks; those that are there already stay as they are."""
        rows = [_row(replace(task, changed_at_s=time.time())) for task in tasks]
        known = {task.digest for task in self.of([row["digest"] for row in rows])}
        fresh = {row["digest"]: row for row in rows if row["digest"] not in known}

        def insert(connection: sa.Connection) -> None:
            if fresh:
                connection.execute(sa.insert(_task), list(fresh.values()))

        self._write(insert)

    def change(self, task: Task, **changes: Any) -> Task:
        """Keep a task with changes. It is safe when this returns.

        Returns:
            The task as it is from now on. One that was cancelled meanwhile neither waits nor runs again.
        """
        changed = replace(task, **changes, changed_at_s=time.time())
        update = sa.update(_task).where(_task.c.digest == task.digest).values(_row(changed))
        if changed.state in ("waiting", "running"):
            update = update.where(_task.c.state != "cancelled")
        is_kept = self._write(lambda connection: connection.execute(update).rowcount)
        return changed if is_kept else replace(task, state="cancelled")

    def move(self, digests: Sequence[str], states: Iterable[str], to: str, reason: str = "") -> int:
        """Move tasks that are in one of these states to another one; their tries are forgotten.

        Returns:
            Number of tasks moved.
        """
        values = {"state": to, "tries": 0, "reason": reason, "changed_at_s": time.time()}

        def update(connection: sa.Connection) -> int:
            return sum(
                connection.execute(
                    sa.update(_task).where(_task.c.digest.in_(part), _task.c.state.in_(list(states))).values(values)
                ).rowcount
                for part in _parts(digests)
            )

        return self._write(update)

    def of(self, digests: Sequence[str]) -> list[Task]:
        """Return the tasks with these keys."""
        return [task for part in _parts(digests) for task in self._read(_task.c.digest.in_(part))]

    def cancelled(self, folder: str) -> set[str]:
        """Return the keys of the tasks of an output folder that were cancelled."""
        return {task.digest for task in self._read((_task.c.folder == folder) & (_task.c.state == "cancelled"))}

    def all(self, folder: str | None = None) -> list[Task]:
        """Return all tasks, or those of one output folder, at most 200,000: the newest of them, oldest first."""
        return self._read(sa.true() if folder is None else _task.c.folder == folder)

    def _read(self, where: sa.ColumnElement[bool]) -> list[Task]:
        query = sa.select(_task).where(where).order_by(_task.c.changed_at_s.desc(), _task.c.digest).limit(_MOST_ROWS)

        def read() -> list[Task]:
            with self._engine.connect() as connection:
                return [_task_of(row) for row in connection.execute(query).mappings()]

        return self._persistently(read)[::-1]

    def _write(self, work: Callable[[sa.Connection], _T]) -> _T:
        def write() -> _T:
            with begin_writing(self._engine) as connection:
                return work(connection)

        return self._persistently(write)

    def _persistently(self, work: Callable[[], _T]) -> _T:
        def attempt() -> _T:
            with self._clearly():
                return work()

        return persistently(self._engine, attempt)

    @contextmanager
    def _clearly(self) -> Iterator[None]:
        try:
            yield
        except (sa.exc.SQLAlchemyError, UnicodeEncodeError) as error:  # Paths need not be text.
            cause = " ".join(str(error.__cause__ or error).split())[:500]
            raise UsageError(f"cannot use the tasks in the database {self._shown}: {cause}") from error


def as_planned(known: Task, planned: Task) -> Task:
    """Return a task of the database with the model, the machine and the file that it has here.

    Other users may write to the database, and must not choose the files that this process writes to.
    """
    return replace(
        known,
        folder=planned.folder,
        name=planned.name,
        model=planned.model,
        machine=planned.machine,
        file=planned.file,
    )


def is_file(url: str) -> bool:
    """Return True if a database is a file of this machine."""
    return "://" not in url or url.startswith("sqlite")


def absolute_url(url: str | None) -> str:
    """Return the URL of a database as it is the same in every folder; None is the user's own."""
    url = url or default_url()
    if not is_file(url):
        return url
    file = sqlite_file(url)
    if file is None:
        raise UsageError(f"{url} is in memory, where no other process finds it")
    return file_url(file.absolute())


def stale(tasks: Sequence[Task]) -> set[str]:
    """Return the keys of tasks whose artefacts are made by versions that a newer artefact for the same machine does not have.

    Replaced ones are not among them.

    A toolchain that only one artefact uses changes unseen until another is compiled with it.
    """
    newest: dict[tuple[str, str], str] = {}
    done, gone = _done(tasks), replaced(tasks)
    for task in done:
        newest |= {(task.machine, name): version for name, version in task.versions.items()}
    return {
        task.digest
        for task in done
        if any(newest[task.machine, name] != version for name, version in task.versions.items())
    } - gone


def replaced(tasks: Sequence[Task]) -> set[str]:
    """Return the keys of tasks whose artefacts gave way to those of newer tasks: of another model or option by their name."""
    done = [task for task in _done(tasks) if task.file]
    last = {(task.folder, task.file): task.digest for task in done}
    return {task.digest for task in done} - set(last.values())


def _done(tasks: Iterable[Task]) -> list[Task]:
    """Return tasks that are done, the oldest first."""
    return sorted((task for task in tasks if task.state == "done"), key=lambda task: task.changed_at_s)


def _row(task: Task) -> dict[str, Any]:
    row = {
        **{each.name: getattr(task, each.name) for each in fields(task)},
        "versions": json.dumps(dict(task.versions)),
    }
    return {**row, "reason": clean_text(task.reason), "node": clean_text(task.node)}


def _task_of(row: Mapping[Any, Any]) -> Task:
    """Return the task of a row; values that make no sense are left out."""
    try:
        versions = json.loads(row["versions"])
    except (ValueError, TypeError, RecursionError):
        versions = {}
    # SQLite keeps values of any type in any column.
    told: dict[str, Any] = {f.name: row[f.name] if isinstance(row[f.name], str) else "" for f in fields(Task)}
    for name in ("time_us", "gain", "took_s", "changed_at_s"):
        is_number = isinstance(row[name], int | float) and 0 <= row[name] < math.inf
        told[name] = float(row[name]) if is_number else 0.0 if name == "changed_at_s" else None
    told["tries"] = row["tries"] if isinstance(row["tries"], int) and row["tries"] > 0 else 0
    told["versions"] = {str(k): str(v) for k, v in versions.items()} if isinstance(versions, dict) else {}
    told["state"] = told["state"] if told["state"] in STATES else "failed"
    return Task(**told)


def _parts(digests: Sequence[str]) -> Iterator[Sequence[str]]:
    return (digests[start : start + _BATCH] for start in range(0, len(digests), _BATCH))
