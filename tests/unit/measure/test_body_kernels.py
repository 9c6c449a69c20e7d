"""Plans of bodies become functions of a model."""

from __future__ import annotations

import onnx_ir as ir
from tests.unit.runtime.test_control_flow import counting_loop

from collage.frontend import read_model
from collage.graph import DataflowGraph, IndexSet, SubGraph, bodies
from collage.measure.body_kernels import kernels_inside, with_partitioned_bodies
from collage.plan import Plan, PlannedKernel
from collage.runtime import BODIES_TARGET
from collage.target import Target
from collage.transform import prepare

ONE, OTHER = Target.parse("llvm -compiler=one"), Target.parse("llvm -compiler=other")


def loop_of(model: ir.Model) -> PlannedKernel:
    """The Loop of a model, each operator of its body a kernel."""
    graph = DataflowGraph(model)
    index = next(i for i, node in enumerate(graph.nodes) if node.op_type == "Loop")
    (body,) = map(DataflowGraph, bodies(graph.node(index)))
    inner = [PlannedKernel(SubGraph(body, IndexSet.of(i)), (ONE, OTHER)[i % 2], "r") for i in range(len(body))]
    return PlannedKernel(SubGraph(graph, IndexSet.of(index)), BODIES_TARGET, bodies=(Plan("", tuple(inner)),))


def test_a_model_that_is_partitioned_is_left_as_it_was() -> None:
    model = prepare(read_model(counting_loop(shape=["n", 3])))
    before = ir.to_proto(model).SerializeToString()
    made = with_partitioned_bodies(model, [(loop_of(model), "k")])
    assert len(made.functions) == 4
    assert ir.to_proto(model).SerializeToString() == before


def test_kernels_of_bodies_have_names_that_begin_with_that_of_their_holder() -> None:
    kernel = loop_of(prepare(read_model(counting_loop())))
    inner = kernels_inside(kernel, "holder")
    assert [each.kernel.target for each in inner] == [ONE, OTHER, ONE, OTHER]
    assert len({each.name for each in inner}) == 4 and all(each.name.startswith("holder_body_") for each in inner)
    assert kernels_inside(kernel.bodies[0].kernels[0], "leaf") == []
