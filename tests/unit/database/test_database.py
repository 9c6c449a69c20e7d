from __future__ import annotations

import contextlib
import math
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.timings import outcome_in

from collage._errors import UsageError
from collage.cost.outcome import Outcome
from collage.cost.statistics import Summary, summarise
from collage.cost.workload_key import WorkloadKey
from collage.database._facts import FactKind
from collage.database._schema import timing
from collage.database.database import SCHEMA, Database, default_url, file_url, sqlite_file, this_origin
from collage.status import Status
from collage.toolchains import Support

KEY = WorkloadKey("hash", "(1, 2)float32", "llvm", "tvm 1", "machine", 0, 4, method="evict-2")
"""As in the files that older versions wrote."""
NOTE: FactKind[Mapping[str, Any]] = FactKind("note", Mapping[str, Any])
SUPPORT: FactKind[Support] = FactKind("support", Support)
OLD_SUPPORT: FactKind[Mapping[str, Any]] = FactKind("support", Mapping[str, Any])
GOOD = Outcome(Status.OK, None, summarise([1.0, 2.0, 3.0]), 1e-6, 0.5)
OLD = sorted((Path(__file__).parents[2] / "data").glob("timings-schema-*.sqlite"))


def test_what_is_recorded_is_found_again(database_url: str) -> None:
    with Database(database_url) as database:
        assert outcome_in(database, KEY) is None
        database.record(KEY, GOOD)
    with Database(database_url) as database:
        assert outcome_in(database, KEY) == replace(GOOD, recorded=True)
        database.record(KEY, Outcome(Status.CRASHED, "signal 11"))
        again = outcome_in(database, KEY)
        assert again is not None
        assert (again.status, again.reason, again.time, again.ok) == (Status.CRASHED, "signal 11", None, False)


def test_a_file_in_folders_that_do_not_exist_yet_is_made(tmp_path: Path) -> None:
    with Database(str(tmp_path / "a" / "b" / "t.sqlite")) as database:
        database.record(KEY, GOOD)
    assert (tmp_path / "a" / "b" / "t.sqlite").stat().st_size > 0


@pytest.mark.parametrize("part", [field.name for field in fields(WorkloadKey)])
def test_every_part_of_the_key_counts(tmp_path: Path, part: str) -> None:
    other = replace(KEY, **{part: 7 if isinstance(getattr(KEY, part), int) else "other"})
    with Database(str(tmp_path / "t.sqlite")) as database:
        database.record(KEY, GOOD)
        assert outcome_in(database, other) is None


def test_facts(database_url: str) -> None:
    with Database(database_url) as database:
        database.keep_fact(NOTE, {"x": [1, 2]}, key="a")
        database.keep_fact(NOTE, {"x": [3]}, key="a")
        assert database.fact(NOTE, key="a") == {"x": [3]}
        assert database.fact(NOTE, key="b") is None


def test_local_facts_hold_on_the_machine_that_found_them_out(database_url: str) -> None:
    with Database(database_url) as database:
        database.keep_local_fact(NOTE, {"x": "fast"})
        assert database.local_fact(NOTE) == {"x": "fast"}
        assert database.fact(NOTE) is None
        database.origin = "another-machine"
        assert database.local_fact(NOTE) is None


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_kept_as_unknown(database_url: str, number: float) -> None:
    with Database(database_url) as database:
        database.record(KEY, Outcome(Status.WRONG, "NaN \x00 \udc80", None, number))
        found = outcome_in(database, KEY)
    assert found is not None
    assert (found.status, found.error) == (Status.WRONG, None)
    assert found.reason is not None
    assert found.reason.startswith("NaN ")


def test_every_row_says_where_and_when_it_was_made(database_url: str) -> None:
    with Database(database_url) as database:
        before = time.time()
        database.record(KEY, GOOD)
        found = database.find(KEY)
        assert found is not None
        assert found.origin == database.origin == this_origin()
        assert before <= found.made_at_s <= time.time()


