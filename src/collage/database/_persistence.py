"""Retries for a database server that does not answer for a moment, for example while it restarts."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TypeVar

import sqlalchemy as sa

from collage._errors import UsageError
from collage.database._engine import open_engine

__all__ = ["await_server", "persistently"]

_AWAY_S = 120.0
_LOOK_S = 0.5
_T = TypeVar("_T")


def persistently(engine: sa.Engine, attempt: Callable[[], _T]) -> _T:
    """Repeat an idempotent operation until the server answers, or has not answered for two minutes.

    Args:
        engine: The database. An operation on a file is never repeated.
        attempt: Raises UsageError from the error of the engine.
    """
    deadline = time.monotonic() + _AWAY_S
    while True:
        try:
            return attempt()
        except UsageError as error:
            is_lost = isinstance(error.__cause__, sa.exc.OperationalError | sa.exc.InterfaceError)
            if not is_lost or engine.dialect.name != "postgresql" or time.monotonic() > deadline:
                raise
        time.sleep(_LOOK_S)


def await_server(url: str) -> None:
    """Return when the server of a database answers, and after two minutes in any case. Its next use then raises the error."""

    def attempt() -> None:
        try:
            engine.connect().close()
        except sa.exc.SQLAlchemyError as error:
            raise UsageError(str(error)) from error

    with contextlib.suppress(UsageError):
        engine = open_engine(url)
        persistently(engine, attempt)
        engine.dispose()
