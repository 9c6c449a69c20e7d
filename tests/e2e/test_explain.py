"""Explanations of what was compiled: the record agrees with the search, travels with the artefact, and is not trusted."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import collage
from collage._errors import ArtefactError
from collage.cli import main
from collage.explain import RECORD
from collage.runtime import MANIFEST, explain_artefact
from collage.status import Status
from collage.workers.worker import Worker
from tests.e2e.declared_chain import WRONG, compiled, declare, plan_of

WORKERS: dict[str, Worker] = {}
LEFT, RIGHT = "llvm -compiler=left", "llvm -compiler=right"


@pytest.fixture(scope="module", autouse=True)
def _end_workers() -> Iterator[None]:
    yield
    for worker in WORKERS.values():
        worker.kill()


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return declare(monkeypatch)


def test_the_record_tells_what_was_chosen_and_what_lost(measured: list[str], tmp_path: Path) -> None:
    executable = compiled(tmp_path, WORKERS)
    explanation = executable.explain()
    assert [kernel.name for kernel in executable.recipe.kernels] == [k.chosen.name for k in explanation.kernels]
    assert plan_of(executable) == [("right", 4), ("left", 4)]
    first, _ = explanation.kernels
    assert first.chosen.kernel.time_us == pytest.approx(1_140_100) and first.chosen.kernel.is_measured
    assert [runner.kernel.target for runner in first.runner_ups] == [LEFT]
    assert explanation.predicted_us == pytest.approx(1_540_200, rel=1e-3)
    wholes = {row.target: row.time_us for row in explanation.record.tried if len(row.nodes) == 8}
    assert wholes == {LEFT: pytest.approx(1_600_100), RIGHT: pytest.approx(4_740_100)}


def test_every_measured_kernel_is_in_the_record_with_its_time(measured: list[str], tmp_path: Path) -> None:
    record = compiled(tmp_path, WORKERS).explain().record
    rows = {
        f"{row.target.split('=')[-1]}: {' '.join(record.op_types[i] for i in row.nodes)}"
        for row in record.tried
        if row.status is Status.OK
    }
    assert set(measured) <= rows


def test_the_limit_is_the_time_at_which_the_whole_on_one_target_would_have_won(
    measured: list[str], tmp_path: Path
) -> None:
    explanation = compiled(tmp_path, WORKERS).explain()
    assert explanation.predicted_us is not None
    whole = next(row for row in explanation.record.tried if len(row.nodes) == 8 and row.target == LEFT)
    assert whole.limit_us == pytest.approx(explanation.predicted_us, rel=1e-4) and not whole.limit_is_expected
    chosen = explanation.kernels[0].chosen.kernel
    assert chosen.limit_us is not None and chosen.time_us is not None and chosen.limit_us >= chosen.time_us


def test_a_border_costs_a_launch_and_saves_what_one_kernel_would_take_longer(
    measured: list[str], tmp_path: Path
) -> None:
    (border,) = compiled(tmp_path, WORKERS).explain().borders
    assert (border.values, border.count, border.nbytes) == (("v4",), 1, 32)
    assert border.joined_target == LEFT and border.joined_is_measured
    assert border.joined_us == pytest.approx(1_600_100)
    assert border.saves_us == pytest.approx(1_600_100 - 1_540_200 - (border.cost_us or 0.0))


def test_an_author_sees_the_wrong_kernels_of_a_toolchain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    declare(monkeypatch)
    explanation = compiled(tmp_path, WORKERS, ["left", WRONG]).explain()
    (answer,) = explanation.target(WRONG)
    assert answer.wrong and {row.reason for row in answer.wrong} == {"differs by 4.5e-01"}
    assert answer.answer is not None and answer.answer.whole is Status.WRONG
    assert "wrong: differs by 4.5e-01" in str(explanation.node("n7", WRONG))


def test_a_remembered_result_explains_itself_as_the_first_did(measured: list[str], tmp_path: Path) -> None:
    first = compiled(tmp_path, WORKERS)
    done = len(measured)
    second = compiled(tmp_path, WORKERS)
    assert len(measured) == done
    ours, theirs = first.explain(), second.explain()
    assert ours.record == theirs.record
    assert [k.chosen.name for k in theirs.kernels] == [kernel.name for kernel in second.recipe.kernels]


@pytest.fixture(scope="module")
def executable(tmp_path_factory: pytest.TempPathFactory) -> collage.Executable:
    """One that several tests save, each in a folder of its own."""
    with pytest.MonkeyPatch.context() as patch:
        declare(patch)
        return compiled(tmp_path_factory.mktemp("saved"), WORKERS)


@pytest.mark.parametrize("name", ["m.collage", "m.collage.zip"])
@pytest.mark.parametrize("recipe_only", [False, True])
def test_the_record_travels_with_the_artefact(
    name: str, recipe_only: bool, executable: collage.Executable, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = executable.save(tmp_path / name, recipe_only=recipe_only)
    explanation = explain_artefact(path)
    assert explanation.record == executable.explain().record
    for words in ([], ["--node", "n2", "--against", "left"], ["--target", "right"]):
        with pytest.raises(SystemExit) as stop:
            main(["explain", str(path), *words])
        text = capsys.readouterr().out
        assert stop.value.code == 0 and "right" in text + "left"
        with pytest.raises(SystemExit):
            main(["explain", str(path), *words, "--json"])
        assert json.loads(capsys.readouterr().out)["schema"] == 1


def test_an_artefact_without_a_record_says_so(measured: list[str], tmp_path: Path) -> None:
    executable = compiled(tmp_path, WORKERS)
    (executable.workspace / RECORD).unlink()
    path = executable.save(tmp_path / "old.collage")
    with pytest.raises(ArtefactError, match="no record"):
        explain_artefact(path)


@pytest.fixture
def artefact(executable: collage.Executable, tmp_path: Path) -> Path:
    return executable.save(tmp_path / "m.collage")


def test_a_changed_record_is_noticed(artefact: Path) -> None:
    tried = artefact / RECORD
    data = bytearray(tried.read_bytes())
    data[len(data) // 2] ^= 1
    tried.write_bytes(data)
    for read in (explain_artefact, collage.load):
        with pytest.raises(ArtefactError, match="was changed"):
            read(artefact)


def test_a_record_that_the_manifest_does_not_list_is_refused(artefact: Path) -> None:
    manifest = json.loads((artefact / MANIFEST).read_text())
    del manifest["files"][RECORD]
    (artefact / MANIFEST).write_text(json.dumps(manifest))
    for read in (explain_artefact, collage.load):
        with pytest.raises(ArtefactError, match="does not list"):
            read(artefact)


@pytest.mark.parametrize("text", ["[]", '{"schema": 1}', "[" * 100_000])
def test_a_hostile_record_with_a_right_digest_is_refused_when_it_is_asked(
    text: str, artefact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = gzip.compress(text.encode())
    (artefact / RECORD).write_bytes(data)
    manifest: dict[str, Any] = json.loads((artefact / MANIFEST).read_text())
    manifest["files"][RECORD] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    (artefact / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(SystemExit) as stop:
        main(["explain", str(artefact)])
    assert stop.value.code == 5
    assert "is not a record" in capsys.readouterr().err


def test_a_candidate_that_the_user_forbade_has_no_limit_but_the_reason(measured: list[str], tmp_path: Path) -> None:
    explanation = compiled(tmp_path, WORKERS, forbid=("left:n0",)).explain()
    whole = next(row for row in explanation.record.tried if len(row.nodes) == 8 and row.target == LEFT)
    assert whole.limit_us is None and "forbidden" in whole.reason
    assert "forbidden" in str(explanation.node("n0", "left"))
    assert all(kernel.chosen.kernel.limit_us != whole.time_us for kernel in explanation.kernels)
