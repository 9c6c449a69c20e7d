"""From sets of nodes to kernels: standalone models with names of their own, each made once."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping

import onnx_ir as ir

from collage.device import RESULT_SE_SCOPE, SEScope
from collage.graph import (
    DataflowGraph,
    IndexSet,
    NameSupply,
    SubGraph,
    drop_precisions,
    extract,
    keep_in_float,
    main_op_type,
    structural_hash,
)
from collage.target import Target

__all__ = ["KernelMaker", "kernel_attributes", "kernel_name", "plan_kernel_name"]

_LABEL_LENGTH = 40
_LONGEST_PART = 24
_NOT_IDENTIFIER = re.compile(r"[^A-Za-z0-9_]+")


class KernelMaker:
    """Makes the kernels of one model.

    Args:
        graph: The model's dataflow graph.
    """

    def __init__(self, graph: DataflowGraph) -> None:
        self.graph = graph
        self._names = NameSupply("collage")
        self._made: dict[tuple[SubGraph, str], ir.Model] = {}
        self._node_hashes: dict[int, str] = {}
        self._signatures: dict[SubGraph, Hashable] = {}
        self._properties: dict[tuple[Hashable, str], Mapping[str, str]] = {}
        self._in_float: dict[str, int] = {}

    def model(self, nodes: int | SubGraph, target: Target) -> ir.Model:
        """The kernel over these nodes (a sub-graph, or bits) for a target: the same object whenever it is asked for."""
        sub_graph = SubGraph(self.graph, IndexSet(nodes)) if isinstance(nodes, int) else nodes
        key = (sub_graph, str(target))
        if key not in self._made:
            model = extract(self.graph, sub_graph, self._names.fresh(kernel_name(sub_graph, target)))
            if not target.is_reduced:
                drop_precisions(model)
            if self._properties:
                model.metadata_props.update(self._properties.get((self.signature(sub_graph), str(target)), {}))
            in_float = self._in_float.get(str(target), 0)
            for i, node in zip(sub_graph, model.graph, strict=True):
                if in_float >> i & 1:
                    keep_in_float(node)
            self._made[key] = model
        return self._made[key]

    def keep_in_float(self, target: Target, bits: int) -> None:
        """Have the kernels of a reduced target compute these nodes in float32; before any of them is made."""
        self._in_float[str(target)] = bits

    def in_float(self, target: Target) -> int:
        """Return the nodes that kernels of a target compute in float32 by ``keep_in_float``, as bits."""
        return self._in_float.get(str(target), 0)

    def key(self, sub_graph: SubGraph, target: Target) -> Hashable:
        """Equal for kernels that are alike but for names and weights: ``signature``, and which nodes stay in float32."""
        kept = self.in_float(target) & sub_graph.inside.bits
        signature = self.signature(sub_graph)
        return (signature, kept >> sub_graph.inside.first) if kept else signature

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


def kernel_attributes(target: Target, name: str, result_scope: SEScope | None = None) -> dict[str, str]:
    """The specification's attributes of a kernel function; with devices, where its results lie."""
    attributes = {"Primitive": "1", "global_symbol": name, "target": str(target)}
    if result_scope is not None:
        attributes[RESULT_SE_SCOPE] = str(result_scope)
    return attributes if target.is_native else {**attributes, "Compiler": target.toolchain}


def kernel_name(sub_graph: SubGraph, target: Target) -> str:
    """Return a label of a kernel's operators and its toolchain, short enough for a file name."""
    op_types = [node.op_type for node in sub_graph.nodes]
    label = "_".join(op_types)
    if len(label) > _LABEL_LENGTH:
        label = f"{op_types[0]}_to_{op_types[-1]}_{len(op_types)}_ops"
    return f"{target.toolchain}_{label}".lower()


def plan_kernel_name(number: int, count: int, sub_graph: SubGraph, target: Target) -> str:
    """Return the name of a kernel in a plan, such as ``openvino_01_Conv27``, which viewers show.

    It names the toolchain, the place in the order of data, and the main operator with its count. The place makes it unique
    and comes early, since viewers show the beginning of a name only.

    Args:
        number: The kernel's place in the plan, from 1.
        count: The number of kernels of the plan.
        sub_graph: The kernel's operators.
        target: Its target.
    """
    op_types = [node.op_type for node in sub_graph.nodes]
    main = main_op_type(op_types)
    times = op_types.count(main)
    toolchain, label = (_NOT_IDENTIFIER.sub("_", part)[:_LONGEST_PART] for part in (target.toolchain, main))
    return f"{toolchain}_{number:0{max(2, len(str(count)))}}_{label}{times if times > 1 else ''}"
