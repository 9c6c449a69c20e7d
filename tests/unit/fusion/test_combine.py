from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.graph.random_graphs import Builder, random_model

from collage.fusion import (
    ByKindPrimitive,
    CombineByPrimitivesFusionRule,
    ConstantArgPrimitive,
    FusionReport,
    HorizontalPrimitive,
    JoinAnythingPrimitive,
    OpCallByKindFusionRule,
    OpPredicateFusionRule,
    TupleArgPrimitive,
    VerticalPrimitive,
    classic_fuse_ops,
    operator_based,
)
from collage.graph import DataflowGraph, OpKind, SubGraph, SubGraphConfig
from collage.toolchains import Support

from .oracles import (
    CLASSIC,
    ONE_EXIT,
    Given,
    all_subsets,
    by_kind,
    find,
    gpt2_extract,
    is_connected,
    key,
    mnist,
    naive_closure,
)

SEEDS = st.integers(0, 100_000)
ANY_KIND = st.sampled_from(list(OpKind))


def supported(node):
    return Support(True)


def singles(graph):
    return [SubGraph(graph, [i]) for i in range(len(graph))]


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.sampled_from([0, 1, 2, 3, 4, 8]))
def test_classic_fusion_finds_all_that_repeated_joining_would(seed, max_depth):
    graph = DataflowGraph(random_model(seed, 9))
    bases = [s for s in singles(graph) if s.kind <= OpKind.OUT_ELEMWISE_FUSABLE]
    config = SubGraphConfig(max_exits=1, allow_taps=False, max_depth=max_depth)
    expected = {key(s) for s in naive_closure(bases, by_kind(CLASSIC), max_depth) if s.is_valid(config)}
    assert find(classic_fuse_ops(max_depth), graph) == expected


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.sampled_from([0, 2, 3]), st.lists(st.tuples(ANY_KIND, ANY_KIND), min_size=1, max_size=4))
def test_any_rules_by_kind_are_followed_to_the_end(seed, max_depth, rules):
    graph = DataflowGraph(random_model(seed, 8))
    primitives = tuple(ByKindPrimitive(up, down) for up, down in rules)
    pool = naive_closure(singles(graph), by_kind(rules), max_depth)
    one_exit = SubGraphConfig(max_exits=1, allow_taps=False, max_depth=max_depth)
    for config in (one_exit, SubGraphConfig(max_depth=max_depth), SubGraphConfig(max_exits=2, max_depth=max_depth)):
        rule = CombineByPrimitivesFusionRule(OpPredicateFusionRule(supported), primitives, config)
        valid = {key(f.sub_graph) for f in rule.find(graph, FusionReport()) if f.sub_graph.is_valid(config)}
        assert valid == {key(s) for s in pool if s.is_valid(config)}


@settings(max_examples=50, deadline=None)
@given(SEEDS, st.sampled_from([0, 2, 4]))
def test_joining_anything_finds_every_connected_valid_set_of_nodes(seed, max_depth):
    graph = DataflowGraph(random_model(seed, 9))
    config = SubGraphConfig(max_exits=1, allow_taps=False, max_depth=max_depth)
    expected = {key(s) for s in all_subsets(graph) if is_connected(s) and s.is_valid(config)}
    assert find(operator_based(supported, max_depth), graph) == expected


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_joining_anything_with_several_exits_finds_every_connected_convex_set(seed):
    graph = DataflowGraph(random_model(seed, 8, 3))
    rule = CombineByPrimitivesFusionRule(OpPredicateFusionRule(supported), (JoinAnythingPrimitive(),))
    assert find(rule, graph) == {key(s) for s in all_subsets(graph) if is_connected(s) and s.is_convex}


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_overlapping_labelled_candidates_of_several_nodes_combine_too(seed):
    graph, rng = DataflowGraph(random_model(seed, 8)), random.Random(seed)
    bases = singles(graph)
    for s in all_subsets(graph):
        if 1 < len(s) < 4 and is_connected(s) and s.is_convex and rng.random() < 0.15:
            bases.append(s.with_label("lib.x") if rng.random() < 0.7 else s)
    bases = list({key(s): s for s in rng.sample(bases, min(12, len(bases)))}.values())
    expected = {key(s) for s in naive_closure(bases, lambda up, down: True) if s.is_valid(ONE_EXIT)}
    rule = CombineByPrimitivesFusionRule(Given(bases), (JoinAnythingPrimitive(),), ONE_EXIT)
    found = {key(f.sub_graph) for f in rule.find(graph, FusionReport()) if f.sub_graph.is_valid(ONE_EXIT)}
    assert found == expected


