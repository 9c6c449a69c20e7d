"""Planning again when kernels were made, and the memories that they demand."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from tests.unit.device.scenarios import DIAMOND, GPU, SHAPES, copied, plan, where
from tests.unit.device.simulation import parse

from collage.device import (
    DeviceConflict,
    PlanDevices,
    demand_memory_scope,
    on_device,
    planned_scope,
    planned_value_scope,
)
from collage.graph import DataflowGraph, KernelSpec, SubGraph, partition

KERNELS = """g (float[2] x, float[2] y) => (float[2] o) {
    a = Neg(x)
    b = collage.gem(a, y)
    c = Abs(b)
    o = collage.gem(c, y)
}
<domain: "collage", opset_import: ["" : 20]> gem (p, q) => (r) { r = Add(p, q) }"""
KERNEL_HEADER = '<ir_version: 10, opset_import: ["" : 20, "collage" : 1]>\n'


def lowered(**memories: str) -> ir.Model:
    model = parse(KERNELS, KERNEL_HEADER)
    (function,) = model.functions.values()
    function.metadata_props["Primitive"] = "1"
    for formal, memory in memories.items():
        demand_memory_scope(function, formal, memory)
    return model


def test_memories_that_kernels_demand_flow_through_the_model() -> None:
    model = GPU(lowered(p="texture", q="global", r="texture"))
    simulate_kernels(model)
    assert where(model) == {
        **dict.fromkeys(("x", "a", "b", "c", "o"), "cuda:0/texture"),
        "y": "cuda:0/global",
    }


def test_memories_that_disagree_are_copied_between() -> None:
    model = GPU(lowered(p="texture", q="global", r="global"))
    simulate_kernels(model)
    assert len(copied(model)) == 1
    ((_, src, dst),) = copied(model)
    assert (src, dst) == ("cuda:0/global", "cuda:0/texture")


def simulate_kernels(model: ir.Model) -> None:
    """Every argument of a kernel lies in the memory that it demands."""
    for node in model.graph:
        function = model.functions[node.op_identifier()] if node.op_type == "gem" else None
        for formal, actual in zip(function.inputs if function else [], node.inputs, strict=False):
            demanded = function.metadata_props.get(f"memory_scope:{formal.name}")
            assert planned_value_scope(actual).memory_scope == demanded


def test_planning_again_after_lowering_refines_what_was_planned() -> None:
    model = parse(KERNELS, KERNEL_HEADER)
    (function,) = model.functions.values()
    function.metadata_props["Primitive"] = "1"
    first = GPU(model)
    assert where(first)["b"] == "cuda:0"
    (function,) = (f for f in first.functions.values() if f.name == "gem")
    demand_memory_scope(function, "p", "texture")
    demand_memory_scope(function, "r", "global")
    second = GPU(first)
    assert where(second)["a"] == "cuda:0/texture" and where(second)["b"] == "cuda:0/global"
    assert ir.to_proto(GPU(second)) == ir.to_proto(second)


def test_a_memory_that_was_planned_stays() -> None:
    model = lowered(p="texture")
    on_device("a", "cuda:0/global", model=model)
    planned = GPU(model)
    assert where(planned)["a"] == "cuda:0/global"
    assert ("a", "cuda:0/global", "cuda:0/texture") in copied(planned)


def test_kernels_made_by_collage_get_the_scope_of_their_target_and_neighbours() -> None:
    model = plan(DIAMOND, PlanDevices(["cpu:0", "cpu:1", "cuda"]), left="cpu:1")
    graph = DataflowGraph(model)
    index = next(i for i, node in enumerate(graph.nodes) if node.op_type == "Sub")
    kernel = KernelSpec(SubGraph(graph, [index]), "sub", {"target": "llvm -compiler=some"})
    again = PlanDevices(["cpu:0", "cpu:1", "cuda"])(partition(model, [kernel]))
    call = next(node for node in again.graph if node.op_type == "sub")
    assert str(planned_scope(call)) == "cpu:0[llvm -compiler=some]"


def test_shapes_that_only_a_kernel_reads_as_shapes_stay_on_the_host() -> None:
    model = GPU(parse(SHAPES))
    graph = DataflowGraph(model)
    index = next(i for i, node in enumerate(graph.nodes) if node.op_type == "Reshape")
    again = GPU(partition(model, [KernelSpec(SubGraph(graph, [index]), "kernel", {"target": "cuda"})]))
    assert where(again)["t"] == "cpu:0" and where(again)["y"] == "cuda:0" and not copied(again)


def test_a_kernel_of_another_target_contradicts_the_annotation() -> None:
    model = lowered()
    (function,) = model.functions.values()
    function.metadata_props["target"] = "llvm"
    on_device("b", "cuda", model=model)
    with pytest.raises(DeviceConflict, match="compiled for"):
        GPU(model)
