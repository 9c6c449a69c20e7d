"""Partitioned models run in ONNX Runtime as they are, their functions not inlined beforehand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage.byoc import partition_for
from collage.fusion import FusionSpec, collect_candidates, greedy_cover, pattern_based
from collage.graph import DataflowGraph, KernelSpec, partition
from collage.pattern import is_const, is_op, wildcard
from collage.target import Target
from collage.testing import FakeToolchain
from collage.toolchains import PatternEntry, Registry

DENSE = PatternEntry("lib.dense", is_op("Add")(is_op("MatMul")(wildcard(), is_const()), is_const()))


def layers(count: int) -> onnx.ModelProto:
    random = np.random.default_rng(0)
    nodes, weights = [], []
    for i in range(count):
        weights += [
            numpy_helper.from_array(random.standard_normal(shape).astype(np.float32), f"{name}{i}")
            for name, shape in (("w", (8, 8)), ("b", (8,)))
        ]
        nodes += [
            helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"m{i}"], name=f"m{i}"),
            helper.make_node("Add", [f"m{i}", f"b{i}"], [f"x{i + 1}"], name=f"a{i}"),
        ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 8]) for name in ("x0", f"x{count}")]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], weights)
    return onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    )


def check(model: onnx.ModelProto, made: ir.Model, tmp_path: Path) -> None:
    ir.save(made, tmp_path / "made.onnx")
    onnx.checker.check_model(str(tmp_path / "made.onnx"), full_check=True)
    x = np.random.default_rng(1).standard_normal((2, 8)).astype(np.float32)
    for level in (ort.GraphOptimizationLevel.ORT_DISABLE_ALL, ort.GraphOptimizationLevel.ORT_ENABLE_ALL):
        options = ort.SessionOptions()
        options.graph_optimization_level = level
        session = ort.InferenceSession(str(tmp_path / "made.onnx"), options)
        wanted = ort.InferenceSession(model.SerializeToString()).run(None, {"x0": x})[0]
        np.testing.assert_allclose(session.run(None, {"x0": x})[0], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_several_parts_of_one_label_in_a_kernel(count: int, tmp_path: Path) -> None:
    proto = layers(count)
    model = ir.from_proto(proto)
    graph, target = DataflowGraph(model), Target("llvm", compiler="mine")
    spec = FusionSpec("dense", pattern_based([DENSE], max_depth=0), (target,))
    (kernel,) = greedy_cover(collect_candidates(graph, [spec]))
    assert len(kernel.sub_graph.nested) == count
    made = partition(model, [KernelSpec(kernel.sub_graph, "kernel", {"Compiler": "mine", "target": str(target)})])
    assert len(made.graph) == 1
    check(proto, made, tmp_path)


class Patterns(FakeToolchain):
    def pattern_table(self):
        return (DENSE,)


def test_what_the_classic_passes_make(tmp_path: Path) -> None:
    toolchains = Registry()
    toolchains.add(Patterns(name="patterns"))
    proto = layers(3)
    made = partition_for(ir.from_proto(proto), "llvm -compiler=patterns", toolchains)
    assert len(made.graph) == 1
    check(proto, made, tmp_path)