@pytest.mark.parametrize(("max_depth", "count"), [(1, 13), (2, 18), (3, 20), (8, 20)])
def test_classic_candidates_of_the_rfc_example(max_depth, count):
    assert len(find(classic_fuse_ops(max_depth), DataflowGraph(mnist()))) == count


@pytest.mark.parametrize(("max_depth", "count"), [(1, 11), (2, 20), (3, 27), (4, 32), (8, 38)])
def test_arbitrary_candidates_of_the_rfc_example(max_depth, count):
    rule = operator_based(lambda node: Support(node.op_type != "Pad"), max_depth)
    assert len(find(rule, DataflowGraph(mnist()))) == count


def test_candidates_are_found_that_adding_depths_would_miss():
    b = Builder()
    x = b.input("x")
    left, right = b.op("Relu", b.op("Neg", x)), b.op("Tanh", b.op("Abs", x))
    graph = DataflowGraph(b.model([x], [b.op("Add", left, right)]))
    assert ((1 << 5) - 1, ()) in find(classic_fuse_ops(3), graph)


def test_a_diamond_is_found_although_its_halves_have_two_exits():
    b = Builder()
    x = b.input("x")
    top = b.op("Relu", x)
    graph = DataflowGraph(b.model([x], [b.op("Add", b.op("Neg", top), b.op("Abs", top))]))
    assert (0b1111, ()) in find(classic_fuse_ops(3), graph)
    assert (0b0111, ()) not in find(classic_fuse_ops(3), graph)


@pytest.mark.parametrize(("max_depth", "count"), [(1, 25), (2, 46), (3, 60), (4, 70), (8, 91)])
def test_the_gpt2_extract_has_the_candidates_known_of_it_and_those_that_were_missed(max_depth, count):
    """Known of it are 25, 45, 58, 68 and 90."""
    graph = DataflowGraph(gpt2_extract())
    found = find(classic_fuse_ops(max_depth), graph)
    config = SubGraphConfig(max_exits=1, allow_taps=False, max_depth=max_depth)
    assert len(graph) == 25 and len(found) == count
    assert found == {key(s) for s in naive_closure(singles(graph), by_kind(CLASSIC), max_depth) if s.is_valid(config)}


def test_list_arguments_are_joined_all_at_once():
    b = Builder()
    x = b.input("x")
    parts = [b.op(op, x, shape=(2, 2)) for op in ("Relu", "Transpose", "Neg")]
    graph = DataflowGraph(b.model([x], [b.op("Concat", *parts, shape=(2, 6), axis=1)]))
    rule = CombineByPrimitivesFusionRule(OpCallByKindFusionRule(), (TupleArgPrimitive(),))
    assert find(rule, graph) == {(1, ()), (2, ()), (4, ()), (8, ()), (15, ())}


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_list_arguments_add_nothing_to_classic_fusion(seed):
    graph = DataflowGraph(random_model(seed, 9))
    primitives = tuple(ByKindPrimitive(up, down) for up, down in CLASSIC)
    base = OpCallByKindFusionRule()
    with_tuples = CombineByPrimitivesFusionRule(base, (*primitives, TupleArgPrimitive()), ONE_EXIT)
    assert find(with_tuples, graph) == find(CombineByPrimitivesFusionRule(base, primitives, ONE_EXIT), graph)


