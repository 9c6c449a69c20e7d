from __future__ import annotations

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from benchmarks.zoo import CATALOGUE, Entry, build, find
from benchmarks.zoo.building import EXTERNAL_DATA_BYTES, make_sample

PAPER = {"bert", "dcgan", "nasnet", "resnet3d50", "resnext50"}
SMALL = {"dcgan", "graph_network"}


def marked(entry: Entry) -> object:
    return pytest.param(entry, id=entry.name, marks=() if entry.name in SMALL else pytest.mark.slow)


def test_the_papers_five_are_marked() -> None:
    assert {entry.name for entry in CATALOGUE if entry.paper} == PAPER


def test_names_are_unique_and_opsets_promised() -> None:
    assert len({entry.name for entry in CATALOGUE}) == len(CATALOGUE)
    assert all(13 <= entry.opset <= 20 for entry in CATALOGUE)
    assert {entry.opset for entry in CATALOGUE} >= {13, 20}
    assert {entry.exporter for entry in CATALOGUE} == {"torchscript", "dynamo", "direct"}


def test_find_keeps_the_order_and_names_what_is_missing() -> None:
    assert [entry.name for entry in find(["vit", "bert"])] == ["vit", "bert"]
    with pytest.raises(KeyError, match="vgg"):
        find(["bert", "vgg"])


def test_every_entry_has_its_function() -> None:
    pytest.importorskip("torch")
    for entry in CATALOGUE:
        assert callable(getattr(import_module(f"benchmarks.zoo.{entry.family}"), entry.name))


def test_a_model_is_built_once_and_again_when_its_recipe_changes(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (entry,) = find(["dcgan"])
    first, fresh = build(entry, tmp_path)
    assert fresh
    written = (tmp_path / "dcgan" / "model.onnx").read_bytes()
    assert build(entry, tmp_path) == (first, False)

    newer, fresh = build(replace(entry, opset=17), tmp_path)
    assert fresh
    assert newer.version != first.version
    assert onnx.load(tmp_path / "dcgan" / "model.onnx").opset_import[0].version == 17

    (tmp_path / "dcgan" / "stamp.json").unlink()
    again, fresh = build(entry, tmp_path)
    assert fresh
    assert again.version == first.version
    assert (tmp_path / "dcgan" / "model.onnx").read_bytes() == written


@pytest.mark.parametrize("entry", [marked(entry) for entry in CATALOGUE])
def test_model_computes_what_its_module_computes(entry: Entry, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    built, _ = build(entry, tmp_path)
    folder = tmp_path / entry.name
    assert json.loads((folder / "stamp.json").read_text())["parameters"] == built.parameters
    structure = onnx.load(folder / "model.onnx", load_external_data=False)
    assert structure.ir_version <= 10
    assert {opset.version for opset in structure.opset_import if opset.domain == ""} == {entry.opset}
    assert (folder / "model.onnx.data").exists() == (built.megabytes * 1e6 > EXTERNAL_DATA_BYTES)

    inputs = dict(np.load(folder / "inputs.npz"))
    assert all(value.shape[0] == 1 or entry.family == "graph_network" for value in inputs.values())
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    outputs = session.run(None, inputs)
    assert all(np.isfinite(value).all() for value in outputs)
    assert outputs[0].astype(np.float64).std() > 1e-3

    sample = make_sample(entry)
    if isinstance(sample.model, onnx.ModelProto):
        return
    with torch.no_grad():
        expected = sample.model(*(torch.from_numpy(value) for value in inputs.values()))
    tolerance = 5e-3 if outputs[0].dtype == np.float16 else 1e-4
    for got, wanted in zip(outputs, expected if isinstance(expected, tuple) else (expected,), strict=True):
        reference = wanted.double().numpy()
        assert np.abs(got.astype(np.float64) - reference).max() <= tolerance * np.abs(reference).max()
