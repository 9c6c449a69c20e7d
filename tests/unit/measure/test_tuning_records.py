"""What tuning took and brought is believed where it makes sense, and foretells what tuning will."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from collage.cost.outcome import Outcome, Status
from collage.cost.statistics import Summary
from collage.cost.workload_key import digest_of
from collage.database.database import Database
from collage.measure.tuning_records import TunedKernel, TuningForecast, effort_s

GOOD = {"records": "{}", "took_s": 8.0, "effort_s": 0.5, "ratio": 0.5}


def test_pace_is_what_tunings_took_and_brought_so_far() -> None:
    first = TuningForecast.of([])
    known = [TunedKernel("{}", took_s, 0.5, 0.4) for took_s in (10.0, 20.0, 30.0, 40.0)]
    assert TuningForecast.of(known).efforts == 40.0
    assert TuningForecast.of(known).ratio == 0.4
    one = TuningForecast.of(known[:1])
    assert min(first.efforts, 20.0) < one.efforts < max(first.efforts, 20.0)
    # What was put together from records that were there tells nothing of how long tuning takes.
    assert TuningForecast.of([TunedKernel("{}", 0.0, 0.5, 0.4)] * 5).efforts == first.efforts


def test_a_trial_is_a_build_and_some_runs() -> None:
    slow, quick = (Outcome(Status.OK, None, Summary(s, s, s, 5, 0.0), build_s=0.5) for s in (0.1, 0.001))
    assert effort_s(slow) > effort_s(quick) > 0.5


@pytest.mark.parametrize(
    "value",
    [
        {**GOOD, "ratio": -1.0},
        {**GOOD, "took_s": True},
        {**GOOD, "effort_s": "0.5"},
        {**GOOD, "records": None},
        {**GOOD, "more": 1},
        {name: GOOD[name] for name in ("records", "took_s", "ratio")},
        [],
        "{}",
    ],
)
def test_facts_of_another_form_are_none(value: object, tmp_path: Path) -> None:
    with Database(str(tmp_path / "t.sqlite")) as database:
        database.keep_fact(value, fact="tuned-1", kernel="bad")
        database.keep_fact(GOOD, fact="tuned-1", kernel="good")
        assert list(database.facts("tuned-1")) == [({"fact": "tuned-1", "kernel": "good"}, GOOD)]


def test_facts_are_found_by_kind_and_not_by_what_they_look_like(database_url: str) -> None:
    with Database(database_url) as database:
        database.keep_fact(1, fact="kind_1", note="x")
        database.keep_fact(2, fact="kindx1", note="x")
        database.keep_fact(3, fact="note", note='{"fact": "kind_1"}')
        assert list(database.facts("kind_1")) == [({"fact": "kind_1", "note": "x"}, 1)]
        assert list(database.facts("nothing")) == []


def test_damaged_rows_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    name = {"fact": "tuned-1"}
    with Database(str(path)) as database:
        database.keep_fact(GOOD, fact="tuned-1", kernel="good")
        rows = [
            ("1" * 64, 'no JSON "fact": "tuned-1"', "{}"),
            ("2" * 64, json.dumps(name), json.dumps(GOOD)),
            ("3" * 64, json.dumps([{"fact": "tuned-1"}]), "[]"),
            (digest_of(name), json.dumps(name), json.dumps(GOOD).replace("0.5", "NaN")),
        ]
        with sqlite3.connect(path) as connection:
            connection.executemany("INSERT INTO fact VALUES (?, ?, ?, 0.0, 'o')", rows)
        assert [found["kernel"] for found, _ in database.facts("tuned-1")] == ["good"]
