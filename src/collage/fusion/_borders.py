"""Border moves: kernels beside those of the best cover, the border between two of them moved.

The search is optimal among its candidates, but their borders were chosen before anything was measured. So every two
neighbouring kernels of the best cover are looked at again: the first may take over the first
operators of the second, or give it its own last ones. The operators that move are split off along the order of the
nodes, at positions where few values are live.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from collage.fusion._candidate import CandidateKernel
from collage.fusion._pool import are_touching
from collage.fusion._rule import FusionReport, merge_rules
from collage.graph import DataflowGraph, IndexSet, NestedSubGraph, SubGraph, bits_of
from collage.target import Target

__all__ = ["moved_borders"]

_RULE = "border"


@dataclass(frozen=True, slots=True)
class _Move:
    """Two neighbouring kernels after their border was moved.

    Attributes:
        parts: Nodes of the first and of the second kernel.
        live: Number of values that flow from the first to the second.
        moved: Number of nodes that changed sides.
    """

    parts: tuple[IndexSet, IndexSet]
    live: int
    moved: int


def moved_borders(
    graph: DataflowGraph,
    cover: Sequence[CandidateKernel],
    accepts: Callable[[SubGraph, Target], bool] | None = None,
    *,
    moves_per_border: int = 4,
    max_candidates: int = 256,
    report: FusionReport | None = None,
) -> tuple[CandidateKernel, ...]:
    """Candidates that move a border of a cover, for the targets on both sides of it.

    Every candidate is valid and admissible. It comes with a candidate for the other side of the border, so that a
    search can make the move.

    Args:
        graph: The dataflow graph.
        cover: Disjoint kernels, such as the best cover so far.
        accepts: Returns True if a target takes a sub-graph; by default each takes all.
        moves_per_border: Most moves proposed for two neighbours, those with the fewest values across first.
        max_candidates: Most candidates proposed. Kernels that come first are served first.
        report: Takes a note if a limit stopped the enumeration.
    """
    accepts = accepts or (lambda sub_graph, target: True)
    known = {(kernel.bits, kernel.target) for kernel in cover}
    proposed: dict[tuple[int, Target], CandidateKernel] = {}
    for first, second in _neighbours(cover):
        moves = (_as_candidates(graph, move, (first, second), accepts) for move in _moves(graph, first, second))
        for sides in itertools.islice(filter(None, moves), moves_per_border):
            fresh = {(c.bits, c.target): c for c in sides if (c.bits, c.target) not in known}
            if len(proposed.keys() | fresh.keys()) > max_candidates:
                if report is not None:
                    report.cap(_RULE, max_candidates)
                return tuple(proposed.values())
            proposed |= fresh
    return tuple(proposed.values())


def _neighbours(cover: Iterable[CandidateKernel]) -> Iterator[tuple[CandidateKernel, CandidateKernel]]:
    """Pairs of kernels of which the second reads from the first."""
    kernels = sorted(cover, key=lambda k: k.sub_graph.inside)
    for first in kernels:
        for second in kernels:
            if first is not second and are_touching(first.sub_graph, second.sub_graph):
                yield first, second


def _moves(graph: DataflowGraph, first: CandidateKernel, second: CandidateKernel) -> list[_Move]:
    """Return the other places of a border: the fewest values across it first, then the shortest way from its place now."""
    nodes = [*first.sub_graph.inside, *second.sub_graph.inside]
    border, live = len(first.sub_graph), _live_values(graph, nodes)
    moves = [
        _Move((IndexSet(bits_of(nodes[:at])), IndexSet(bits_of(nodes[at:]))), live[at], abs(at - border))
        for at in range(1, len(nodes))
        if at != border
    ]
    return sorted(moves, key=lambda move: (move.live, move.moved, move.parts[0].bits))


def _live_values(graph: DataflowGraph, nodes: Sequence[int]) -> list[int]:
    """Number of values that are live at each position of a sequence of nodes."""
    place = {node: at for at, node in enumerate(nodes)}
    last_read: dict[ir.Value, int] = {}
    for at, node in enumerate(nodes):
        last_read.update(dict.fromkeys(graph.inputs_of(node), at))
    change = [0] * (len(nodes) + 1)
    for value, last in last_read.items():
        producer = value.producer()
        made = place.get(graph.index_of(producer)) if producer in graph and producer is not None else None
        if made is not None and made < last:
            change[made + 1] += 1
            change[last + 1] -= 1
    return list(itertools.accumulate(change))


def _as_candidates(
    graph: DataflowGraph,
    move: _Move,
    kernels: tuple[CandidateKernel, CandidateKernel],
    accepts: Callable[[SubGraph, Target], bool],
) -> list[CandidateKernel]:
    """Both sides, each for every target of the two kernels that takes it; nothing if a side has no taker."""
    labelled = kernels[0].sub_graph.nested + kernels[1].sub_graph.nested
    origins = {kernel.target: kernel for kernel in kernels}.values()
    candidates: list[CandidateKernel] = []
    for part in move.parts:
        nested = _inside(labelled, part)
        sub_graph = SubGraph(graph, part, nested or ())
        if nested is None or not sub_graph.is_admissible or not sub_graph.is_valid():
            return []
        takers = [kernel for kernel in origins if accepts(sub_graph, kernel.target)]
        if not takers:
            return []
        candidates += [CandidateKernel(sub_graph, k.target, k.spec, merge_rules(k.rules, (_RULE,))) for k in takers]
    return candidates


def _inside(labelled: Iterable[NestedSubGraph], part: IndexSet) -> list[NestedSubGraph] | None:
    """The labelled parts that lie inside some nodes; None if one would be torn."""
    inside = []
    for nested in labelled:
        if nested.inside.is_subset_of(part):
            inside.append(nested)
        elif not nested.inside.is_disjoint_from(part):
            return None
    return inside
