"""Claims: of several machines that are alike, one measures a kernel, and the others wait for the result.

A claim is an advisory lock of PostgreSQL on a connection of its own. The server frees it when the connection ends. So a process
that is killed, and a machine that is gone, leave no claim behind, and no clock decides.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import sqlalchemy as sa

__all__ = ["claim"]

_NOT_AVAILABLE = "55P03"
"""PostgreSQL's code for a lock that was not free in time."""
_KEEP_ALIVE = ("tcp_keepalives_idle = 20", "tcp_keepalives_interval = 10", "tcp_keepalives_count = 3")
"""The server notices within a minute that a machine is gone. By default it takes two hours."""


@contextlib.contextmanager
def claim(engine: sa.Engine, digest: str, patience_s: float) -> Iterator[bool]:
    """Hold the claim to a digest within the ``with``.

    Args:
        engine: The database. Engines other than PostgreSQL know no claims: everything is free.
        digest: Hexadecimal digits, at least 16.
        patience_s: Seconds to wait for another holder.

    Yields:
        False if another process holds the claim. True also if the server is away: the next statement says so.
    """
    if engine.dialect.name != "postgresql":
        yield True
        return
    try:
        connection = engine.connect()
    except sa.exc.OperationalError:
        yield True
        return
    try:
        yield _is_taken(connection, int.from_bytes(bytes.fromhex(digest[:16]), "big", signed=True), patience_s)
    finally:
        # The end of the connection frees the lock, in whatever state the connection is.
        connection.invalidate()
        connection.close()


def _is_taken(connection: sa.Connection, number: int, patience_s: float) -> bool:
    connection = connection.execution_options(isolation_level="AUTOCOMMIT")
    try:
        for setting in (*_KEEP_ALIVE, f"lock_timeout = {round(patience_s * 1000)}"):
            connection.exec_driver_sql(f"SET {setting}")
        if patience_s <= 0:
            return bool(connection.execute(sa.select(sa.func.pg_try_advisory_lock(number))).scalar())
        connection.execute(sa.select(sa.func.pg_advisory_lock(number)))
    except sa.exc.OperationalError as error:
        return getattr(error.orig, "sqlstate", None) != _NOT_AVAILABLE
    return True
