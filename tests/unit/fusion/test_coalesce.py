from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.graph.random_graphs import Builder, check, random_model

from collage.fusion import (
    CandidateKernel,
    CandidateKernelIndex,
    FusionReport,
    FusionSpec,
    MaxCoalesceFusionRule,
    OpPredicateFusionRule,
    classic_fuse_ops,
    collect_candidates,
    greedy_cover,
    max_coalesce,
)
from collage.graph import DataflowGraph, KernelSpec, SubGraph, SubGraphConfig, partition
from collage.target import Target
from collage.toolchains import Support

from .oracles import Given, all_subsets, find, mnist

A, B = Target("llvm", compiler="a"), Target("llvm", compiler="b")


def kernel(graph, inside, target=A):
    return CandidateKernel(SubGraph(graph, inside), target, FusionSpec("s", Given([]), (target,)), ("r",))


def is_acyclic(graph, groups) -> bool:
    """Whether groups, and all other nodes each for itself, can be put in order."""
    of = {i: ("group", k) for k, inside in enumerate(groups) for i in inside}
    of.update({i: ("node", i) for i in range(len(graph)) if i not in of})
    edges = {(of[i], of[c]) for i in range(len(graph)) for c in graph.consumers(i) if of[i] != of[c]}
    waiting = set(of.values())
    while waiting:
        ready = {g for g in waiting if not any(a in waiting for a, b in edges if b == g)}
        if not ready:
            return False
        waiting -= ready
    return True


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 100_000))
def test_coalescing_keeps_nodes_apart_joins_all_it_may_and_makes_no_circle(seed):
    model = random_model(seed, 9)
    graph, rng = DataflowGraph(model), random.Random(seed)
    pool = [s for s in all_subsets(graph) if s.is_admissible and len(s) <= 4]
    chosen, covered = [], 0
    for s in rng.sample(pool, min(len(pool), 60)):
        if not s.inside.bits & covered and rng.random() < 0.8:
            chosen.append(kernel(graph, s.inside, rng.choice([A, B])))
            covered |= s.inside.bits
    result = max_coalesce(graph, chosen)
    groups = [set(k.sub_graph.inside) for k in result]
    assert sorted(i for g in groups for i in g) == sorted(i for k in chosen for i in k.sub_graph.inside)
    assert is_acyclic(graph, groups)
    for k in chosen:
        home = next(r for r in result if not k.bits & ~r.bits)
        assert home.target == k.target
    for one in result:
        for other in result:
            touching = one is not other and one.sub_graph.output_bits & other.bits
            if touching and one.target == other.target:
                rest = [g for k, g in zip(result, groups, strict=True) if k not in (one, other)]
                union = set(one.sub_graph.inside) | set(other.sub_graph.inside)
                assert not is_acyclic(graph, [*rest, union]), "two kernels could still be joined"
    check(partition(model, [KernelSpec(k.sub_graph, f"k{n}") for n, k in enumerate(result)]))


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 100_000))
def test_single_operators_of_two_targets_coalesce_without_a_circle(seed):
    graph, rng = DataflowGraph(random_model(seed, 14)), random.Random(seed)
    result = max_coalesce(graph, [kernel(graph, [i], rng.choice([A, B])) for i in range(len(graph))])
    assert is_acyclic(graph, [set(k.sub_graph.inside) for k in result])


def test_two_kernels_joined_by_a_value_and_by_a_way_through_a_third_stay_apart():
    b = Builder()
    x = b.input("x")
    a1 = b.op("Relu", x)
    b1 = b.op("Neg", a1)
    b2 = b.op("Abs", x)
    a2 = b.op("Mul", a1, b2)
    model = b.model([x], [b.op("Sub", b1, a2)])
    graph = DataflowGraph(model)
    assert [n.op_type for n in graph.nodes] == ["Relu", "Neg", "Abs", "Mul", "Sub"]
    third = kernel(graph, [1, 2], B)
    assert third.sub_graph.is_admissible and SubGraph(graph, [0, 3]).is_convex
    result = max_coalesce(graph, [kernel(graph, [0]), third, kernel(graph, [3])])
    assert [set(k.sub_graph.inside) for k in result] == [{0}, {1, 2}, {3}]


