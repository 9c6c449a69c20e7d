from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.graph.random_graphs import Builder, random_model

from collage.fusion import (
    CandidateKernel,
    CandidateKernelIndex,
    FusionReport,
    FusionSpec,
    OpPredicateFusionRule,
    UnionFusionRule,
    classic_fuse_ops,
    collect_candidates,
    regions,
)
from collage.graph import DataflowGraph, IndexSet, SubGraph
from collage.target import Target
from collage.toolchains import Support

from .oracles import Given, all_subsets, mnist

LLVM, OTHER, CUDA = Target("llvm"), Target("llvm", compiler="other"), Target("cuda")


def any_operator(node):
    return Support(True)


def candidate(sub_graph, target=LLVM, rules=("r",)):
    return CandidateKernel(sub_graph, target, FusionSpec("s", Given([]), (target,)), rules)


def test_equality_includes_labels_and_target_but_not_rules():
    graph = DataflowGraph(mnist())
    s = SubGraph(graph, [0])
    assert candidate(s) == candidate(SubGraph(graph, [0]), rules=("other",))
    assert candidate(s) != candidate(s, OTHER) and candidate(s) != candidate(s.with_label("a"))
    assert candidate(s) != candidate(s, LLVM.with_options(threads="1"))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_the_index_has_every_candidate_once_under_its_first_node(seed):
    graph, rng = DataflowGraph(random_model(seed, 7)), random.Random(seed)
    pool = [candidate(s, t) for s in all_subsets(graph) for t in (LLVM, OTHER) if rng.random() < 0.2]
    index = CandidateKernelIndex(pool + pool[::2])
    assert len(index) == len(pool) == len(list(index)) and set(index) == set(pool)
    for i in range(len(graph)):
        starting = index.starting_at(i)
        assert set(starting) == {c for c in pool if c.sub_graph.inside.first == i}
        sets = [c.sub_graph.inside for c in starting]
        assert all(not b < a for a, b in itertools.pairwise(sets))
    assert not index.starting_at(len(graph))


def test_equal_candidates_keep_the_names_of_all_rules():
    graph = DataflowGraph(mnist())
    index = CandidateKernelIndex([candidate(SubGraph(graph, [0]), rules=r) for r in (("a",), ("b", "a"), ("c",))])
    assert [c.rules for c in index] == [("a", "b", "c")]


def test_the_summary_says_it_all_on_one_line():
    graph = DataflowGraph(mnist())
    kernel = candidate(SubGraph(graph, [1, 2, 3]), OTHER, ("kind", "classic"))
    assert kernel.summary == (
        "Conv+Add+Relu {1..3} | (float[1, 1, 32, 32]) -> (float[1, 8, 28, 28]) | llvm -compiler=other | kind > classic"
    )
    assert len(candidate(SubGraph(graph, range(13))).summary) < 200


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_collecting_keeps_exactly_what_is_admissible_and_valid(seed):
    graph = DataflowGraph(random_model(seed, 7))
    everything = list(all_subsets(graph))
    specs = [FusionSpec("s", Given(everything), (LLVM, OTHER))]
    index = collect_candidates(graph, specs)
    admissible = {s for s in everything if s.is_admissible}
    assert {(c.sub_graph, c.target) for c in index} == {(s, t) for s in admissible for t in (LLVM, OTHER)}
    wide = collect_candidates(graph, specs, admissible_only=False)
    assert {c.sub_graph for c in wide} == {s for s in everything if s.is_convex}


def test_what_is_left_out_is_reported():
    b = Builder()
    x = b.input("x")
    first, second = b.op("Relu", x), b.op("Neg", x)
    graph = DataflowGraph(b.model([x], [b.op("Tanh", first), second]))
    report = FusionReport()
    index = collect_candidates(graph, [FusionSpec("s", Given([SubGraph(graph, [0, 2])]), (LLVM,))], report)
    assert not len(index) and any("left out 1" in note for note in report.notes)


def test_targets_must_refine_what_was_planned():
    graph = DataflowGraph(mnist())
    spec = FusionSpec("s", OpPredicateFusionRule(any_operator), (LLVM, OTHER, CUDA))

    def planned(node):
        return {"Conv": CUDA, "Relu": LLVM}.get(node.op_type)

    index = collect_candidates(graph, [spec], planned=planned)
    allowed = {op: {c.target for c in index if c.sub_graph.label == op} for op in ("Conv", "Relu", "Pad")}
    assert allowed == {"Conv": {CUDA}, "Relu": {LLVM, OTHER}, "Pad": {LLVM, OTHER, CUDA}}


@pytest.mark.parametrize("seed", range(3))
def test_the_same_graph_gives_the_same_candidates_in_the_same_order(seed):
    def collected():
        graph = DataflowGraph(random_model(seed, 20))
        rule = UnionFusionRule((classic_fuse_ops(4), regions(any_operator)))
        return [(c.sub_graph.inside, c.rules) for c in collect_candidates(graph, [FusionSpec("s", rule, (LLVM,))])]

    first = collected()
    assert first == collected() and len({inside for inside, _ in first}) == len(first)
    assert {i for inside, _ in first for i in inside} == set(
        IndexSet.range(0, len(DataflowGraph(random_model(seed, 20))))
    )
