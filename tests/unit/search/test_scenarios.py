"""Scenarios of the Collage RFC and of its prototype, restated: the k-th operator of a kernel costs c times 0.9^k."""

from __future__ import annotations

import random
from itertools import pairwise
from statistics import median

import pytest
from tests.unit.fusion.oracles import mnist
from tests.unit.graph.random_graphs import random_model

from collage.fusion import (
    CombineByPrimitivesFusionRule,
    CompositeFusionRule,
    DFPatternFusionRule,
    FusionSpec,
    JoinAnythingPrimitive,
    OpPredicateFusionRule,
    classic_fuse_ops,
    collect_candidates,
    operator_based,
    pattern_based,
)
from collage.graph import DataflowGraph, kernels_of, partition
from collage.graph import KernelSpec as Kernel
from collage.pattern import is_const, is_op, wildcard
from collage.search import LazyOptions, lazy_shortest_path, shortest_path
from collage.target import Target
from collage.toolchains import PatternEntry, Support

NATIVE, LIBRARY, TRT, GEMM = Target("llvm"), Target("llvm", libs="dnn"), Target("llvm", "whole"), Target("llvm", "gemm")


def decaying(first: float, count: int) -> float:
    return first * (1 - 0.9**count) / 0.1


def decays(costs):
    return lambda c: decaying(costs[c.target], len(c.sub_graph))


def yes(node):
    return Support(True)


def spec(rule, *targets):
    return FusionSpec(targets[0].short, rule, targets)


def chosen(graph, specs, cost_of):
    best = shortest_path(len(graph), list(collect_candidates(graph, specs)), cost_of)
    assert best.optimal
    return best


def test_every_kind_of_kernel_of_the_rfc_example_is_chosen_when_it_is_cheapest():
    graph = DataflowGraph(mnist())
    conv = PatternEntry("dnn.conv2d", is_op("Conv")(wildcard(), is_const()))
    dense = PatternEntry("gemm.dense_bias", is_op("Add")(is_op("MatMul")(wildcard(), is_const()), is_const()))
    specs = [
        spec(classic_fuse_ops(8), NATIVE),
        spec(CompositeFusionRule(conv.label, DFPatternFusionRule(conv.pattern)), LIBRARY),
        spec(operator_based(yes), TRT),
        spec(pattern_based([dense]), GEMM),
    ]
    wanted = {
        (NATIVE, (0,)), (LIBRARY, (1,)), (NATIVE, (2, 3)), (NATIVE, (4,)), (NATIVE, (5,)), (TRT, (6, 7, 8)),
        (NATIVE, (9,)), (NATIVE, (10,)), (GEMM, (11, 12)),
    }  # fmt: skip
    best = chosen(graph, specs, lambda c: 1.0 if (c.target, tuple(c.sub_graph)) in wanted else 100.0)
    assert {(c.target, tuple(c.sub_graph)) for c in best.candidates} == wanted
    assert best.cost.seconds == len(wanted)
    labels = {c.target: [part.label for part in c.sub_graph.nested] for c in best.candidates}
    assert labels[LIBRARY] == ["dnn.conv2d"] and labels[GEMM] == ["gemm.dense_bias"] and not labels[TRT]
    kernels = [Kernel(c.sub_graph, f"k{i}", {"target": str(c.target)}) for i, c in enumerate(best.candidates)]
    assert len(kernels_of(partition(graph.model, kernels))) == len(wanted)


def test_a_native_target_alone_fuses_as_its_kinds_allow():
    graph = DataflowGraph(mnist())
    best = chosen(graph, [spec(classic_fuse_ops(8), NATIVE)], decays({NATIVE: 1.0}))
    assert best.cost.seconds == pytest.approx(5 + 2 * decaying(1, 3) + decaying(1, 2))


