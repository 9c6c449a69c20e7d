"""What costs its author nothing: files that were never written, texts of megabytes, names that end a line or worse."""

from __future__ import annotations

import hashlib
import json
import resource
import shutil
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import collage
from collage._errors import ArtefactError, ModelError
from collage.frontend import Budgets, read_model

ARTEFACT = Path(__file__).parents[1] / "data" / "0.1.0.collage"
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]


def model(nodes: list[onnx.NodeProto], **graph: object) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    made = helper.make_graph(nodes, "g", inputs, outputs, **graph)
    return helper.make_model(made, ir_version=10, opset_imports=OPSETS)


def relu() -> onnx.ModelProto:
    return model([helper.make_node("Relu", ["x"], ["y"])])


def external(bytes_: int) -> TensorProto:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[bytes_ // 4], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="w.bin")
    return tensor


def body(nodes: list[onnx.NodeProto], output: str) -> onnx.GraphProto:
    return helper.make_graph(nodes, output, [], [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)])


def save(proto: onnx.ModelProto, folder: Path, weight_bytes: int = 0) -> Path:
    with (folder / "w.bin").open("wb") as file:
        file.truncate(weight_bytes)
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def refused(path: Path) -> str:
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start_s = time.process_time()
    with pytest.raises(ModelError) as refusal:
        read_model(path)
    assert time.process_time() - start_s < 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 2**20
    message = str(refusal.value)
    assert message.isprintable() and len(message) < 1200
    return message


def test_weights_that_were_never_written_are_refused(tmp_path: Path) -> None:
    proto = model([helper.make_node("Add", ["x", "w"], ["y"])], initializer=[external(2**32)])
    assert "large holes" in refused(save(proto, tmp_path, 2**32))


def test_a_model_that_was_never_written_is_refused(tmp_path: Path) -> None:
    path = save(relu(), tmp_path)
    with path.open("r+b") as file:
        file.truncate(2**30)
    assert "large holes" in refused(path)


def test_weights_with_some_holes_are_read(tmp_path: Path) -> None:
    proto = model([helper.make_node("Add", ["x", "w"], ["y"])], initializer=[external(16)])
    path = save(proto, tmp_path, 2**24)
    assert [value.name for value in read_model(path).graph.initializers.values()] == ["w"]


@pytest.mark.parametrize(
    "change",
    [
        lambda proto: setattr(proto, "doc_string", "a" * 2**27),
        lambda proto: proto.metadata_props.add(key="k", value="v" * 2**27),
        lambda proto: setattr(proto.graph.node[0], "name", "n" * 2**27),
        lambda proto: setattr(proto.graph, "name", "n" * 10_000),
        lambda proto: setattr(proto.graph.node[0], "name", "n" * 10_000),
        lambda proto: setattr(proto.graph.input[0].type.tensor_type.shape.dim[0], "dim_param", "n" * 10_000),
    ],
)
def test_texts_of_megabytes_are_refused(tmp_path: Path, change: Callable[[onnx.ModelProto], object]) -> None:
    proto = relu()
    change(proto)
    assert "bytes of texts" in (message := refused(save(proto, tmp_path))) or "a name of" in message


def test_many_long_names_are_refused(tmp_path: Path) -> None:
    names = ["x", *(f"{i}".zfill(8000) for i in range(5000)), "y"]
    proto = model([helper.make_node("Relu", [a], [b]) for a, b in pairwise(names)])
    assert "bytes of texts" in refused(save(proto, tmp_path))


def test_what_would_steer_a_terminal_is_shown_instead(tmp_path: Path) -> None:
    evil = "\x1b[2J\nevil"
    proto = model([helper.make_node(evil, ["x"], ["y"], name=evil)])
    assert "\\x1b[2J\\nevil" in refused(save(proto, tmp_path))


def test_a_place_of_megabytes_is_not_repeated(tmp_path: Path) -> None:
    tensor = external(16)
    tensor.external_data[0].value = "a/" * 100_000 + "b"
    refused(save(model([helper.make_node("Add", ["x", "w"], ["y"])], initializer=[tensor]), tmp_path))


def test_a_body_that_a_function_is_given_is_refused(tmp_path: Path) -> None:
    branch = body([helper.make_node("Relu", ["x"], ["t"])], "t")
    choice = helper.make_node("If", ["c"], ["b"])
    for name in ("then_branch", "else_branch"):
        choice.attribute.add(name=name, type=onnx.AttributeProto.GRAPH, ref_attr_name="q")
    function = helper.make_function("local", "f", ["c"], ["b"], [choice], OPSETS, attributes=["q"])
    true = numpy_helper.from_array(np.array(True), "c")
    proto = model([helper.make_node("f", ["c"], ["y"], domain="local", q=branch)], initializer=[true])
    proto.functions.append(function)
    refused(save(proto, tmp_path))


def test_constants_in_files_are_mapped_in_the_main_graph_and_bounded_elsewhere(tmp_path: Path) -> None:
    """Those of bodies are loaded."""
    constant = helper.make_node("Constant", [], ["w"], value=external(4096))
    path = save(model([constant, helper.make_node("ReduceMax", ["w"], ["y"], keepdims=0)]), tmp_path, 4096)
    small = Budgets(inner_bytes=1024)
    assert isinstance(read_model(path, budgets=small).graph.initializers["w"].const_value, ir.ExternalTensor)
    large = body([constant, helper.make_node("ReduceMax", ["w"], ["t"], keepdims=0)], "t")
    other = body([helper.make_node("ReduceMax", ["x"], ["e"], keepdims=0)], "e")
    true = numpy_helper.from_array(np.array(True), "c")
    choice = helper.make_node("If", ["c"], ["y"], then_branch=large, else_branch=other)
    path = save(model([choice], initializer=[true]), tmp_path, 4096)
    read_model(path)
    with pytest.raises(ModelError, match="keep weights in the main graph"):
        read_model(path, budgets=small)


@pytest.mark.slow
def test_a_function_called_often_is_expanded_in_time_that_grows_with_its_calls() -> None:
    function = helper.make_function(
        "local",
        "f",
        ["a"],
        ["b"],
        [helper.make_node("Neg", ["a"], ["t"]), helper.make_node("Abs", ["t"], ["b"])],
        OPSETS,
    )

    def seconds(calls: int) -> float:
        names = ["x", *(f"v{i}" for i in range(calls - 1)), "y"]
        proto = model([helper.make_node("f", [a], [b], domain="local") for a, b in pairwise(names)])
        proto.functions.append(function)
        start_s = time.process_time()
        assert len(read_model(proto).graph) == 2 * calls
        return time.process_time() - start_s

    assert seconds(8000) < 40 * seconds(800)


def test_an_artefact_that_was_never_written_is_refused(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(ARTEFACT, tmp_path / "m.collage"))
    with (folder / "weights.bin").open("r+b") as file:
        file.truncate(10 * 2**30)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["weights.bin"] = {"sha256": hashlib.sha256(b"").hexdigest(), "bytes": 10 * 2**30}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    start_s = time.process_time()
    with pytest.raises(ArtefactError, match="large holes"):
        collage.load(folder)
    assert time.process_time() - start_s < 20
