"""Partitioning: many sub-graphs at once become local functions of a new model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from collage._errors import PassError
from collage.graph._calibrated import calibration_notes, copy_notes
from collage.graph._clone import ValueMap, clone_node, new_value
from collage.graph._dataflow_graph import KERNEL_DOMAIN, DataflowGraph
from collage.graph._extract import COMPOSITE, Extraction, composite_marks, extraction, kernel_ir_version
from collage.graph._names import NameSupply
from collage.graph._quotient import NotAcyclic, quotient_order
from collage.graph._structural_hash import is_part_of_structure, structural_hash
from collage.graph._sub_graph import SubGraph
from collage.graph._traversal import constant_tensor, used_values

__all__ = ["GLOBAL_SYMBOL", "PRIMITIVE", "KernelSpec", "partition"]

PRIMITIVE = "Primitive"
"""Metadata key of functions that are kernels; its value is ``1``."""

GLOBAL_SYMBOL = "global_symbol"
"""Metadata key of kernels: the name of their function."""

_OPSET_VERSION = 1
_OLDEST_OPSET = 13


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """A sub-graph that is to become a kernel.

    Attributes:
        sub_graph: Its nodes.
        name: Name of the node that calls it and, unless an equal kernel has come before, of its function.
        attributes: Metadata of the function, such as ``Compiler`` and ``target``.
    """

    sub_graph: SubGraph
    name: str
    attributes: Mapping[str, str] = field(default_factory=dict)


def partition(model: ir.Model, kernels: Sequence[KernelSpec]) -> ir.Model:
    """A new model in which every sub-graph is a local function, called by one node.

    Functions are of domain ``collage`` and carry the attributes as metadata, with ``Primitive`` and ``global_symbol``;
    labelled parts are functions inside, with ``Composite``. Small constants are part of the function; weights are
    passed to it. Equal kernels with equal attributes and ranges share a function. A kernel that consists of a call of a
    kernel made earlier stays as it is. Nodes that reach no output are dropped.

    Args:
        model: The model; it is not changed, tensors are shared with it.
        kernels: Disjoint sub-graphs of its main graph, or of control-flow bodies in it.

    Raises:
        PassError: Sub-graphs overlap, feed each other in a circle, or belong to another model.
    """
    new = [kernel for kernel in kernels if not _is_kernel_already(kernel.sub_graph)]
    for kernel in new:
        if kernel.sub_graph.inside.bits & kernel.sub_graph.graph.kernel_call_bits:
            raise PassError(f"cannot partition: kernel {kernel.name!r} would contain a kernel that was made earlier")
    partitioner = _Partitioner(NameSupply(reserved=[name for _, name, _ in model.functions]))
    result = partitioner.partition(model, new)
    if partitioner.calls != len(new):
        raise PassError("cannot partition: a sub-graph belongs to another model, or is inside another kernel")
    return result


def _is_kernel_already(sub_graph: SubGraph) -> bool:
    return len(sub_graph) == 1 and sub_graph.graph.is_kernel_call(sub_graph.inside.first)


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """Nodes that become one function, with the metadata of that function."""

    sub_graph: SubGraph
    name: str
    metadata: Mapping[str, str]


class _Partitioner:
    """Replaces groups of nodes by calls of functions, and keeps the functions that it makes."""

    def __init__(self, names: NameSupply) -> None:
        self._names = names
        self._by_key: dict[object, ir.Function] = {}
        self._functions: list[ir.Function] = []
        self.calls = 0

    def partition(self, model: ir.Model, kernels: Sequence[KernelSpec]) -> ir.Model:
        groups = [_Group(k.sub_graph, k.name, {**k.attributes, PRIMITIVE: "1"}) for k in kernels]
        result = self._replace(model, groups)
        for function in self._functions:
            result.functions[function.identifier()] = function
        if self._functions:
            result.graph.opset_imports.setdefault(KERNEL_DOMAIN, _OPSET_VERSION)
        return result

    def _replace(self, model: ir.Model, groups: Iterable[_Group]) -> ir.Model:
        """A copy of the model, local functions included, with every group replaced by a call."""
        by_graph: dict[object, list[_Group]] = {}
        for group in groups:
            by_graph.setdefault(group.sub_graph.graph.graph, []).append(group)

        def rebuild(graph: ir.Graph, values: ValueMap) -> ir.Graph:
            return self._rebuild(graph, values, by_graph.get(graph, ()), rebuild)

        return ir.Model(
            rebuild(model.graph, {}),
            ir_version=kernel_ir_version(model),
            producer_name=model.producer_name,
            producer_version=model.producer_version,
            domain=model.domain,
            model_version=model.model_version,
            doc_string=model.doc_string,
            functions=[function.clone() for function in model.functions.values()],
            metadata_props=dict(model.metadata_props),
        )

    def _rebuild(
        self,
        graph: ir.Graph,
        values: ValueMap,
        groups: Sequence[_Group],
        clone_body: Callable[[ir.Graph, ValueMap], ir.Graph],
    ) -> ir.Graph:
        for value in (*graph.inputs, *graph.initializers.values()):
            if value not in values:
                values[value] = new_value(value, value.const_value)
                values[value].metadata_props.update(value.metadata_props)  # The default of an input is there.
        nodes: list[ir.Node] = []
        for unit in _units_in_order(graph, groups):
            if isinstance(unit, _Group):
                nodes.append(self._call(unit, values))
            else:
                nodes.append(clone_node(unit, values, clone_body=clone_body))
        outputs = [values.get(v, v) for v in graph.outputs]
        kept = [v for v in graph.initializers.values() if _is_needed(values[v], v, outputs)]
        return ir.Graph(
            [values[v] for v in graph.inputs],
            outputs,
            nodes=[n for n in nodes if not _is_spare_constant(n, outputs)],
            initializers=[values[v] for v in kept],
            doc_string=graph.doc_string,
            opset_imports=dict(graph.opset_imports),
            name=graph.name,
            metadata_props=dict(graph.metadata_props),
        )

    def _call(self, group: _Group, values: ValueMap) -> ir.Node:
        """The node that calls the function of a group; makes the function if there is no equal one."""
        marks = composite_marks(group.sub_graph.nested) if PRIMITIVE in group.metadata else {}
        kernel = extraction(group.sub_graph.graph, group.sub_graph, group.name, marks, bind_weights=True)
        weights = _weights_of(kernel.model)
        structure = structural_hash(kernel.model, classify_weights=False)
        key = (structure, tuple(sorted(group.metadata.items())), _notes_in(kernel.model))
        function = self._by_key.get(key)
        if function is None:
            function = self._by_key[key] = self._function(group, kernel, weights)
        sources = [kernel.sources[v] for v in (*kernel.model.graph.inputs, *weights)]
        old_outputs = group.sub_graph.output_values()
        call = ir.Node(
            KERNEL_DOMAIN,
            function.name,
            [values.get(v, v) for v in sources],
            num_outputs=len(old_outputs),
            name=group.name,
        )
        for old, new in zip(old_outputs, call.outputs, strict=True):
            new.name, new.type, new.doc_string = old.name, old.type, old.doc_string
            new.shape = old.shape.copy() if old.shape is not None else None
            copy_notes(old, new)
            values[old] = new
        self.calls += PRIMITIVE in group.metadata
        return call

    def _function(self, group: _Group, kernel: Extraction, weights: Sequence[ir.Value]) -> ir.Function:
        name = self._names.fresh(group.name)
        body = self._replace(kernel.model, _nested_groups(group, kernel.model, name)).graph
        for weight in weights:
            value = body.initializers.pop(str(weight.name))
            value.const_value = None
            body.inputs.append(value)
        constants = [_constant_node(body.initializers.pop(name)) for name in list(body.initializers)]
        if constants:
            body.insert_before(body[0], constants)
            body.opset_imports.setdefault("", group.sub_graph.graph.opset_imports.get("", _OLDEST_OPSET))
        if any(node.domain == KERNEL_DOMAIN for node in body):
            body.opset_imports[KERNEL_DOMAIN] = _OPSET_VERSION
        body.metadata_props.update(group.metadata)
        if PRIMITIVE in group.metadata:
            body.metadata_props[GLOBAL_SYMBOL] = name
        function = ir.Function(KERNEL_DOMAIN, name, graph=body, attributes=())
        self._functions.append(function)
        return function


def _nested_groups(group: _Group, kernel: ir.Model, name: str) -> list[_Group]:
    """The labelled parts of a group as groups of the kernel that was extracted from it."""
    if not group.sub_graph.nested:
        return []
    graph = DataflowGraph(kernel)
    mapping = {i: graph.index_of(node) for i, node in zip(group.sub_graph, kernel.graph, strict=True)}
    inner, names = group.sub_graph.substitute(graph, mapping), NameSupply()
    # Two parts may have one label: runtimes that inline functions want the nodes that call them to have different names.
    return [
        _Group(SubGraph(graph, part.inside, part.nested), names.fresh(f"{name}_{part.label}"), {COMPOSITE: part.label})
        for part in inner.nested
    ]


def _weights_of(kernel: ir.Model) -> list[ir.Value]:
    """The initializers that a kernel's function takes as inputs, in the order of the structural hash."""
    used = (v for node in DataflowGraph(kernel).nodes for v in used_values(node))
    weights = dict.fromkeys(v for v in used if v.is_initializer())
    return [v for v in weights if v.const_value is None or not is_part_of_structure(v, v.const_value)]


