"""Candidates indexed by where they touch others, so that combining looks at neighbours and not at all pairs."""

from __future__ import annotations

from collections.abc import Iterator

from collage.fusion._rule import Found
from collage.graph import DataflowGraph, SubGraph, iterate_bits

__all__ = ["Pool", "are_touching"]


def are_touching(upstream: SubGraph, downstream: SubGraph) -> bool:
    """Return True if two disjoint sub-graphs are joined by a value that flows from the first to the second."""
    return bool(upstream.output_bits & downstream.inside.bits) and not upstream.inside.bits & downstream.inside.bits


class Pool:
    """The candidates found so far, by their entries and by their exits.

    Attributes:
        graph: The dataflow graph.
    """

    def __init__(self, graph: DataflowGraph) -> None:
        self.graph = graph
        self._by_entry: dict[int, list[Found]] = {}
        self._by_exit: dict[int, list[Found]] = {}
        self._leading_by_exit: dict[int, list[Found]] = {}
        self._followers: set[SubGraph] = set()

    def add(self, found: Found, leads: bool = True) -> None:
        """Add a candidate.

        Args:
            found: The candidate.
            leads: Returns True if it may be the upstream part of a pair.
        """
        if not leads:
            self._followers.add(found.sub_graph)
        for i in iterate_bits(found.sub_graph.entry_bits):
            self._by_entry.setdefault(i, []).append(found)
        for i in iterate_bits(found.sub_graph.exit_bits):
            self._by_exit.setdefault(i, []).append(found)
            if leads:
                self._leading_by_exit.setdefault(i, []).append(found)

    def with_exit(self, index: int) -> list[Found]:
        """The candidates that have a node as an exit."""
        return self._by_exit.get(index, [])

    def with_entry(self, index: int) -> list[Found]:
        """The candidates that have a node as an entry."""
        return self._by_entry.get(index, [])

    def downstream_of(self, sub_graph: SubGraph) -> Iterator[Found]:
        """The candidates that read from a sub-graph and have no node in common with it, each once; if it leads."""
        if sub_graph in self._followers:
            return
        yield from self._neighbours(sub_graph, sub_graph.output_bits, self._by_entry)

    def upstream_of(self, sub_graph: SubGraph) -> Iterator[Found]:
        """The leading candidates that a sub-graph reads from and has no node in common with, each once."""
        yield from self._neighbours(sub_graph, sub_graph.input_bits, self._leading_by_exit)

    def _neighbours(self, sub_graph: SubGraph, bits: int, index: dict[int, list[Found]]) -> Iterator[Found]:
        inside = sub_graph.inside.bits
        seen = 0
        for i in iterate_bits(bits):
            for found in index.get(i, ()):
                other = found.sub_graph.inside.bits
                if not other & inside and not other & seen:
                    yield found
            seen |= 1 << i
