"""MergeAndAnnotate and AnnotateSEScopes: passes that annotate devices by patterns and by supported operators.

Together with ``PlanDevices`` and ``PartitionBySEScope`` they replace the flow of merging composites, annotating targets
and partitioning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import onnx_ir as ir

from collage.device._annotations import CANDIDATES, ON_DEVICE, asked_scope
from collage.device._kernels import is_opaque
from collage.device._scope import ANYWHERE, ScopeLike, SEScope, as_scope
from collage.graph import COMPOSITE, DataflowGraph, IndexSet, SubGraph, constant_tensor
from collage.transform import ModulePass, PassContext, PassInfo

__all__ = ["AnnotateSEScopes", "CompositePattern", "MergeAndAnnotate", "candidates_of"]


class CompositePattern(Protocol):
    """A row of a pattern table."""

    @property
    def label(self) -> str:
        """Its Composite label."""
        ...

    @property
    def pattern(self) -> Any:
        """A pattern of ``collage.pattern``."""
        ...

    @property
    def predicate(self) -> Callable[[Any], bool] | None:
        """Called with the match; False refuses it. None takes every match."""
        ...


class MergeAndAnnotate(ModulePass):
    """Annotates what patterns match with a scope, and marks each match as one composite.

    Earlier patterns win over later ones, larger matches over smaller ones of the same pattern. Matches that are not
    admissible are left out. Annotations that exist win over all, unless they agree with the scope.

    Args:
        patterns: A pattern table.
        scope: The scope that matches are annotated with: device, target and memory.
    """

    def __init__(self, patterns: Sequence[CompositePattern] = (), scope: ScopeLike = ANYWHERE) -> None:
        super().__init__(PassInfo("MergeAndAnnotate", opt_level=0))
        self._patterns, self._scope = tuple(patterns), as_scope(scope)

    def transform_module(self, model: ir.Model, context: PassContext) -> ir.Model:
        """Annotates in place."""
        merged = sum(COMPOSITE in node.metadata_props for node in _open_nodes(model))
        graphs: dict[ir.Graph, DataflowGraph] = {}
        for entry in self._patterns:
            # Not only disjoint matches: where one is refused, others that overlap with it may still be taken.
            for match in sorted(entry.pattern.find_all(model, "sets"), key=lambda match: -len(match.nodes)):
                if not all(map(self._may_annotate, match.nodes)) or not _is_admissible(graphs, model, match):
                    continue
                if entry.predicate is None or entry.predicate(match):
                    for node in match.nodes:
                        _annotate(node, self._scope)
                        node.metadata_props[COMPOSITE] = f"{entry.label}#{merged}"
                    merged += 1
        return model

    def _may_annotate(self, node: ir.Node) -> bool:
        asked = asked_scope(node)
        return COMPOSITE not in node.metadata_props and (asked is None or asked.join(self._scope) is not None)


class AnnotateSEScopes(ModulePass):
    """Annotates every operator that has no annotation with the first scope that takes it.

    All scopes that would take it are kept as its candidates, for a search to choose among.

    Args:
        scopes: Scopes, preferred ones first, each with the predicate that says which operators it takes.
    """

    def __init__(self, scopes: Iterable[tuple[ScopeLike, Callable[[ir.Node], bool]]] = ()) -> None:
        super().__init__(PassInfo("AnnotateSEScopes", opt_level=0))
        self._scopes = [(as_scope(scope), takes) for scope, takes in scopes]

    def transform_module(self, model: ir.Model, context: PassContext) -> ir.Model:
        """Annotates in place."""
        for node in _open_nodes(model):
            if asked_scope(node) is not None or constant_tensor(node.outputs[0]) is not None:
                continue
            found = [scope for scope, takes in self._scopes if takes(node)]
            if found:
                _annotate(node, found[0])
                node.metadata_props[CANDIDATES] = "\n".join(map(str, found))
        return model


def _is_admissible(graphs: dict[ir.Graph, DataflowGraph], model: ir.Model, match: Any) -> bool:
    """Return True if a match can be a function inside its region, so that no such functions feed each other in a circle."""
    if match.scope not in graphs:
        graphs[match.scope] = DataflowGraph(match.scope, model=model)
    graph = graphs[match.scope]
    inside = IndexSet.from_indices(graph.index_of(node) for node in match.nodes if node in graph)
    return not inside or SubGraph(graph, inside).is_admissible


def candidates_of(node: ir.Node) -> tuple[SEScope, ...]:
    """Return the scopes that would take a node, preferred ones first. Empty if there was no request."""
    return tuple(map(SEScope.parse, node.metadata_props.get(CANDIDATES, "").splitlines()))


def _annotate(node: ir.Node, scope: SEScope) -> None:
    asked = asked_scope(node)
    joined = scope if asked is None else asked.join(scope)
    node.metadata_props[ON_DEVICE] = str(joined)


def _open_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Every node outside of kernels."""
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        if not is_opaque(function):
            yield from function.all_nodes()