def test_reading_waits_for_no_writer(tmp_path: Path) -> None:
    path = str(tmp_path / "t.sqlite")
    with Database(path) as database:
        database.record(KEY, GOOD)
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as writer:
            writer.execute("BEGIN IMMEDIATE")
            writer.execute("DELETE FROM timing")
            started = time.monotonic()
            assert outcome_in(database, KEY) is not None
            with Database(path) as another:
                assert outcome_in(another, KEY) is not None
            assert time.monotonic() - started < 30, "a writer is waited for a minute"
            writer.execute("ROLLBACK")


@pytest.mark.parametrize("file", OLD, ids=lambda path: path.stem)
def test_databases_of_every_older_version_stay_readable(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    shutil.copy(file, path)
    with Database(str(path)) as database:
        assert outcome_in(database, KEY) == replace(GOOD, recorded=True)
        crashed = outcome_in(database, replace(KEY, kernel="other"))
        assert crashed is not None
        assert (crashed.status, crashed.build_s) == (Status.CRASHED, 1.5)
        assert database.fact(OLD_SUPPORT, structure="hash", target="llvm", build="tvm 1") == {"reason": None}
        found = database.find(KEY)
        assert found is not None
        assert found.origin != database.origin
        database.record(replace(KEY, kernel="new"), GOOD)
    with Database(str(path)) as database:
        assert outcome_in(database, replace(KEY, kernel="new")) == replace(GOOD, recorded=True)


def test_an_older_version_is_brought_up_to_date_on_postgresql_too(postgres: str, tmp_path: Path) -> None:
    with sqlite3.connect(OLD[0]) as old:
        statements = [sql for (sql,) in old.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")]
        row = old.execute("SELECT * FROM timing WHERE status = 'ok'").fetchone()
    url = sa.make_url(postgres).set(drivername="postgresql+psycopg")
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
        connection.exec_driver_sql("INSERT INTO about VALUES ('schema', '1')")
        connection.exec_driver_sql(f"INSERT INTO timing VALUES ({', '.join(['%s'] * len(row))})", row)
    engine.dispose()
    with Database(postgres) as database:
        assert outcome_in(database, KEY) == replace(GOOD, recorded=True)


@pytest.mark.parametrize(
    ("version", "said"), [(str(SCHEMA + 1), "newer version"), ("soon", "is not a version"), ("-1", "is not a version")]
)
def test_a_schema_that_cannot_be_read_is_refused(tmp_path: Path, version: str, said: str) -> None:
    path = tmp_path / "t.sqlite"
    Database(str(path)).close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE about SET value = ?", (version,))
    with pytest.raises(UsageError, match=said):
        Database(str(path))


def text(path: Path) -> None:
    path.write_text("this is no database, whatever its name says " * 100)


def folder(path: Path) -> None:
    path.mkdir()


def half(path: Path) -> None:
    with Database(str(path)) as database:
        for i in range(100):
            database.record(replace(KEY, kernel=str(i)), GOOD)
    data = path.read_bytes()
    path.write_bytes(data[:5000])


def others(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE about (name TEXT, value TEXT)")
        connection.execute("CREATE TABLE timing (x TEXT)")
        connection.execute(f"INSERT INTO about VALUES ('schema', '{SCHEMA}')")
        connection.commit()


@pytest.mark.parametrize("spoil", [text, folder, half, others])
def test_what_is_no_database_of_ours_is_refused_in_one_sentence(tmp_path: Path, spoil: object) -> None:
    path = tmp_path / "t.sqlite"
    spoil(path)  # type: ignore[operator]
    with pytest.raises(UsageError, match=r"cannot (open|use|read) the timing database .*t\.sqlite") as caught:
        outcome_in(Database(str(path)), KEY)
    assert "\n" not in str(caught.value)


def test_pages_damaged_later_end_in_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    with Database(str(path)) as database:
        for i in range(300):
            database.record(replace(KEY, kernel=str(i)), GOOD)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096 * 4)
        file.write(b"\xff" * (size - 4096 * 4))
    with Database(str(path)) as database:
        assert database.complaints() is not None
        with pytest.raises(UsageError, match="cannot read the timing database"):
            for i in range(300):
                outcome_in(database, replace(KEY, kernel=str(i)))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_a_clear_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UsageError, match="cannot open"):
        Database(str(tmp_path / "t.sqlite"))


@pytest.mark.parametrize("in_use", [False, True])
def test_what_may_not_be_written_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_use: bool) -> None:
    path = tmp_path / "t.sqlite"
    with contextlib.ExitStack() as stack:
        database = stack.enter_context(Database(str(path)))
        database.record(KEY, GOOD)
        if not in_use:
            stack.close()
        # Asked, and not forbidden, so that root is refused as well.
        monkeypatch.setattr("os.access", lambda *_: False)
        before = sorted(tmp_path.iterdir())
        with Database(str(path), reading=True) as copy:
            assert outcome_in(copy, KEY) is not None
            assert copy.complaints() is None
            assert copy.file == path
            with pytest.raises(UsageError, match="cannot write the timing database"):
                copy.record(replace(KEY, kernel="another"), GOOD)
        assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("file", OLD, ids=lambda path: path.stem)
