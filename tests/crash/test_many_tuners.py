"""Many tuners on one database: nothing is lost, nothing is filed under a wrong key, nobody fails for a lock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from collage.database.database import Database
from collage.database.queries import listing
from tests.crash import _tuners
from tests.timings import outcome_in

ROOT = Path(__file__).parents[2]
TUNERS = "abcdefgh"


def start(*words: str | Path) -> subprocess.Popen[bytes]:
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return subprocess.Popen(
        [sys.executable, "-m", "tests.crash._tuners", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths},
    )


def assert_all_end_well(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        with process:
            _, errors = process.communicate()
        assert process.returncode == 0, errors.decode()


def test_eight_processes_read_and_write_at_once(database_url: str) -> None:
    count = 60
    assert_all_end_well([start("write", database_url, tuner, str(count)) for tuner in TUNERS])
    with Database(database_url) as database:
        assert database.complaints() is None
        kept = {row["digest"]: row for row in listing(database)}
        wanted = [_tuners.key_of(tuner, number) for tuner in TUNERS for number in range(count)]
        assert kept.keys() == {key.digest for key in wanted}
        for key in wanted:
            found = outcome_in(database, key)
            assert found is not None
            assert found.time == _tuners.outcome_of(key).time
            assert kept[key.digest]["parts"] == dict(key.parts())
        for tuner in TUNERS:
            assert database.fact(_tuners.NOTE, tuner=tuner) == {"number": count - 1}


@pytest.mark.slow
def test_eight_tuners_compile_at_once(database_url: str, tmp_path: Path) -> None:
    first = ["Relu", "Abs", "Exp", "Neg"] * 2
    plans = [tmp_path / f"{i}.json" for i in range(len(TUNERS))]
    processes = [start("tune", database_url, plan, operator) for plan, operator in zip(plans, first, strict=True)]
    told: dict[str, list[float]] = {}
    for process in processes:
        with process:
            output, errors = process.communicate()
        assert process.returncode == 0, errors.decode()
        # Whoever comes late to a model that another tuner has measured has nothing left to say.
        for digest, status, median_s in map(json.loads, output.splitlines()):
            assert status == "ok"
            told.setdefault(digest, []).append(pytest.approx(median_s * 1e6))
    with Database(database_url) as database:
        rows = list(listing(database))
        assert {row["status"] for row in rows} == {"ok"}
        # A kernel's time tells what is in it, so that a row under a wrong key would be seen.
        before = {row["digest"]: row["median_us"] for row in rows}
    assert before.keys() == told.keys()
    assert all(median_us in told[digest] for digest, median_us in before.items())
    again = [start("tune", database_url, plan, operator) for plan, operator in zip(plans, first, strict=True)]
    assert_all_end_well(again)
    with Database(database_url) as database:
        after = {row["digest"]: row["median_us"] for row in listing(database)}
    assert {digest: after[digest] for digest in before} == before
