"""The tasks that a command plans: their names, and what of earlier commands they take over."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage.fleet import supervisor
from collage.fleet.machines import Fleet, MachineType
from collage.fleet.supervisor import _names, compile_fleet
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
    monkeypatch.setattr(supervisor, "_supervise", lambda order, say: None)
    fleet = Fleet({"here": MachineType("here", this_machine().fingerprint, {})})
    db = str(tmp_path / "t.sqlite")
    first = compile_fleet(paths, fleet, tmp_path / "out", db=db)
    assert {task.file for task in first} == {f"{name}-model/here.collage.zip" for name in ("one", "two")}
    assert len({task.model for task in first}) == 1
    assert compile_fleet(paths, fleet, tmp_path / "out", db=db) == first
    with TaskStore(absolute_url(db)) as store:
        assert len(store.all()) == 2
