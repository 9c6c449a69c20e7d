"""Labelled parts of a kernel become extern calls in TVM's lowering; the rest stays native code.

A part that is labelled for a function becomes a call of a packed function that writes into memory of TVM's own. Its name
is looked up once, when a library is loaded: then, and only then, the function is in TVM's table of global functions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from collage.graph import (
    COMPOSITE,
    DataflowGraph,
    IndexSet,
    KernelSpec,
    SubGraph,
    kernel_model,
    kernels_of,
    partition,
)
from collage.toolchains import PassError, Unsupported
from collage.toolchains.sdk.openmp import quiet_threads
from collage_extern.functions import NATIVE, BoundFunction, ExternCall, ExternFunction, ExternLibraries

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["outlined", "reader", "registered", "symbol_of"]

_LOADING = threading.Lock()


@dataclass(frozen=True, slots=True)
class _Part:
    """Operators to be replaced by one call."""

    function: ExternFunction
    sub_graph: SubGraph


def outlined(kernel: ir.Model, libraries: ExternLibraries) -> tuple[ir.Model, list[ExternCall]]:
    """A kernel with nodes that call functions, named by their symbols, where its parts were.

    Labels are taken at their word. A kernel without any leaves the choice to us: then every function is called that can
    be, in the libraries' order of preference.

    Raises:
        Unsupported: A label names no registered function, or one that cannot compute the labelled operators.
    """
    graph = DataflowGraph(kernel)
    labelled = _labelled_parts(graph)
    parts = _chosen(labelled, graph, libraries) if labelled else _matching(graph, libraries)
    if not parts:
        return kernel, []
    names = [f"{kernel.graph.name}.extern{i}" for i in range(len(parts))]
    function_of = {name: part.function for name, part in zip(names, parts, strict=True)}
    try:
        outer = partition(kernel, [KernelSpec(p.sub_graph, name) for p, name in zip(parts, names, strict=True)])
    except PassError as error:
        raise Unsupported(f"extern: {error}") from error
    calls = []
    for i, call in enumerate(kernels_of(outer)):
        name = str(call.node.name)
        calls.append(ExternCall(symbol_of(i), function_of[name], kernel_model(outer, call.node, name)))
    for call, made in zip(kernels_of(outer), calls, strict=True):
        call.node.resize_inputs(len(made.model.graph.inputs))  # What varies comes first, then weights.
        call.node.op_type = made.symbol
    for name in [name for name, value in outer.graph.initializers.items() if not value.uses()]:
        del outer.graph.initializers[name]
    return outer, calls


def symbol_of(index: int) -> str:
    """Return the name of the n-th function in a kernel's code. It is never read from an artefact: TVM's table is global."""
    return f"collage.extern.{index}"


def reader(calls: Sequence[ExternCall]) -> Callable[[Any], Any]:
    """Return a function that imports an ONNX proto with calls as a Relax module. Calling it imports TVM."""

    def read(proto: Any) -> Any:
        from collage_extern.importer import import_with_calls

        return import_with_calls(proto, {call.symbol: call for call in calls})

    return read


@contextmanager
def registered(functions: Sequence[BoundFunction]) -> Iterator[None]:
    """While this is entered, a library that is loaded finds the functions that its kernel calls."""
    with quiet_threads():  # It imports torch, as TVM does.
        import tvm_ffi

    symbols = [symbol_of(i) for i in range(len(functions))]
    with _LOADING:
        try:
            for symbol, function in zip(symbols, functions, strict=True):
                tvm_ffi.register_global_func(symbol, function, override=True)
            yield
        finally:
            for symbol in symbols:
                tvm_ffi.registry.remove_global_func(symbol)


def _labelled_parts(graph: DataflowGraph) -> dict[str, list[int]]:
    """The nodes of each labelled part, by ``label#number``."""
    parts: dict[str, list[int]] = {}
    for i, node in enumerate(graph.nodes):
        if COMPOSITE in node.metadata_props:
            parts.setdefault(node.metadata_props[COMPOSITE].partition("/")[0], []).append(i)
    return parts


def _chosen(labelled: Mapping[str, Sequence[int]], graph: DataflowGraph, libraries: ExternLibraries) -> list[_Part]:
    """The labelled parts that are calls.

    Raises:
        Unsupported: See ``outlined``.
    """
    parts = []
    for mark, inside in labelled.items():
        label = mark.rpartition("#")[0]
        if label == NATIVE:
            continue
        function = libraries.get(label)
        part = _Part(function, SubGraph(graph, IndexSet.from_indices(inside)))
        if (reason := function.why_not(part.sub_graph.nodes)) is not None:
            raise Unsupported(f"extern: {reason}")
        if part.sub_graph not in _matches(function, graph):
            raise Unsupported(f"extern: {label} cannot replace {part.sub_graph.label}")
        parts.append(part)
    return parts


def _matching(graph: DataflowGraph, libraries: ExternLibraries) -> list[_Part]:
    """Parts that can be calls, disjoint; earlier functions first, and within one the order of the graph."""
    parts: list[_Part] = []
    taken = 0
    for function in libraries.functions():
        for sub_graph in _matches(function, graph):
            fits = not sub_graph.inside.bits & taken and sub_graph.is_admissible and sub_graph.is_valid()
            if fits and function.why_not(sub_graph.nodes) is None:
                parts.append(_Part(function, sub_graph))
                taken |= sub_graph.inside.bits
    return parts


def _matches(function: ExternFunction, graph: DataflowGraph) -> list[SubGraph]:
    """Find the sub-graphs that match the pattern of a function."""
    found = (match.nodes for match in function.pattern.find_all(graph.graph))
    return [
        SubGraph(graph, IndexSet.from_indices(map(graph.index_of, nodes)))
        for nodes in found
        if all(node in graph for node in nodes)
    ]
