"""``predict``: what it says of models without building anything, with an empty database, and of models that it cannot know."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from collage._errors import ModelError
from collage.compiler.forecast import predict
from collage.database import Database
from collage.database._schema import timing

MENU = ("onnxruntime", "openvino")


def chain(path: Path, *ops: str, batch: int | str = 1) -> Path:
    """Write a model of a product and elementwise operators."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 64])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    w = helper.make_tensor("w", TensorProto.FLOAT, [64, 64], [0.5] * 4096)
    names = ["h", *(f"h{i}" for i in range(len(ops) - 1)), "y"]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"])]
    nodes += [helper.make_node(op, [names[i]], [names[i + 1]]) for i, op in enumerate(ops)]
    graph = helper.make_graph(nodes, "chain", [x], [y], [w])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)
    return path


def test_an_empty_database_is_enough_and_nothing_is_timed(tmp_path: Path) -> None:
    db = str(tmp_path / "t.sqlite")
    found = predict(chain(tmp_path / "m.onnx", "Relu", "Sigmoid"), MENU, options={"db": db})
    with Database(db) as database:
        assert not list(database.rows(timing))
    assert [row["target"].split("=")[-1] for row in found["singles"]] == list(MENU)
    for figures in (found["gain"], *(row["ms"] for row in found["singles"])):
        assert 0 < figures["low"] <= figures["expected"] <= figures["high"]
    assert 0 <= found["score"]["inside"] <= found["score"]["of"]
    json.dumps(found, allow_nan=False)
    again = predict(tmp_path / "m.onnx", MENU, options={"db": db})
    assert again == found


def test_more_work_takes_longer_and_assumed_lengths_are_told(tmp_path: Path) -> None:
    model, db = chain(tmp_path / "m.onnx", "Relu", batch="batch"), str(tmp_path / "t.sqlite")
    assumed = predict(model, MENU, options={"db": db})
    given = predict(model, MENU, options={"db": db, "dims": {"batch": 65536}})
    assert "assumed: batch" in assumed["notes"][0]
    assert "65536" in given["notes"][0]
    assert "assumed" not in given["notes"][0]
    for small, large in zip(assumed["singles"], given["singles"], strict=True):
        assert small["ms"]["expected"] < large["ms"]["expected"]


def test_a_toolchain_that_refuses_an_operator_has_a_reason_and_no_time(tmp_path: Path) -> None:
    model, db = chain(tmp_path / "m.onnx", "Unique"), str(tmp_path / "t.sqlite")
    found = predict(model, ("ncnn",), options={"db": db})
    (row,) = found["singles"]
    assert row["ms"] is None
    assert "Unique" in row["reason"]
    assert found["gain"] is found["compile_s"] is None
    assert any("Unique" in each for each in found["unlike"])


def test_what_is_not_a_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"\x08\xff" * 100)
    with pytest.raises(ModelError):
        predict(tmp_path / "m.onnx", MENU, options={"db": str(tmp_path / "t.sqlite")})
