"""From sets of nodes to kernels: standalone models with names of their own, each made once."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from collage.graph import (
    DataflowGraph,
    IndexSet,
    KernelSpec,
    NameSupply,
    SubGraph,
    drop_precisions,
    extract,
    keep_in_float,
    partition,
    structural_hash,
)
from collage.measure.body_kernels import with_partitioned_bodies
from collage.measure.kernel_names import kernel_attributes, kernel_name, plan_kernel_name
from collage.plan import AnyKernel, Plan, PlannedKernel
from collage.target import Target

__all__ = ["KernelMaker", "kernel_attributes", "kernel_name", "plan_kernel_name"]


class KernelMaker:
    """Makes the kernels of one model.

    Args:
        graph: The model's dataflow graph.
    """

    def __init__(self, graph: DataflowGraph) -> None:
        self.graph = graph
        self._names = NameSupply("collage")
        self._made: dict[tuple[SubGraph, str, Hashable], ir.Model] = {}
        self._node_hashes: dict[int, str] = {}
        self._signatures: dict[SubGraph, Hashable] = {}
        self._properties: dict[tuple[Hashable, str], Mapping[str, str]] = {}
        self._in_float: dict[str, int] = {}
        self._weights: dict[str | None, Mapping[str, ir.ExternalTensor]] = {}

    def of(self, kernel: AnyKernel) -> ir.Model:
        """The model of a kernel: the same object whenever it is asked for."""
        return self.model(kernel.sub_graph, kernel.target, kernel.bodies)

    def model(self, nodes: int | SubGraph, target: Target, bodies: tuple[Plan, ...] = ()) -> ir.Model:
        """The kernel over these nodes (a sub-graph, or bits) for a target, its bodies as these plans."""
        sub_graph = SubGraph(self.graph, IndexSet(nodes)) if isinstance(nodes, int) else nodes
        key = (sub_graph, str(target), tuple(body.key for body in bodies))
        if key not in self._made:
            model = extract(self.graph, sub_graph, self._names.fresh(kernel_name(sub_graph, target)))
            if not target.is_reduced:
                drop_precisions(model)
            if self._properties:
                model.metadata_props.update(self._properties.get((self.signature(sub_graph), str(target)), {}))
            in_float = self._in_float.get(str(target), 0)
            for name, tensor in self._weights.get(target.option("precision"), {}).items():
                if name in model.graph.initializers:
                    model.graph.initializers[name].const_value = tensor
            for i, node in zip(sub_graph, model.graph, strict=True):
                if in_float >> i & 1:
                    keep_in_float(node)
            if bodies:
                kernel = PlannedKernel(sub_graph, target, bodies=bodies)
                model = with_partitioned_bodies(model, [(kernel, str(model.graph.name))])
            self._made[key] = model
        return self._made[key]

    def partitioned(self, kernels: Sequence[PlannedKernel], specs: Sequence[KernelSpec]) -> ir.Model:
        """Return the model with a function for each of these kernels, and for each kernel of the bodies inside them.

        Args:
            kernels: The kernels.
            specs: Their partitions, in the same order.
        """
        whole = self.graph.model
        assert whole is not None
        holders = [(kernel, spec.name) for kernel, spec in zip(kernels, specs, strict=True) if kernel.bodies]
        if not holders:
            return partition(whole, specs)
        model = with_partitioned_bodies(whole, holders)
        graph = DataflowGraph(model)
        index = {str(node.name): graph.index_of(node) for node in graph.nodes}
        moved = {i: index[str(node.name)] for i, node in enumerate(self.graph.nodes)}
        return partition(model, [replace(spec, sub_graph=spec.sub_graph.substitute(graph, moved)) for spec in specs])

    def keep_in_float(self, target: Target, bits: int) -> None:
        """Have the kernels of a reduced target compute these nodes in float32; before any of them is made."""
        self._in_float[str(target)] = bits

    def in_float(self, target: Target) -> int:
        """Return the nodes that kernels of a target compute in float32 by ``keep_in_float``, as bits."""
        return self._in_float.get(str(target), 0)

    def use_weights(self, precision: str, weights: Mapping[str, ir.ExternalTensor]) -> None:
        """Have the kernels of one precision read these initializers, by name; before any of them is made."""
        self._weights[precision] = weights

    def put_weights(self, kernels: Iterable[PlannedKernel]) -> None:
        """Write what these kernels read in place of the model's weights over these, so that a rebuild of them reads the same.

        No other kernel may read the model's weights from their file afterwards.
        """
        for kernel in kernels:
            mine = {str(value.name): value.const_value for value in kernel.sub_graph.constant_values()}
            for name, tensor in self._weights.get(kernel.target.option("precision"), {}).items():
                if isinstance(old := mine.get(name), ir.ExternalTensor):
                    with Path(old.path).open("r+b") as file:
                        file.seek(old.offset or 0)
                        file.write(tensor.tobytes())

    def key(self, kernel: AnyKernel) -> Hashable:
        """Return a key that is equal for kernels that differ only in names and weights.

        It consists of the ``signature``, the float32 nodes and the plans of bodies.
        """
        sub_graph = kernel.sub_graph
        kept = self.in_float(kernel.target) & sub_graph.inside.bits
        bodies = tuple(body.key for body in kernel.bodies)
        return (self.signature(sub_graph), kept >> sub_graph.inside.first, bodies)

    def annotate(self, sub_graph: SubGraph, target: Target, properties: Mapping[str, str]) -> None:
        """Give kernels properties, this one and all that are alike; before any of them is made."""
        self._properties[self.signature(sub_graph), str(target)] = properties

    def signature(self, sub_graph: SubGraph) -> Hashable:
        """Equal for sub-graphs whose kernels are alike but for names and weights.

        Cheaper than a structural hash, since nothing is extracted: each node's own hash, and how its inputs are wired.
        """
        if sub_graph not in self._signatures:
            self._signatures[sub_graph] = self._signature(sub_graph)
        return self._signatures[sub_graph]

    def _signature(self, sub_graph: SubGraph) -> Hashable:
        wires: dict[ir.Value, int] = {}
        rows = []
        for i in sub_graph.inside:
            node = self.graph.node(i)
            inputs = tuple(wires.setdefault(value, len(wires)) for value in self.graph.inputs_of(i))
            outputs = tuple(wires.setdefault(value, len(wires)) for value in node.outputs)
            rows.append((self._node_hash(i), inputs, outputs))
        results = tuple(wires[value] for value in sub_graph.output_values())
        first = sub_graph.inside.first
        return (tuple(rows), results, tuple((part.label, part.inside.bits >> first) for part in sub_graph.nested))

    def _node_hash(self, index: int) -> str:
        if index not in self._node_hashes:
            alone = extract(self.graph, SubGraph(self.graph, IndexSet(1 << index)), "node")
            self._node_hashes[index] = structural_hash(alone)
        return self._node_hashes[index]
