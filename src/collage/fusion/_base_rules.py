"""Base rules: those that look at the dataflow graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import onnx_ir as ir

from collage.fusion._rule import Found, FusionReport, FusionRule
from collage.graph import DataflowGraph, IndexSet, OpKind, SubGraph, constant_tensor
from collage.pattern import MatchBudgetExceeded
from collage.toolchains import Support

__all__ = [
    "DFPatternFusionRule",
    "GivenFusionRule",
    "GraphPattern",
    "HostFusionRule",
    "NodePredicate",
    "OpCallByKindFusionRule",
    "OpPredicateFusionRule",
    "PatternMatch",
]

NodePredicate: TypeAlias = Callable[[ir.Node], Support]
"""Return True if a toolchain takes an operator as it stands."""


class PatternMatch(Protocol):
    """The match of a pattern."""

    @property
    def nodes(self) -> Iterable[ir.Node]:
        """The nodes that are part of the match, without the nodes that it only reads."""
        ...


class GraphPattern(Protocol):
    """The part of a dataflow pattern that the rules need."""

    def find_all(self, graph: ir.Graph, mode: str = ...) -> Iterable[PatternMatch]:
        """Every match in a graph; matches may overlap. In the mode ``sets`` the order of interchangeable parts does not count."""
        ...


@dataclass(frozen=True)
class DFPatternFusionRule(FusionRule):
    """A candidate for every match of a dataflow pattern; candidates may overlap.

    Attributes:
        pattern: The pattern.
        predicate: Called with the match; False refuses it. None takes every match. Of matches that differ only in the order
            of interchangeable parts, one is asked about.
        name: Names the rule.
    """

    pattern: GraphPattern
    predicate: Callable[[Any], bool] | None = None
    name: str = "pattern"

    def find(self, graph: DataflowGraph, report: FusionReport) -> Iterable[Found]:
        """The nodes of every match that the predicate takes."""
        searched = graph.graph.graph if isinstance(graph.graph, ir.Function) else graph.graph
        found = []
        for match in self._matches(searched, report):
            inside = _nodes_inside(graph, match)
            if inside and not inside.bits & graph.kernel_call_bits and (not self.predicate or self.predicate(match)):
                found.append(Found(SubGraph(graph, inside), (self.name,)))
        return sorted(found, key=lambda f: (f.sub_graph.inside.first, f.sub_graph.inside))

    def _matches(self, graph: ir.Graph, report: FusionReport) -> Iterable[PatternMatch]:
        """The matches; those that were found before the search was stopped, if it was."""
        try:
            return self.pattern.find_all(graph, "sets")
        except MatchBudgetExceeded as error:
            found: list[PatternMatch] = error.found
            report.cap(self.name, len(found))
            return found


def _nodes_inside(graph: DataflowGraph, match: PatternMatch) -> IndexSet:
    """The nodes of a match but for constants; none where some part of it reaches no output, and so is not there."""
    nodes = [node for node in match.nodes if constant_tensor(node.outputs[0]) is None]
    return IndexSet.from_indices(map(graph.index_of, nodes)) if all(node in graph for node in nodes) else IndexSet()


@dataclass(frozen=True)
class OpPredicateFusionRule(FusionRule):
    """A candidate for every single operator that a predicate takes.

    Attributes:
        predicate: Returns True if the toolchain takes the operator.
        name: Names the rule.
    """

    predicate: NodePredicate
    name: str = "operator"

    def find(self, graph: DataflowGraph, report: FusionReport) -> Iterable[Found]:
        """The operators taken."""
        for i, node in enumerate(graph.nodes):
            if not graph.is_kernel_call(i) and self.predicate(node).ok:
                yield Found(SubGraph(graph, IndexSet(1 << i)), (self.name,))


@dataclass(frozen=True)
class OpCallByKindFusionRule(FusionRule):
    """A candidate for every single operator whose kind makes it fusable.

    Attributes:
        max_kind: The largest kind that counts.
        predicate: If given, the operator must be taken by it too.
        name: Names the rule.
    """

    max_kind: OpKind = OpKind.OUT_ELEMWISE_FUSABLE
    predicate: NodePredicate | None = None
    name: str = "kind"

    def find(self, graph: DataflowGraph, report: FusionReport) -> Iterable[Found]:
        """The fusable operators."""
        for i, (node, kind) in enumerate(zip(graph.nodes, graph.kinds, strict=True)):
            if kind > self.max_kind or graph.is_kernel_call(i):
                continue
            if self.predicate is None or self.predicate(node).ok:
                yield Found(SubGraph(graph, IndexSet(1 << i)), (self.name,))


@dataclass(frozen=True)
class HostFusionRule(FusionRule):
    """A candidate for every single operator that may be left behind, to be run by the host.

    Attributes:
        takes: Returns True if the host takes the operator; None takes every one.
        name: Names the rule.
    """

    takes: Callable[[ir.Node], bool] | None = None
    name: str = "left behind"

    def find(self, graph: DataflowGraph, report: FusionReport) -> Iterable[Found]:
        """The operators that may be left behind."""
        for i, node in enumerate(graph.nodes):
            if not graph.is_kernel_call(i) and (self.takes is None or self.takes(node)):
                yield Found(SubGraph(graph, IndexSet(1 << i)), (self.name,))


@dataclass(frozen=True)
class GivenFusionRule(FusionRule):
    """A candidate for every sub-graph that is given.

    Attributes:
        sub_graphs: The sub-graphs, of one dataflow graph.
        name: Names the rule.
    """

    sub_graphs: tuple[SubGraph, ...]
    name: str = "partition_for"

    def find(self, graph: DataflowGraph, report: FusionReport) -> Iterable[Found]:
        """The sub-graphs."""
        return [Found(sub_graph, (self.name,)) for sub_graph in self.sub_graphs]