def _notes_in(kernel: ir.Model) -> tuple[tuple[str | None, str | None], ...]:
    """The metadata that are part of a kernel's identity: with other metadata, it is another function."""
    return tuple(calibration_notes(value) for node in kernel.graph for value in node.outputs)


def _constant_node(value: ir.Value) -> ir.Node:
    tensor = value.const_value
    assert tensor is not None
    return ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)], outputs=[value], name=f"{value.name}_constant")


def _is_needed(new: ir.Value, old: ir.Value, outputs: Sequence[ir.Value]) -> bool:
    """Return True if an initializer is still of use. Constants that became part of functions are not."""
    return bool(new.uses()) or new in outputs or new.is_graph_input() or not old.uses()


def _is_spare_constant(node: ir.Node, outputs: Sequence[ir.Value]) -> bool:
    value = node.outputs[0]
    return constant_tensor(value) is not None and not value.uses() and value not in outputs


def _units_in_order(graph: ir.Graph, groups: Sequence[_Group]) -> list[ir.Node | _Group]:
    group_of: dict[ir.Node, _Group] = {}
    for group in groups:
        for node in group.sub_graph.nodes:
            if group_of.setdefault(node, group) is not group:
                raise PassError(f"cannot partition: node {node.name!r} is in two kernels")
    if not groups:
        return list(graph)
    try:
        return quotient_order(graph, groups[0].sub_graph.graph, group_of)
    except NotAcyclic as error:
        names = ", ".join(sorted(str(unit.name) for unit in error.stuck if isinstance(unit, _Group)))
        raise PassError(f"cannot partition: kernels feed each other in a circle, among {names}") from None
