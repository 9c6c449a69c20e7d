"""An artefact tells nothing of where the exporter's user keeps files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import TensorProto, helper

from collage.frontend import read_model
from collage.testing import executable_of

TRACE = 'File "/home/ann/secret project/model.py", line 4, in forward\n  return x'


def model(text: str) -> onnx.ModelProto:
    """A model with the same note wherever ONNX has room for one: on nodes, also of branches, on values and on graphs."""

    def noted(proto: Any) -> Any:
        proto.metadata_props.add(key="pkg.torch.onnx.stack_trace", value=text)
        return proto

    def body(name: str) -> onnx.GraphProto:
        node = helper.make_node("Neg", ["x"], [f"{name}_y"], name=name, doc_string=text)
        return helper.make_graph([noted(node)], name, [], [helper.make_tensor_value_info(f"{name}_y", 1, [2])])

    nodes = [
        noted(helper.make_node("Relu", ["x"], ["r"], name="relu", doc_string=text)),
        helper.make_node("If", ["c"], ["y"], name="if", then_branch=body("then"), else_branch=body("else")),
        helper.make_node("Add", ["r", "y"], ["z"], name="add"),
    ]
    inputs = [
        noted(helper.make_tensor_value_info("x", 1, [2], text)),
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
    ]
    graph = noted(helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("z", 1, [2])]))
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    made.doc_string, made.producer_name = "about /home/ann/notes", "maker"
    helper.set_model_props(made, {"labels": "/usr/share/labels.txt"})
    return made


def texts(artefact: Path) -> bytes:
    return b"".join(file.read_bytes() for file in artefact.rglob("*") if file.is_file())


@pytest.mark.parametrize(
    "text",
    [
        TRACE,
        "<eval_with_key>.19 from /opt/venv/lib/proxy_tensor.py:1738",
        "at C:\\Users\\ann\\model.py",
        "at C:/Users/ann/model.py",
        "on \\\\server\\share\\model.py",
        "/root/model.py(12): forward",
    ],
)
def test_notes_with_paths_go(text: str, tmp_path: Path) -> None:
    executable_of(model(text), "onnxruntime").save(tmp_path / "m.collage")
    found = texts(tmp_path / "m.collage")
    for secret in (b"ann/", b"ann\\", b"/opt/venv", b"\\share", b"/root/model", b"stack_trace"):
        assert secret not in found.replace(b"about /home/ann/notes", b""), secret


@pytest.mark.parametrize(
    "text", ["model.py:12", "a/b and c", "s0 / s1", "and/or", "1/2", "see https://example.org", ""]
)
def test_all_else_stays(text: str) -> None:
    read = read_model(model(text))
    (relu,) = (node for node in read.graph if node.op_type == "Relu")
    assert (relu.doc_string or "", relu.metadata_props["pkg.torch.onnx.stack_trace"]) == (text, text)
    assert read.graph.metadata_props["pkg.torch.onnx.stack_trace"] == text


def test_what_describes_the_model_is_the_user_s() -> None:
    read = read_model(model(TRACE))
    assert read.doc_string == "about /home/ann/notes"
    assert read.metadata_props == {"labels": "/usr/share/labels.txt"}


def test_modules_of_pytorch_tell_nothing(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Softmax(-1))
    executable_of(read_model(module, example_inputs=(torch.ones(2, 3),)), "onnxruntime").save(tmp_path / "m.collage")
    found = texts(tmp_path / "m.collage")
    for secret in (str(Path(torch.__file__).parent), str(Path(__file__).parents[3]), str(Path.home())):
        assert secret.encode() not in found
