"""PartitionBySEScope: regions of one scope become functions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence

import onnx_ir as ir

from collage._errors import ConfigError, PassError
from collage.device._annotations import RESULT_SE_SCOPE, SE_SCOPE, WHY, planned_scope
from collage.device._copy_op import is_device_copy
from collage.device._kernels import is_opaque, planned_graphs
from collage.device._regions import convex_regions
from collage.device._scope import SEScope
from collage.graph import (
    COMPOSITE,
    PRIMITIVE,
    DataflowGraph,
    IndexSet,
    KernelSpec,
    NameSupply,
    NestedSubGraph,
    SubGraph,
    bits_of,
    bodies,
    partition,
)
from collage.transform import ModulePass, PassContext, PassInfo

__all__ = ["PartitionBySEScope"]

_PROJECTIONS = ("device", "target", "memory")


class PartitionBySEScope(ModulePass):
    """Makes a function of every maximal convex region of one scope, in a model that ``PlanDevices`` planned.

    A function's ``result_se_scope`` is the scope of its results, with the target to compile it for. It is a kernel
    (``Primitive``, ``Compiler``) where the target names a toolchain; other functions stay open to further passes. A
    match of ``MergeAndAnnotate`` becomes a function inside, with its ``Composite`` label. Copies, kernels that exist, what
    reads or makes sequences, and what takes an attribute from the function around it stay outside. Control flow, and calls
    of plain functions, are taken whole where all of it is in one scope; otherwise the bodies are partitioned. Doing it
    twice equals once.

    Args:
        by: Parts of the scope that count: of ``device``, ``target``, ``memory``. The device always does, since a
            function runs on one.
        where: Scopes that become functions; all of them by default.
    """

    def __init__(
        self, by: Sequence[str] = _PROJECTIONS, *, where: Callable[[SEScope], bool] = lambda scope: True
    ) -> None:
        super().__init__(PassInfo("PartitionBySEScope", opt_level=0))
        unknown = sorted(set(by) - set(_PROJECTIONS)) if not isinstance(by, str) else [by]
        if unknown:
            raise ConfigError(f"by is a list of {', '.join(_PROJECTIONS)}, not of {', '.join(unknown)}")
        self._by, self._where = frozenset(by), where

    def transform_module(self, model: ir.Model, context: PassContext) -> ir.Model:
        """Return a partitioned model.

        Raises:
            PassError: A node has no planned scope.
        """
        names = NameSupply("region", reserved=[name for _, name, _ in model.functions])
        specs = list(self._regions(model, model.graph, names))
        result = partition(model, specs) if specs else model
        for identifier, function in list(model.functions.items()):
            if not is_opaque(function) and not self._is_one_region(model, function):
                result = self._with_regions_inside(result, identifier, names)
        return result if result is model else _described(result)

    def _is_one_region(self, model: ir.Model, function: ir.Function) -> bool:
        """Return True if all of a function is in one scope, so that its calls are parts of regions."""
        keys = {self._key(model, node) for node in function if SE_SCOPE in node.metadata_props}
        return len(keys) <= 1 and None not in keys

    def _with_regions_inside(self, model: ir.Model, identifier: ir.OperatorIdentifier, names: NameSupply) -> ir.Model:
        """The model with a plain function partitioned, as if its body were the main graph."""
        function = model.functions[identifier]
        alone = ir.Model(function.graph, ir_version=model.ir_version, functions=list(model.functions.values()))
        specs = list(self._regions(alone, alone.graph, names))
        if not specs:
            return model
        inside = partition(alone, specs)
        body = ir.Function(*identifier[:2], identifier[2], graph=inside.graph, attributes=function.attributes.values())
        functions = [body if name == identifier else other for name, other in inside.functions.items()]
        return ir.Model(
            model.graph,
            ir_version=max(model.ir_version, inside.ir_version),
            producer_name=model.producer_name,
            producer_version=model.producer_version,
            domain=model.domain,
            model_version=model.model_version,
            doc_string=model.doc_string,
            functions=functions,
            metadata_props=dict(model.metadata_props),
        )

    def _regions(self, model: ir.Model, graph: ir.Graph, names: NameSupply) -> Iterator[KernelSpec]:
        """The regions of a graph, and those of bodies in it that are not taken whole."""
        dataflow = DataflowGraph(graph, model=model)
        barred = dataflow.no_border_bits | dataflow.kernel_call_bits
        barred |= bits_of(i for i, node in enumerate(dataflow.nodes) if _takes_attributes(node))
        keys = [None if barred >> i & 1 else self._key(model, node) for i, node in enumerate(dataflow.nodes)]
        parts = _composites(dataflow)
        for inside in convex_regions(dataflow, keys):
            nested = [part for part in parts if part.inside.bits & ~inside.bits == 0]
            scope = self._common_scope([dataflow.node(i) for i in inside])
            yield KernelSpec(SubGraph(dataflow, inside, nested), names.fresh(str(scope.storage)), _attributes(scope))
        for key, node in zip(keys, dataflow.nodes, strict=True):
            if key is None:
                for body in bodies(node):
                    yield from self._regions(model, body, names)

    def _key(self, model: ir.Model, node: ir.Node) -> Hashable | None:
        """Return the key that a node's region must have in common, None if it can be in no region."""
        if is_device_copy(node):
            return None
        function = model.functions.get(node.op_identifier())
        if function is not None and is_opaque(function):
            return None
        keys = {self._project(_planned(node))}
        for inner in (*bodies(node), *([function] if function is not None else [])):
            keys |= {self._key(model, n) for n in inner if SE_SCOPE in n.metadata_props and n.op_type != "Constant"}
        return keys.pop() if len(keys) == 1 and self._where(_planned(node)) else None

    def _project(self, scope: SEScope) -> Hashable:
        target = scope.target if "target" in self._by else None
        return scope.device, target, scope.memory_scope if "memory" in self._by else None

    def _common_scope(self, nodes: Sequence[ir.Node]) -> SEScope:
        """Return the scope that all scopes in a region agree on."""
        scopes = [_planned(node) for node in nodes]
        target = scopes[0].target if len({scope.target for scope in scopes}) == 1 else None
        memory = scopes[0].memory_scope if len({scope.memory_scope for scope in scopes}) == 1 else None
        return SEScope(scopes[0].device_type, scopes[0].virtual_device_id, target, memory)