def test_what_an_older_version_wrote_and_nobody_may_write_can_be_read(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(shutil.copy(file, tmp_path / "t.sqlite"))
    before = path.read_bytes()
    monkeypatch.setattr("os.access", lambda *_: False)
    with Database(str(path), reading=True) as database:
        assert outcome_in(database, KEY) == replace(GOOD, recorded=True)
        assert database.complaints() is None
        assert len(list(database.rows(timing))) == 3
        with pytest.raises(UsageError, match="cannot write the timing database"):
            database.record(KEY, GOOD)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_a_file_without_timings_that_nobody_may_write_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t.sqlite").touch()
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(UsageError, match=r"t\.sqlite: it holds no timings"):
        Database(str(tmp_path / "t.sqlite"), reading=True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_file_in_a_folder_that_may_not_be_written_can_be_read(tmp_path: Path) -> None:
    with Database(str(tmp_path / "t.sqlite")) as database:
        database.record(KEY, GOOD)
    (tmp_path / "t.sqlite").chmod(0o400)
    tmp_path.chmod(0o500)
    with Database(str(tmp_path / "t.sqlite"), reading=True) as database:
        assert outcome_in(database, KEY) is not None


def test_a_full_disk_is_a_clear_error_and_what_was_recorded_is_kept(tmp_path: Path) -> None:
    path = str(tmp_path / "t.sqlite")
    with Database(path) as database:
        database.record(KEY, GOOD)
        full = sa.event.listens_for(database._engine, "begin")
        full(lambda connection: connection.exec_driver_sql("PRAGMA max_page_count=1"))
        with pytest.raises(UsageError, match=r"full.*rows that were written before are kept"):
            for i in range(1000):
                database.record(replace(KEY, kernel=str(i)), replace(GOOD, reason="x" * 2000))
    with Database(path) as database:
        assert outcome_in(database, KEY) is not None


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mysql://me:secret@server/db", "SQLite or PostgreSQL"),
        ("nonsense://x", "nonsense"),
        ("postgresql://me:secret@127.0.0.1:1/db", "cannot open"),
    ],
)
def test_urls_that_lead_nowhere_are_refused_without_telling_the_password(url: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        Database(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["a?b", "a%2Fb", "a#b", "a b", "a@b:c"])
def test_a_path_is_no_url_whatever_is_in_it(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / name / "timings.sqlite"
    with Database(str(file)) as database:
        assert database.file == file
    assert file.is_file() and [entry.name for entry in tmp_path.iterdir()] == [name]
    if name != "a?b":  # SQLAlchemy 2.0 writes no URL of it.
        monkeypatch.delenv("COLLAGE_DB", raising=False)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        assert sqlite_file(database.url) == sqlite_file(file_url(file)) == file
        assert tmp_path / name in Path(str(sqlite_file(default_url()))).parents


def test_an_empty_file_becomes_a_database(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    path.touch()
    with Database(str(path)) as database:
        database.record(KEY, GOOD)
        assert outcome_in(database, KEY) is not None


HOSTILE = [
    "status = 'splendid'",
    "status = 7",
    "status = x'00ff'",
    "status = 'crash', median_s = 'soon'",
    "median_s = NULL",
    "median_s = 'fast'",
    "median_s = x'ff'",
    "median_s = -1.0",
    "median_s = 0.0",
    "median_s = 9e999",
    "p10_s = 5.0",
    "p90_s = NULL",
    "p90_s = 1e308 * 10",
    "samples = 0",
    "samples = 'many'",
    "samples = 1.5",
    "spread = 'wide'",
    "parts = '{'",
    "parts = '[]'",
    "parts = 'null'",
    "parts = x'80'",
    "parts = replace(parts, 'hash', 'hush')",
    "parts = '" + "[" * 100_000 + "'",
]
HARMLESS = ["reason = x'ff00'", "reason = 5", "error = 'small'", "build_s = 'long'", "made_at_s = 'now'", "origin = 3"]


@pytest.mark.parametrize("change", [*HOSTILE, "reason = zeroblob(100000000)"], ids=lambda change: change[:40])
def test_a_row_that_makes_no_sense_is_as_good_as_none(tmp_path: Path, change: str) -> None:
    path = str(tmp_path / "t.sqlite")
    with Database(path) as database:
        database.record(KEY, GOOD)
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute(f"UPDATE timing SET {change}")
            connection.commit()
        assert outcome_in(database, KEY) is None
        database.record(KEY, GOOD)
        assert outcome_in(database, KEY) == replace(GOOD, recorded=True)


@pytest.mark.parametrize("change", HARMLESS)
def test_nonsense_where_it_does_not_matter_costs_nothing_else(tmp_path: Path, change: str) -> None:
    path = str(tmp_path / "t.sqlite")
    with Database(path) as database:
        database.record(KEY, GOOD)
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute(f"UPDATE timing SET {change}")
            connection.commit()
        found = outcome_in(database, KEY)
        assert found is not None
        assert found.time == GOOD.time


@pytest.mark.parametrize("text", ['{"reason": 3}', "[]", "null", "NaN", '{"a": 1e999}', "{", "[" * 100_000, '"x"'])
def test_a_damaged_fact_is_as_good_as_none(tmp_path: Path, text: str) -> None:
    path = str(tmp_path / "t.sqlite")
    with Database(path) as database:
        database.keep_fact(SUPPORT, Support(True), key="a")
        assert database.fact(SUPPORT, key="a") == Support(True)
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("UPDATE fact SET value = ?", (text,))
            connection.commit()
        assert database.fact(SUPPORT, key="a") is None
        assert list(database.facts(SUPPORT)) == []


WRITER = """
import sys
from dataclasses import replace
from tests.unit.database.test_database import GOOD, KEY
from collage.database.database import Database
with Database(sys.argv[1]) as database:
    for i in range(int(sys.argv[3])):
        database.record(replace(KEY, kernel=f"{sys.argv[2]}-{i}"), GOOD)
        print(i, flush=True)
"""


def test_writers_side_by_side_and_killed_lose_nothing_acknowledged(database_url: str) -> None:
    root = Path(__file__).parents[3]
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, database_url, name, "100000"], cwd=root, stdout=subprocess.PIPE)
        for name in "abc"
    ]
    for writer in writers:
        assert writer.stdout is not None
        writer.stdout.readline()
    time.sleep(1.0)
    for writer in writers:
        writer.kill()
    counts = {name: len(writer.communicate()[0].splitlines()) for name, writer in zip("abc", writers, strict=True)}
    with Database(database_url) as database:
        for name, count in counts.items():
            for i in range(count):
                assert outcome_in(database, replace(KEY, kernel=f"{name}-{i}")) is not None


def test_a_summary_survives_the_trip_exactly(database_url: str) -> None:
    odd = Summary(0.1 + 0.2, 1e-9, 1 / 3, 7, 1e-17)
    with Database(database_url) as database:
        database.record(KEY, Outcome(Status.OK, None, odd, 0.0, 0.1))
        found = outcome_in(database, KEY)
    assert found is not None
    assert found.time == odd


def test_threads_share_what_is_in_memory() -> None:
    with Database("sqlite:///:memory:") as database, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: database.keep_fact(NOTE, {"number": i}, index=i), range(20)))
        assert [database.fact(NOTE, index=i) for i in range(20)] == [{"number": i} for i in range(20)]
