from __future__ import annotations

import random
import time

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage._errors import ModelError
from collage.graph import DataflowGraph, iterate_bits, value_nbytes

from .random_graphs import FLOAT, Builder, random_model

SEEDS = st.integers(0, 10_000)


def reachable(graph: DataflowGraph, without: int | None = None, start: set[int] | None = None) -> set[int]:
    """Nodes that can be reached from ``start`` without passing ``without``; a brute-force oracle."""
    seen: set[int] = set()
    stack = [i for i in start or () if i != without]
    while stack:
        i = stack.pop()
        if i not in seen:
            seen.add(i)
            stack += [c for c in graph.consumers(i) if c != without]
    return seen


def sources(graph: DataflowGraph) -> set[int]:
    own = {v for n in graph.nodes for v in n.outputs}
    fed = {i for i in range(len(graph)) if any(v not in own for v in graph.inputs_of(i))}
    return fed | {i for i in range(len(graph)) if not graph.producers(i)}


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_numbers_every_node_that_reaches_an_output_after_what_it_reads(seed):
    model = random_model(seed, 14)
    graph = DataflowGraph(model)
    alive = {v.producer() for v in model.graph.outputs}
    while True:
        more = {v.producer() for n in alive if n for v in n.inputs if v is not None} | alive
        if more == alive:
            break
        alive = more
    assert set(graph.nodes) == alive - {None}
    for i, node in enumerate(graph.nodes):
        assert graph.index_of(node) == i and graph.node(i) is node and node in graph
        made_by = {graph.index_of(v.producer()) for v in node.inputs if v.producer() is not None}
        assert set(graph.producers(i)) == made_by == set(iterate_bits(graph.producer_bits[i]))
        assert all(p < i for p in made_by)
        readers = {j for j in range(len(graph)) if i in graph.producers(j)}
        assert set(graph.consumers(i)) == readers == set(iterate_bits(graph.consumer_bits[i]))
        assert graph.is_external(i) == any(v in model.graph.outputs for v in node.outputs)


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_reachability_and_dominators_agree_with_brute_force(seed):
    graph = DataflowGraph(random_model(seed, 12, 3))
    roots, ends = sources(graph), {i for i in range(len(graph)) if graph.is_external(i)}
    for i in range(len(graph)):
        assert set(iterate_bits(graph.downstream_bits[i])) == reachable(graph, start={i}) - {i}
        dominators = {d for d in range(len(graph)) if d != i and i not in reachable(graph, d, roots)}
        assert graph.dominators[i] == max(dominators, default=None)
        inverse = {d for d in range(len(graph)) if d != i and not reachable(graph, d, {i}) & ends}
        assert graph.inverse_dominators[i] == min(inverse, default=None)


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_cuts_count_what_flows_across(seed):
    graph = DataflowGraph(random_model(seed, 12, 3))
    for cut in graph.cuts:
        before = {v for n in graph.nodes[: cut.position] for v in n.outputs}
        live = {v for i in range(cut.position, len(graph)) for v in graph.inputs_of(i)} & before
        assert set(graph.live_values(cut.position)) == live
        assert (cut.count, cut.nbytes) == (len(live), sum(value_nbytes(v) for v in live))
    assert [cut.position for cut in graph.cuts] == list(range(len(graph) + 1))


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_the_order_depends_on_neither_names_nor_the_node_list(seed):
    graph = DataflowGraph(random_model(seed, 14))
    other = random_model(seed, 14)
    rng = random.Random(seed)
    shuffled = list(other.graph)
    rng.shuffle(shuffled)
    for k, node in enumerate(shuffled):
        other.graph.remove(node)
        other.graph.append(node)
        node.name = f"n{k}"
    again = DataflowGraph(other)
    assert [(n.op_type, len(n.inputs)) for n in graph.nodes] == [(n.op_type, len(n.inputs)) for n in again.nodes]
    assert graph.producer_bits == again.producer_bits


def test_branches_stay_together():
    b = Builder()
    x = b.input("x")
    left = b.op("Relu", x)
    right = b.op("Neg", x)
    left, right = b.op("Tanh", left), b.op("Abs", right)
    graph = DataflowGraph(b.model([x], [b.op("Add", left, right)]))
    assert [n.op_type for n in graph.nodes] == ["Relu", "Tanh", "Neg", "Abs", "Add"]


