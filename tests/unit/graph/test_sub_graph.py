from __future__ import annotations

import itertools
import random

import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage._errors import UsageError
from collage.graph import DataflowGraph, IndexSet, OpKind, SubGraph, SubGraphConfig

from .random_graphs import FLOAT, Builder, random_model

SEEDS = st.integers(0, 10_000)


def paths_inside(graph, inside):
    """Every path inside, as lists of nodes."""
    waiting = [[i] for i in inside]
    while waiting:
        path = waiting.pop()
        yield path
        waiting += [[*path, c] for c in graph.consumers(path[-1]) if c in inside]


def is_convex(graph, inside):
    def comes_back(i):
        return i in inside or any(map(comes_back, graph.consumers(i)))

    return not any(comes_back(o) for i in inside for o in graph.consumers(i) if o not in inside)


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_everything_derived_agrees_with_its_definition(seed):
    graph = DataflowGraph(random_model(seed, 9, 2))
    own = {v: i for i, n in enumerate(graph.nodes) for v in n.outputs}
    rng = random.Random(seed)
    for _ in range(25):
        inside = {i for i in range(len(graph)) if rng.random() < 0.5} or {0}
        s = SubGraph(graph, inside)
        used_outside = {v for i in range(len(graph)) if i not in inside for v in graph.inputs_of(i)}
        assert set(s.entry) == {i for i in inside if any(own.get(v) not in inside for v in graph.inputs_of(i))}
        assert set(s.input) == {own[v] for i in inside for v in graph.inputs_of(i) if v in own} - inside
        outputs = {o for o in range(len(graph)) if o not in inside and set(graph.producers(o)) & inside}
        assert set(s.output) == outputs
        exits = {i for i in inside if set(graph.consumers(i)) - inside or graph.is_external(i)}
        assert set(s.exit) == exits
        assert set(s.taps) == {i for i in exits if set(graph.consumers(i)) & inside}
        assert s.depth == max(map(len, paths_inside(graph, inside)))
        assert s.is_convex == is_convex(graph, inside)
        assert s.kind == max(graph.kinds[i] for i in inside)
        assert len(s) == len(inside) and set(s) == inside
        assert s.is_admissible == (not outputs or min(outputs) > max(exits))
        assert set(s.input_values()) == {v for i in inside for v in graph.inputs_of(i) if own.get(v) not in inside}
        made = {v for i in inside for v in graph.node(i).outputs}
        assert set(s.output_values()) == {v for v in made if v in used_outside or graph.is_output(v)}


@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_admissible_sub_graphs_are_convex_and_include_single_exits_and_ranges(seed):
    graph = DataflowGraph(random_model(seed, 9, 2))
    n = len(graph)
    for bits in range(1, 1 << n):
        s = SubGraph(graph, IndexSet(bits))
        if s.is_admissible:
            assert s.is_convex
        if s.is_range:
            assert s.is_admissible
        if len(s.exit) == 1 and not s.taps:
            assert s.is_admissible


@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_covers_by_admissible_sub_graphs_have_no_cycle(seed):
    graph = DataflowGraph(random_model(seed, 7, 2))
    n = len(graph)
    admissible = [b for b in range(1, 1 << n) if SubGraph(graph, IndexSet(b)).is_admissible]
    rng = random.Random(seed)
    for _ in range(40):
        cover, free = [], (1 << n) - 1
        while free:
            lowest = free & -free
            cover.append(rng.choice([b for b in admissible if b & lowest and not b & ~free]))
            free &= ~cover[-1]
        group = {i: k for k, bits in enumerate(cover) for i in IndexSet(bits)}
        edges = {(group[i], group[c]) for i in range(n) for c in graph.consumers(i)} - {(k, k) for k in range(n)}
        waiting = set(range(len(cover)))
        while waiting:
            ready = {k for k in waiting if not any(a in waiting for a, b in edges if b == k)}
            assert ready, f"{cover} is cyclic"
            waiting -= ready


