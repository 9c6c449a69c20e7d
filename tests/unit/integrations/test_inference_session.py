"""The same code against ONNX Runtime's session and ours."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from collage._errors import InputError
from collage.fusion import FusionOptions
from collage.integrations import InferenceSession, ModelMetadata
from collage.integrations._inference_session import _key
from collage.options import CompileOptions
from collage.plan_file import PlanFile, PlanFileKernel

OPTIONS: dict[str, Any] = {"targets": ["onnxruntime"], "options": CompileOptions(db="sqlite:///:memory:", finals=False)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    values = {
        "x": (TensorProto.FLOAT, ["batch", 3]),
        "k": (TensorProto.INT64, [1]),
        "y": (TensorProto.FLOAT, ["batch", 3]),
        "n": (TensorProto.INT64, [1]),
        "h": (TensorProto.FLOAT16, [None, 3]),
    }
    info = {name: helper.make_tensor_value_info(name, *facts) for name, facts in values.items()}
    nodes = [
        helper.make_node("Relu", ["x"], ["y"]),
        helper.make_node("Neg", ["k"], ["n"]),
        helper.make_node("Cast", ["y"], ["h"], to=TensorProto.FLOAT16),
    ]
    graph = helper.make_graph(nodes, "g", [info["x"], info["k"]], [info["y"], info["n"], info["h"]])
    graph.doc_string = "a graph"
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    made.producer_name, made.domain, made.model_version, made.doc_string = "an exporter", "org.example", 7, "a model"
    made.metadata_props.add(key="names", value="{0: 'cat', 1: 'dog'}")
    path = tmp_path_factory.mktemp("session") / "model.onnx"
    onnx.save(made, path)
    return path


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def session(model: Path, cache: Path) -> InferenceSession:
    return InferenceSession(model, cache_dir=cache, **OPTIONS)


def test_describes_itself_as_onnx_runtime_does(model: Path, session: InferenceSession) -> None:
    theirs = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    for ours, their in (
        (session.get_inputs(), theirs.get_inputs()),
        (session.get_outputs(), theirs.get_outputs()),
    ):
        assert [(port.name, port.type) for port in ours] == [(port.name, port.type) for port in their]
        assert [len(port.shape) for port in ours] == [len(port.shape) for port in their]
    assert session.get_inputs()[0].shape == theirs.get_inputs()[0].shape
    assert session.get_providers() == theirs.get_providers()


def test_runs_as_onnx_runtime_does(model: Path, session: InferenceSession) -> None:
    theirs = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    feeds = {"x": np.float32([[-1, 0, 2], [3, -4, 5]]), "k": np.array([7])}
    for names in (None, ["n", "y"], ["h"]):
        for ours, their in zip(session.run(names, feeds), theirs.run(names, feeds), strict=True):
            np.testing.assert_array_equal(ours, their)
            assert ours.dtype == their.dtype
    with pytest.raises(InputError, match="unknown output 'z'"):
        session.run(["z"], feeds)


def test_the_second_session_loads_what_the_first_compiled(model: Path, session: InferenceSession, cache: Path) -> None:
    assert len(list(cache.iterdir())) == 1
    again = InferenceSession(model.read_bytes(), cache_dir=cache, **OPTIONS)
    assert again.executable.workspace.parent == cache
    other = CompileOptions(db="sqlite:///:memory:", finals=False, threads=1)
    InferenceSession(model, cache_dir=cache, targets=["onnxruntime"], options=other)
    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize(
    "otherwise",
    [
        {"fusion": FusionOptions(max_depth=2)},
        {"inputs": {"k": np.array([3])}},
        *(
            pytest.param(otherwise, marks=pytest.mark.slow)
            for otherwise in (
                {"accuracy_budget": 1e-2},
                {"search": "proof"},
                {"percentile": 90},
                {"launch_penalties_s": {"onnxruntime": 1e-3}},
            )
        ),
    ],
)
def test_what_was_compiled_on_other_terms_is_not_taken(
    model: Path, session: InferenceSession, cache: Path, otherwise: dict[str, Any]
) -> None:
    before = {path.name for path in cache.iterdir()}
    other = replace(OPTIONS["options"], **otherwise)
    made = InferenceSession(model, cache_dir=cache, targets=["onnxruntime"], options=other)
    assert made.executable.workspace.parent != cache
    assert len({path.name for path in cache.iterdir()} - before) == 1
    again = InferenceSession(model, cache_dir=cache, targets=["onnxruntime"], options=replace(other, db=None))
    assert again.executable.workspace.parent == cache
    assert again.executable.report == made.executable.report


def test_what_was_compiled_by_other_files_or_samples_is_not_taken(tmp_path: Path) -> None:
    plan, data = tmp_path / "plan.json", tmp_path / "samples"
    data.mkdir()
    samples = [{"x": np.zeros((4, 999), np.float32)}]
    keys = set()

    def note(**options: Any) -> None:
        keys.add(_key("", [], CompileOptions(**options)))

    for name in ("a", "b"):
        PlanFile((PlanFileKernel("onnxruntime", (name,)),)).save(plan)
        np.savez(data / f"{name}.npz", x=np.zeros(3))
        note(plan=plan)
        note(data=data, max_drop=0.01)
        note(data=data / "a.npz", max_drop=0.01)
        note(data=samples, max_drop=0.01)
        samples[0]["x"][2, 500] = 1
    assert len(keys) == 7  # One file stayed as it was.


def test_who_measures_anew_is_given_nothing_old(model: Path, tmp_path: Path) -> None:
    InferenceSession(model, cache_dir=tmp_path, **OPTIONS)
    (entry,) = tmp_path.iterdir()
    old = entry.stat().st_ino
    anew = replace(OPTIONS["options"], remeasure=True)
    InferenceSession(model, cache_dir=tmp_path, targets=["onnxruntime"], options=anew)
    (entry,) = tmp_path.iterdir()
    assert entry.stat().st_ino != old


def test_a_cache_that_cannot_be_written_costs_no_session(model: Path) -> None:
    with pytest.warns(UserWarning, match="the next session compiles the model again: cannot write"):
        made = InferenceSession(model, cache_dir=model, **OPTIONS)
    assert made.run(["n"], {"x": np.zeros((1, 3), np.float32), "k": np.array([7])})[0] == [-7]


def test_a_damaged_entry_of_the_cache_is_made_anew(model: Path, tmp_path: Path) -> None:
    InferenceSession(model, cache_dir=tmp_path, **OPTIONS)
    (entry,) = tmp_path.iterdir()
    (entry / "model.onnx").write_bytes(b"")
    with pytest.warns(UserWarning, match="compiling the model again"):
        InferenceSession(model, cache_dir=tmp_path, **OPTIONS)
    assert (entry / "model.onnx").stat().st_size


def test_an_artefact_is_loaded_as_it_is(session: InferenceSession, tmp_path: Path) -> None:
    path = session.executable.save(tmp_path / "m.collage.zip")
    assert [port.name for port in InferenceSession(path).get_outputs()] == ["y", "n", "h"]


def test_a_provider_that_is_not_there_is_said(session: InferenceSession, tmp_path: Path) -> None:
    path = session.executable.save(tmp_path / "m.collage")
    with pytest.warns(UserWarning, match="CUDAExecutionProvider"):
        InferenceSession(path, providers=["CUDAExecutionProvider"])


def test_says_of_its_model_what_onnx_runtime_does(model: Path, session: InferenceSession, tmp_path: Path) -> None:
    theirs = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).get_modelmeta()
    loaded = InferenceSession(session.executable.save(tmp_path / "model.collage"))
    for ours in (session.get_modelmeta(), loaded.get_modelmeta()):
        for name in ModelMetadata.__slots__:
            assert getattr(ours, name) == getattr(theirs, name)


def test_what_it_does_not_have_is_said_with_what_it_has(session: InferenceSession) -> None:
    assert not hasattr(session, "no_such_method")
    with pytest.raises(AttributeError, match="no_such_method"):
        session.no_such_method()
    with pytest.raises(InputError, match=r"write \['y'\]"):
        session.run("y", {})