def _planned(node: ir.Node) -> SEScope:
    scope = planned_scope(node)
    if scope is None:
        raise PassError(f"node {node.name!r} ({node.op_type}) has no planned scope; run PlanDevices first")
    return scope


def _described(model: ir.Model) -> ir.Model:
    """Note, in place, the scopes in which the calls of regions run. Regions without a toolchain are not kernels."""
    regions = {name: f.metadata_props for name, f in model.functions.items() if RESULT_SE_SCOPE in f.metadata_props}
    for graph in planned_graphs(model):
        for node in graph:
            metadata = regions.get(node.op_identifier())
            if metadata is not None:
                node.metadata_props.setdefault(SE_SCOPE, metadata[RESULT_SE_SCOPE])
                node.metadata_props.setdefault(WHY, "a region of one scope")
    for metadata in regions.values():
        if "Compiler" not in metadata:
            metadata.pop(PRIMITIVE, None)
    return model


def _takes_attributes(node: ir.Node) -> bool:
    """Return True if an attribute of a node, or of one in its bodies, is one of the function around it."""
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        return True
    return any(_takes_attributes(inner) for body in bodies(node) for inner in body)


def _attributes(scope: SEScope) -> dict[str, str]:
    attributes = {RESULT_SE_SCOPE: str(scope)}
    if scope.target is not None:
        attributes["target"] = str(scope.target)
        if not scope.target.is_native:
            attributes["Compiler"] = scope.target.toolchain
    return attributes


def _composites(graph: DataflowGraph) -> list[NestedSubGraph]:
    """The parts that ``MergeAndAnnotate`` marked."""
    marked: dict[str, list[int]] = {}
    for index, node in enumerate(graph.nodes):
        if COMPOSITE in node.metadata_props:
            marked.setdefault(node.metadata_props[COMPOSITE], []).append(index)
    return [NestedSubGraph(IndexSet.from_indices(nodes), mark.rpartition("#")[0]) for mark, nodes in marked.items()]