def diamond():
    b = Builder()
    x = b.input("x")
    top = b.op("Relu", x)
    return DataflowGraph(b.model([x], [b.op("Add", b.op("Neg", top), b.op("Abs", top))]))


def test_why_a_sub_graph_is_invalid():
    graph = diamond()  # 0 Relu, 1 Neg, 2 Abs, 3 Add
    config = SubGraphConfig(max_exits=1, allow_taps=False, max_depth=2)
    assert SubGraph(graph, [1, 3]).why_invalid(config) is None
    assert "empty" in SubGraph(graph, []).why_invalid()
    assert "exits" in SubGraph(graph, [0, 1]).why_invalid(config)
    assert "deep" in SubGraph(graph, [0, 1, 2, 3]).why_invalid(config)
    assert "both inside and outside" in SubGraph(graph, [0, 1]).why_invalid(SubGraphConfig(allow_taps=False))
    assert "comes back" in SubGraph(graph, [0, 1, 3]).why_invalid()
    assert SubGraph(graph, [0, 1]).why_invalid() is None
    labelled = SubGraph(graph, [1]).with_label("a").nested + SubGraph(graph, [1]).with_label("b").nested
    assert "overlaps" in SubGraph(graph, [1], labelled).why_invalid()
    assert "outside" in SubGraph(graph, [2], labelled[:1]).why_invalid()


def test_depth_is_that_of_the_union_and_not_the_sum_of_depths():
    graph = diamond()
    upper, lower = SubGraph(graph, [1, 3]), SubGraph(graph, [2])
    assert (upper.depth, lower.depth, upper.disjoint_union(lower).depth) == (2, 1, 2)


def test_labels_nest_and_survive_union_and_substitution():
    graph = diamond()
    inner = SubGraph(graph, [3]).with_label("lib.add")
    outer = inner.disjoint_union(SubGraph(graph, [1])).with_label("lib.neg_add")
    both = outer.disjoint_union(SubGraph(graph, [2]))
    assert both.label == "lib.neg_add+Abs"
    assert [p.label for p in both.nested] == ["lib.neg_add"]
    assert [p.label for p in both.nested[0].nested] == ["lib.add"]
    assert both != SubGraph(graph, both.inside) and both.inside == IndexSet.of(1, 2, 3)
    shifted = both.substitute(graph, {1: 0, 2: 1, 3: 2})
    assert shifted.inside == IndexSet.of(0, 1, 2) and shifted.nested[0].nested[0].inside == IndexSet.of(2)
    with pytest.raises(UsageError, match="overlap"):
        both.disjoint_union(SubGraph(graph, [2]))


def test_equality_is_of_nodes_and_labelled_parts():
    graph = diamond()
    assert SubGraph(graph, [1, 2]) == SubGraph(graph, IndexSet.of(2, 1))
    assert len({SubGraph(graph, [1]), SubGraph(graph, [1]), SubGraph(graph, [1]).with_label("a")}) == 2
    assert SubGraph(graph, [1]) != SubGraph(diamond(), [1])


def test_sequences_and_strings_do_not_cross_a_border():
    b = Builder()
    x = b.input("x")
    sequence = b.op("SequenceConstruct", x, x, type_=ir.SequenceType(FLOAT))
    length = b.op("SequenceLength", sequence, shape=(), type_=ir.TensorType(ir.DataType.INT64))
    graph = DataflowGraph(b.model([x], [length]))
    for inside, ok in (([0], False), ([1], False), ([0, 1], True)):
        assert (SubGraph(graph, inside).why_invalid() is None) == ok
    b = Builder()
    s = b.input("s", (2,), ir.TensorType(ir.DataType.STRING))
    graph = DataflowGraph(b.model([s], [b.op("Equal", s, s, shape=(2,), type_=ir.TensorType(ir.DataType.BOOL))]))
    assert "plain tensor" in SubGraph(graph, [0]).why_invalid()


def test_kinds_of_all_pairs_are_the_larger():
    graph = diamond()
    for pair in itertools.combinations(range(4), 2):
        assert SubGraph(graph, pair).kind is OpKind.ELEMWISE
