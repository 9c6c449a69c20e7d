"""Plans of bodies: which kernels the bodies of an If, a Loop or a Scan consist of."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from collage._errors import UsageError
from collage.graph import (
    ANY_VALID,
    DataflowGraph,
    IndexSet,
    KernelSpec,
    NestedSubGraph,
    SubGraph,
    bodies,
    copy_model,
    partition,
)
from collage.measure.body_problem import state_lengths
from collage.measure.kernel_names import kernel_attributes, plan_kernel_name
from collage.runtime import BODIES, has_bodies
from collage.target import HOST_TARGET, Target

__all__ = ["BodyKernel", "BodyPlan", "BodyPlans", "PlacedKernel"]

_DIGITS = 12


@dataclass(frozen=True, slots=True)
class BodyKernel:
    """One kernel of a body.

    Attributes:
        inside: Its nodes, by the body's dataflow graph.
        target: Its target. A node with bodies that are partitioned themselves has one of the host's with ``-bodies``.
        nested: Labelled parts.
        rule: The rule that proposed it.
    """

    inside: IndexSet
    target: Target
    nested: tuple[NestedSubGraph, ...] = ()
    rule: str = field(default="", compare=False)


BodyPlan = tuple[tuple[BodyKernel, ...], ...]
"""The kernels of each body of a node, in order of attribute name, each in the order in which they run."""


class BodyPlans:
    """Plans of bodies, and the targets of the host that represent them."""

    def __init__(self) -> None:
        self._plans: dict[Target, BodyPlan] = {}

    def add(self, plan: BodyPlan, build_of: Callable[[Target], str]) -> Target:
        """Return the target of a plan, which is another one for another plan, or for other builds of toolchains.

        Args:
            plan: The plan.
            build_of: Returns the build of a target's toolchain, on which timings depend.
        """
        told = repr(
            [[(k.inside.bits, str(k.target), k.nested, build_of(k.target)) for k in kernels] for kernels in plan]
        )
        target = HOST_TARGET.with_options(**{BODIES: hashlib.sha256(told.encode()).hexdigest()[:_DIGITS]})
        self._plans[target] = plan
        return target

    def of(self, target: Target) -> BodyPlan:
        """Return the plan that a target represents.

        Raises:
            UsageError: No plan is known of it.
        """
        if target not in self._plans:
            raise UsageError(f"the kernels of {target} are not known")
        return self._plans[target]

    def leaves(self, target: Target) -> tuple[Target, ...]:
        """Return the targets of the kernels that toolchains load: those in bodies, or the target itself if it has none."""
        if not has_bodies(target):
            return (target,)
        inner = [leaf for kernels in self.of(target) for kernel in kernels for leaf in self.leaves(kernel.target)]
        return tuple(dict.fromkeys(inner))

    def as_json(self, target: Target) -> list[Any] | None:
        """Return the plan of a target as JSON values; None if it has none."""
        if not has_bodies(target):
            return None
        return [
            [
                {
                    "target": str(kernel.target),
                    "nodes": list(kernel.inside),
                    "parts": list(map(_part_to_json, kernel.nested)),
                    "rule": kernel.rule,
                    "bodies": self.as_json(kernel.target),
                }
                for kernel in kernels
            ]
            for kernels in self.of(target)
        ]

    def read(
        self, node: ir.Node, told: Any, target_of: Callable[[str], Target], build_of: Callable[[Target], str]
    ) -> Target:
        """Return the target of a plan that ``as_json`` wrote.

        Args:
            node: The node with the bodies.
            told: The plan as JSON values.
            target_of: Reads a target that has no plan.
            build_of: As for ``add``.

        Raises:
            UsageError: It is not a plan of this node.
        """
        graphs = [DataflowGraph(body) for body in bodies(node)]
        try:
            if len(graphs) != len(told):
                raise ValueError(f"{len(told)} bodies are not those of {node.name!r}")
            plan = [
                tuple(self._read(graph, each, target_of, build_of) for each in kernels)
                for graph, kernels in zip(graphs, told, strict=True)
            ]
            for graph, kernels in zip(graphs, plan, strict=True):
                covered = sorted(i for kernel in kernels for i in kernel.inside)
                if covered != list(range(len(graph))):
                    raise ValueError(f"not every operator of a body of {node.name!r} is in one kernel")
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise UsageError(f"no plan of bodies: {str(error)[:200]}") from error
        return self.add(tuple(plan), build_of)

    def _read(
        self,
        graph: DataflowGraph,
        told: Mapping[str, Any],
        target_of: Callable[[str], Target],
        build_of: Callable[[Target], str],
    ) -> BodyKernel:
        inside = IndexSet.of(*told["nodes"])
        if inside.last >= len(graph):
            raise ValueError(f"a body has no operator {inside.last}")
        parts = tuple(map(_part_from_json, told["parts"]))
        reason = SubGraph(graph, inside, parts).why_ill_formed(ANY_VALID)
        if reason is not None:
            raise ValueError(reason)
        if told["bodies"] is None:
            target = target_of(told["target"])
        else:
            target = self.read(graph.node(inside.first), told["bodies"], target_of, build_of)
        return BodyKernel(inside, target, parts, str(told["rule"]))

    def inside(self, node: ir.Node, target: Target, name: str) -> list[PlacedKernel]:
        """Return the kernels in the bodies of a node, outer ones first; none if its target represents no plan.

        Args:
            node: The node.
            target: Its target.
            name: The name of its kernel, with which theirs begin.
        """
        layers: dict[int, list[PlacedKernel]] = {}
        if has_bodies(target):
            self._place(node, target, name, 0, layers)
        return [placed for depth in sorted(layers) for placed in layers[depth]]

    def partitioned(self, model: ir.Model, nodes: Mapping[str, tuple[Target, str]]) -> ir.Model:
        """Return a model in which every kernel of the bodies of some nodes is a local function.

        Args:
            model: A model whose nodes have unique names; it is not changed.
            nodes: Names of nodes of its main graph, each with its target and the prefix of names in its bodies.
        """
        model = copy_model(model)
        by_name = {str(node.name): node for node in model.graph.all_nodes()}
        layers: dict[int, list[PlacedKernel]] = {}
        for name, (target, prefix) in nodes.items():
            state_lengths(by_name[name], model)
            self._place(by_name[name], target, prefix, 0, layers)
        # Innermost first: a kernel that holds others holds them as functions.
        for depth in sorted(layers, reverse=True):
            by_name = {str(node.name): node for node in model.graph.all_nodes()}
            model = partition(model, [placed.spec(by_name, model) for placed in layers[depth]])
        return model

    def _place(
        self, node: ir.Node, target: Target, prefix: str, depth: int, layers: dict[int, list[PlacedKernel]]
    ) -> None:
        plan, labels = self.of(target), _labels(node)
        for number, (body, kernels) in enumerate(zip(bodies(node), plan, strict=True)):
            graph = DataflowGraph(body)
            for count, kernel in enumerate(kernels, 1):
                sub_graph = SubGraph(graph, kernel.inside, kernel.nested)
                name = f"{prefix}_{labels[number]}_{plan_kernel_name(count, len(kernels), sub_graph, kernel.target)}"
                placed = PlacedKernel(str(node.name), number, sub_graph, kernel, name)
                layers.setdefault(depth, []).append(placed)
                if has_bodies(kernel.target):
                    (inner,) = sub_graph.nodes
                    self._place(inner, kernel.target, name, depth + 1, layers)


@dataclass(frozen=True, slots=True)
class PlacedKernel:
    """A kernel of a body with its place in a model.

    Attributes:
        holder: Name of the node with the body.
        number: The number of the body.
        sub_graph: Its nodes in the model as it was first.
        kernel: The kernel.
        name: Its name in the model.
    """

    holder: str
    number: int
    sub_graph: SubGraph
    kernel: BodyKernel
    name: str

    def spec(self, nodes: Mapping[str, ir.Node], model: ir.Model) -> KernelSpec:
        """Return the partition of a copy of the model, whose nodes are found by name."""
        graph = DataflowGraph(list(bodies(nodes[self.holder]))[self.number], model=model)
        mapping = {i: graph.index_of(nodes[str(self.sub_graph.graph.node(i).name)]) for i in self.sub_graph}
        attributes = kernel_attributes(self.kernel.target, self.name) | {"rule": self.kernel.rule}
        return KernelSpec(self.sub_graph.substitute(graph, mapping), self.name, attributes)


def _labels(node: ir.Node) -> list[str]:
    """Return a word for each body of a node, in order of attribute name."""
    return {"If": ["else", "then"]}.get(node.op_type, ["body"])


def _part_to_json(part: NestedSubGraph) -> dict[str, Any]:
    return {"nodes": list(part.inside), "label": part.label, "parts": list(map(_part_to_json, part.nested))}


def _part_from_json(told: Mapping[str, Any]) -> NestedSubGraph:
    return NestedSubGraph(IndexSet.of(*told["nodes"]), str(told["label"]), tuple(map(_part_from_json, told["parts"])))
