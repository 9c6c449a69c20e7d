"""Merging neighbours into the largest possible kernels."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from collage.fusion._candidate import CandidateKernel
from collage.fusion._rule import Found, FusionReport, FusionRule, merge_rules
from collage.graph import ANY_VALID, DataflowGraph, SubGraph, SubGraphConfig, iterate_bits

__all__ = ["MaxCoalesceFusionRule", "coalesce", "greedy_cover", "max_coalesce"]


@dataclass(frozen=True)
class MaxCoalesceFusionRule(FusionRule):
    """Joins touching candidates until no two can be joined: disjoint candidates, as large as they get.

    If the sub-rule's candidates overlap, the largest is taken and the others are dropped.

    Attributes:
        sub_rule: The rule that finds the candidates.
        config: The conditions that a joined candidate must meet.
        name: Names the rule.
    """

    sub_rule: FusionRule
    config: SubGraphConfig = ANY_VALID
    name: str = "coalesce"

    def find(self, graph: DataflowGraph, report: FusionReport) -> Iterable[Found]:
        """The joined candidates."""
        chosen = _largest_disjoint(list(self.sub_rule.find(graph, report)))
        groups = coalesce(
            graph, [f.sub_graph for f in chosen], ["same"] * len(chosen), lambda union: union.is_valid(self.config)
        )
        for group in groups:
            rules: tuple[str, ...] = ()
            for member in group:
                rules = merge_rules(rules, chosen[member].rules)
            yield Found(_union([chosen[member].sub_graph for member in group]), merge_rules(rules, (self.name,)))


def max_coalesce(
    graph: DataflowGraph,
    kernels: Sequence[CandidateKernel],
    accepts: Callable[[CandidateKernel], bool] | None = None,
) -> tuple[CandidateKernel, ...]:
    """Join touching kernels of one target in a partition; the result is again disjoint and free of cycles.

    A joined kernel was never measured: its cost is not the sum of the parts'.

    Args:
        graph: The dataflow graph.
        kernels: Disjoint kernels that do not feed each other in a circle.
        accepts: Returns True if the toolchain takes a joined kernel; by default every valid kernel is accepted.
    """

    def joined(members: Sequence[CandidateKernel], union: SubGraph) -> CandidateKernel:
        return replace(members[0], sub_graph=union, rules=merge_rules(members[0].rules, ("coalesce",)))

    def is_accepted(union: SubGraph) -> bool:
        covers = next(k for k in kernels if k.bits & union.inside.bits)
        return union.is_valid() and (accepts is None or accepts(joined([covers], union)))

    groups = coalesce(graph, [k.sub_graph for k in kernels], [k.target for k in kernels], is_accepted)
    result = []
    for group in groups:
        members = [kernels[member] for member in group]
        result.append(members[0] if len(group) == 1 else joined(members, _union([k.sub_graph for k in members])))
    return tuple(result)


def greedy_cover(candidates: Iterable[CandidateKernel]) -> tuple[CandidateKernel, ...]:
    """Disjoint candidates, the largest first, as fusion without a search chooses them.

    Ties go to the candidate that comes first. Candidates should be admissible, or kernels may feed each other in
    a circle.
    """
    chosen: list[CandidateKernel] = []
    covered = 0
    for candidate in sorted(candidates, key=lambda c: -len(c.sub_graph)):
        if not candidate.bits & covered:
            chosen.append(candidate)
            covered |= candidate.bits
    return tuple(sorted(chosen, key=lambda c: c.sub_graph.inside))


def coalesce(
    graph: DataflowGraph,
    sub_graphs: Sequence[SubGraph],
    labels: Sequence[Hashable],
    accepts: Callable[[SubGraph], bool],
) -> list[list[int]]:
    """Groups of sub-graphs to join: as large as they get, so that no groups feed each other in a circle.

    Two groups are joined if a value flows from one to the other, their labels are equal, the union is accepted, and no
    path leads from the first to the second through others; all other nodes of the graph count as groups of one.

    Args:
        graph: The dataflow graph.
        sub_graphs: Disjoint, and not feeding each other in a circle.
        labels: One for each sub-graph.
        accepts: Returns True if a union is good.

    Returns:
        Positions in ``sub_graphs``, each in exactly one group, in order.
    """
    quotient = _Quotient(graph, sub_graphs)
    members = {group: [group] for group in range(len(sub_graphs))}
    unions = dict(enumerate(sub_graphs))
    changed = True
    while changed:
        changed = False
        for group in list(members):
            for other in quotient.successors(group) if group in members else ():
                if other not in members or labels[group] != labels[other] or not quotient.can_merge(group, other):
                    continue
                union = unions[group].disjoint_union(unions[other])
                if accepts(union):
                    quotient.merge(group, other)
                    members[group] += members.pop(other)
                    unions[group] = union
                    changed = True
                    break
    return sorted(sorted(group) for group in members.values())


class _Quotient:
    """The graph of groups: direct successors and everything downstream, as bit vectors over groups."""

    def __init__(self, graph: DataflowGraph, sub_graphs: Sequence[SubGraph]) -> None:
        group_of: dict[int, int] = {i: group for group, s in enumerate(sub_graphs) for i in s.inside}
        for i in range(len(graph)):
            group_of.setdefault(i, len(sub_graphs) + i)
        count = len(sub_graphs) + len(graph)
        self._direct = [0] * count
        for i in range(len(graph)):
            for consumer in graph.consumers(i):
                if group_of[i] != group_of[consumer]:
                    self._direct[group_of[i]] |= 1 << group_of[consumer]
        self._reach = [0] * count
        self._groups = sorted(set(group_of.values()))
        settled: set[int] = set()
        for group in self._groups:
            self._settle(group, settled)

    def _settle(self, group: int, settled: set[int]) -> None:
        stack = [group]
        while stack:
            top = stack[-1]
            missing = [g for g in iterate_bits(self._direct[top]) if g not in settled]
            if missing and top not in settled:
                stack += missing
                continue
            stack.pop()
            if top not in settled:
                settled.add(top)
                self._reach[top] = self._direct[top]
                for g in iterate_bits(self._direct[top]):
                    self._reach[top] |= self._reach[g]

    def successors(self, group: int) -> list[int]:
        """The groups that read from a group."""
        return list(iterate_bits(self._direct[group]))

    def can_merge(self, group: int, other: int) -> bool:
        """Return True if no path leads from a group to one of its successors through others."""
        return not any(self._reach[g] >> other & 1 for g in iterate_bits(self._direct[group]) if g != other)

    def merge(self, group: int, other: int) -> None:
        """Merge a successor into a group."""
        both = 1 << group | 1 << other
        self._direct[group] = (self._direct[group] | self._direct[other]) & ~both
        self._reach[group] = (self._reach[group] | self._reach[other]) & ~both
        self._groups.remove(other)
        for g in self._groups:
            if g == group:
                continue
            if self._direct[g] & both:
                self._direct[g] = self._direct[g] & ~both | 1 << group
            if self._reach[g] & both:
                self._reach[g] = (self._reach[g] | self._reach[group]) & ~both | 1 << group


def _union(sub_graphs: Sequence[SubGraph]) -> SubGraph:
    union = sub_graphs[0]
    for sub_graph in sub_graphs[1:]:
        union = union.disjoint_union(sub_graph)
    return union


def _largest_disjoint(found: list[Found]) -> list[Found]:
    chosen: list[Found] = []
    covered = 0
    for f in sorted(found, key=lambda f: -len(f.sub_graph)):
        if not f.sub_graph.inside.bits & covered:
            chosen.append(f)
            covered |= f.sub_graph.inside.bits
    return sorted(chosen, key=lambda f: f.sub_graph.inside)
