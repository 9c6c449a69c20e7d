"""The ways in which two or more candidates may be combined."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from collage.fusion._pool import Pool
from collage.fusion._rule import Found
from collage.graph import IndexSet, OpKind, SubGraph, iterate_bits

__all__ = [
    "CLASSIC_PRIMITIVES",
    "ByKindPrimitive",
    "CombinePrimitive",
    "ConstantArgPrimitive",
    "JoinAnythingPrimitive",
    "TupleArgPrimitive",
]


class CombinePrimitive(Protocol):
    """One way of combining.

    Attributes:
        name: Names the primitive in the provenance of what it combines.
    """

    @property
    def name(self) -> str:
        """Name the primitive in the provenance of what it combines."""
        ...

    def combinations(self, found: Found, pool: Pool) -> Iterator[tuple[Found, ...]]:
        """The disjoint candidates that may be joined, one of them ``found``, which is in the pool, as are the rest.

        The caller adds candidates to the pool one by one and looks at each once. So a combination is found when the
        last of its parts is added.
        """
        ...


@dataclass(frozen=True)
class JoinAnythingPrimitive:
    """Joins any two candidates if one reads from the other."""

    name: str = "join anything"

    def combinations(self, found: Found, pool: Pool) -> Iterator[tuple[Found, ...]]:
        """Pairs of the candidate and what it touches."""
        for other in pool.downstream_of(found.sub_graph):
            yield found, other
        for other in pool.upstream_of(found.sub_graph):
            yield other, found


@dataclass(frozen=True)
class ByKindPrimitive:
    """Joins two candidates if the second reads from the first and neither operator kind is too large.

    Attributes:
        upstream: The largest kind of the first.
        downstream: The largest kind of the second.
    """

    upstream: OpKind
    downstream: OpKind

    @property
    def name(self) -> str:
        """The two kinds."""
        return f"{self.upstream.name.lower()}→{self.downstream.name.lower()}"

    def combinations(self, found: Found, pool: Pool) -> Iterator[tuple[Found, ...]]:
        """Pairs of the candidate and what it touches, by kind."""
        kind = found.sub_graph.kind
        if kind <= self.upstream:
            for other in pool.downstream_of(found.sub_graph):
                if other.sub_graph.kind <= self.downstream:
                    yield found, other
        if kind <= self.downstream:
            for other in pool.upstream_of(found.sub_graph):
                if other.sub_graph.kind <= self.upstream:
                    yield other, found


@dataclass(frozen=True)
class TupleArgPrimitive:
    """Joins an operator that takes a list of tensors, such as Concat, with producers of all of them at once.

    Attributes:
        max_kind: The largest kind of the consumer and of each producer.
        consumers: Operators that take a list.
        name: Names the primitive.
    """

    max_kind: OpKind = OpKind.INJECTIVE
    consumers: frozenset[str] = frozenset({"Concat", "Max", "Mean", "Min", "Sum"})
    name: str = "tuple argument"

    def combinations(self, found: Found, pool: Pool) -> Iterator[tuple[Found, ...]]:
        """The candidate as a consumer with its producers, and as a producer with its consumers and their others."""
        if found.sub_graph.kind > self.max_kind:
            return
        yield from self._with_producers(found, pool)
        for consumer in pool.downstream_of(found.sub_graph):
            if consumer.sub_graph.kind <= self.max_kind:
                for parts in self._with_producers(consumer, pool):
                    if any(part is found for part in parts):
                        yield parts

    def _with_producers(self, consumer: Found, pool: Pool) -> Iterator[tuple[Found, ...]]:
        for i in iterate_bits(consumer.sub_graph.entry_bits):
            fields = [p for p in pool.graph.producers(i) if p not in consumer.sub_graph.inside]
            if pool.graph.node(i).op_type in self.consumers and len(fields) > 1:
                choices = [[f for f in pool.with_exit(p) if f.sub_graph.kind <= self.max_kind] for p in fields]
                for producers in itertools.product(*choices):
                    parts = (*dict.fromkeys(producers), consumer)
                    if _are_disjoint(parts):
                        yield parts


@dataclass(frozen=True)
class ConstantArgPrimitive:
    """Adds to a candidate all that computes constants for it: operators that read nothing that varies.

    Weights themselves are not nodes, and are always part of their reader. This primitive is for operators that were not
    folded, such as the dequantisation of weights. A constant that others read too is not added.
    """

    name: str = "constant argument"

    def combinations(self, found: Found, pool: Pool) -> Iterator[tuple[Found, ...]]:
        """The candidate with its constants, if it has any."""
        graph, inside = pool.graph, found.sub_graph.inside.bits
        absorbed = 0
        for i in sorted(iterate_bits(found.sub_graph.input_bits), reverse=True):
            absorbed |= _constant_cone(found, pool, i)
        outside = ~(inside | absorbed)
        is_shared = any(graph.consumer_bits[i] & outside for i in iterate_bits(absorbed))
        if absorbed and not is_shared and not absorbed & (inside | graph.external_bits):
            yield Found(SubGraph(graph, IndexSet(absorbed)), (self.name,)), found


def _constant_cone(found: Found, pool: Pool, index: int) -> int:
    """The node and everything that it depends on, if none of it varies; else nothing."""
    graph, bits, waiting = pool.graph, 0, [index]
    while waiting:
        i = waiting.pop()
        varies = graph.fed_bits >> i & 1 or graph.kinds[i] is OpKind.OPAQUE
        if varies or i in found.sub_graph.inside:
            return 0
        if not bits >> i & 1:
            bits |= 1 << i
            waiting.extend(graph.producers(i))
    return bits


def _are_disjoint(parts: tuple[Found, ...]) -> bool:
    bits = 0
    for part in parts:
        if part.sub_graph.inside.bits & bits:
            return False
        bits |= part.sub_graph.inside.bits
    return True


CLASSIC_PRIMITIVES: tuple[CombinePrimitive, ...] = (
    ByKindPrimitive(OpKind.OUT_ELEMWISE_FUSABLE, OpKind.BROADCAST),
    ByKindPrimitive(OpKind.BROADCAST, OpKind.COMM_REDUCE),
    ByKindPrimitive(OpKind.INJECTIVE, OpKind.INJECTIVE),
)
"""Elementwise and broadcast operators join what comes before them; reductions what is elementwise before them;
injective operators each other. If lists of tensors are a node of their own, arguments of lists need a primitive
too; here the operator that takes the list is the node, so the third primitive joins it with each of them."""
