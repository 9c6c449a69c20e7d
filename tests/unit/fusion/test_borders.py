"""Border moves: what is proposed beside the kernels of a cover, and what a search makes of it."""

from __future__ import annotations

import random
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.graph.random_graphs import random_model

from collage.fusion import (
    CandidateKernel,
    CompositeFusionRule,
    FusionReport,
    FusionSpec,
    OpPredicateFusionRule,
    collect_candidates,
    moved_borders,
)
from collage.graph import DataflowGraph, IndexSet, SubGraph
from collage.search import Partitioning, shortest_path
from collage.target import Target
from collage.toolchains import Support

from .oracles import Given, mnist

A, B = Target("llvm", compiler="a"), Target("llvm", compiler="b")


def kernel(graph: DataflowGraph, inside, target: Target) -> CandidateKernel:
    return CandidateKernel(SubGraph(graph, inside), target, FusionSpec("s", Given([]), (target,)), ("r",))


def halves(graph: DataflowGraph, at: int) -> list[CandidateKernel]:
    return [
        kernel(graph, IndexSet.range(0, at), A),
        kernel(graph, IndexSet.range(at, len(graph)), B),
    ]


def ranges(candidates) -> set[tuple[int, int, Target]]:
    return {(c.first, c.sub_graph.inside.last + 1, c.target) for c in candidates}


def test_on_a_chain_the_border_moves_either_way_nearest_first_and_both_sides_come_for_both_targets():
    graph = DataflowGraph(mnist())
    moved = moved_borders(graph, halves(graph, 5), moves_per_border=2)
    assert ranges(moved) == {(0, 4, t) for t in (A, B)} | {(4, 13, t) for t in (A, B)} | {(0, 6, t) for t in (A, B)} | {
        (6, 13, t) for t in (A, B)
    }
    assert all(c.rules == ("r", "border") for c in moved)
    everywhere = ranges(moved_borders(graph, halves(graph, 5), moves_per_border=99))
    assert everywhere == {(0, p, t) for p in range(1, 13) if p != 5 for t in (A, B)} | {
        (p, 13, t) for p in range(1, 13) if p != 5 for t in (A, B)
    }


def test_a_search_over_old_and_new_candidates_moves_the_border():
    graph = DataflowGraph(mnist())
    likes = {A: range(7), B: range(7, 13)}

    def cost_of(c):
        return 0.5 + sum(1.0 if i in likes[c.target] else 3.0 for i in c.sub_graph)

    cover = halves(graph, 5)
    best = shortest_path(13, [*cover, *moved_borders(graph, cover, moves_per_border=99)], cost_of)
    assert isinstance(best, Partitioning)
    assert ranges(best.candidates) == {(0, 7, A), (7, 13, B)}


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 100_000), st.integers(1, 6))
def test_moves_are_valid_admissible_and_keep_what_the_two_kernels_hold(seed, moves):
    graph, rng = DataflowGraph(random_model(seed, 14)), random.Random(seed)
    if len(graph) < 3:
        return
    at = sorted(rng.sample(range(1, len(graph)), 2))
    bounds = [0, *at, len(graph)]
    cover = [kernel(graph, IndexSet.range(a, b), rng.choice([A, B])) for a, b in pairwise(bounds)]
    moved = moved_borders(graph, cover, moves_per_border=moves)
    assert moved == moved_borders(graph, cover[::-1], moves_per_border=moves)
    assert len(set(moved)) == len(moved) and not set(moved) & set(cover)
    for c in moved:
        assert c.sub_graph.is_valid() and c.sub_graph.is_admissible and c.target in {k.target for k in cover}
        unions = [one.bits | other.bits for one in cover for other in cover if one is not other]
        home = [u for u in unions if not c.bits & ~u]
        assert home and any(any(d.bits == u ^ c.bits for d in (*moved, *cover)) for u in home), (
            "its other side is missing"
        )


def test_a_side_that_no_target_takes_is_no_move():
    graph = DataflowGraph(mnist())
    takes = {A: lambda s: s.inside.last < 8, B: lambda s: s.inside.first >= 3}
    moved = moved_borders(graph, halves(graph, 5), lambda s, t: takes[t](s), moves_per_border=99)
    assert ranges(moved) == {(0, p, A) for p in (3, 4, 6, 7, 8)} | {(p, 13, B) for p in (3, 4, 6, 7, 8)}


def test_no_label_is_torn():
    graph = DataflowGraph(mnist())
    rule = CompositeFusionRule("x.pair", Given([SubGraph(graph, [6, 7])]))
    (labelled,) = FusionSpec("s", rule, (B,)).all_candidates(graph)
    rest = SubGraph(graph, IndexSet.range(5, 13), labelled.sub_graph.nested)
    cover = [halves(graph, 5)[0], CandidateKernel(rest, B, labelled.spec, ("r",))]
    moved = moved_borders(graph, cover, moves_per_border=99)
    assert 7 not in {c.sub_graph.inside.last + 1 for c in moved} and 8 in {c.sub_graph.inside.last + 1 for c in moved}
    assert all(len(c.sub_graph.nested) == (6 in c.sub_graph.inside) for c in moved)


def test_the_cap_is_kept_and_reported():
    graph = DataflowGraph(mnist())
    singles = OpPredicateFusionRule(lambda node: Support(True))
    cover = list(collect_candidates(graph, [FusionSpec("s", singles, (A,))]))
    assert moved_borders(graph, cover) == ()
    report = FusionReport()
    assert len(moved_borders(graph, halves(graph, 5), moves_per_border=99, max_candidates=9, report=report)) <= 9
    assert report.capped == ["border"]
