"""The batch of a throughput: which dimension may be one, whether its rows are independent, and a whole compilation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage._errors import CollageError, LimitNotMet, NothingCanRun, WorkerCrash
from collage.compiler import batch
from collage.compiler.batch import Look, batch_dimension, compile_batched, tried_batches
from collage.compiler.problem import Part
from collage.options import CompileOptions
from collage.runtime import Executable
from collage.testing import executable_of

Dims = list[Any]


def model(nodes: list[onnx.NodeProto], *inputs: tuple[str, Dims], output: Dims) -> onnx.ModelProto:
    """Return a model of float32 tensors whose output is ``y``."""
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in inputs]
    graph = helper.make_graph(nodes, "g", made, [helper.make_tensor_value_info("y", TensorProto.FLOAT, output)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


RELU = model([helper.make_node("Relu", ["x"], ["y"])], ("x", ["batch", 4]), output=["batch", 4])
CENTRED = model(
    [
        helper.make_node("ReduceMean", ["x"], ["m"], axes=[0], keepdims=1),
        helper.make_node("Sub", ["x", "m"], ["y"]),
    ],
    ("x", ["seq", 4]),
    output=["seq", 4],
)
STEP = model(
    [helper.make_node("Add", ["x", "h"], ["y"])],
    ("x", ["batch", 4]),
    ("h", [1, "batch", 4]),
    output=[1, "batch", 4],
)


@pytest.mark.parametrize(
    ("source", "fields", "expected"),
    [
        (RELU, {}, "batch"),
        (STEP, {}, "batch"),
        (RELU, {"objective": "latency"}, None),
        (RELU, {"dims": {"batch": 2}}, None),
        (RELU, {"fixed": {"batch": 2}}, None),
        (RELU, {"inputs": {"x": np.ones((2, 4), np.float32)}}, None),
        (RELU, {"limits": ("throughput>=5/s",)}, None),
        (RELU, {"limits": ("p99<=5s",)}, "batch"),
        (RELU, {"plan_out": "plan.json"}, None),
        (RELU, {"specialise": True}, None),
        (model([helper.make_node("Relu", ["x"], ["y"])], ("x", [None, 4]), output=[None, 4]), {}, "x[0]"),
        (model([helper.make_node("Relu", ["x"], ["y"])], ("x", []), output=[]), {}, None),
        (model([helper.make_node("Add", ["x", "z"], ["y"])], ("x", ["n", 4]), ("z", [4]), output=["n", 4]), {}, None),
    ],
)
def test_an_open_dimension_of_all_inputs_may_be_a_batch(
    source: onnx.ModelProto, fields: dict[str, Any], expected: str | None
) -> None:
    assert batch_dimension(CompileOptions(**{"objective": "throughput", **fields}), source) == expected


def test_rows_of_other_ranks_or_lengths_are_no_rows(tmp_path: Path) -> None:
    squeezed = model([helper.make_node("Squeeze", ["x"], ["y"])], ("x", ["n", 4]), output=[])
    squeezed.graph.output[0].type.tensor_type.ClearField("shape")
    counted = [
        helper.make_node("Ceil", ["x"], ["c"]),
        helper.make_node("ReduceSum", ["c"], ["s"], keepdims=0),
        helper.make_node("Mod", ["s", "three"], ["m"], fmod=1),
        helper.make_node("Abs", ["m"], ["a"]),
        helper.make_node("Cast", ["a"], ["i"], to=TensorProto.INT64),
        helper.make_node("Unsqueeze", ["i", "zero"], ["k"]),
        helper.make_node("Slice", ["x", "zero", "k", "one"], ["y"]),
    ]
    ragged = model(counted, ("x", ["n", 4]), output=["n", None])
    constants = {"three": np.float32(3), "zero": np.array([0]), "one": np.array([1])}
    ragged.graph.initializer.extend(numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items())
    for name, source in {"squeezed": squeezed, "ragged": ragged}.items():
        (tmp_path / name).mkdir()
        assert not tried_batches(CompileOptions(objective="throughput"), source, "n", tmp_path / name, lambda _: None)


def test_rows_of_coarse_floats_may_differ_in_the_last_bit() -> None:
    for dtype, ok in ((np.float32, False), (np.float16, True), (ml_dtypes.bfloat16, True)):
        rows = [np.array([1 + 2**-7 if dtype is not np.float16 else 1 + 2**-10], dtype)] * 3
        assert batch._is_joined(np.ones(3, dtype), rows) is ok


def test_a_list_among_the_outputs_has_no_rows(tmp_path: Path) -> None:
    source = model(
        [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("SequenceConstruct", ["y"], ["list"])],
        ("x", ["batch", 4]),
        output=["batch", 4],
    )
    source.graph.output.append(helper.make_tensor_sequence_value_info("list", TensorProto.FLOAT, None))
    assert not tried_batches(CompileOptions(objective="throughput"), source, "batch", tmp_path, lambda _: None)


def test_rows_that_depend_on_each_other_are_no_batch(tmp_path: Path) -> None:
    told: list[str] = []
    assert not tried_batches(CompileOptions(objective="throughput"), CENTRED, "seq", tmp_path, told.append)
    assert told == ["seq does not count as a batch: rows of one run depend on each other, or the outputs have none"]


def test_outputs_that_are_lists_of_maps_have_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "_SECONDS", 0.05)
    monkeypatch.setattr(batch, "_BATCHES", (1,))
    maps = helper.make_sequence_type_proto(
        helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    )
    named = helper.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2, 3])
    source = model([named], ("x", ["batch", 4]), output=[])
    source.graph.output[0].CopyFrom(helper.make_value_info("y", maps))
    source.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    assert tried_batches(CompileOptions(objective="throughput"), source, "batch", tmp_path, lambda _: None).keys() == {
        1
    }


def test_rows_of_a_list_are_rows_of_its_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "_SECONDS", 0.05)
    monkeypatch.setattr(batch, "_BATCHES", (1,))
    joined = helper.make_node("ConcatFromSequence", ["s"], ["c"], axis=1)
    source = model([joined, helper.make_node("Concat", ["x", "c"], ["y"], axis=1)], ("x", ["n", 4]), output=["n", None])
    source.graph.input.append(helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, ["n", 4]))
    assert tried_batches(CompileOptions(objective="throughput"), source, "n", tmp_path, lambda _: None).keys() == {1}


def test_a_batch_that_the_model_does_not_take_ends_the_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "_SECONDS", 0.05)
    monkeypatch.setattr(batch, "_BATCHES", (1, 4))
    split = helper.make_node("Shape", ["x"], ["n"], start=0, end=1)
    sliced = helper.make_node("Slice", ["most", "zero", "n"], ["z"])
    source = model([split, sliced, helper.make_node("Add", ["x", "z"], ["y"])], ("x", ["n", 4]), output=["n", 4])
    constants = {"most": np.ones((3, 4), np.float32), "zero": np.array([0])}
    source.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    told: list[str] = []
    looks = tried_batches(CompileOptions(objective="throughput"), source, "n", tmp_path, told.append)
    assert looks.keys() == {1} and told[-1].startswith("no batch from 4 on was tried")


def test_a_batch_that_exceeds_a_limit_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "_SECONDS", 0.05)
    options = CompileOptions(objective="throughput", limits=("p50<=1us",))
    assert not tried_batches(options, STEP, "batch", tmp_path, lambda _: None)


def test_the_batch_of_the_highest_throughput_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "_SECONDS", 0.1)
    monkeypatch.setattr(batch, "_BATCHES", (1, 64))

    def compile_one(options: CompileOptions, part: Part) -> Executable:
        assert options.dims == {"batch": 64}
        return executable_of(RELU, "onnxruntime")

    options = CompileOptions(objective="throughput", limits=("p99<=10s",))
    found = compile_batched(compile_one, options, RELU, "batch", lambda _: None)
    section = found.report.objective["batch"]
    assert (section["dimension"], section["batch"]) == ("batch", 64)
    assert section["rows_per_s"] > 4 * section["rows_per_s_at_1"]
    assert [row["batch"] for row in section["original"]] == [1, 64]
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(found.run({"x": x})["y"], np.maximum(x, 0))


@pytest.mark.parametrize("error", [LimitNotMet("no plan keeps p99<=1ms"), NothingCanRun("no\nmemory")], ids=str)
def test_a_batch_that_misses_a_limit_or_fails_gives_way_to_one_row(
    error: CollageError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = {each: Look(each, tmp_path, 100.0 * each) for each in (1, 4)}
    monkeypatch.setattr(batch, "tried_batches", lambda *_: looks)
    tried = []

    def compile_one(options: CompileOptions, part: Part) -> Executable:
        tried.append((options.dims["batch"], part))
        if options.dims["batch"] == 4:
            raise error
        return executable_of(RELU, "onnxruntime")

    found = compile_batched(compile_one, CompileOptions(objective="throughput"), RELU, "batch", lambda _: None)
    assert tried == [(4, Part(0.4)), (1, Part(0.4))] and "batch" not in found.report.objective


@pytest.mark.parametrize("at", ["rate", "second", "within the first"])
def test_an_end_after_the_first_plan_leaves_it(at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = {each: Look(each, tmp_path, 100.0 * each) for each in (1, 4)}
    monkeypatch.setattr(batch, "tried_batches", lambda *_: looks)
    first, said = executable_of(RELU, "onnxruntime"), list[str]()
    if at == "within the first":
        first.report = replace(first.report, search=replace(first.report.search, stopped_by="should_stop"))

    def rate_of(_: Executable, look: Look, folder: Path) -> float:
        if at == "rate":
            raise WorkerCrash("the worker\ndied")
        return 8.0 / look.batch

    def compile_one(options: CompileOptions, part: Part) -> Executable:
        if options.dims["batch"] == 4:
            return first
        raise KeyboardInterrupt

    monkeypatch.setattr(batch, "_rate_of", rate_of)
    assert compile_batched(compile_one, CompileOptions(objective="throughput"), RELU, "batch", said.append) is first
    told = {
        "rate": "the worker died: the plan",
        "second": "interrupted: the plan",
        "within the first": "rows per second",
    }
    assert said[-1].startswith(told[at])


@pytest.mark.parametrize(("budget_s", "expected"), [(1e-3, set()), (1e6, {1, 64})])
def test_looking_has_a_share_of_the_time(
    budget_s: float, expected: set[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "_SECONDS", 0.05)
    monkeypatch.setattr(batch, "_BATCHES", (1, 64))
    options = CompileOptions(objective="throughput", time_budget_s=budget_s)
    assert tried_batches(options, RELU, "batch", tmp_path, lambda _: None).keys() == expected
