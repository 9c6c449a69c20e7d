"""The timing database, so that nothing is measured twice.

SQLite (write-ahead log) by default; PostgreSQL by URL. Every row is committed when its measurement ends, so that a killed
run loses at most the one under way. Only timings are shared, never binaries; each says where it was made. Rows are
validated: a damaged or hostile one counts as absent.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from collage._errors import UsageError
from collage.cost.outcome import Outcome
from collage.cost.workload_key import WorkloadKey, digest_of
from collage.database import _schema as schema
from collage.database._claims import claim
from collage.database._engine import begin_writing, describe, file_url, open_engine, prepare, readable_url, sqlite_file
from collage.database._facts import MACHINE, FactKind
from collage.database._persistence import persistently
from collage.database._rows import fact_row, is_finite, outcome_of, read_json, timing_row, value_of
from collage.database._schema import SCHEMA
from collage.system.machine import this_machine
from collage.system.user_folders import cache_folder

__all__ = ["SCHEMA", "Database", "Record", "default_url", "file_url", "sqlite_file", "this_origin"]

_INSERT: Mapping[str, Callable[[sa.Table], Any]] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}
_BATCH = 500
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Record:
    """A timing as it is kept.

    Attributes:
        outcome: The result of measuring.
        origin: The machine that measured.
        made_at_s: When, in seconds since 1970.
    """

    outcome: Outcome
    origin: str
    made_at_s: float


def default_url() -> str:
    """The database of this user: ``$COLLAGE_DB``, or an SQLite file in the user's cache folder."""
    if url := os.environ.get("COLLAGE_DB"):
        return url
    folder = cache_folder("name a database with --db or COLLAGE_DB")
    return file_url(folder / "timings.sqlite")


@functools.cache
def this_origin() -> str:
    """Return the mark of rows that are made here: the host's name, and a digest that separates hosts of equal name."""
    host = platform.node() or "localhost"
    with contextlib.suppress(OSError):
        return f"{host[:64]}-{hashlib.sha256(Path('/etc/machine-id').read_bytes() + host.encode()).hexdigest()[:8]}"
    return host[:64]


