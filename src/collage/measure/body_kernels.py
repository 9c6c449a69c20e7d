"""Kernels in bodies of If, Loop and Scan: a plan of bodies becomes local functions of a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from collage.graph import DataflowGraph, KernelSpec, SubGraph, bodies, copy_model, partition
from collage.measure.body_problem import state_lengths
from collage.measure.kernel_names import kernel_attributes, plan_kernel_name
from collage.plan import PlannedKernel

__all__ = ["PlacedKernel", "kernels_inside", "with_partitioned_bodies"]


@dataclass(frozen=True, slots=True)
class PlacedKernel:
    """A kernel of a body with its place in a model.

    Attributes:
        holder: Name of the node with the body.
        number: The number of the body.
        kernel: The kernel, of nodes of the model as it was first.
        name: Its name in the model.
    """

    holder: str
    number: int
    kernel: PlannedKernel
    name: str

    def spec(self, nodes: Mapping[str, ir.Node], model: ir.Model) -> KernelSpec:
        """Return the partition of a copy of the model, whose nodes are found by name."""
        graph, sub_graph = (
            DataflowGraph(list(bodies(nodes[self.holder]))[self.number], model=model),
            self.kernel.sub_graph,
        )
        mapping = {i: graph.index_of(nodes[str(sub_graph.graph.node(i).name)]) for i in sub_graph}
        attributes = kernel_attributes(self.kernel.target, self.name) | {"rule": self.kernel.rule}
        return KernelSpec(sub_graph.substitute(graph, mapping), self.name, attributes)


def kernels_inside(kernel: PlannedKernel, name: str) -> list[PlacedKernel]:
    """Return the kernels in the bodies of a kernel, outer ones first; none if a toolchain compiles it with its bodies.

    Args:
        kernel: The kernel.
        name: Its name, with which theirs begin.
    """
    layers: dict[int, list[PlacedKernel]] = {}
    if kernel.bodies:
        _place(kernel, kernel.sub_graph.nodes[0], name, 0, layers)
    return [placed for depth in sorted(layers) for placed in layers[depth]]


def with_partitioned_bodies(model: ir.Model, kernels: Iterable[tuple[PlannedKernel, str]]) -> ir.Model:
    """Return a model in which every kernel of the bodies of some nodes is a local function.

    Args:
        model: A model whose nodes have unique names; it is not changed.
        kernels: Kernels of nodes of its main graph, each with the prefix of names in its bodies.
    """
    model = copy_model(model)
    by_name = {str(node.name): node for node in model.graph.all_nodes()}
    layers: dict[int, list[PlacedKernel]] = {}
    for kernel, prefix in kernels:
        node = by_name[str(kernel.sub_graph.nodes[0].name)]
        state_lengths(node, model)
        _place(kernel, node, prefix, 0, layers)
    # Innermost first: a kernel that holds others holds them as functions.
    for depth in sorted(layers, reverse=True):
        by_name = {str(node.name): node for node in model.graph.all_nodes()}
        model = partition(model, [placed.spec(by_name, model) for placed in layers[depth]])
    return model


def _place(
    holder: PlannedKernel, node: ir.Node, prefix: str, depth: int, layers: dict[int, list[PlacedKernel]]
) -> None:
    """Collect the kernels in the bodies of a node by the number of bodies around them."""
    labels = {"If": ["else", "then"]}.get(node.op_type, ["body"])
    for number, (body, plan) in enumerate(zip(bodies(node), holder.bodies, strict=True)):
        graph = DataflowGraph(body)
        for count, kernel in enumerate(plan.kernels, 1):
            sub_graph = SubGraph(graph, kernel.sub_graph.inside, kernel.sub_graph.nested)
            name = f"{prefix}_{labels[number]}_{plan_kernel_name(count, len(plan.kernels), sub_graph, kernel.target)}"
            placed = PlannedKernel(sub_graph, kernel.target, kernel.rule, bodies=kernel.bodies)
            layers.setdefault(depth, []).append(PlacedKernel(str(node.name), number, placed, name))
            if kernel.bodies:
                _place(kernel, sub_graph.nodes[0], name, depth + 1, layers)
