"""Neighbours of one target are joined after the search, where that is measured to be cheaper."""

from __future__ import annotations

import math
import random

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.fusion.oracles import Given, mnist
from tests.unit.graph.random_graphs import Builder, random_model

from collage.fusion import CandidateKernel, FusionSpec
from collage.graph import DataflowGraph, KernelSpec, SubGraph, partition
from collage.search import coalesce_cover
from collage.target import Target

A, B = Target("llvm", compiler="a"), Target("llvm", compiler="b")


def kernel(graph: DataflowGraph, inside, target: Target = A) -> CandidateKernel:
    return CandidateKernel(SubGraph(graph, inside), target, FusionSpec("s", Given([]), (target,)), ("r",))


def decaying(k: CandidateKernel) -> float:
    return sum(0.9**i for i in range(len(k.sub_graph)))


class Scales:
    """Measures by a formula, and fails where something is measured twice."""

    def __init__(self, formula) -> None:
        self.formula, self.seen = formula, set()

    def __call__(self, batch):
        assert not self.seen & set(batch) and len(set(batch)) == len(batch)
        self.seen |= set(batch)
        return [self.formula(k) for k in batch]


def sets(kernels) -> list[list[int]]:
    return [list(k.sub_graph.inside) for k in kernels]


def test_where_joining_always_pays_all_of_one_target_is_joined_and_measured_once():
    graph = DataflowGraph(mnist())
    measure = Scales(decaying)
    cover = [kernel(graph, [i], A if i < 6 else B) for i in range(13)]
    joined = coalesce_cover(graph, cover, decaying, measure)
    assert sets(joined) == [list(range(6)), list(range(6, 13))]
    assert len(measure.seen) == 2 and [k.rules for k in joined] == [("r", "coalesce")] * 2


def test_what_is_dearer_together_stays_apart_and_what_pays_in_pairs_is_found():
    graph = DataflowGraph(mnist())

    def cost(k: CandidateKernel) -> float:
        return len(k.sub_graph) * (0.9 if len(k.sub_graph) == 2 and 3 in k.sub_graph.inside else 1.1)

    cover = [kernel(graph, [i]) for i in range(13)]
    joined = coalesce_cover(graph, cover, lambda k: 1.0, Scales(cost))
    assert [s for s in sets(joined) if len(s) > 1] == [[2, 3]]


def test_a_launch_penalty_makes_joining_pay():
    graph = DataflowGraph(mnist())
    cover = [kernel(graph, [i]) for i in range(13)]
    same = Scales(lambda k: 1.05 * len(k.sub_graph))
    assert len(coalesce_cover(graph, cover, lambda k: 1.0, same)) == 13
    paid = coalesce_cover(
        graph, cover, lambda k: 1.0, Scales(lambda k: 1.05 * len(k.sub_graph)), launch_penalty_of=lambda k: 0.2
    )
    assert len(paid) == 1


def test_what_cannot_be_built_or_is_refused_stays_apart():
    graph = DataflowGraph(mnist())
    cover = [kernel(graph, [i]) for i in range(13)]
    invalid = coalesce_cover(graph, cover, lambda k: 1.0, Scales(lambda k: math.inf))
    unknown = coalesce_cover(graph, cover, lambda k: 1.0, Scales(lambda k: math.nan))
    assert sets(invalid) == sets(unknown) == sets(cover)
    small = coalesce_cover(graph, cover, lambda k: 1.0, Scales(decaying), accepts=lambda k: len(k.sub_graph) <= 3)
    assert 13 > len(small) >= 5 and max(map(len, sets(small))) == 3


def test_both_consumers_of_a_fork_join_and_two_kernels_with_a_third_between_them_do_not():
    b = Builder()
    x = b.input("x")
    top = b.op("Relu", x)
    graph = DataflowGraph(b.model([x], [b.op("Neg", top), b.op("Abs", top)]))
    assert sets(coalesce_cover(graph, [kernel(graph, [i]) for i in range(3)], decaying, Scales(decaying))) == [
        [0, 1, 2]
    ]
    b = Builder()
    x = b.input("x")
    a1, b1 = b.op("Relu", x), b.op("Neg", x)
    graph = DataflowGraph(b.model([x], [b.op("Mul", a1, b1), b.op("Sub", b1, a1)]))
    by_op = {n.op_type: i for i, n in enumerate(graph.nodes)}
    cover = [kernel(graph, [by_op[op]], t) for op, t in (("Relu", A), ("Mul", A), ("Neg", B), ("Sub", B))]
    joined = coalesce_cover(graph, cover, decaying, Scales(decaying))
    assert len(joined) == 3, "each pair is convex, but the two would feed each other"


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 100_000))
def test_it_never_costs_more_covers_the_same_and_can_be_run(seed):
    graph, rng = DataflowGraph(random_model(seed, 12)), random.Random(seed)
    cover = [kernel(graph, [i], rng.choice([A, B])) for i in range(len(graph))]
    costs = {}

    def cost(k: CandidateKernel) -> float:
        return costs.setdefault(k, len(k.sub_graph) * rng.uniform(0.7, 1.1))

    joined = coalesce_cover(graph, cover, cost, Scales(cost))
    assert sorted(i for s in sets(joined) for i in s) == list(range(len(graph)))
    assert sum(map(cost, joined)) <= sum(map(cost, cover)) + 1e-9
    partition(graph.model, [KernelSpec(k.sub_graph, f"k{i}") for i, k in enumerate(joined)])
    for position, k in enumerate(joined):
        before = sum(earlier.bits for earlier in joined[:position])
        assert not k.sub_graph.input_bits & ~before
