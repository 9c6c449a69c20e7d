"""Candidate kernels, from which the search chooses, and their collection from the rules of all targets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from collage.fusion._rule import FusionReport, FusionRule, merge_rules
from collage.graph import DataflowGraph, SubGraph
from collage.plan import Plan
from collage.target import Target

__all__ = ["CandidateKernel", "CandidateKernelIndex", "FusionSpec", "collect_candidates"]


@dataclass(frozen=True, slots=True)
class FusionSpec:
    """A fusion rule and the targets that its candidates are for.

    Targets that fuse alike share a spec, so that candidates are found once.

    Attributes:
        name: Name for people.
        rule: Finds the candidates.
        targets: The targets that they are candidates for, in order of priority.
    """

    name: str
    rule: FusionRule
    targets: tuple[Target, ...]

    def all_candidates(self, graph: DataflowGraph, report: FusionReport | None = None) -> tuple[CandidateKernel, ...]:
        """One candidate for every sub-graph that the rule finds and every target, each once."""
        unique: dict[SubGraph, tuple[str, ...]] = {}
        for found in self.rule.find(graph, report or FusionReport()):
            unique[found.sub_graph] = merge_rules(unique.get(found.sub_graph, ()), found.rules)
        return tuple(
            CandidateKernel(sub_graph, target, self, rules)
            for target in self.targets
            for sub_graph, rules in unique.items()
        )


@dataclass(frozen=True, slots=True)
class CandidateKernel:
    """A sub-graph as a kernel for a target: the unit of search and measurement.

    Two candidates are equal iff their sub-graphs, labelled parts included, and their targets are.

    Attributes:
        sub_graph: Its nodes.
        target: The target that it is compiled for.
        spec: The spec that it is from.
        rules: Names of the rules that found it, innermost first.
        bodies: The plans of its bodies, see ``PlannedKernel``.
    """

    sub_graph: SubGraph
    target: Target
    spec: FusionSpec = field(compare=False, repr=False)
    rules: tuple[str, ...] = field(compare=False)
    bodies: tuple[Plan, ...] = field(default=(), kw_only=True)

    @property
    def bits(self) -> int:
        """Bits of the nodes inside."""
        return self.sub_graph.inside.bits

    @property
    def first(self) -> int:
        """The least node inside."""
        return self.sub_graph.inside.first

    @property
    def summary(self) -> str:
        """One line for explanations: operators and nodes, types, target, and the rules that found it."""
        inputs = ", ".join(map(_type_text, self.sub_graph.input_values()))
        outputs = ", ".join(map(_type_text, self.sub_graph.output_values()))
        return f"{self.sub_graph.summary} | ({inputs}) -> ({outputs}) | {self.target} | {' > '.join(self.rules)}"


def _type_text(value: ir.Value) -> str:
    dtype = value.dtype.name.lower() if value.dtype is not None else "?"
    return dtype if value.shape is None else f"{dtype}[{', '.join(map(str, value.shape))}]"


class CandidateKernelIndex:
    """Candidate kernels by the first node inside.

    Equal candidates are one; the rules that found either are kept. The order is that of the sets of nodes, then
    that in which candidates were given.
    """

    def __init__(self, candidates: Iterable[CandidateKernel]) -> None:
        unique: dict[CandidateKernel, CandidateKernel] = {}
        for candidate in candidates:
            known = unique.get(candidate)
            if known is not None:
                rules = merge_rules(known.rules, candidate.rules)
                candidate = replace(known, rules=rules)
            unique[candidate] = candidate
        self._by_first: dict[int, list[CandidateKernel]] = {}
        for candidate in unique.values():
            self._by_first.setdefault(candidate.sub_graph.inside.first, []).append(candidate)
        for starting in self._by_first.values():
            starting.sort(key=lambda candidate: candidate.sub_graph.inside)
        self._size = len(unique)

    def starting_at(self, index: int) -> Sequence[CandidateKernel]:
        """The candidates whose first node is ``index``."""
        return self._by_first.get(index, ())

    def __iter__(self) -> Iterator[CandidateKernel]:
        for first in sorted(self._by_first):
            yield from self._by_first[first]

    def __len__(self) -> int:
        return self._size


def collect_candidates(
    graph: DataflowGraph,
    specs: Iterable[FusionSpec],
    report: FusionReport | None = None,
    planned: Callable[[ir.Node], Target | None] | None = None,
    admissible_only: bool = True,
) -> CandidateKernelIndex:
    """Phase 2: every candidate of every spec, indexed.

    Sub-graphs that cannot become a kernel are left out, even if a rule proposes them. A sub-graph is also left out if
    its target does not refine the planned target of a node in it.

    Args:
        graph: The dataflow graph.
        specs: The specs.
        report: Takes the number of candidates that were left out, and the names of rules that stopped early.
        planned: The target that device planning gave a node, None if it is free.
        admissible_only: Leave out candidates that are not admissible, so that no cover can be cyclic: see
            ``SubGraph.is_admissible``.
    """
    report = report or FusionReport()
    kept: list[CandidateKernel] = []
    dropped: dict[str, int] = {}
    for spec in specs:
        verdicts: dict[SubGraph, str | None] = {}
        for candidate in spec.all_candidates(graph, report):
            sub_graph = candidate.sub_graph
            if sub_graph not in verdicts:
                verdicts[sub_graph] = _why_dropped(sub_graph, admissible_only)
            reason = verdicts[sub_graph]
            if reason is None and planned is not None and not _fits_plan(candidate, planned):
                reason = "its target does not refine the planned one"
            if reason is None:
                kept.append(candidate)
            else:
                dropped[reason] = dropped.get(reason, 0) + 1
    report.notes += [f"left out {count} candidates: {reason}" for reason, count in sorted(dropped.items())]
    return CandidateKernelIndex(kept)


def _why_dropped(sub_graph: SubGraph, admissible_only: bool) -> str | None:
    if admissible_only and not sub_graph.is_admissible:
        return "a consumer outside comes before the last exit"
    return "no kernel can be made of it" if sub_graph.why_invalid() is not None else None


def _fits_plan(candidate: CandidateKernel, planned: Callable[[ir.Node], Target | None]) -> bool:
    plans = {planned(node) for node in candidate.sub_graph.nodes}
    return all(plan is None or candidate.target.refines(plan) for plan in plans)
