"""The base class of fusion rules, what they find, and what they report."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field

from collage.graph import DataflowGraph, SubGraph

__all__ = ["Found", "FusionReport", "FusionRule", "merge_rules"]


@dataclass(frozen=True, slots=True)
class Found:
    """A sub-graph and how it was found.

    Attributes:
        sub_graph: The sub-graph.
        rules: Names of the rules that found it, innermost first.
    """

    sub_graph: SubGraph
    rules: tuple[str, ...]

    def by(self, name: str) -> Found:
        """The same, passed on by one more rule."""
        return Found(self.sub_graph, merge_rules(self.rules, (name,)))


@dataclass(slots=True)
class FusionReport:
    """The counts of a collection of candidates.

    Attributes:
        notes: Sentences for people.
        capped: Names of the rules whose enumeration was cut short. If there is one, "optimal" refers to the enumerated
            candidates.
    """

    notes: list[str] = field(default_factory=list)
    capped: list[str] = field(default_factory=list)

    def cap(self, rule: str, limit: int) -> None:
        """Note that a rule stopped at its limit."""
        self.capped.append(rule)
        self.notes.append(f"{rule} stopped at {limit} sub-graphs; larger combinations were not tried")


class FusionRule(ABC):
    """Describes how to find candidate kernels in a dataflow graph.

    Rules find sub-graphs; a :class:`FusionSpec` says for which targets they are candidates. Candidates may overlap:
    choosing among them is the search's job. Rules compose: base rules read the graph, combinators the sub-graphs of
    other rules.

    Attributes:
        name: Names the rule in the provenance of its sub-graphs.
    """

    name: str

    @abstractmethod
    def find(self, graph: DataflowGraph, report: FusionReport) -> Iterable[Found]:
        """The sub-graphs that the rule describes, in an order that depends on the graph alone.

        Args:
            graph: The dataflow graph.
            report: Takes a note if the rule stops before it has found everything.
        """


def merge_rules(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    """The names of both, each once."""
    if not first or first == second:
        return second
    return first + tuple(name for name in second if name not in first)
