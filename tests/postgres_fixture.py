"""A real PostgreSQL server for the tests, where one can be started."""

from __future__ import annotations

import shutil
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """URL of the server's first database. As root, the package runs the server as a user that it makes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pgserver = pytest.importorskip("pgserver", reason="the package pgserver is not installed")
    # Not pytest's own folder: the server's user may have to enter it.
    folder = Path(tempfile.mkdtemp(prefix="collage-postgres-"))
    try:
        server = pgserver.get_server(folder)
    except Exception as error:
        pytest.skip(f"no PostgreSQL server can be started here: {error}")
    yield server.get_uri()
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database, on each engine."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'timings.sqlite'}"
    server = sa.make_url(request.getfixturevalue("postgres")).set(drivername="postgresql+psycopg")
    name = f"timings_{uuid.uuid4().hex}"
    engine = sa.create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    engine.dispose()
    return server.set(database=name, drivername="postgresql").render_as_string(hide_password=False)