class Database:
    """Timings by workload key, and facts about this machine by name.

    Args:
        url: An SQLAlchemy URL of SQLite or PostgreSQL, or the path of an SQLite file; None is the user's own.
        reading: Nothing will be written, so that a file will do that cannot be.

    Attributes:
        url: Address of the database, without its password.
        origin: Mark of the rows that are written here.

    Raises:
        UsageError: It cannot be opened, read or written, or was written by a newer version.
    """

    def __init__(self, url: str | None = None, *, reading: bool = False) -> None:
        url = url or default_url()
        self._engine = open_engine(url, reading=reading)
        self.url = readable_url(self._engine)
        self.origin = this_origin()
        self._introduced = False
        try:
            self._engine = prepare(self._engine)
        except UsageError as error:
            raise UsageError(f"cannot use the timing database {describe(url)}: {error}") from None
        except sa.exc.SQLAlchemyError as error:
            raise UsageError(
                f"cannot open the timing database {describe(url)}: {_cause(error)}; --db names another"
            ) from error

    @property
    def file(self) -> Path | None:
        """The SQLite file, where it is one."""
        return sqlite_file(self._engine.url)

    def find(self, key: WorkloadKey) -> Record | None:
        """Return the outcome of measuring a kernel with its origin and time, None if it is not known."""
        row = self._row(schema.timing, key.digest)
        outcome = None if row is None else outcome_of(row)
        return None if row is None or outcome is None else Record(outcome, str(row["origin"]), row["made_at_s"])

    def record(self, key: WorkloadKey, outcome: Outcome) -> None:
        """Keep an outcome; a newer one replaces an older one. It is safe when this returns."""
        self._introduce()
        self.write(schema.timing, [timing_row(key, outcome, self.origin)])

    def claimed(self, key: WorkloadKey, patience_s: float) -> contextlib.AbstractContextManager[bool]:
        """Hold the right to measure a kernel, which one of all processes that share a server has at a time.

        It ends with its process, and with the server. On SQLite, which is for one machine, the machine lock is enough.

        Args:
            key: The kernel.
            patience_s: Seconds to wait until no other process has it.

        Returns:
            A context that yields True if the right was obtained.
        """
        return claim(self._engine, key.digest, patience_s)

    def fact(self, kind: FactKind[_T], **name: Any) -> _T | None:
        """A fact kept under this name, or None if there is none, or it is damaged."""
        row = self._row(schema.fact, digest_of({**name, "fact": kind.name}))
        return None if row is None else kind.read(value_of(row))

    def keep_fact(self, kind: FactKind[_T], value: _T, **name: Any) -> None:
        """Keep a value under a name made of named parts."""
        self.write(schema.fact, [fact_row({**name, "fact": kind.name}, kind.write(value), self.origin)])

    def facts(self, kind: FactKind[_T]) -> Iterator[tuple[Mapping[str, Any], _T]]:
        """All facts of one kind, each with its name, as ``keep_fact`` was given it."""
        # What names look like in their column; so may the text of some other part.
        alike = schema.fact.c.name.contains(f'"fact": "{kind.name}"', autoescape=True)

        def read() -> Sequence[str]:
            try:
                with self._engine.connect() as connection:
                    return connection.execute(sa.select(schema.fact.c.digest).where(alike)).scalars().all()
            except sa.exc.DataError:
                return ()  # A name that is too large to be ours.

        digests = self._persistently("read", read)
        for row in filter(None, (self._row(schema.fact, digest) for digest in digests)):
            name, value = read_json(row["name"]), kind.read(value_of(row))
            if value is not None and name.pop("fact", None) == kind.name:
                yield name, value

    def local_fact(self, kind: FactKind[_T], **name: Any) -> _T | None:
        """A fact that was found out on this very machine, not on one that is alike; or None."""
        row = self._row(schema.fact, digest_of({**name, "fact": kind.name, "origin": self.origin}))
        return None if row is None or row["origin"] != self.origin else kind.read(value_of(row))

    def keep_local_fact(self, kind: FactKind[_T], value: _T, **name: Any) -> None:
        """Keep a fact that holds for this very machine only."""
        self.keep_fact(kind, value, **name, origin=self.origin)

    def rows(self, table: sa.Table) -> Iterator[Mapping[str, Any]]:
        """All rows of a table, oldest first."""
        query = sa.select(table).order_by(table.c.made_at_s, table.c.digest)
        with self._clearly("read"), self._engine.connect() as connection:
            found = connection.execution_options(yield_per=_BATCH).execute(query)
            for row in found.mappings():
                made_at_s = row["made_at_s"] if is_finite(row["made_at_s"]) else 0.0
                yield {**row, "made_at_s": made_at_s, "origin": str(row["origin"])}

    def write(self, table: sa.Table, rows: Iterable[Mapping[str, Any]], *, keep_local: bool = False) -> int:
        """Write rows, in one transaction; a row replaces one of the same digest.

        Args:
            table: The table.
            rows: Complete ones.
            keep_local: Replace a row only if it was not made here, and is older.

        Returns:
            Number of rows that are new, or replaced others.
        """
        insert = _INSERT[self._engine.dialect.name](table)
        news = {column.name: insert.excluded[column.name] for column in table.c if column.name != "digest"}
        yields = (table.c.origin != self.origin) & (table.c.made_at_s < insert.excluded.made_at_s)
        upsert = insert.on_conflict_do_update(
            index_elements=["digest"], set_=news, where=yields if keep_local else None
        )
        complete = [dict(row) for row in rows]

        def upsert_all() -> int:
            with begin_writing(self._engine) as connection:
                return sum(connection.execute(upsert, row).rowcount for row in complete)

        return self._persistently("write", upsert_all)

    def remove(self, table: sa.Table, digests: Sequence[str]) -> None:
        """Remove rows."""

        def delete() -> None:
            with begin_writing(self._engine) as connection:
                for start in range(0, len(digests), _BATCH):
                    batch = digests[start : start + _BATCH]
                    connection.execute(sa.delete(table).where(table.c.digest.in_(batch)))

        self._persistently("write", delete)

    def complaints(self) -> str | None:
        """Return the fault that the engine's own check finds in the file, None if there is none."""
        if self.file is None:
            return None
        with self._clearly("read"), self._engine.connect() as connection:
            found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
        return None if found == "ok" else str(found)

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _row(self, table: sa.Table, digest: str) -> Mapping[str, Any] | None:
        def read() -> Mapping[str, Any] | None:
            try:
                with self._engine.connect() as connection:
                    found = connection.execute(sa.select(table).where(table.c.digest == digest)).mappings().first()
                    return None if found is None else dict(found)
            except sa.exc.DataError:
                return None  # One row that is too large to be ours.

        return self._persistently("read", read)

    def _introduce(self) -> None:
        """Store the facts behind this machine's fingerprint once, so that others can interpret exported rows."""
        if self._introduced:
            return
        machine = this_machine()
        if self.fact(MACHINE, machine=machine.fingerprint) is None:
            self.keep_fact(MACHINE, asdict(machine), machine=machine.fingerprint)
        self._introduced = True

    def _persistently(self, what: str, work: Callable[[], _T]) -> _T:
        """Do work whose repetition does no harm, and repeat it while a server is away for a moment."""

        def attempt() -> _T:
            with self._clearly(what):
                return work()

        return persistently(self._engine, attempt)

    @contextlib.contextmanager
    def _clearly(self, what: str) -> Iterator[None]:
        try:
            yield
        except sa.exc.SQLAlchemyError as error:
            raise UsageError(
                f"cannot {what} the timing database {self.url}: {_cause(error)}; rows that were written before are kept. "
                "--db names another database"
            ) from error


def _cause(error: sa.exc.SQLAlchemyError) -> str:
    """Return the message of the engine itself, in one line."""
    return " ".join(str(error.__cause__ or error).split())[:500]
