from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from dataclasses import fields, replace
from pathlib import Path

import pytest

from collage._errors import UsageError
from collage.cost.database import SCHEMA, Database
from collage.cost.key import WorkloadKey
from collage.cost.outcome import Outcome, Status
from collage.cost.statistics import summarise

KEY = WorkloadKey("hash", "(1, 2)float32", "llvm", "tvm 1", "machine", 0, 4)
GOOD = Outcome(Status.OK, None, summarise([1.0, 2.0, 3.0]), 1e-6, 0.5)


def test_what_is_recorded_is_found_again(tmp_path: Path) -> None:
    path = str(tmp_path / "deep" / "t.sqlite")
    with Database(path) as database:
        assert database.lookup(KEY) is None
        database.record(KEY, GOOD)
    with Database(path) as database:
        found = database.lookup(KEY)
        assert found == replace(GOOD, recorded=True)
        database.record(KEY, Outcome(Status.CRASH, "signal 11"))
        again = database.lookup(KEY)
        assert again is not None
        assert (again.status, again.reason, again.time, again.ok) == (Status.CRASH, "signal 11", None, False)


@pytest.mark.parametrize("part", [field.name for field in fields(WorkloadKey)])
def test_every_part_of_the_key_counts(tmp_path: Path, part: str) -> None:
    other = replace(KEY, **{part: 7 if isinstance(getattr(KEY, part), int) else "other"})
    with Database(str(tmp_path / "t.sqlite")) as database:
        database.record(KEY, GOOD)
        assert database.lookup(other) is None


def test_facts(tmp_path: Path) -> None:
    with Database(str(tmp_path / "t.sqlite")) as database:
        database.keep_fact({"x": [1, 2]}, fact="note", key="a")
        assert database.fact(fact="note", key="a") == {"x": [1, 2]}
        assert database.fact(fact="note", key="b") is None


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    Database(str(path)).close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE about SET value = ?", (str(SCHEMA + 1),))
    with pytest.raises(UsageError, match="newer version"):
        Database(str(path))


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    path.write_text("this is no database, whatever its name says " * 100)
    with pytest.raises(UsageError, match="cannot open"):
        Database(str(path))


WRITER = """
import sys
from dataclasses import replace
from tests.unit.cost.test_database import GOOD, KEY
from collage.cost.database import Database
with Database(sys.argv[1]) as database:
    for i in range(int(sys.argv[3])):
        database.record(replace(KEY, kernel=f"{sys.argv[2]}-{i}"), GOOD)
        print(i, flush=True)
"""


def test_writers_side_by_side_and_killed_lose_nothing_acknowledged(tmp_path: Path) -> None:
    path, root = str(tmp_path / "t.sqlite"), Path(__file__).parents[3]
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, path, name, "100000"], cwd=root, stdout=subprocess.PIPE)
        for name in "abc"
    ]
    for writer in writers:
        assert writer.stdout is not None
        writer.stdout.readline()
    time.sleep(1.0)
    for writer in writers:
        writer.kill()
    counts = {name: len(writer.communicate()[0].splitlines()) for name, writer in zip("abc", writers, strict=True)}
    with Database(path) as database:
        for name, count in counts.items():
            for i in range(count):
                assert database.lookup(replace(KEY, kernel=f"{name}-{i}")) is not None
