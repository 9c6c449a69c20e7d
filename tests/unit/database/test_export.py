"""Sharing what is known: as text, by merging; and the commands around it, as a user meets them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from tests.timings import outcome_in

from collage._errors import UsageError
from collage.cli._app import _main
from collage.cost.outcome import Outcome
from collage.cost.statistics import Summary, summarise
from collage.cost.workload_key import METHOD, WorkloadKey, digest_of
from collage.database import _schema as schema
from collage.database._facts import QUARANTINED, FactKind, QuarantinedBuild
from collage.database._rows import fact_row, timing_row
from collage.database.database import Database
from collage.database.export import export_lines, import_lines, merge
from collage.database.queries import Choice, listing, prune
from collage.measure.explain_miss import nearest
from collage.status import Status

KEY = WorkloadKey("a" * 64, "(1, 2)float32", "llvm -compiler=onnxruntime", "onnxruntime 1.31", "fedcba98", 0, 4)
GOOD = Outcome(Status.OK, None, summarise([1e-3, 2e-3, 3e-3]), 1e-6, 0.5)
CRASH = Outcome(Status.CRASHED, "the worker was killed by SIGSEGV", build_s=0.1)
OLD = Path(__file__).parents[2] / "data" / "timings-schema-1.sqlite"


def fill(database: Database, *kernels: str, outcome: Outcome = GOOD) -> None:
    for kernel in kernels:
        database.record(replace(KEY, kernel=kernel), outcome)


def set_row(path: Path, sets: str, where: str = "1 = 1") -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"UPDATE timing SET {sets} WHERE {where}")
        connection.commit()


def exported(database: Database) -> list[str]:
    return list(export_lines(database))


def imported(database: Database, lines: list[str]) -> object:
    return import_lines(database, io.StringIO("\n".join(lines) + "\n"), "f.jsonl")


def test_what_is_exported_is_imported_on_every_engine(database_url: str, tmp_path: Path) -> None:
    with Database(str(tmp_path / "a.sqlite")) as one, Database(database_url.replace("timings.", "b.")) as other:
        fill(one, "k", "l")
        fill(one, "m", outcome=CRASH)
        one.keep_fact(SUPPORT, {"reason": None}, structure="s", target="llvm", build="b")
        imported(other, exported(one))
        for kernel in "klm":
            key = replace(KEY, kernel=kernel)
            assert outcome_in(other, key) == outcome_in(one, key)
            record = other.find(key)
            assert record is not None
            assert record.origin == f"{one.origin} (imported)"
        assert other.fact(SUPPORT, structure="s", target="llvm", build="b") == {"reason": None}
        again = exported(other)
        imported(other, again)
        assert other.find(replace(KEY, kernel="k")) == record.__class__(
            replace(GOOD, recorded=True), f"{one.origin} (imported)", one.find(replace(KEY, kernel="k")).made_at_s
        )


def test_what_was_measured_here_is_never_replaced_and_of_others_the_newer_is_kept(tmp_path: Path) -> None:
    slow = replace(GOOD, time=Summary(1.0, 1.0, 1.0, 9, 0.0))
    with Database(str(tmp_path / "a.sqlite")) as here, Database(str(tmp_path / "b.sqlite")) as there:
        there.origin = "elsewhere-1"
        fill(here, "k")
        fill(there, "k", "l", outcome=slow)
        assert imported(here, exported(there)).taken == 1
        assert outcome_in(here, replace(KEY, kernel="k")).time == GOOD.time
        assert outcome_in(here, replace(KEY, kernel="l")).time == slow.time
        older = exported(there)
        fill(there, "l")
        assert merge(here, str(tmp_path / "b.sqlite")).taken == 1
        assert outcome_in(here, replace(KEY, kernel="l")).time == GOOD.time
        imported(here, older)
        assert outcome_in(here, replace(KEY, kernel="l")).time == GOOD.time


def test_a_race_that_comes_as_text_is_never_taken_for_one_that_was_held_here(tmp_path: Path) -> None:
    with Database(str(tmp_path / "a.sqlite")) as one, Database(str(tmp_path / "b.sqlite")) as other:
        one.keep_local_fact(NOTE, {"x": 1})
        imported(other, exported(one))
        assert other.local_fact(NOTE) is None
        merge(other, str(tmp_path / "a.sqlite"))
        assert one.local_fact(NOTE) == {"x": 1}


def test_merging_leaves_the_other_database_as_it_was(tmp_path: Path) -> None:
    source = tmp_path / "old.sqlite"
    shutil.copy(OLD, source)
    before = source.read_bytes()
    with Database(str(tmp_path / "t.sqlite")) as database:
        moved = merge(database, str(source))
        assert (moved.timings, moved.facts, moved.taken) == (3, 2, 5)
        assert {row["origin"] for row in listing(database)} == {"unknown"}
        assert merge(database, f"sqlite:///{source}").taken == 0
        with pytest.raises(UsageError, match="no timing database"):
            merge(database, str(tmp_path / "missing.sqlite"))
        (tmp_path / "text").write_text("no database" * 1000)
        with pytest.raises(UsageError, match="cannot read"):
            merge(database, str(tmp_path / "text"))
    assert source.read_bytes() == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_merging_from_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    folder = tmp_path / "mount"
    folder.mkdir()
    shutil.copy(OLD, folder / "t.sqlite")
    folder.chmod(0o500)
    with Database(str(tmp_path / "t.sqlite")) as database:
        assert merge(database, str(folder / "t.sqlite")).taken == 5


@pytest.mark.parametrize(
    "sets", ["reason = x'ff'", "build_s = 9e999", "error = 9e999", "status = 'failed', median_s = NULL, p10_s = x'ff'"]
)
def test_columns_of_another_type_are_not_handed_on(tmp_path: Path, sets: str) -> None:
    path = tmp_path / "t.sqlite"
    with Database(str(path)) as database, Database(str(tmp_path / "other.sqlite")) as other:
        fill(database, "k", "l")
        set_row(path, sets)
        assert len(exported(database)) == 5  # Two timings and the machine, between the header and the end.
        assert merge(other, str(path)).timings == 2
        assert set(exported(other)[1:]) == set(exported(database)[1:])


def test_merging_between_engines(postgres: str, database_url: str, tmp_path: Path) -> None:
    with Database(database_url) as source, Database(str(tmp_path / "t.sqlite")) as target:
        fill(source, "k", "l")
        path = str(source.file) if source.file else database_url
        assert merge(target, path).timings == 2
        assert outcome_in(target, replace(KEY, kernel="l")) == replace(GOOD, recorded=True)


HEADER = {"format": "collage timings", "schema": schema.SCHEMA, "origin": "x", "made_at_s": 1.0}
PARTS = dict(KEY.parts())
ROW = {
    "parts": PARTS, "status": "ok", "median_s": 1.0, "p10_s": 1.0, "p90_s": 1.0, "samples": 3, "spread": 0.0,
    "error": 0.0, "reason": None, "build_s": 1.0, "made_at_s": 1.0, "origin": "x",
}  # fmt: skip
SUPPORT: FactKind[Mapping[str, Any]] = FactKind("support", Mapping[str, Any])
NOTE: FactKind[Mapping[str, Any]] = FactKind("note", Mapping[str, Any])
FACT = {"name": {"fact": "support"}, "value": {"reason": None}, "made_at_s": 1.0, "origin": "x"}
BAD_LINES = [
    "",
    "no JSON",
    "[]",
    "[" * 100_000,
    '{"timing": NaN}',
    {"timing": {}},
    {"timing": []},
    {"timing": {**ROW, "median_s": "fast"}},
    {"timing": {**ROW, "median_s": -1.0}},
    {"timing": {**ROW, "median_s": None}},
    {"timing": {**ROW, "p90_s": 0.5}},
    {"timing": {**ROW, "status": "splendid"}},
    {"timing": {**ROW, "status": ["ok"]}},
    {"timing": {**ROW, "parts": {"kernel": "k"}}},
    {"timing": {**ROW, "parts": {**PARTS, "machine": ["m"]}}},
    {"timing": {**ROW, "parts": {**PARTS, "build": 5}}},
    {"timing": {**ROW, "origin": 3}},
    {"timing": {**ROW, "made_at_s": "now"}},
    {"timing": {name: value for name, value in ROW.items() if name != "made_at_s"}},
    {"fact": {**FACT, "value": None}},
    {"fact": {**FACT, "name": "support"}},
    {"fact": {**FACT, "name": {}}},
    {"something": 1},
]


@pytest.mark.parametrize("line", BAD_LINES, ids=lambda line: str(line)[-40:])
def test_one_bad_line_and_nothing_is_imported(tmp_path: Path, line: object) -> None:
    bad = line if isinstance(line, str) else json.dumps(line)
    with Database(str(tmp_path / "t.sqlite")) as database:
        text = [json.dumps(HEADER), json.dumps({"timing": ROW}), bad, json.dumps({"end": 2})]
        with pytest.raises(UsageError, match=r"f\.jsonl, line 3: .*; nothing was imported") as caught:
            imported(database, text)
        assert "\n" not in str(caught.value)
        assert list(listing(database)) == []


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "this is not a JSON"),
        ([HEADER], "ends early"),
        ([HEADER, {"timing": ROW}], "ends early"),
        ([HEADER, {"timing": ROW}, {"end": 2}], "ends early"),
        ([HEADER, {"end": 0}, {"timing": ROW}], "after the end of the export"),
        ([{"timing": ROW}], "line 1"),
        ([{**HEADER, "schema": 99}], "newer version"),
        ([{**HEADER, "format": "other"}], "collage db export"),
    ],
)
def test_files_that_are_cut_off_or_of_another_kind_are_refused(tmp_path: Path, lines: list[object], said: str) -> None:
    with Database(str(tmp_path / "t.sqlite")) as database:
        with pytest.raises(UsageError, match=said):
            imported(database, [json.dumps(line) for line in lines])
        assert list(listing(database)) == []


def test_nothing_comes_from_the_future(tmp_path: Path) -> None:
    with Database(str(tmp_path / "t.sqlite")) as database:
        imported(database, [json.dumps(line) for line in (HEADER, {"timing": {**ROW, "made_at_s": 1e300}}, {"end": 1})])
        assert next(listing(database))["made_at_s"] <= time.time()


@given(st.text(), st.integers(0, 300))
def test_a_mutilated_export_never_crashes(rubbish: str, at: int) -> None:
    text = "\n".join(json.dumps(line) for line in (HEADER, {"timing": ROW}, {"fact": FACT}, {"end": 2}))
    with Database("sqlite:///:memory:") as database, contextlib.suppress(UsageError):
        import_lines(database, io.StringIO(text[:at] + rubbish + text[at + len(rubbish) :]), "f")


def test_prune_takes_what_everything_given_applies_to(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    with Database(str(path)) as database:
        fill(database, "new", "old")
        fill(database, "bad", outcome=CRASH)
        database.record(replace(KEY, build="onnxruntime 1.30"), GOOD)
        database.record(replace(KEY, machine="01234567"), GOOD)
        database.keep_fact(SUPPORT, {"reason": None}, build="onnxruntime 1.30", target=KEY.target)
        database.keep_fact(NOTE, {"x": 1}, builds={"onnxruntime": "onnxruntime 1.30"}, machine="01234567")
        set_row(path, "made_at_s = 5.0", f"digest = '{replace(KEY, kernel='old').digest}'")
        set_row(path, "origin = 'laptop-1'", f"digest = '{replace(KEY, kernel='new').digest}'")

        def count(**choice: object) -> tuple[int, int]:
            return prune(database, Choice(**choice), dry_run=True)  # type: ignore[arg-type]

        assert count(before_s=6.0) == (1, 0)
        assert count(build="1.30") == (1, 2)
        assert count(machine="0123") == (1, 1)
        assert count(machine="laptop-1") == (1, 0)
        assert count(status="crashed") == (1, 0)
        assert count(target="onnxruntime") == (5, 1)
        assert count(kind="support") == (0, 1)
        assert count(build="1.30", machine="0123") == (0, 1)
        assert prune(database, Choice(status="crashed")) == (1, 0)
        assert outcome_in(database, replace(KEY, kernel="bad")) is None
        assert len(list(listing(database))) == 4


@pytest.mark.parametrize("option", ["--machine", "--build", "--target", "--kind"])
def test_prune_takes_nothing_by_an_empty_text(tmp_path: Path, option: str) -> None:
    path = str(tmp_path / "t.sqlite")
    with Database(path) as database:
        fill(database, "new")
    assert _main(["db", "prune", option, "", "--db", path]) == 2
    with Database(path) as database:
        assert len(list(listing(database))) == 1


def test_the_nearest_key_is_of_the_same_kernel_first() -> None:
    def row(**parts: object) -> dict[str, object]:
        return {"parts": {**PARTS, **parts}, "made_at_s": 0.0}

    same_kernel = row(build="x", machine="y")
    rows = [row(kernel="b", target="llvm"), row(kernel="b"), same_kernel]
    assert nearest(rows, PARTS) is same_kernel
    assert nearest([], PARTS) is None


@pytest.fixture
def filled(tmp_path: Path) -> str:
    path = str(tmp_path / "filled.sqlite")
    with Database(path) as database:
        fill(database, "k", "l")
        fill(database, "m", outcome=CRASH)
        database.keep_fact(
            QUARANTINED, QuarantinedBuild(time.time(), "died"), toolchain="fake", build="fake 1", machine="m"
        )
    return path


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = _main(["db", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_every_command_has_examples_in_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("stats", "show", "explain-miss", "export", "import", "merge", "prune"):
        code, out, _ = run(capsys, command, "--help")
        assert code == 0
        assert f"collage db {command} " in out.split("Options:")[0].replace("\n", " ")


def test_stats_and_show(filled: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "stats", "--db", filled, "--json")
    found = json.loads(out)
    assert (code, found["schema"], found["timings"], found["by_status"]) == (0, 1, 3, {"ok": 2, "crashed": 1})
    assert (found["integrity"], found["damaged"]) == ("ok", 0)
    assert [row["toolchain"] for row in found["quarantined"]] == ["fake"]
    assert "this machine" in run(capsys, "stats", "--db", filled)[1]
    found = json.loads(run(capsys, "show", "--db", filled, "--status", "crashed", "--json")[1])
    assert [row["reason"] for row in found["timings"]] == ["the worker was killed by SIGSEGV"]
    digest = found["timings"][0]["digest"]
    code, out, _ = run(capsys, "show", digest[:10], "--db", filled)
    assert (code, f"build      {KEY.build}" in out) == (0, True)
    assert run(capsys, "show", "zz", "--db", filled)[0] == 2
    assert json.loads(run(capsys, "show", "--db", filled, "--limit", "1", "--json")[1])["found"] == 3


def test_damaged_rows_are_counted_and_left_out(filled: str, capsys: pytest.CaptureFixture[str]) -> None:
    set_row(Path(filled), "median_s = 'x', made_at_s = 'x', origin = x'ff'", "status = 'ok'")
    found = json.loads(run(capsys, "stats", "--db", filled, "--json")[1])
    assert (found["timings"], found["damaged"]) == (1, 2)
    code, out, _ = run(capsys, "export", "-", "--db", filled)
    assert (code, out.count('"timing"')) == (0, 1)
    assert run(capsys, "prune", "--older-than", "1d", "--db", filled)[1].startswith("2 timings")


STRANGE_PARTS = [{"kernel": "k"}, {**PARTS, "build": 5}, {**PARTS, "target": ["llvm"]}, {**PARTS, "machine": {"a": 1}}]
STRANGE_NAMES = [{"fact": "machine"}, {"fact": "machine", "machine": ["m"]}, {"fact": "quarantine"}]


def test_rows_of_another_form_are_listed_without_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "t.sqlite")
    with Database(path) as database:
        row = {**timing_row(KEY, GOOD, "elsewhere"), "reason": "\x1b[2J"}
        strange = [{"digest": digest_of(parts), "parts": json.dumps(parts)} for parts in STRANGE_PARTS]
        database.write(schema.timing, [row, *({**row, **parts} for parts in strange)])
        database.write(schema.fact, [fact_row(name, {"since_s": 1.0, "reason": ""}, "x") for name in STRANGE_NAMES])
    found = json.loads(run(capsys, "stats", "--db", path, "--json")[1])
    assert (found["timings"], found["damaged"]) == (1, 4)
    assert run(capsys, "stats", "--db", path)[0] == 0
    code, out, _ = run(capsys, "show", "--db", path)
    assert (code, out.count("\n")) == (0, 1)
    assert "\x1b" not in out, "what a row says does not command the terminal"


def test_export_import_merge_and_prune(filled: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, other = str(tmp_path / "t.jsonl"), str(tmp_path / "deep" / "other.sqlite")
    assert json.loads(run(capsys, "export", text, "--db", filled, "--json")[1])["rows"] == 5
    assert json.loads(run(capsys, "import", text, "--db", other, "--json")[1])["taken"] == 5
    assert json.loads(run(capsys, "merge", filled, "--db", str(tmp_path / "m.sqlite"), "--json")[1])["timings"] == 3
    assert json.loads(run(capsys, "prune", "--kind", "quarantine", "--db", other, "--json")[1])["facts"] == 1
    assert run(capsys, "prune", "--status", "crashed", "--dry-run", "--db", other)[1].startswith(
        "1 timing and 0 facts would"
    )


BAD = [
    (("stats", "--db", "missing.sqlite"), "no timing database"),
    (("merge", "missing.sqlite", "--db", "x.sqlite"), "no timing database"),
    (("prune", "--db", "filled.sqlite"), "name the rows to remove"),
    (("prune", "--older-than", "soon", "--db", "filled.sqlite"), "cannot read the age"),
    (("import", "missing.jsonl", "--db", "filled.sqlite"), "cannot read missing.jsonl"),
    (("import", "filled.sqlite", "--db", "filled.sqlite"), "nothing was imported"),
    (("export", "nowhere/x.jsonl", "--db", "filled.sqlite"), "cannot write"),
    (("explain-miss", "missing.onnx", "--db", "filled.sqlite"), "no file missing.onnx"),
    (("explain-miss", "beef", "--db", "filled.sqlite"), "no timing begins"),
]


@pytest.mark.parametrize(
    ("words", "said"), BAD, ids=lambda value: " ".join(value[:2]) if isinstance(value, tuple) else ""
)
def test_bad_requests_get_one_sentence(
    words: tuple[str, ...], said: str, filled: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(filled).parent)
    code, _, err = run(capsys, *words)
    assert code == 2
    assert said in err
    assert len(err.splitlines()) == 1


def test_a_miss_is_explained_by_the_parts_that_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", [x], [y])
    model, db = str(tmp_path / "m.onnx"), str(tmp_path / "t.sqlite")
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), model)

    def explain(*words: str) -> dict:
        code, out, err = run(capsys, "explain-miss", model, "-t", "onnxruntime", "--db", db, "--json", *words)
        assert code == 0, err
        return json.loads(out)["explanations"][0]

    Database(db).close()
    wanted = explain()
    assert (wanted["known"], wanted["nearest"]) == (False, None)
    with Database(db) as database:
        database.record(WorkloadKey(**{**wanted["parts"], "build": "onnxruntime 1.0"}), GOOD)
    assert [(row["part"], row["stored"]) for row in explain()["differs"]] == [("build", "onnxruntime 1.0")]
    with Database(db) as database:
        database.record(WorkloadKey(**wanted["parts"]), GOOD)
    assert explain()["known"] is True
    assert [row["part"] for row in explain("--threads", "1")["differs"]] == ["threads"]
    assert wanted["parts"]["method"] == METHOD


def test_the_tables_are_those_of_the_schema(database_url: str) -> None:
    with Database(database_url) as database:
        found = sa.inspect(database._engine)
        assert set(found.get_table_names()) == set(schema.metadata.tables)