@pytest.mark.parametrize("factor", [0.5, 0.9, 1.0, 1.3, 2.0, 5.0])
def test_a_target_that_fuses_all_wins_as_long_as_fusing_makes_up_for_its_price(factor):
    graph = DataflowGraph(mnist())
    specs = [spec(classic_fuse_ops(8), NATIVE), spec(operator_based(yes, 0), TRT)]
    best = chosen(graph, specs, decays({NATIVE: 1.0, TRT: factor}))
    chain = [1, 3, 1, 1, 3, 1, 1, 2]  # What the native target makes of the chain.
    groups = [sum(chain[:i]) for i in range(len(chain) + 1)]
    native = [decaying(1, size) for size in chain]
    mixed = min(
        sum(native[:i]) + decaying(factor, groups[j] - groups[i]) + sum(native[j:])
        for i in range(len(chain) + 1)
        for j in range(i, len(chain) + 1)
    )
    assert best.cost.seconds <= mixed + 1e-9
    if factor <= 1:
        assert best.cost.seconds == pytest.approx(decaying(factor, 13))


def test_depth_limits_windows():
    graph = DataflowGraph(mnist())
    best = chosen(graph, [spec(operator_based(yes, 3), TRT)], decays({TRT: 1.0}))
    assert best.cost.seconds == pytest.approx(4 * decaying(1, 3) + 1)


def test_the_best_cover_mixes_two_targets_that_both_take_the_whole():
    graph = DataflowGraph(mnist())
    specs = [spec(operator_based(yes, 0), NATIVE, TRT)]
    likes = {NATIVE: {"Conv", "Relu", "Add", "Pad"}, TRT: {"MaxPool", "Reshape", "MatMul"}}

    def cost_of(c):
        return 0.1 + sum(1.0 if node.op_type in likes[c.target] else 3.0 for node in c.sub_graph.nodes)

    best = chosen(graph, specs, cost_of)
    assert {c.target for c in best.candidates} == {NATIVE, TRT}
    assert best.cost.seconds < min(cost_of(c) for c in collect_candidates(graph, specs) if len(c.sub_graph) == 13)
    assert all(a.target != b.target for a, b in pairwise(best.candidates))


def test_targets_of_one_spec_have_their_candidates_found_once():
    graph, asked = DataflowGraph(mnist()), []

    def count(node):
        asked.append(node)
        return Support(True)

    index = collect_candidates(graph, [spec(OpPredicateFusionRule(count), NATIVE, TRT, GEMM)])
    assert len(asked) == len(graph) and len(index) == 3 * len(graph)


def test_planned_targets_bind_every_node_of_a_candidate():
    graph = DataflowGraph(mnist())
    cuda = Target("cuda")
    planned = {graph.node(i): cuda if i < 6 else NATIVE for i in range(13)}.get
    specs = [spec(operator_based(yes, 0), Target("cuda", compiler="whole"), TRT, NATIVE, cuda)]
    index = list(collect_candidates(graph, specs, planned=planned))
    sides = {(c.target.kind, max(c.sub_graph) < 6, min(c.sub_graph) >= 6) for c in index}
    assert sides == {("cuda", True, False), ("llvm", False, True)}


def test_lazily_half_is_measured_and_the_cost_is_the_same():
    shares = []
    for seed in range(60):
        rng, graph = random.Random(seed), DataflowGraph(random_model(seed, 12))
        rule = CombineByPrimitivesFusionRule(OpPredicateFusionRule(yes), (JoinAnythingPrimitive(),))
        candidates = list(collect_candidates(graph, [spec(rule, NATIVE, TRT)]))
        luck = {t: [rng.uniform(0.5, 2) for _ in graph.nodes] for t in (NATIVE, TRT)}
        costs = {c: sum(luck[c.target][i] for i in c.sub_graph) * rng.uniform(0.8, 1) for c in candidates}
        bounds = {c: cost * rng.uniform(0.6, 1) for c, cost in costs.items()}
        eager = shortest_path(len(graph), candidates, costs.__getitem__)
        lazy = lazy_shortest_path(
            len(graph),
            candidates,
            bounds.__getitem__,
            lambda batch, costs=costs: [costs[c] for c in batch],
            options=LazyOptions(bounds_are_proofs=True),
        )
        assert lazy.partitioning.optimal
        assert lazy.partitioning.cost.seconds == pytest.approx(eager.cost.seconds, rel=1e-9)
        shares.append(lazy.statistics.measured / len(candidates))
    assert median(shares) <= 0.5
