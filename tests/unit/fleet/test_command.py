"""The tasks that a command plans: their names, and what of earlier commands they take over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.fleet.fake_ray import FakeRay, Reference

from collage._errors import CollageError
from collage.fleet import command
from collage.fleet.command import _names, compile_fleet
from collage.fleet.machines import Fleet, MachineType
from collage.fleet.tasks import TaskStore, absolute_url
from collage.system.machine import this_machine

PARTS = st.sampled_from(["a", "b", "a-b", "m", ".m"])
PATHS = st.builds(
    lambda folders, stem, suffix: Path("/", *folders, stem + suffix),
    st.lists(PARTS, max_size=3),
    PARTS,
    st.sampled_from([".onnx", ".pb"]),
)


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["/zoo/resnet.onnx", "/zoo/bert.onnx"], ["resnet", "bert"]),
        (["/zoo/resnet/model.onnx", "/zoo/bert/model.onnx"], ["resnet-model", "bert-model"]),
        (["/v1/bert/model.onnx", "/v2/bert/model.onnx", "/x.onnx"], ["v1-bert-model", "v2-bert-model", "x"]),
        (["/zoo/m.onnx", "/zoo/../zoo/m.onnx", "/zoo/m.onnx"], ["zoo-m", "..-zoo-m"]),
        (["/zoo/...onnx"], ["model"]),
    ],
)
def test_a_model_has_the_name_of_its_file_and_of_the_folders_that_tell_it_apart(
    paths: list[str], names: list[str]
) -> None:
    assert list(_names(map(Path, paths)).values()) == names


@settings(max_examples=200, deadline=None)
@given(st.lists(PATHS, unique=True, max_size=8))
def test_no_two_models_have_one_name_and_each_is_a_plain_one(paths: list[Path]) -> None:
    names = _names(paths)
    assert list(names) == paths
    assert len(set(names.values())) == len(paths)
    assert all(name and "/" not in name and name not in (".", "..") for name in names.values())


def test_every_path_has_an_artefact_of_its_own_also_of_equal_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = '<ir_version: 10, opset_import: ["" : 20]> g (float[2] x) => (float[2] y) { y = Relu (x) }'
    paths = [tmp_path / name / "model.onnx" for name in ("one", "two")]
    for path in paths:
        path.parent.mkdir()
        onnx.save(onnx.parser.parse_model(text), path)
    monkeypatch.setattr(command, "_drive", lambda order, store, say: None)
    fleet = Fleet({"here": MachineType("here", this_machine().fingerprint, {})})
    db = str(tmp_path / "t.sqlite")
    first = compile_fleet(paths, fleet, tmp_path / "out", db=db)
    assert {task.file for task in first} == {f"{name}-model/here.collage.zip" for name in ("one", "two")}
    assert len({task.model for task in first}) == 1
    assert compile_fleet(paths, fleet, tmp_path / "out", db=db) == first
    with TaskStore(absolute_url(db)) as store:
        assert len(store.all()) == 2


def test_a_lost_cluster_ends_the_command_and_the_same_command_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = '<ir_version: 10, opset_import: ["" : 20]> g (float[2] x) => (float[2] y) { y = Relu (x) }'
    paths = [tmp_path / f"m{number}.onnx" for number in range(3)]
    for path in paths:
        onnx.save(onnx.parser.parse_model(text.replace("[2]", f"[{path.stem[1]}]")), path)
    fleet = Fleet({"here": MachineType("here", this_machine().fingerprint, {})})

    def ends(reference: Reference) -> Any:
        if len(started) == 1 and len(started[0].started) == 2:
            raise ConnectionError("the head is gone")
        return {"kind": "failed", "code": 3, "reason": "no kernel", "node": "a", "host": "a"}

    started: list[FakeRay] = []

    @contextmanager
    def join(*_: Any) -> Iterator[FakeRay]:
        started.append(FakeRay(ends, {"a": "here"}))
        yield started[-1]

    monkeypatch.setattr(command, "join", join)
    db, said = str(tmp_path / "t.sqlite"), list[str]()
    with pytest.raises(CollageError, match=r"the head is gone; the same command continues"):
        compile_fleet(paths, fleet, tmp_path / "out", db=db, tries=1)
    tasks = compile_fleet(paths, fleet, tmp_path / "out", db=db, tries=1, say=said.append)
    assert [task.state for task in tasks] == ["failed"] * 3
    assert len(started) == 2 and len(started[1].started) < 3
    assert "2 of 3 tasks are left" in said and any(line.startswith("[2/2] ") for line in said)
