"""PlanDevices: gives every node and value a scope, and inserts copies where scopes disagree."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TypeAlias

import onnx_ir as ir

from collage.device._annotations import SE_SCOPE, WHY, owner_of
from collage.device._config import CompilationConfig
from collage.device._copy_op import (
    DST_SE_SCOPE,
    PLANNED_COPY,
    SRC_SE_SCOPE,
    check_function,
    import_domain,
    insert_after_definition,
    is_device_copy,
    new_copy,
)
from collage.device._kernels import planned_graphs
from collage.device._placement_constraints import Read
from collage.device._plan import DevicePlan, PlannedCopy
from collage.device._scope import ScopeLike, SEScope
from collage.graph import NameSupply, tensor_handle
from collage.transform import ModulePass, PassContext, PassInfo

__all__ = ["PlanDevices", "clear_plan"]


_FIRST_IR_VERSION = 10
"""The first with metadata on nodes and functions."""


class PlanDevices(ModulePass):
    """Plans devices, targets and memory scopes of a whole model.

    Afterwards every node has a planned scope, every read happens where the reader is, and copies are explicit
    ``device_copy`` nodes: one for each value and destination, outside of loops. May run again, for example after
    kernels were made: planned scopes stay and are refined, copies are placed again. Twice equals once.

    Args:
        devices: Available devices: a configuration, or scopes, targets and device names, preferred ones first. None at
            all: any device that an annotation names.
        default: Scope of unconstrained operators; None is ``fallback_device`` of the context.
        host: Scope of shape computations; None is the first CPU.

    Raises:
        TargetError: The configuration contradicts itself.
    """

    def __init__(
        self,
        devices: CompilationConfig | Iterable[ScopeLike] = (),
        *,
        default: ScopeLike | None = None,
        host: ScopeLike | None = None,
    ) -> None:
        super().__init__(PassInfo("PlanDevices", opt_level=0))
        self._config = devices if isinstance(devices, CompilationConfig) else None
        self._devices = () if isinstance(devices, CompilationConfig) else tuple(devices)
        self._default, self._host = default, host

    def transform_module(self, model: ir.Model, context: PassContext) -> ir.Model:
        """Plans in place.

        Raises:
            DeviceConflict: Demands contradict each other.
            ModelError: A function of the model takes the name of ``device_copy``, or calls itself.
            TargetError: A scope cannot be read, or is not configured.
        """
        config = self._config or CompilationConfig.of(
            self._devices, default=self._default, host=self._host, fallback_device=context.fallback_device
        )
        with _no_collections():
            check_function(model)
            model.ir_version = max(model.ir_version, _FIRST_IR_VERSION)
            reasons = _remove_planned_copies(model)
            _Writer(model, DevicePlan(model, config), reasons).write()
        return model


def clear_plan(model: ir.Model) -> None:
    """Forget, in place, an earlier plan. Annotations and copies of other origin stay."""
    _remove_planned_copies(model)
    for graph in planned_graphs(model):
        for metadata in (graph.metadata_props, *(node.metadata_props for node in graph)):
            for key in [key for key in metadata if key.partition(":")[0] in (SE_SCOPE, WHY)]:
                del metadata[key]


@contextmanager
def _no_collections() -> Iterator[None]:
    """Lets the garbage collector rest: all that is made here stays, and looking through it takes as long as planning."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


_CopyKey: TypeAlias = tuple[ir.Value, str]
"""Key of a copy: its value, and the scope of its destination."""


