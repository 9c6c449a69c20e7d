from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from collage.cli._app import _main
from collage.cost.outcome import Outcome
from collage.cost.statistics import summarise
from collage.cost.workload_key import WorkloadKey
from collage.database.build_diff import build_changes
from collage.database.database import Database
from collage.database.queries import Choice
from collage.status import Status

OLD = WorkloadKey("kernel", "(1, 2)float32", "llvm", "tvm 1", "machine", 0, 4)
NEW = replace(OLD, build="tvm 2")


def ok(*seconds: float) -> Outcome:
    return Outcome(Status.OK, time=summarise(list(seconds)))


FAST, SAME, SLOW = ok(1.0, 1.01, 1.02), ok(1.01, 1.0, 1.05), ok(2.0, 2.02, 2.04)
WRONG = Outcome(Status.WRONG, "output 'y': differs")


@pytest.mark.parametrize(
    ("before", "after", "change", "ratio"),
    [
        (FAST, SLOW, "slower", 2.0),
        (SLOW, FAST, "faster", 0.5),
        (FAST, WRONG, "wrong", None),
        (WRONG, FAST, "repaired", None),
        (FAST, Outcome(Status.REFUSED, "no such operator"), "refused", None),
    ],
)
def test_a_change_of_each_kind(before: Outcome, after: Outcome, change: str, ratio: float | None) -> None:
    with Database(":memory:") as database:
        database.record(OLD, before)
        database.record(NEW, after)
        (found,), compared = build_changes(database, Choice())
    assert (found.change, compared) == (change, 1)
    assert found.ratio == (None if ratio is None else pytest.approx(ratio))
    assert found.before["parts"]["build"] == "tvm 1" and found.after["parts"]["build"] == "tvm 2"


def test_what_did_not_change_and_what_is_another_kernel_or_machine_is_no_change() -> None:
    with Database(":memory:") as database:
        database.record(OLD, FAST)
        database.record(NEW, SAME)
        database.record(replace(OLD, kernel="other"), FAST)
        database.record(replace(NEW, kernel="another"), SLOW)
        database.record(replace(NEW, machine="other", threads=1), SLOW)
        assert build_changes(database, Choice()) == ([], 1)


def test_builds_are_chosen_by_a_part_of_their_name_and_what_no_longer_runs_comes_first() -> None:
    with Database(":memory:") as database:
        for build, outcome in (("tvm 1", FAST), ("tvm 2", SLOW), ("tvm 3", WRONG)):
            database.record(replace(OLD, build=build), outcome)
            database.record(replace(OLD, build=build, kernel="second"), SLOW if outcome is WRONG else FAST)
        assert [change.change for change in build_changes(database, Choice())[0]] == ["wrong", "slower"]
        assert [change.change for change in build_changes(database, Choice(), older="1", newer="2")[0]] == ["slower"]
        assert build_changes(database, Choice(), older="tvm 4") == ([], 0)
        database.record(replace(OLD, kernel="third"), WRONG)
        database.record(replace(NEW, kernel="third"), FAST)
        assert [change.change for change in build_changes(database, Choice())[0]] == ["wrong", "slower", "repaired"]


def test_the_command_names_the_kernel_the_target_and_both_builds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = str(tmp_path / "t.sqlite")
    with Database(url) as database:
        database.record(OLD, FAST)
        database.record(NEW, SLOW)
        database.record(replace(OLD, target="openvino"), FAST)
        database.record(replace(NEW, target="openvino"), WRONG)
    assert _main(["db", "diff", "--db", url, "--target", "llvm"]) == 0
    line, total = capsys.readouterr().out.splitlines()
    assert line.startswith(NEW.digest[:12]) and "slower" in line and "2.00 times" in line and "(tvm 1 -> tvm 2)" in line
    assert total == "measured with two builds: 1 kernel, of which changed: 1"
    assert _main(["db", "diff", "--db", url]) == 0
    assert "collage diff MODEL.onnx -t openvino -o wrong" in capsys.readouterr().out
    assert _main(["db", "diff", "--db", url, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [change["change"] for change in document["changes"]] == ["wrong", "slower"] and document["compared"] == 2
