"""Combining candidates around their anchors, vertically and horizontally.

An anchor is an operator that does the work: a convolution, a product, a pool. Both primitives make sub-graphs that the
classic ones never do: two convolutions in a row, or the three projections of one attention head side by side, which
has three exits, so the combination must allow several.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from collage.fusion._pool import Pool, are_touching
from collage.fusion._rule import Found
from collage.graph import OpKind, SubGraph

__all__ = ["HorizontalPrimitive", "VerticalPrimitive", "anchors_of"]


def anchors_of(sub_graph: SubGraph) -> tuple[int, ...]:
    """The operators of a sub-graph that do the work."""
    kinds = sub_graph.graph.kinds
    return tuple(i for i in sub_graph.inside if kinds[i] is OpKind.OUT_ELEMWISE_FUSABLE)


@dataclass(frozen=True)
class VerticalPrimitive:
    """Joins anchored candidates in a row.

    Attributes:
        max_anchors: Largest number of anchors together.
        name: Names the primitive.
    """

    max_anchors: int = 2
    name: str = "vertical"

    def combinations(self, found: Found, pool: Pool) -> Iterator[tuple[Found, ...]]:
        """Pairs of the candidate and anchored ones that it touches."""
        anchors = len(anchors_of(found.sub_graph))
        if not anchors:
            return
        for other in pool.downstream_of(found.sub_graph):
            if 0 < len(anchors_of(other.sub_graph)) <= self.max_anchors - anchors:
                yield found, other
        for other in pool.upstream_of(found.sub_graph):
            if 0 < len(anchors_of(other.sub_graph)) <= self.max_anchors - anchors:
                yield other, found


@dataclass(frozen=True)
class HorizontalPrimitive:
    """Joins candidates side by side.

    They read a value in common, neither feeds the other, and their anchors are the same operators.

    Attributes:
        max_anchors: Largest number of anchors together.
        name: Names the primitive.
    """

    max_anchors: int = 4
    name: str = "horizontal"

    def combinations(self, found: Found, pool: Pool) -> Iterator[tuple[Found, ...]]:
        """Pairs of the candidate and those beside it."""
        anchors = anchors_of(found.sub_graph)
        if not anchors:
            return
        for other in _reading_the_same(found.sub_graph, pool):
            others = anchors_of(other.sub_graph)
            is_alike = _operators(found.sub_graph, anchors) == _operators(other.sub_graph, others)
            fed = are_touching(found.sub_graph, other.sub_graph) or are_touching(other.sub_graph, found.sub_graph)
            if is_alike and not fed and len(anchors) + len(others) <= self.max_anchors:
                yield found, other


def _operators(sub_graph: SubGraph, indices: tuple[int, ...]) -> set[tuple[str, str]]:
    nodes = (sub_graph.graph.node(i) for i in indices)
    return {(node.domain, node.op_type) for node in nodes}


def _reading_the_same(sub_graph: SubGraph, pool: Pool) -> Iterator[Found]:
    """The candidates in the pool that read a value that the sub-graph reads and have no node in common with it."""
    graph, seen = pool.graph, set()
    for value in sub_graph.input_values():
        for node in value.consumers():
            if node not in graph:
                continue
            for other in pool.with_entry(graph.index_of(node)):
                if id(other) not in seen and not other.sub_graph.inside.bits & sub_graph.inside.bits:
                    seen.add(id(other))
                    yield other
