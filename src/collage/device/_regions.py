"""Maximal convex regions of nodes with equal keys."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from collage.graph import DataflowGraph, IndexSet, iterate_bits

__all__ = ["convex_regions"]


def convex_regions(graph: DataflowGraph, keys: Sequence[Hashable | None]) -> list[IndexSet]:
    """Partitions the nodes that have a key into connected, convex regions of one key each.

    The regions do not wait for each other in a circle, not even by way of nodes without key. No two neighbours of equal
    key could be merged without making one.

    Args:
        graph: The dataflow graph.
        keys: Key of every node; None keeps it out of all regions.

    Returns:
        The regions, by first node.
    """
    merger = _Merger(graph)
    for consumer in range(len(graph)):
        for producer in graph.producers(consumer):
            if keys[producer] is not None and keys[producer] == keys[consumer]:
                merger.merge(producer, consumer)
    return [IndexSet(bits) for first, bits in merger.groups() if keys[first] is not None]


class _Merger:
    """Groups of nodes, and which nodes each group influences when groups are contracted.

    Merging only adds influence, so a merge that was refused once would be refused for ever, and one look at each edge is
    enough.
    """

    def __init__(self, graph: DataflowGraph) -> None:
        self._group = list(range(len(graph)))
        self._members = {i: 1 << i for i in range(len(graph))}
        self._below = dict(enumerate(graph.downstream_bits))
        self._next = dict(enumerate(graph.consumer_bits))

    def groups(self) -> list[tuple[int, int]]:
        """First node and members of every group."""
        return sorted(((bits & -bits).bit_length() - 1, bits) for bits in self._members.values())

    def merge(self, producer: int, consumer: int) -> None:
        """Merge the groups of two nodes, unless a third group lies on a way from one to the other."""
        one, other = self._group[producer], self._group[consumer]
        if one == other or self._is_between(one, other):
            return
        if self._members[one].bit_count() < self._members[other].bit_count():
            one, other = other, one
        for node in iterate_bits(self._members[other]):
            self._group[node] = one
        members = self._members[one] | self._members.pop(other)
        below = (self._below[one] | self._below.pop(other)) & ~members
        following = (self._next[one] | self._next.pop(other)) & ~members
        self._members[one], self._below[one], self._next[one] = members, below, following
        for group, reached in self._below.items():
            if reached & members:
                self._below[group] = reached | members | below

    def _is_between(self, one: int, other: int) -> bool:
        target = self._members[other]
        waiting = self._next[one] & ~target
        while waiting:
            group = self._group[(waiting & -waiting).bit_length() - 1]
            if self._below[group] & target:
                return True
            waiting &= ~self._members[group]
        return False
