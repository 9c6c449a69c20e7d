"""Opening a database so that many tuners may use it at once: one text for SQLite and PostgreSQL.

Reading takes no lock: SQLite keeps a write-ahead log, and begins a transaction only where something is written. Writing
begins with the write lock in hand, and waits for it, rather than failing halfway.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from collage._distribution import WHERE, install_command
from collage._errors import UsageError
from collage.database._schema import MIGRATIONS, SCHEMA, about, fact, metadata, timing

__all__ = [
    "begin_writing",
    "describe",
    "file_url",
    "open_engine",
    "prepare",
    "readable_url",
    "reading_uri",
    "sqlite_file",
]

_BUSY_S = 60.0
_MAX_VALUE_BYTES = 64 << 20
"""Largest value that is read. Rows of Collage are far smaller, so a larger one is an attack."""
_WRITES = "collage_writes"
_ONLY_READS = "collage_only_reads"
_ONE_CONNECTION: Mapping[str, Any] = {"poolclass": sa.QueuePool, "pool_size": 1, "max_overflow": 0}
_ADVISORY_LOCK = 0x636F6C6C
"""Any number that others do not use: PostgreSQL's lock while the tables are made or changed."""


def open_engine(url: str, *, reading: bool = False) -> sa.Engine:
    """An engine for a URL, or for the path of an SQLite file; nothing is read or written yet.

    Args:
        url: The URL or path.
        reading: True if it is only read, so that a read-only file is enough.

    Raises:
        UsageError: The URL cannot be read, its driver is missing, or it is another kind of database.
    """
    try:
        parsed = _parse(url)
        if parsed.drivername in ("postgresql", "postgres"):
            parsed = parsed.set(drivername="postgresql+psycopg")
        if parsed.get_backend_name() not in ("sqlite", "postgresql"):
            raise UsageError(f"{describe(url)}: {_why_not_there(parsed)}")
        file = sqlite_file(parsed)
        if reading and file is not None and file.exists() and not _is_writable(file):
            # Its driver may hand connections from thread to thread; the pool lends each to one at a time.
            connect = functools.partial(sqlite3.connect, reading_uri(file), uri=True, check_same_thread=False)
            return _guarded(sa.create_engine(parsed, creator=connect, execution_options={_ONLY_READS: True}))
        engine = sa.create_engine(parsed, **_pool(parsed))
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{describe(url)} needs the package {error.name}: {install_command('postgres')}{WHERE}"
        ) from error
    except (sa.exc.ArgumentError, sa.exc.NoSuchModuleError, ValueError) as error:
        raise UsageError(f"cannot read the database URL {describe(url)}: {error}") from error
    if engine.dialect.name == "sqlite":
        _make_sqlite_wait(_guarded(engine))
    return engine


def _why_not_there(url: sa.URL) -> str:
    """Return why timings cannot be kept at a URL that is of neither SQLite nor PostgreSQL."""
    only = "timings are kept in SQLite or PostgreSQL, nothing else"
    try:
        url.get_dialect()
    except sa.exc.NoSuchModuleError:  # A place for files, such as an object store.
        return (
            f"{only}; a file there cannot be locked or changed in place, so two writers would lose each other's rows. "
            f"Share a PostgreSQL server (postgresql://...), or exchange files: collage db export, import and merge take such "
            f"URLs"
        )
    return only


def _pool(url: sa.URL) -> dict[str, Any]:
    if url.get_backend_name() == "postgresql":
        return {"pool_pre_ping": True}
    if sqlite_file(url) is not None:
        return {}
    # One in memory is as old as its connection: threads share it, one at a time.
    connecting = {"check_same_thread": False}
    return {**_ONE_CONNECTION, "connect_args": connecting}


def sqlite_file(url: str | sa.URL) -> Path | None:
    """The file of an SQLite database; None for one in memory, and for other engines."""
    parsed = _parse(url) if isinstance(url, str) else url
    local = parsed.get_backend_name() == "sqlite" and parsed.database not in (None, "", ":memory:")
    return Path(str(parsed.database)) if local else None


def file_url(file: Path) -> str:
    """Return the URL of an SQLite file, whose path may hold characters that mean something in a URL.

    Raises:
        UsageError: The path is not in UTF-8.
    """
    try:
        return sa.URL.create("sqlite", database=str(file)).render_as_string()
    except UnicodeEncodeError:
        raise UsageError(f"cannot open the timing database {file}: its path is not in UTF-8") from None


def readable_url(engine: sa.Engine) -> str:
    """The URL of an engine, without a password."""
    return engine.url.render_as_string(hide_password=True)


def describe(url: str) -> str:
    """A URL as given, without a password."""
    try:
        return sa.make_url(url).render_as_string(hide_password=True)
    except sa.exc.ArgumentError:
        return url


