from __future__ import annotations

import numpy as np
import onnx.defs
import onnx_ir as ir
import pytest

from collage.graph import DataflowGraph, OpKind, _op_kind, is_view, known_operators, op_kind, register_op_kind

from .random_graphs import Builder


def test_every_onnx_operator_has_a_kind():
    schemas = {("" if s.domain == "ai.onnx" else s.domain, s.name) for s in onnx.defs.get_all_schemas()}
    assert schemas - known_operators() == set()


@pytest.mark.skipif(
    onnx.defs.onnx_opset_version() < 28, reason="the table has operators that this version of onnx does not know yet"
)
def test_the_table_names_only_operators_that_exist():
    schemas = {(s.domain, s.name) for s in onnx.defs.get_all_schemas_with_history()}
    assert known_operators() - schemas == set()


def node(op_type, *shapes, out, **attributes):
    b = Builder()
    inputs = [b.input(f"x{i}", shape) if shape is not None else None for i, shape in enumerate(shapes)]
    return b.op(op_type, *inputs, shape=out, **attributes).producer()


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        (node("Relu", (2, 3), out=(2, 3)), OpKind.ELEMWISE),
        (node("Add", (2, 3), (3,), out=(2, 3)), OpKind.BROADCAST),
        (node("Add", (2, 3), (2, 3), out=(2, 3)), OpKind.ELEMWISE),
        (node("Add", ("n", 3), ("n", 3), out=("n", 3)), OpKind.ELEMWISE),
        (node("Add", ("n", 3), ("m", 3), out=("n", 3)), OpKind.BROADCAST),
        (node("Add", (None, 3), (None, 3), out=(None, 3)), OpKind.BROADCAST),
        (node("Where", (2, 1), (2, 3), (2, 3), out=(2, 3)), OpKind.BROADCAST),
        (node("Transpose", (2, 3), out=(3, 2)), OpKind.INJECTIVE),
        (node("ReduceSum", (2, 3), out=(1, 1)), OpKind.COMM_REDUCE),
        (node("MatMul", (2, 3), (3, 2), out=(2, 2)), OpKind.OUT_ELEMWISE_FUSABLE),
        (node("TopK", (2, 3), (1,), out=(2, 1)), OpKind.OPAQUE),
        (node("Nonesuch", (2, 3), out=(2, 3)), OpKind.OPAQUE),
    ],
)
def test_kinds_and_the_refinement_by_shape(made, kind):
    assert op_kind(made) is kind


def kinds_of(b, *outputs):
    b.model([], outputs)
    return [op_kind(value.producer()) for value in outputs]


def test_a_constant_of_one_element_leaves_a_broadcast_elementwise():
    b = Builder()
    x = b.input("x")
    scalar, row = b.constant(np.float32(2)), b.constant(np.ones(4, np.float32))
    assert kinds_of(b, b.op("Mul", x, scalar), b.op("Mul", x, row)) == [OpKind.ELEMWISE, OpKind.BROADCAST]


def test_a_shape_that_depends_on_data_makes_an_operator_opaque():
    b = Builder()
    x, shape = b.input("x"), b.input("shape", (2,), ir.TensorType(ir.DataType.INT64))
    varying = b.op("Reshape", x, shape, shape=(None, None))
    known = b.op("Reshape", x, shape, shape=(2, 4))
    constant = b.op("Reshape", x, b.constant(np.array([2, -1])), shape=("n", None))
    assert kinds_of(b, varying, known, constant) == [OpKind.OPAQUE, OpKind.INJECTIVE, OpKind.INJECTIVE]


def test_users_declare_kinds_of_their_own(monkeypatch):
    monkeypatch.setattr(_op_kind, "_TABLE", dict(_op_kind._TABLE))
    made = ir.Node("acme", "Fma", [], num_outputs=1)
    assert op_kind(made) is OpKind.OPAQUE
    register_op_kind("acme", "Fma", OpKind.ELEMWISE)
    assert op_kind(made) is OpKind.ELEMWISE


def test_views_move_no_data():
    b = Builder()
    x = b.input("x")
    assert is_view(b.op("Flatten", x).producer()) and not is_view(b.op("Transpose", x).producer())


def test_a_control_flow_node_is_opaque():
    b, inner = Builder(), Builder()
    x = b.input("x")
    body = ir.Graph([], [inner.op("Relu", x)], nodes=inner.nodes, name="then")
    other = Builder()
    orelse = ir.Graph([], [other.op("Neg", x)], nodes=other.nodes, name="else")
    cond = b.input("c", (), ir.TensorType(ir.DataType.BOOL))
    y = b.op("If", cond, then_branch=body, else_branch=orelse)
    graph = DataflowGraph(b.model([x, cond], [y]))
    assert graph.kinds == (OpKind.OPAQUE,)
    assert set(graph.inputs_of(0)) == {x, cond}
