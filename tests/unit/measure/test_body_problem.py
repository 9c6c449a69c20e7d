"""A body as a model of its own states the lengths that follow, and no others."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from tests.unit.runtime.test_control_flow import counting_loop, model_of, value

from collage.frontend import read_model
from collage.graph import DataflowGraph, bodies
from collage.measure.body_problem import body_model, state_lengths, stated_runs
from collage.transform import prepare


def shapes_of(model: object) -> dict[str, str]:
    """The shapes of all values of the body of the only node that has one."""
    prepared = prepare(read_model(model))
    node = next(node for node in prepared.graph if any(True for _ in bodies(node)))
    made = body_model(DataflowGraph(next(bodies(node)), model=prepared), node, "body")
    values = [*made.graph.inputs, *(v for n in made.graph for v in n.outputs)]
    return {str(v.name): str(v.shape) for v in values}


def test_lengths_that_an_iteration_keeps_are_stated() -> None:
    shapes = shapes_of(counting_loop())
    assert {shapes[name] for name in ("state", "step", "next", "seen")} == {"[2,3]"}
    assert shapes["total"] == "[]"


def test_symbols_stay_symbols() -> None:
    shapes = shapes_of(counting_loop(shape=["batch", 3]))
    assert {shapes[name] for name in ("state", "step", "next")} == {"[batch,3]"}


@pytest.mark.parametrize("claimed", [None, [2, 3]])
def test_lengths_that_grow_are_free_whatever_the_file_says(claimed: list[int] | None) -> None:
    body = helper.make_graph(
        [helper.make_node("Concat", ["state", "x"], ["next"], axis=0), helper.make_node("Identity", ["on"], ["still"])],
        "body",
        [value("i", TensorProto.INT64, []), value("on", TensorProto.BOOL, []), value("state", shape=claimed)],
        [value("still", TensorProto.BOOL, []), value("next", shape=None)],
    )
    nodes = [helper.make_node("Loop", ["trips", "", "x"], ["y"], body=body)]
    model = model_of(nodes, [value("x")], [value("y", shape=["n", 3])], trips=np.int64(4))
    prepared = prepare(read_model(model))
    node = next(node for node in prepared.graph if node.op_type == "Loop")
    made = body_model(DataflowGraph(next(bodies(node)), model=prepared), node, "body")
    state = next(v for v in made.graph.inputs if v.name == "state")
    assert state.shape is None or not isinstance(state.shape[0], int)
    assert state.shape is None or state.shape[1] == 3


def test_elements_of_a_scan_have_the_lengths_of_what_is_taken_apart() -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["state", "x"], ["next"]), helper.make_node("Mul", ["next", "x"], ["y"])],
        "body",
        [value("state", shape=None), value("x", shape=None)],
        [value("next", shape=None), value("y", shape=None)],
    )
    node = helper.make_node("Scan", ["s", "xs"], ["last", "ys"], body=body, num_scan_inputs=1, scan_input_axes=[1])
    inputs = [value("s", shape=[4]), value("xs", shape=[4, 5])]
    shapes = shapes_of(model_of([node], inputs, [value("last", shape=[4]), value("ys", shape=None)]))
    assert {shapes[name] for name in ("state", "x", "next", "y")} == {"[4]"}


def test_lengths_of_a_body_within_a_body_are_stated_in_place_of_false_claims() -> None:
    inner = helper.make_graph(
        [helper.make_node("Tanh", ["t"], ["u"]), helper.make_node("Identity", ["go"], ["goes"])],
        "inner",
        [value("j", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), value("t", shape=None)],
        [value("goes", TensorProto.BOOL, []), value("u", shape=None)],
    )
    outer = helper.make_graph(
        [
            helper.make_node("Neg", ["state"], ["next"], name="next"),
            helper.make_node("Loop", ["trips", "", "next"], ["deep"], body=inner, name="deep"),
            helper.make_node("Concat", ["grown", "x"], ["more"], axis=0),
            helper.make_node("Identity", ["on"], ["still"]),
        ],
        "outer",
        [
            value("i", TensorProto.INT64, []),
            value("on", TensorProto.BOOL, []),
            value("state", shape=None),
            value("grown"),
        ],
        [
            value("still", TensorProto.BOOL, []),
            value("next", shape=None),
            value("more", shape=None),
            value("deep", shape=None),
        ],
    )
    nodes = [helper.make_node("Loop", ["trips", "", "x", "x"], ["y", "z", "all"], body=outer, name="top")]
    outputs = [value("y"), value("z", shape=["n", 3]), value("all", shape=None)]
    prepared = prepare(read_model(model_of(nodes, [value("x")], outputs, trips=np.int64(2))))
    (node,) = (node for node in prepared.graph if node.op_type == "Loop")
    state_lengths(node, prepared)
    body = next(bodies(node))
    (within,) = (inner for inner in body if inner.op_type == "Loop")
    shapes = {v.name: str(v.shape) for v in (*body.inputs, *next(bodies(within)).inputs, *within.inputs) if v}
    assert {shapes[name] for name in ("state", "t", "next")} == {"[2,3]"}
    assert not shapes["grown"].startswith("[2")


def test_the_model_is_left_as_it_was() -> None:
    prepared = prepare(read_model(counting_loop()))
    node = next(node for node in prepared.graph if node.op_type == "Loop")
    before = ir.to_proto(prepared).SerializeToString()
    body_model(DataflowGraph(next(bodies(node)), model=prepared), node, "body")
    assert ir.to_proto(prepared).SerializeToString() == before


@pytest.mark.parametrize(("trips", "runs"), [(4, 4), (-1, 0), (2**63 - 1, 1)])
def test_a_loop_runs_as_often_as_it_states_unless_only_its_condition_ends_it(trips: int, runs: int) -> None:
    body = helper.make_graph(
        [helper.make_node("Relu", ["state"], ["next"]), helper.make_node("Identity", ["on"], ["still"])],
        "body",
        [value("i", TensorProto.INT64, []), value("on", TensorProto.BOOL, []), value("state")],
        [value("still", TensorProto.BOOL, []), value("next")],
    )
    nodes = [helper.make_node("Loop", ["trips", "", "x"], ["y"], body=body)]
    prepared = prepare(read_model(model_of(nodes, [value("x")], [value("y")], trips=np.int64(trips))))
    assert stated_runs(next(node for node in prepared.graph if node.op_type == "Loop")) == runs