@contextlib.contextmanager
def begin_writing(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A transaction that may write; it waits its turn first."""
    with engine.execution_options(**{_WRITES: True}).begin() as connection:
        yield connection


def prepare(engine: sa.Engine) -> sa.Engine:
    """Make the tables, or bring those of an older version up to date; several processes may try at once.

    Returns:
        The engine; of an older version that cannot be written, one for a copy in memory that is up to date.

    Raises:
        UsageError: They were written by a newer version, or are not tables of Collage. Or there are none, and none can be made.
    """
    found = _version(engine)
    if found != SCHEMA:
        if only_reads := engine.get_execution_options().get(_ONLY_READS, False):
            if found is None:
                raise UsageError("it holds no timings and is read-only; name another with --db")
            engine = _copied(engine)
        with begin_writing(engine) as connection:
            if engine.dialect.name == "postgresql":
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
            _migrate(connection, engine)
        if only_reads:
            with engine.connect() as connection:
                connection.exec_driver_sql("PRAGMA query_only=ON")
    with engine.connect() as connection:
        for table in (timing, fact):
            connection.execute(sa.select(table).limit(0))
    return engine


def _copied(engine: sa.Engine) -> sa.Engine:
    """An engine for a copy in memory of an SQLite database."""
    copy = sqlite3.connect(":memory:", check_same_thread=False)
    with contextlib.closing(engine.raw_connection()) as connection:
        original: Any = connection.driver_connection
        try:
            original.backup(copy)
        except sqlite3.Error as error:
            raise UsageError(f"it cannot be read: {error}") from error
    engine.dispose()
    return _guarded(sa.create_engine(engine.url, creator=lambda: copy, **_ONE_CONNECTION))


def _parse(url: str) -> sa.URL:
    return sa.make_url(url) if "://" in url else sa.URL.create("sqlite", database=url)


def _version(source: sa.Engine | sa.Connection) -> int | None:
    """Version of the tables, None if there are none."""
    if not sa.inspect(source).has_table(about.name):
        return None
    query = sa.select(about.c.value).where(about.c.name == "schema")
    if isinstance(source, sa.Engine):
        with source.connect() as connection:
            found = connection.execute(query).scalar()
    else:
        found = source.execute(query).scalar()
    return None if found is None else _as_version(found)


def _as_version(found: Any) -> int:
    if not str(found).isdecimal() or len(str(found)) > 9 or int(found) < 1:
        raise UsageError(
            f"it names {str(found)[:40]!r} as its schema, which is not a version; Collage did not write it"
        )
    if int(found) > SCHEMA:
        raise UsageError(
            f"it was written by a newer version (schema {found}, this one reads up to {SCHEMA}); update Collage or "
            "name another with --db"
        )
    return int(found)


def _migrate(connection: sa.Connection, engine: sa.Engine) -> None:
    found = _version(connection)
    if found is None:
        metadata.create_all(connection)
        connection.execute(sa.insert(about).values(name="schema", value=str(SCHEMA)))
        return
    for version in range(found, SCHEMA):
        MIGRATIONS[version](connection)
    connection.execute(sa.update(about).where(about.c.name == "schema").values(value=str(SCHEMA)))


def _is_writable(file: Path) -> bool:
    """Return True if it and the log beside it can be written."""
    return os.access(file, os.W_OK) and os.access(file.parent, os.W_OK)


def reading_uri(file: Path) -> str:
    """Return the URI that opens an SQLite file for reading only."""
    # Where nobody can write there is no log to read beside it, and none can be made.
    fixed = "" if os.access(file.parent, os.W_OK) or Path(f"{file}-wal").exists() else "&immutable=1"
    return f"{file.resolve().as_uri()}?mode=ro{fixed}"


def _guarded(engine: sa.Engine) -> sa.Engine:
    """Refuse rows of another origin before they are read."""

    @sa.event.listens_for(engine, "connect")
    def _(connection: sqlite3.Connection, _record: Any) -> None:
        connection.text_factory = lambda text: text.decode(errors="replace")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE_BYTES)

    return engine


def _make_sqlite_wait(engine: sa.Engine) -> None:
    if (file := sqlite_file(engine.url)) is not None:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot create the folder of the timing database {file}: {error}") from error

    @sa.event.listens_for(engine, "connect")
    def _(connection: sqlite3.Connection, _record: Any) -> None:
        # The driver's own transaction handling would take the write lock late, and fail instead of waiting.
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout={int(_BUSY_S * 1000)}")
        connection.execute("PRAGMA synchronous=NORMAL")
        _keep_write_ahead_log(connection)

    @sa.event.listens_for(engine, "begin")
    def _(connection: sa.Connection) -> None:
        if connection.get_execution_options().get(_WRITES):
            connection.exec_driver_sql("BEGIN IMMEDIATE")


def _keep_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Turn the log on. That needs the file alone for a moment, and SQLite does not wait for that on its own."""
    deadline = time.monotonic() + _BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