def test_constants_are_values_and_dead_nodes_are_left_out():
    b = Builder()
    x = b.input("x")
    constant = b.op("Constant", value=ir.tensor(np.ones(4, np.float32)), shape=(4,))
    y = b.op("Add", b.op("Mul", x, b.constant(np.ones(4, np.float32))), constant)
    b.op("Neg", y)
    graph = DataflowGraph(b.model([x], [y]))
    assert [n.op_type for n in graph.nodes] == ["Mul", "Add"]
    assert graph.inputs_of(0) == (x,) and len(graph.used_values(0)) == 2
    assert graph.used_values(1)[1] is constant and constant not in graph.inputs_of(1)


def test_an_initializer_that_is_also_an_input_varies():
    b = Builder()
    x = b.input("x")
    w = b.constant(np.ones((2, 4), np.float32))
    graph = DataflowGraph(b.model([x, w], [b.op("Add", x, w)]))
    assert graph.inputs_of(0) == (x, w)


def test_what_a_body_captures_is_an_input_of_its_node():
    b, inner, deepest = Builder(), Builder(), Builder()
    x, cond = b.input("x"), b.input("c", (), ir.TensorType(ir.DataType.BOOL))
    first, second, w = b.op("Relu", x), b.op("Neg", x), b.constant(np.ones(4, np.float32))
    low = ir.Graph([], [deepest.op("Add", first, w)], nodes=deepest.nodes, name="low")
    high = ir.Graph([], [second], nodes=[], name="high")
    nested = inner.op("If", cond, then_branch=low, else_branch=high)
    then = ir.Graph([], [inner.op("Tanh", nested)], nodes=inner.nodes, name="then")
    other = Builder()
    orelse = ir.Graph([], [other.op("Identity", x)], nodes=other.nodes, name="else")
    y = b.op("If", cond, then_branch=then, else_branch=orelse)
    graph = DataflowGraph(b.model([x, cond], [y]))
    last = graph.index_of(y.producer())
    assert set(graph.inputs_of(last)) == {cond, first, second, x}
    assert w in graph.used_values(last)
    assert set(graph.producers(last)) == {graph.index_of(first.producer()), graph.index_of(second.producer())}
    body = DataflowGraph(then)
    assert [n.op_type for n in body.nodes] == ["If", "Tanh"] and body.fed_bits == 1


def test_the_time_for_bodies_within_bodies_is_not_a_power_of_their_depth():
    b = Builder()
    x, cond = b.input("x"), b.input("c", (), ir.TensorType(ir.DataType.BOOL))
    y = b.op("Neg", x)
    for _ in range(16):
        then, b, other = ir.Graph([], [y], nodes=b.nodes, name="then"), Builder(), Builder()
        orelse = ir.Graph([], [other.op("Abs", x)], nodes=other.nodes, name="else")
        y = b.op("If", cond, then_branch=then, else_branch=orelse)
    start = time.process_time()
    graph = DataflowGraph(b.model([x, cond], [y]))
    assert graph.inputs_of(0) == (cond, x)
    assert time.process_time() - start < 1.0


def test_a_cycle_is_refused():
    b = Builder()
    x = b.input("x")
    first = b.op("Add", x, x)
    second = b.op("Relu", first)
    first.producer().replace_input_with(1, second)
    with pytest.raises(ModelError, match="cycle"):
        DataflowGraph(b.model([x], [second]))


def test_three_thousand_nodes_take_well_under_a_second():
    b = Builder()
    x = y = b.input("x")
    while len(b.nodes) < 3000:
        y = b.op("Add", b.op("Relu", y), b.op("Neg", y))
    model = b.model([x], [y])
    start = time.process_time()
    graph = DataflowGraph(model)
    assert len(graph.downstream_bits) == len(graph.dominators) == len(graph.inverse_dominators) == 3000
    assert len(graph.cuts) == 3001
    assert time.process_time() - start < 1.0


def test_a_value_that_is_no_tensor_is_no_border():
    b = Builder()
    x = b.input("x")
    sequence = b.op("SequenceConstruct", x, x, type_=ir.SequenceType(FLOAT))
    at = b.op("SequenceAt", sequence, b.constant(np.array(0)))
    graph = DataflowGraph(b.model([x], [b.op("Relu", at)]))
    assert [cut.is_border for cut in graph.cuts] == [True, False, True, True]
    assert graph.no_border_bits == 0b011