def test_constants_that_are_computed_are_absorbed():
    b = Builder()
    x = b.input("x")
    weight = b.op("DequantizeLinear", b.constant(np.ones((4, 4), np.int8)), b.constant(np.float32(2)), shape=(4, 4))
    weight = b.op("Transpose", weight, shape=(4, 4))
    graph = DataflowGraph(b.model([x], [b.op("MatMul", x, weight)]))
    rule = CombineByPrimitivesFusionRule(
        OpCallByKindFusionRule(max_kind=OpKind.OUT_ELEMWISE_FUSABLE), (ConstantArgPrimitive(),)
    )
    everything = (0b111, ())
    assert everything in find(rule, graph)


def test_a_constant_that_others_read_is_not_absorbed():
    b = Builder()
    x = b.input("x")
    weight = b.op("Transpose", b.constant(np.ones((4, 4), np.float32)), shape=(4, 4))
    graph = DataflowGraph(b.model([x], [b.op("MatMul", b.op("MatMul", x, weight), weight)]))
    rule = CombineByPrimitivesFusionRule(OpCallByKindFusionRule(), (ConstantArgPrimitive(),))
    assert find(rule, graph) == {(1, ()), (2, ()), (4, ())}


def projections(count=3):
    """Products of one value with several weights, each with its own bias, then summed."""
    b = Builder()
    x = b.input("x")
    h = b.op("Relu", x)
    heads = []
    for _ in range(count):
        product = b.op("MatMul", h, b.constant(np.ones((4, 4), np.float32)))
        heads.append(b.op("Add", product, b.constant(np.ones(4, np.float32))))
    y = heads[0]
    for head in heads[1:]:
        y = b.op("Mul", y, head)
    return DataflowGraph(b.model([x], [y]))


def test_horizontal_fusion_joins_projections_of_one_value():
    graph = projections()
    products = [i for i, n in enumerate(graph.nodes) if n.op_type == "MatMul"]
    rule = CombineByPrimitivesFusionRule(OpCallByKindFusionRule(), (HorizontalPrimitive(),))
    joined = {bits for bits, _ in find(rule, graph) if bits.bit_count() > 1}
    a, b, c = (1 << i for i in products)
    assert joined == {a | b, a | c, b | c, a | b | c}


def test_horizontal_fusion_takes_epilogues_along():
    graph = projections()
    rule = CombineByPrimitivesFusionRule(classic_fuse_ops(2), (HorizontalPrimitive(),))
    pairs = [i for i, n in enumerate(graph.nodes) if n.op_type in ("MatMul", "Add")]
    assert (sum(1 << i for i in pairs), ()) in find(rule, graph)


def test_vertical_fusion_joins_anchors_in_a_row():
    b = Builder()
    x = y = b.input("x")
    for _ in range(3):
        y = b.op("Relu", b.op("MatMul", y, b.constant(np.ones((4, 4), np.float32))))
    graph = DataflowGraph(b.model([x], [y]))
    rule = CombineByPrimitivesFusionRule(classic_fuse_ops(2), (VerticalPrimitive(max_anchors=2),), ONE_EXIT)
    joined = {bits for bits, _ in find(rule, graph) if bits.bit_count() > 2}
    assert joined == {0b000111, 0b001111, 0b011100, 0b111100}


def test_a_cap_is_kept_and_reported():
    graph = DataflowGraph(random_model(3, 30))
    report = FusionReport()
    rule = CombineByPrimitivesFusionRule(
        OpPredicateFusionRule(supported), (JoinAnythingPrimitive(),), SubGraphConfig(), max_candidates=200
    )
    assert len(list(rule.find(graph, report))) == 200
    assert report.capped == ["combine"] and "200" in report.notes[0]
    sizes = [len(f.sub_graph) for f in rule.find(graph, FusionReport())]
    assert set(sizes[: len(graph)]) == {1}
