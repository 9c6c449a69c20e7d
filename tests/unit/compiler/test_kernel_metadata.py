from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from collage.compiler.kernel_metadata import write_metadata
from collage.graph import DataflowGraph, IndexSet, KernelSpec, SubGraph, partition
from collage.measure.kernel_factory import kernel_attributes
from collage.target import Target


def partitioned(file: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "r"),
        helper.make_node("Add", ["a", "a"], ["b"], "s"),
        helper.make_node("Tanh", ["b"], ["y"], "t"),
    ]
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 3]) for name in "xy")
    model = ir.from_proto(helper.make_model(helper.make_graph(nodes, "g", [x], [y]), ir_version=10))
    graph = DataflowGraph(model)
    target = Target.parse("llvm -compiler=openvino")
    specs = [
        KernelSpec(SubGraph(graph, IndexSet(bits)), name, kernel_attributes(target, name))
        for bits, name in ((0b011, "openvino_01_Add"), (0b100, "openvino_02_Tanh"))
    ]
    ir.save(partition(model, specs), file)


def test_calls_of_kernels_tell_target_time_share_and_operators(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    partitioned(file)
    write_metadata(file, {"openvino_01_Add": 30.0, "openvino_02_Tanh": 10.0})
    first, second = onnx.load(file).graph.node
    assert {p.key: p.value for p in first.metadata_props} == {
        "target": "llvm -compiler=openvino",
        "kernel": "1 of 2",
        "operators": "1 Relu, 1 Add",
        "time_us": "30",
        "share": "0.7500",
    }
    assert second.doc_string == "1 operator on llvm -compiler=openvino, 0.01 ms of the run: 1 Tanh"


def test_times_that_are_not_known_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    partitioned(file)
    write_metadata(file, {"openvino_01_Add": 30.0, "openvino_02_Tanh": None})
    for node, keys in zip(onnx.load(file).graph.node, ({"time_us"}, set()), strict=True):
        found = {p.key for p in node.metadata_props}
        assert found == {"target", "kernel", "operators"} | keys


def test_the_model_computes_what_it_did(tmp_path: Path) -> None:
    from onnx.reference import ReferenceEvaluator

    file = tmp_path / "model.onnx"
    partitioned(file)
    x = np.array([[-1, 0.5, 2], [0, 1, -3]], np.float32)
    before = ReferenceEvaluator(str(file)).run(None, {"x": x})
    write_metadata(file, {})
    after = ReferenceEvaluator(str(file)).run(None, {"x": x})
    np.testing.assert_array_equal(before[0], after[0])
    onnx.checker.check_model(onnx.load(file))