def test_a_way_through_kernels_that_were_joined_before_counts():
    b = Builder()
    x = b.input("x")
    g, k = b.op("Relu", x), b.op("Neg", x)
    o = b.op("Mul", g, b.op("Abs", k))
    graph = DataflowGraph(b.model([x], [o, b.op("Sub", k, g)]))
    index = {n.op_type: i for i, n in enumerate(graph.nodes)}
    kernels = [kernel(graph, [index[op]], t) for op, t in (("Relu", B), ("Mul", B), ("Neg", A), ("Sub", A))]
    result = max_coalesce(graph, kernels)
    assert sorted(len(one.sub_graph) for one in result) == [1, 1, 2]
    assert is_acyclic(graph, [set(one.sub_graph.inside) for one in result])


def test_a_fork_whose_two_consumers_are_of_one_target_becomes_one_kernel():
    b = Builder()
    x = b.input("x")
    top = b.op("Relu", x)
    graph = DataflowGraph(b.model([x], [b.op("Neg", top), b.op("Abs", top)]))
    result = max_coalesce(graph, [kernel(graph, [i]) for i in range(3)])
    assert [k.sub_graph.inside.bits for k in result] == [0b111]
    assert result[0].rules == ("r", "coalesce")


def test_kernels_that_would_feed_each_other_stay_apart():
    b = Builder()
    x = b.input("x")
    a1, b1 = b.op("Relu", x), b.op("Neg", x)
    middle = b.op("Add", a1, b1)
    a2, b2 = b.op("Mul", a1, middle), b.op("Sub", b1, middle)
    graph = DataflowGraph(b.model([x], [a2, b2]))
    targets = {"Relu": A, "Mul": A, "Neg": B, "Sub": B, "Add": B}
    result = max_coalesce(graph, [kernel(graph, [i], targets[n.op_type]) for i, n in enumerate(graph.nodes)])
    assert is_acyclic(graph, [set(k.sub_graph.inside) for k in result])
    relu, mul = (i for i, n in enumerate(graph.nodes) if n.op_type in ("Relu", "Mul"))
    assert not any({relu, mul} <= set(k.sub_graph.inside) for k in result)


def test_a_toolchain_may_refuse_the_union():
    graph = DataflowGraph(mnist())
    kernels = [kernel(graph, [i]) for i in range(len(graph))]
    assert len(max_coalesce(graph, kernels)) == 1
    assert len(max_coalesce(graph, kernels, lambda k: len(k.sub_graph) <= 1)) == 13
    assert all(len(k.sub_graph) <= 4 for k in max_coalesce(graph, kernels, lambda k: len(k.sub_graph) <= 4))


def test_as_a_rule_it_merges_the_regions_of_an_operator_predicate():
    graph = DataflowGraph(mnist())
    supported = OpPredicateFusionRule(lambda node: Support(node.op_type != "Pad"))
    assert {bits for bits, _ in find(MaxCoalesceFusionRule(supported), graph)} == {0b11110, 0b1111111000000}
    small = MaxCoalesceFusionRule(supported, SubGraphConfig(max_depth=2))
    assert max(bits.bit_count() for bits, _ in find(small, graph)) == 2


def test_of_overlapping_candidates_the_largest_is_taken_before_coalescing():
    graph = DataflowGraph(mnist())
    found = list(MaxCoalesceFusionRule(classic_fuse_ops(3)).find(graph, FusionReport()))
    bits = [f.sub_graph.inside.bits for f in found]
    assert sum(bits) == (1 << 13) - 1 and all(not a & b for a in bits for b in bits if a != b)


def test_the_greedy_cover_is_what_fuse_ops_would_do():
    graph = DataflowGraph(mnist())
    cover = greedy_cover(collect_candidates(graph, [FusionSpec("s", classic_fuse_ops(8), (A,))]))
    assert [k.sub_graph.label for k in cover] == [
        "Pad", "Conv+Add+Relu", "MaxPool", "Pad", "Conv+Add+Relu", "MaxPool", "Reshape", "MatMul+Add",
    ]  # fmt: skip
    assert greedy_cover(CandidateKernelIndex([])) == ()
