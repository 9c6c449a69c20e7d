"""The tables of the timing database, and how older ones become today's.

A migration is one step from a version to the next, in statements that SQLite and PostgreSQL both read. Databases of every
version that ever was are kept under ``tests/data``, and must stay readable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import sqlalchemy as sa

__all__ = ["MIGRATIONS", "SCHEMA", "UNKNOWN_ORIGIN", "about", "fact", "metadata", "timing"]

SCHEMA = 2
"""Version of the tables; kept in the database."""

UNKNOWN_ORIGIN = "unknown"
"""Origin of rows that were written before origins were kept."""

metadata = sa.MetaData()
about = sa.Table(
    "about",
    metadata,
    sa.Column("name", sa.String(32), primary_key=True),
    sa.Column("value", sa.String(256), nullable=False),
)
timing = sa.Table(
    "timing",
    metadata,
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
    sa.Column("origin", sa.String(128), nullable=False),
)
fact = sa.Table(
    "fact",
    metadata,
    sa.Column("digest", sa.String(64), primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("value", sa.Text, nullable=False),
    sa.Column("made_at_s", sa.Float, nullable=False),
    sa.Column("origin", sa.String(128), nullable=False),
)


def _keep_origins(connection: sa.Connection) -> None:
    for table in ("timing", "fact"):
        connection.exec_driver_sql(
            f"ALTER TABLE {table} ADD COLUMN origin VARCHAR(128) NOT NULL DEFAULT '{UNKNOWN_ORIGIN}'"
        )


MIGRATIONS: Mapping[int, Callable[[sa.Connection], None]] = {1: _keep_origins}
"""The step from each older version to the one after it."""
