"""Of all processes that share a server, one has the claim to a kernel at a time."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import sqlalchemy as sa

from collage.cost.workload_key import WorkloadKey
from collage.database import FactKind, _persistence, await_server
from collage.database.database import Database

KEY = WorkloadKey("kernel", "(1, 2)float32", "llvm", "tvm 1", "machine", 0, 4)
OTHER = WorkloadKey("other", "(1, 2)float32", "llvm", "tvm 1", "machine", 0, 4)


ON_A_SERVER = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)


@ON_A_SERVER
def test_a_claim_is_one_processes_and_free_afterwards(database_url: str) -> None:
    with Database(database_url) as one, Database(database_url) as two:
        with one.claimed(KEY, 0.0) as mine, two.claimed(KEY, 0.0) as yours, two.claimed(OTHER, 0.0) as another:
            assert (mine, yours, another) == (True, False, True)
        with two.claimed(KEY, 0.0) as again:
            assert again


@ON_A_SERVER
def test_patience_ends(database_url: str) -> None:
    with Database(database_url) as one, Database(database_url) as two, one.claimed(KEY, 0.0):
        began = time.monotonic()
        with two.claimed(KEY, 0.2) as obtained:
            assert not obtained
        assert time.monotonic() - began > 0.15


@ON_A_SERVER
def test_a_claim_is_waited_for(database_url: str) -> None:
    with Database(database_url) as one, Database(database_url) as two:
        taken = threading.Event()
        obtained = []

        def wait() -> None:
            taken.set()
            with two.claimed(KEY, 60.0) as is_mine:
                obtained.append(is_mine)

        with one.claimed(KEY, 0.0):
            thread = threading.Thread(target=wait)
            thread.start()
            taken.wait()
            time.sleep(0.2)
            assert not obtained
        thread.join(60)
        assert obtained == [True]


@ON_A_SERVER
def test_the_end_of_a_connection_frees_its_claim(database_url: str) -> None:
    """As when a process is killed, or a machine has gone and the server notices."""
    with Database(database_url) as one, Database(database_url) as two, one.claimed(KEY, 0.0):
        engine = sa.create_engine(sa.make_url(database_url).set(drivername="postgresql+psycopg"))
        with engine.connect() as connection:
            # Not the backends of other databases of this server, and not this connection itself.
            connection.exec_driver_sql(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_locks WHERE locktype = 'advisory' AND database = "
                "(SELECT oid FROM pg_database WHERE datname = current_database())"
            )
        engine.dispose()
        with two.claimed(KEY, 10.0) as obtained:
            assert obtained


def test_files_are_for_one_machine_whose_lock_is_enough(tmp_path: Path) -> None:
    with Database(str(tmp_path / "t.sqlite")) as one, one.claimed(KEY, 0.0) as mine, one.claimed(KEY, 0.0) as again:
        assert mine and again


@ON_A_SERVER
def test_a_server_that_is_away_for_a_moment_delays_a_command_and_does_not_end_it(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Database(database_url) as database:
        engine, left = database._engine, [2]
        connect = engine.connect

        def flaky() -> sa.Connection:
            if left[0]:
                left[0] -= 1
                raise sa.exc.OperationalError("select", {}, Exception("the database system is starting up"))
            return connect()

        monkeypatch.setattr(engine, "connect", flaky)
        assert database.fact(FactKind("note", str), tuner="x") is None
        assert left == [0]


def test_a_server_that_comes_back_is_awaited_and_one_that_does_not_is_not_for_ever(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = []
    connect = sa.Engine.connect

    def late(engine: sa.Engine) -> sa.Connection:
        attempts.append(engine)
        if len(attempts) < 3:
            raise sa.exc.OperationalError("", None, Exception("the database system is starting up"))
        return connect(engine)

    monkeypatch.setattr(_persistence, "_LOOK_S", 0.0)
    monkeypatch.setattr(sa.Engine, "connect", late)
    await_server(postgres)
    assert len(attempts) == 3
    monkeypatch.setattr(_persistence, "_AWAY_S", -1.0)
    attempts.clear()
    await_server(postgres)
    assert len(attempts) == 1
