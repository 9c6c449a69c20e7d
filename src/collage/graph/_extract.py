"""Extraction: a sub-graph as a standalone ONNX model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from collage.graph._clone import clone_node, new_value
from collage.graph._dataflow_graph import DataflowGraph
from collage.graph._index_set import IndexSet
from collage.graph._sub_graph import NestedSubGraph, SubGraph
from collage.graph._traversal import bodies, constant_tensor

__all__ = [
    "COMPOSITE",
    "Extraction",
    "extract",
    "extraction",
    "kernel_ir_version",
    "needed_functions",
    "opset_imports_of",
]

COMPOSITE = "Composite"
"""Metadata key of functions, and of nodes in an extracted kernel, that belong to a labelled part."""

_IR_VERSIONS = (10, 13)
"""The first IR version with metadata and types inside functions, and the last that the menu reads."""


def extract(graph: DataflowGraph, sub_graph: SubGraph, name: str, *, bind_weights: bool = True) -> ir.Model:
    """A sub-graph as a standalone model.

    Inputs are the varying values from outside in the order in which nodes first read them; outputs are the values
    that are read outside or are outputs of the graph, in index order. Names, types and symbolic dimensions are
    kept. Nodes of labelled parts are marked with the metadata property ``Composite``. Nothing is copied: tensors,
    external ones too, are shared with the model that the sub-graph is from.

    Args:
        graph: The dataflow graph of the sub-graph.
        sub_graph: The sub-graph to extract.
        name: Name of the new graph.
        bind_weights: True if constants that nodes inside read become initializers; if not, they become inputs,
            after the others.
    """
    return extraction(graph, sub_graph, name, composite_marks(sub_graph.nested), bind_weights).model


@dataclass(frozen=True, slots=True)
class Extraction:
    """An extracted model and where its inputs come from.

    Attributes:
        model: The standalone model.
        sources: The old value of every input and initializer of the model.
    """

    model: ir.Model
    sources: Mapping[ir.Value, ir.Value]


def extraction(
    graph: DataflowGraph, sub_graph: SubGraph, name: str, marks: Mapping[int, Mapping[str, str]], bind_weights: bool
) -> Extraction:
    """Extract as :func:`extract` does, with given metadata for nodes; also return the map to the old values."""
    values = {v: new_value(v) for v in sub_graph.input_values()}
    values |= {v: new_value(v, constant_tensor(v), bind=bind_weights) for v in sub_graph.constant_values()}
    sources = {new: old for old, new in values.items()}
    weights = [v for v in sources if v.const_value is not None]
    nodes = [clone_node(graph.node(i), values, marks.get(i)) for i in sub_graph]
    main = ir.Graph(
        [v for v in sources if v.const_value is None],
        [values[v] for v in sub_graph.output_values()],
        nodes=nodes,
        initializers=weights,
        opset_imports=opset_imports_of(graph.opset_imports, nodes),
        name=name,
    )
    functions = needed_functions(graph.model, nodes)
    version = kernel_ir_version(graph.model)
    return Extraction(ir.Model(main, ir_version=version, producer_name="collage", functions=functions), sources)


def composite_marks(nested: Iterable[NestedSubGraph], prefix: str = "") -> dict[int, dict[str, str]]:
    """For every node of a labelled part the metadata that says so: ``label#k``, k numbering equal labels.

    Parts of parts are written ``outer#0/inner#0``.
    """
    marks: dict[int, dict[str, str]] = {}
    count: dict[str, int] = {}
    for part in nested:
        ordinal = count[part.label] = count.get(part.label, -1) + 1
        path = f"{prefix}{part.label}#{ordinal}"
        marks.update((i, {COMPOSITE: path}) for i in IndexSet(part.inside.bits))
        marks.update(composite_marks(part.nested, f"{path}/"))
    return marks


def kernel_ir_version(model: ir.Model | None) -> int:
    """The IR version of models that are made from a model."""
    lowest, highest = _IR_VERSIONS
    return lowest if model is None else min(max(model.ir_version, lowest), highest)


def all_nodes(nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
    """The nodes and, after each, the nodes of its bodies."""
    for node in nodes:
        yield node
        for body in bodies(node):
            yield from all_nodes(body)


def opset_imports_of(known: Mapping[str, int], nodes: Iterable[ir.Node]) -> dict[str, int]:
    """The opset imports, among the known ones, that nodes need; ONNX's own always, in which others may be written out."""
    domains = {"", *(node.domain for node in all_nodes(nodes))}
    return {domain: known[domain] for domain in sorted(domains) if domain in known}


def needed_functions(model: ir.Model | None, nodes: Iterable[ir.Node]) -> list[ir.Function]:
    """Copies of the local functions that nodes call, directly or not."""
    if model is None or not model.functions:
        return []
    needed: dict[ir.OperatorIdentifier, ir.Function] = {}
    waiting = list(all_nodes(nodes))
    while waiting:
        name = waiting.pop().op_identifier()
        if name in model.functions and name not in needed:
            needed[name] = model.functions[name].clone()
            waiting.extend(all_nodes(model.functions[name]))
    return [needed[name] for name in sorted(needed)]