class _Writer:
    """Puts a plan into its model."""

    def __init__(self, model: ir.Model, plan: DevicePlan, reasons: Mapping[_CopyKey, str]) -> None:
        self._model, self._plan, self._reasons = model, plan, reasons
        values = (v.name for g in planned_graphs(model) for v in _values_of(g))
        nodes = (n.name for g in planned_graphs(model) for n in g)
        self._names = NameSupply(reserved=[name for name in (*values, *nodes) if name])
        self._last_copy: dict[ir.Value, ir.Node] = {}
        # A model has few scopes and many nodes.
        self._text = cache(SEScope.__str__)

    def write(self) -> None:
        self._describe_graphs()
        for node in self._plan.nodes:
            self._describe(node)
        for value in self._plan.constants:
            self._settle_constant(value)
        written = {(copy.inputs[0], self._plan.scope_of(copy).storage): copy for copy in self._plan.explicit_copies}
        for copy in self._plan.copies():
            result = self._shared(copy, written) or self._insert(copy)
            for read in copy.reads:
                _redirect(read, result)
        for node in self._plan.explicit_copies:
            _drop_if_needless(node)
        import_domain(self._model)

    def _describe_graphs(self) -> None:
        for graph in planned_graphs(self._model):
            for value in (*graph.inputs, *graph.initializers.values()):
                if value in self._plan.places.of_value:
                    graph.metadata_props[f"{SE_SCOPE}:{value.name}"] = self._text(self._plan.scope_of_value(value))

    def _describe(self, node: ir.Node) -> None:
        scope = self._plan.scope_of(node)
        node.metadata_props[SE_SCOPE] = self._text(scope)
        if WHY not in node.metadata_props:
            node.metadata_props[WHY] = self._plan.reason(node)
        for index, value in enumerate(node.outputs):
            result = self._plan.scope_of_value(value)
            if result.storage != scope.storage or node not in self._plan.places.of_node:
                node.metadata_props[f"{SE_SCOPE}:{index}"] = self._text(result)
        if is_device_copy(node):
            (operand,) = node.inputs
            assert operand is not None
            node.metadata_props[SRC_SE_SCOPE] = self._text(self._plan.scope_of_copied(node))
            node.metadata_props[DST_SE_SCOPE] = self._text(scope)

    def _settle_constant(self, value: ir.Value) -> None:
        """A constant that several scopes read becomes one for each; they share its bytes."""
        home, *others = self._plan.scopes_of_constant(value)
        _note_constant(value, home)
        for scope in others:
            twin = self._twin(value, scope)
            _note_constant(twin, scope)
            for read in self._plan.reads_of_constant(value, scope):
                _redirect(read, twin)

    def _twin(self, value: ir.Value, scope: SEScope) -> ir.Value:
        graph = self._plan.places.constants[value]
        name = self._names.fresh(f"{value.name}_on_{scope.storage}")
        node = value.producer()
        if node is None:
            tensor = None if value.const_value is None else tensor_handle(value.const_value)
            twin = ir.Value(name=name, type=value.type, shape=value.shape, const_value=tensor)
            graph.initializers.add(twin)
            return twin
        copy = ir.Node(node.domain, node.op_type, [], list(node.attributes.values()), name=self._names.fresh(name))
        twin = copy.outputs[0]
        twin.name, twin.type, twin.shape = name, value.type, value.shape
        graph.insert_after(node, copy)
        return twin

    def _shared(self, copy: PlannedCopy, written: dict[tuple[ir.Value | None, SEScope], ir.Node]) -> ir.Value | None:
        """Return the value that lies at the destination already: the source of a copy, or a copy that the model held before."""
        if any(map(self._plan.places.is_main_output, copy.reads)):
            return None
        producer = copy.value.producer()
        if producer is not None and is_device_copy(producer):
            (source,) = producer.inputs
            if source in self._plan.places.of_value and self._storage(source) == copy.dst.storage:
                return source
        node = written.get((copy.value, copy.dst.storage))
        if node is None or node.graph is not copy.value.graph:
            return None
        graph = copy.value.graph
        assert graph is not None
        graph.remove(node)
        insert_after_definition(graph, copy.value, node)
        return node.outputs[0]

    def _storage(self, value: ir.Value | None) -> SEScope:
        assert value is not None
        return self._plan.scope_of_value(value).storage

    def _insert(self, copy: PlannedCopy) -> ir.Value:
        output = next((read for read in copy.reads if self._plan.places.is_main_output(read)), None)
        name = self._names.fresh(f"{copy.value.name}_to_{copy.dst.storage}")
        node = new_copy(self._model, copy.value, self._text(copy.src), self._text(copy.dst), name)
        why = self._reasons.get((copy.value, self._text(copy.dst))) or self._plan.why_copy(copy)
        node.metadata_props.update({PLANNED_COPY: "1", SE_SCOPE: self._text(copy.dst), WHY: why})
        result = node.outputs[0]
        if output is not None:
            # Its name is the model's interface.
            result.name, copy.value.name = (
                copy.value.name,
                self._names.fresh(f"{copy.value.name}_on_{copy.src.storage}"),
            )
        graph = self._graph_for(copy)
        if graph is copy.value.graph and copy.value in self._last_copy:
            graph.insert_after(self._last_copy[copy.value], node)
        elif graph is copy.value.graph:
            insert_after_definition(graph, copy.value, node)
        else:
            insert_after_definition(graph, result, node)
        if graph is copy.value.graph:
            self._last_copy[copy.value] = node
        return result

    def _graph_for(self, copy: PlannedCopy) -> ir.Graph:
        """The innermost graph around all readers; but outside of every loop that the value comes from outside of."""
        home = copy.value.graph
        assert home is not None
        paths = [self._path(home, read.graph) for read in copy.reads]
        common = home
        for level in zip(*paths, strict=False):
            if len(set(level)) > 1 or self._plan.places.is_loop_body(level[0]):
                break
            common = level[0]
        return common

    def _path(self, home: ir.Graph, graph: ir.Graph) -> list[ir.Graph]:
        """The bodies from a graph down to one inside it."""
        path = []
        while graph is not home:
            path.append(graph)
            graph = self._plan.places.graph_around(graph)
        return path[::-1]


def _redirect(read: Read, value: ir.Value) -> None:
    if isinstance(read.reader, ir.Node):
        read.reader.replace_input_with(read.index, value)
    else:
        read.reader.outputs[read.index] = value


def _note_constant(value: ir.Value, scope: SEScope) -> None:
    metadata, suffix = owner_of(value)
    metadata[SE_SCOPE + suffix] = str(scope)


def _drop_if_needless(node: ir.Node) -> None:
    """Remove a copy that the model held before, if its source lies there already or it has no readers now."""
    (source,) = node.inputs
    (result,) = node.outputs
    scopes = [SEScope.parse(node.metadata_props[key]).storage for key in (SRC_SE_SCOPE, DST_SE_SCOPE)]
    if scopes[0] == scopes[1] and source is not None and not result.is_graph_output():
        result.replace_all_uses_with(source)
    if not result.uses() and not result.is_graph_output() and node.graph is not None:
        node.graph.remove(node, safe=True)


def _remove_planned_copies(model: ir.Model) -> dict[_CopyKey, str]:
    """Remove the copies that an earlier run inserted; return their reasons."""
    reasons: dict[_CopyKey, str] = {}
    for graph in planned_graphs(model):
        for node in list(graph):
            if PLANNED_COPY not in node.metadata_props or not is_device_copy(node):
                continue
            (source,), (result,) = node.inputs, node.outputs
            assert source is not None
            reasons[source, node.metadata_props[DST_SE_SCOPE]] = node.metadata_props.get(WHY, "")
            was_output = result in model.graph.outputs
            result.replace_all_uses_with(source, replace_graph_outputs=True)
            graph.remove(node, safe=True)
            if was_output:
                source.name = result.name
    return reasons


def _values_of(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs
