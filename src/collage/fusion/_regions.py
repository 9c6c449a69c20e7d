"""Regions: contiguous ranges of operators, for toolchains that optimise whole graphs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from collage.fusion._base_rules import NodePredicate
from collage.fusion._rule import Found, FusionReport, FusionRule
from collage.graph import Cut, DataflowGraph, IndexSet, SubGraph

__all__ = ["RegionFusionRule"]

_ALL_PAIRS = 48


@dataclass(frozen=True)
class RegionFusionRule(FusionRule):
    """Contiguous index ranges of supported operators, with as many inputs and exits as they have.

    Ranges run between cuts: every position of a small graph, else those that fewer values cross than their neighbours,
    narrowest first. If cuts are few all pairs of them are taken; where they are many, those that are 1, 2, 4, 8 …
    cuts apart, with the ranges before and after each. Maximal ranges, the whole graph if it is supported, are always
    there. Any contiguous range is admissible, since whatever it feeds comes after it.

    Attributes:
        predicate: Returns True if the toolchain takes an operator.
        max_cuts: Number of cuts used; 0 is maximal ranges only.
        cuts: Positions to cut at, however many values cross them. If they are given, no others are looked for.
        max_candidates: Limit of the number of candidates.
        name: Names the rule.
        max_depth: Most operators on a path through a range; 0 for any number.
    """

    predicate: NodePredicate
    max_cuts: int = 256
    cuts: tuple[int, ...] | None = None
    max_candidates: int = 20_000
    name: str = "region"
    max_depth: int = 0

    def find(self, graph: DataflowGraph, report: FusionReport) -> Iterable[Found]:
        """Maximal ranges first, then those between cuts, shorter ones first."""
        runs = list(self._supported_runs(graph))
        cuts = self._choose_cuts(graph, runs, report)
        inner = {r for start, stop in runs for r in _ranges_between([c for c in cuts if start <= c <= stop])}
        ranges = dict.fromkeys((*runs, *sorted(inner, key=lambda r: (r[1] - r[0], r))))
        places = (SubGraph(graph, IndexSet.range(*r)) for r in ranges)
        within = (p for p in places if p.has_border and (not self.max_depth or p.depth <= self.max_depth))
        kept = list(itertools.islice(within, self.max_candidates + 1))
        if len(kept) > self.max_candidates:
            report.cap(self.name, self.max_candidates)
        return [Found(sub_graph, (self.name,)) for sub_graph in kept[: self.max_candidates]]

    def _supported_runs(self, graph: DataflowGraph) -> Iterator[tuple[int, int]]:
        """The maximal ranges of supported operators."""
        start = None
        for i in range(len(graph) + 1):
            is_supported = i < len(graph) and not graph.is_kernel_call(i) and self.predicate(graph.node(i)).ok
            if is_supported and start is None:
                start = i
            elif not is_supported and start is not None:
                yield start, i
                start = None

    def _choose_cuts(self, graph: DataflowGraph, runs: list[tuple[int, int]], report: FusionReport) -> list[int]:
        """Return the cuts: the ends of supported ranges, and positions inside them that few values cross."""
        cuts, ends = graph.cuts, {end for run in runs for end in run}
        inside = [p for start, stop in runs for p in range(start + 1, stop) if cuts[p].is_border]
        if self.cuts is not None:
            return sorted(ends | (set(self.cuts) & set(inside)))
        few = len(inside) <= min(_ALL_PAIRS, self.max_cuts)
        narrow = [cuts[p] for p in inside if few or _is_narrow(cuts, p, ends)]
        if len(narrow) > self.max_cuts > 0:
            report.notes.append(f"{self.name} used the {self.max_cuts} narrowest of {len(narrow)} cuts")
        return sorted(ends | {cut.position for cut in _narrowest(narrow, self.max_cuts)})


def _is_narrow(cuts: Sequence[Cut], position: int, ends: set[int]) -> bool:
    """Return True if no more values cross a position than cross those beside it, ends of ranges aside."""
    beside = (p for p in (position - 1, position + 1) if p not in ends)
    return all(cuts[position].count <= cuts[p].count for p in beside)


def _narrowest(cuts: Iterable[Cut], limit: int) -> list[Cut]:
    """The cuts that the fewest values, then the fewest bytes, cross; of equal ones some, evenly spread."""
    chosen: list[Cut] = []
    for _, group in itertools.groupby(sorted(cuts, key=_width), key=_width):
        alike, room = list(group), limit - len(chosen)
        if len(alike) > room:
            return chosen + [alike[i * len(alike) // room] for i in range(room)]
        chosen += alike
    return chosen


def _width(cut: Cut) -> tuple[int, int]:
    return cut.count, cut.nbytes


def _ranges_between(cuts: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ranges whose ends are cuts: all of them if there are few, else doubling lengths, heads and tails."""
    last = len(cuts) - 1
    if last <= _ALL_PAIRS:
        yield from ((cuts[i], cuts[j]) for i in range(last) for j in range(i + 1, last + 1))
        return
    step = 1
    while step <= last:
        yield from ((cuts[i], cuts[i + step]) for i in range(last - step + 1))
        step *= 2
    yield from ((cuts[0], cut) for cut in cuts[1:])
    yield from ((cut, cuts[last]) for cut in cuts[:last])
