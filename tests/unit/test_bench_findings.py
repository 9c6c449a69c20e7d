"""A row of bench that is faster than the artefact beyond doubt: it is noted, and comes with the command that uses it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from collage import benchmark
from collage.benchmark import OURS
from collage.cli._report import print_bench
from collage.cost.statistics import Interval, summarise
from collage.database.database import Database
from collage.measure.bench_findings import faster_targets, keep_faster
from collage.measure.finalist import Finalist, FinalistResult
from collage.measure.race import Comparison
from collage.status import Status


def standing(name: str, low: float, high: float, **more: Any) -> FinalistResult:
    entry = Finalist(name, "", {"target": f"llvm -compiler={name}"})
    return FinalistResult(entry, Status.OK, ratio=((low + high) / 2, Interval(low, high)), **more)


@pytest.mark.parametrize(
    ("row", "is_faster"),
    [
        (standing("fast", 0.8, 0.95), True),
        (standing("in_doubt", 0.8, 1.01), False),
        (standing("slow", 1.1, 1.2), False),
        (standing("wrong", 0.5, 0.6, reason="output 'y' differs"), False),
        (standing(OURS, 0.9, 0.95), False),
    ],
)
def test_a_row_is_faster_if_its_whole_interval_is_and_it_is_right(row: FinalistResult, is_faster: bool) -> None:
    assert benchmark._is_faster(row) is is_faster


@pytest.mark.parametrize(
    ("targets", "is_own"), [(("llvm -compiler=fast",), True), (("llvm -compiler=fast", "llvm"), False)]
)
def test_the_target_on_which_the_artefact_runs_the_whole_model_is_its_own(
    targets: tuple[str, ...], is_own: bool
) -> None:
    recipe: Any = SimpleNamespace(kernels=tuple(SimpleNamespace(target=target) for target in targets))
    assert benchmark._is_own(standing("fast", 0.8, 0.95), recipe) is is_own


def test_of_its_own_target_the_microseconds_beyond_it_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    row, time = standing("fast", 0.8, 1.0), summarise([20e-6])
    ours = dataclasses.replace(standing(OURS, 1.0, 1.0), time=time)
    result = Comparison(ours, row, row.ratio, [ours, row])
    told = benchmark._beyond(row, result)
    assert told is not None and told["target"] == "fast" and told["beyond_us"] == pytest.approx(2.0)
    assert benchmark._beyond(row, Comparison(None, None, None, [row])) is None
    rows = [{"name": OURS, "median_us": 20.0, "p10_us": 20.0, "p90_us": 20.0, "reason": None}]
    table = {"rows": rows, "speedup_vs_best_single": None, "faster": [], "neighbour": "none"}
    print_bench({**table, "call": told})
    assert "the artefact runs fast whole: a call takes 2.0 µs more than that alone" in capsys.readouterr().out
    print_bench({**table, "call": None})
    assert "a call takes" not in capsys.readouterr().out


def test_what_was_faster_is_noted_for_the_model_and_forgotten_when_it_was_raced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = str(tmp_path / "db.sqlite")
    monkeypatch.setenv("COLLAGE_DB", url)
    recipe: Any = SimpleNamespace(model={"sha256": "abc"})
    benchmark._note_faster(recipe, [standing("fast", 0.8, 0.9)], print)
    benchmark._note_faster(SimpleNamespace(model={}), [standing("fast", 0.8, 0.9)], print)  # type: ignore[arg-type]
    with Database(url) as database:
        assert faster_targets(database, "abc") == ["llvm -compiler=fast"]
        assert faster_targets(database, "abd") == []
        assert database.complaints() is None
        keep_faster(database, "abc", ())
        assert faster_targets(database, "abc") == []


def test_the_command_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"name": OURS, "median_us": 3.0, "p10_us": 3.0, "p90_us": 3.0, "reason": None}
    command = "collage compile m.onnx -t fast -o m.collage"
    print_bench(
        {
            "rows": [row, {**row, "name": "fast", "median_us": 2.0}],
            "speedup_vs_best_single": 0.66,
            "speedup_interval": [0.6, 0.7],
            "faster": [{"name": "fast", "command": command}],
            "neighbour": "none",
        }
    )
    told = capsys.readouterr().out
    assert "fast is faster beyond doubt" in told and f"to use it now: {command}" in told
