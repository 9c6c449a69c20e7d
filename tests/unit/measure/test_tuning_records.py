"""What tuning took and brought is believed where it makes sense, and foretells what tuning will."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

from collage.cost.outcome import Outcome
from collage.cost.statistics import Summary
from collage.cost.workload_key import digest_of
from collage.database import Database, FactKind
from collage.measure.tuning_records import _TUNED_KERNEL, TunedKernel, TuningForecast, effort_s
from collage.status import Status

GOOD: dict[str, Any] = {"records": "{}", "took_s": 8.0, "effort_s": 0.5, "ratio": 0.5}


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


def test_facts_are_found_by_kind_and_not_by_what_they_look_like(database_url: str) -> None:
    with Database(database_url) as database:
        database.keep_fact(FactKind("kind_1", int), 1, note="x")
        database.keep_fact(FactKind("kindx1", int), 2, note="x")
        database.keep_fact(FactKind("note", int), 3, note='{"fact": "kind_1"}')
        assert list(database.facts(FactKind("kind_1", int))) == [({"note": "x"}, 1)]
        assert list(database.facts(FactKind("nothing", int))) == []


def test_damaged_rows_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    name = {"fact": "tuned"}
    with Database(str(path)) as database:
        database.keep_fact(_TUNED_KERNEL, TunedKernel(**GOOD), kernel="good")
        rows = [
            ("1" * 64, 'no JSON "fact": "tuned"', "{}"),
            ("2" * 64, json.dumps(name), json.dumps(GOOD)),
            ("3" * 64, json.dumps([{"fact": "tuned"}]), "[]"),
            (digest_of(name), json.dumps(name), json.dumps(GOOD).replace("0.5", "NaN")),
        ]
        with sqlite3.connect(path) as connection:
            connection.executemany("INSERT INTO fact VALUES (?, ?, ?, 0.0, 'o')", rows)
        assert [found["kernel"] for found, _ in database.facts(_TUNED_KERNEL)] == ["good"]
