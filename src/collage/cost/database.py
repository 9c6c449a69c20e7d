"""Where timings are kept, so that nothing is measured twice.

SQLite (write-ahead log) by default; any database that SQLAlchemy speaks to, by URL. Every row is committed when its
measurement ends, so that a killed run loses at most the one under way. Only timings are shared, never binaries.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import sqlalchemy as sa

from collage._errors import UsageError
from collage.cost.key import WorkloadKey
from collage.cost.outcome import Outcome, Status
from collage.cost.statistics import Summary

__all__ = ["SCHEMA", "Database", "default_url"]

SCHEMA = 1
"""Version of the tables; kept in the database."""

_metadata = sa.MetaData()
_about = sa.Table(
    "about",
    _metadata,
    sa.Column("name", sa.String(32), primary_key=True),
    sa.Column("value", sa.String(256), nullable=False),
)
_timing = sa.Table(
    "timing",
    _metadata,
    sa.Column("digest", sa.String(64), primary_key=True),
    sa.Column("parts", sa.Text, nullable=False),
    sa.Column("status", sa.String(24), nullable=False),
    # SQLite stores NaN as NULL, so an absent time is NULL on purpose and ``status`` says why.
    sa.Column("median_s", sa.Float),
    sa.Column("p10_s", sa.Float),
    sa.Column("p90_s", sa.Float),
    sa.Column("samples", sa.Integer),
    sa.Column("spread", sa.Float),
    sa.Column("error", sa.Float),
    sa.Column("reason", sa.Text),
    sa.Column("build_s", sa.Float, nullable=False),
    sa.Column("made_at_s", sa.Float, nullable=False),
)
_fact = sa.Table(
    "fact",
    _metadata,
    sa.Column("digest", sa.String(64), primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("value", sa.Text, nullable=False),
    sa.Column("made_at_s", sa.Float, nullable=False),
)


def default_url() -> str:
    """The database of this user: ``$COLLAGE_DB``, or an SQLite file in the user's cache folder."""
    if url := os.environ.get("COLLAGE_DB"):
        return url
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return f"sqlite:///{cache / 'collage' / 'timings.sqlite'}"


class Database:
    """Timings by workload key, and other facts about this machine by name.

    Args:
        url: An SQLAlchemy URL, or the path of an SQLite file.

    Raises:
        UsageError: It cannot be opened, or was written by a newer version.
    """

    def __init__(self, url: str | None = None) -> None:
        url = url or default_url()
        self.url = url if "://" in url else f"sqlite:///{url}"
        self._engine = sa.create_engine(self.url)
        if self._engine.dialect.name == "sqlite":
            self._prepare_sqlite()
        try:
            _metadata.create_all(self._engine)
            self._check_version()
        except sa.exc.SQLAlchemyError as error:
            raise UsageError(f"cannot open the timing database {self.url}: {error.__cause__ or error}") from error

    def lookup(self, key: WorkloadKey) -> Outcome | None:
        """What is known of a kernel, or None."""
        with self._engine.connect() as connection:
            row = connection.execute(sa.select(_timing).where(_timing.c.digest == key.digest)).mappings().first()
        return None if row is None else _outcome(dict(row))

    def record(self, key: WorkloadKey, outcome: Outcome) -> None:
        """Keeps an outcome; a newer one replaces an older one."""
        time_ = outcome.time
        row = {
            "digest": key.digest,
            "parts": json.dumps(key.parts(), sort_keys=True),
            "status": outcome.status.value,
            "median_s": time_ and time_.median_s,
            "p10_s": time_ and time_.p10_s,
            "p90_s": time_ and time_.p90_s,
            "samples": time_ and time_.count,
            "spread": time_ and time_.spread,
            "error": outcome.error,
            "reason": outcome.reason,
            "build_s": outcome.build_s,
            "made_at_s": time.time(),
        }
        self._upsert(_timing, row)

    def fact(self, **name: Any) -> Any:
        """A fact kept under this name, or None."""
        with self._engine.connect() as connection:
            query = sa.select(_fact.c.value).where(_fact.c.digest == _digest(name))
            value = connection.execute(query).scalar()
        return None if value is None else json.loads(value)

    def keep_fact(self, value: Any, **name: Any) -> None:
        """Keeps a JSON value under a name made of named parts."""
        text = json.dumps(name, sort_keys=True)
        row = {"digest": _digest(name), "name": text, "value": json.dumps(value), "made_at_s": time.time()}
        self._upsert(_fact, row)

    def close(self) -> None:
        """Closes all connections."""
        self._engine.dispose()

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _upsert(self, table: sa.Table, row: Mapping[str, Any]) -> None:
        # Delete and insert in one transaction: the same text on every engine, unlike ON CONFLICT.
        with self._engine.begin() as connection:
            connection.execute(sa.delete(table).where(table.c.digest == row["digest"]))
            connection.execute(sa.insert(table).values(**row))

    def _prepare_sqlite(self) -> None:
        name = self._engine.url.database
        if name and name != ":memory:":
            try:
                Path(name).parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UsageError(f"cannot create the folder of the timing database {name}: {error}") from error

        @sa.event.listens_for(self._engine, "connect")
        def _(connection: Any, _record: Any) -> None:
            # The driver's own transaction handling would start a write late, and fail instead of waiting.
            connection.isolation_level = None
            connection.execute("PRAGMA busy_timeout=30000")
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")

        @sa.event.listens_for(self._engine, "begin")
        def _(connection: sa.Connection) -> None:
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    def _check_version(self) -> None:
        with self._engine.begin() as connection:
            found = connection.execute(sa.select(_about.c.value).where(_about.c.name == "schema")).scalar()
            if found is None:
                connection.execute(sa.insert(_about).values(name="schema", value=str(SCHEMA)))
            elif int(found) > SCHEMA:
                raise UsageError(
                    f"the timing database {self.url} was written by a newer version (schema {found}, this one reads "
                    f"up to {SCHEMA}); update Collage or name another with --db"
                )


def _digest(name: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(name, sort_keys=True).encode()).hexdigest()


def _outcome(row: Mapping[str, Any]) -> Outcome:
    measured = None
    if row["median_s"] is not None:
        measured = Summary(row["median_s"], row["p10_s"], row["p90_s"], row["samples"], row["spread"])
    return Outcome(Status(row["status"]), row["reason"], measured, row["error"], row["build_s"], recorded=True)
