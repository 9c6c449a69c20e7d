"""What comes back from a node: its artefact, and its timings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.timings import outcome_in
from tests.unit.fleet.artefacts import DIGEST, MACHINE, model, zipped
from tests.unit.runtime.test_symbolic_lengths import MODELS

from collage._errors import ArtefactError, UsageError
from collage.cost.outcome import Outcome
from collage.cost.statistics import Summary
from collage.cost.workload_key import WorkloadKey
from collage.database.database import Database
from collage.database.export import export_lines
from collage.fleet import remote
from collage.fleet.answers import read_answer
from collage.fleet.remote import take_rows
from collage.fleet.returned import file_digest, keep
from collage.frontend import fix_lengths, read_model
from collage.runtime import pack
from collage.status import Status
from collage.system.machine import this_machine
from collage.testing import executable_of

ARTEFACT = zipped()
OPEN, _ = MODELS["attention"]
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)
FIELDS = ("kind", "node", "host", "reason", "code", "took_s", "artefact", "rows")


def test_an_artefact_is_kept_as_it_came(tmp_path: Path) -> None:
    kept = keep(ARTEFACT, model(), MACHINE, tmp_path / "m" / "small.zip")
    assert (tmp_path / "m" / "small.zip").read_bytes() == ARTEFACT
    assert kept.digest == file_digest(tmp_path / "m" / "small.zip")
    assert [path.name for path in (tmp_path / "m").iterdir()] == ["small.zip"]


def packed(folder: Path, *plans: tuple[dict[str, int], str]) -> bytes:
    """A pack of plans, of each its fixed lengths and the fingerprint of its machine."""
    folders = [folder / str(number) for number in range(len(plans))]
    for path, (lengths, made_on) in zip(folders, plans, strict=True):
        executable = executable_of(fix_lengths(read_model(OPEN), lengths), "onnxruntime")
        executable.recipe = replace(executable.recipe, model={"sha256": DIGEST})
        told = json.loads((executable.save(path) / "manifest.json").read_text())
        told["fingerprint"] = {"digest": made_on, "cpu": "", "flags": []}
        (path / "manifest.json").write_text(json.dumps(told))
    pack(folders, folder / "pack.zip")
    return (folder / "pack.zip").read_bytes()


def test_plans_for_lengths_are_kept_too(tmp_path: Path) -> None:
    ours = replace(model(), inputs=(("x", "float32"),), outputs=(("y", "float32"),))
    here, there = MACHINE.fingerprint, "f" * 16
    sent = packed(tmp_path / "a", ({"b": 2}, here), ({}, here))
    kept = keep(sent, ours, MACHINE, tmp_path / "m" / "small.zip")
    assert kept.digest == file_digest(tmp_path / "m" / "small.zip")
    damaged = bytes([*sent[:-3000], sent[-3000] ^ 1, *sent[-2999:]])
    for wrong, said in ((damaged, None), (packed(tmp_path / "b", ({}, here), ({}, there)), "another machine")):
        with pytest.raises(ArtefactError, match=said):
            keep(wrong, ours, MACHINE, tmp_path / "m" / "small.zip")
    assert (tmp_path / "m" / "small.zip").read_bytes() == sent


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"no zip",
        ARTEFACT[:-1],
        bytes([*ARTEFACT[:-3000], ARTEFACT[-3000] ^ 1, *ARTEFACT[-2999:]]),
        zipped(model={"path": "m.onnx", "sha256": "6" * 64, "nodes": 1}),
        zipped(model={}),
        zipped(inputs=[]),
        zipped(fingerprint={"digest": "f" * 16, "cpu": "another", "flags": []}),
        zipped(fingerprint={}),
    ],
)
def test_what_is_no_artefact_of_the_model_is_refused_and_leaves_nothing(sent: bytes, tmp_path: Path) -> None:
    keep(ARTEFACT, model(), MACHINE, tmp_path / "small.zip")
    with pytest.raises(ArtefactError):
        keep(sent, model(), MACHINE, tmp_path / "small.zip")
    assert [path.name for path in tmp_path.iterdir()] == ["small.zip"]
    assert (tmp_path / "small.zip").read_bytes() == ARTEFACT


def test_other_inputs_than_the_models_are_refused(tmp_path: Path) -> None:
    ours = model()
    other = type(ours)(ours.path, ours.digest, ours.files, ours.bytes, (("z", "float32"),), ours.outputs)
    with pytest.raises(ArtefactError, match="inputs or outputs"):
        keep(ARTEFACT, other, MACHINE, tmp_path / "small.zip")


@settings(max_examples=40, deadline=None)
@given(JUNK)
def test_any_value_is_read_as_an_answer(sent: Any) -> None:
    assert read_answer(sent).kind in ("failed", "late", "refused")


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), JUNK | st.sampled_from(["done", "failed", "late", "refused"])))
def test_any_parts_of_an_answer_are_of_their_types_or_it_is_a_failure(sent: dict[str, Any]) -> None:
    answer = read_answer(sent)
    assert (answer.kind == "done") <= (sent.get("kind") == "done")
    assert isinstance(answer.artefact, bytes) and isinstance(answer.rows, str) and answer.took_s >= 0
    assert all(isinstance(each, str) for each in (answer.kind, answer.node, answer.host, answer.reason))


HERE = this_machine().fingerprint
KEY = WorkloadKey("kernel", "(1, 2)float32", "llvm", "tvm 1", HERE, 0, 4)
OUTCOME = Outcome(Status.OK, None, Summary(1.0, 1.0, 1.0, 5, 0.0), 0.0, 1.0)


@pytest.fixture
def sent(tmp_path: Path) -> str:
    with Database(str(tmp_path / "node.sqlite")) as database:
        database.record(KEY, OUTCOME)
        return "\n".join(export_lines(database)) + "\n"


def test_facts_of_other_machines_are_refused(sent: str, tmp_path: Path) -> None:
    head, *lines, _ = sent.splitlines()
    fact = {"name": {"fact": "machine", "machine": "another"}, "value": {}, "origin": "node", "made_at_s": 0.0}
    end = json.dumps({"end": len(lines) + 1})
    text = "\n".join([head, *lines, json.dumps({"fact": fact}), end]) + "\n"
    with Database(str(tmp_path / "here.sqlite")) as database:
        with pytest.raises(ArtefactError, match="not of its type"):
            take_rows(database, text, HERE)
        assert outcome_in(database, KEY) is None


def test_timings_of_a_node_are_taken(sent: str, tmp_path: Path) -> None:
    with Database(str(tmp_path / "here.sqlite")) as database:
        take_rows(database, sent, HERE)
        found = outcome_in(database, KEY)
        assert found is not None and found.time == OUTCOME.time


@pytest.mark.parametrize("change", ["machine", "flood", "odd", "short", *"\r\u2028\x85"])
def test_timings_of_other_machines_and_floods_are_refused_as_a_whole(
    sent: str, tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "MOST_ROWS", 50)
    head, *lines, _ = sent.splitlines()
    if change == "flood":
        lines *= 50
    if change == "odd":
        lines.append('{"timing": [1]}')
    if len(change) == 1:  # A blank or a character of a text, at which Python may end a line.
        lines = [
            line.replace("{", "{\r", 1) if change == "\r" else line.replace(": null", f': "{change}"') for line in lines
        ]
    end = json.dumps({"end": len(lines) + (change == "short")})
    with Database(str(tmp_path / "here.sqlite")) as database:
        with pytest.raises((ArtefactError, UsageError)):
            fingerprint = HERE if change in ("flood", "odd", "short") else "another"
            take_rows(database, "\n".join([head, *lines, end]) + "\n", fingerprint)
        assert outcome_in(database, KEY) is None
