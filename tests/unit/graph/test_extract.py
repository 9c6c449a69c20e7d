from __future__ import annotations

import random

import numpy as np
import onnx_ir as ir
from hypothesis import given, settings
from hypothesis import strategies as st

from collage.graph import DataflowGraph, SubGraph, extract

from .random_graphs import FLOAT, Builder, check, feeds_of, random_model, run, with_all_values

SEEDS = st.integers(0, 10_000)


def all_values(model, feeds):
    full = with_all_values(model)
    results = run(full, feeds)
    return {**feeds, **{str(v.name): r for v, r in zip(full.graph.outputs, results, strict=True)}}


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_an_extracted_kernel_computes_what_its_nodes_compute_in_the_model(seed):
    model = random_model(seed, 10)
    graph, rng = DataflowGraph(model), random.Random(seed)
    values = all_values(model, feeds_of(model))
    for _ in range(4):
        s = SubGraph(graph, {i for i in range(len(graph)) if rng.random() < 0.5} or {0})
        if not s.is_valid():
            continue
        kernel = extract(graph, s, "kernel")
        check(kernel)
        names = [v.name for v in kernel.graph.inputs]
        assert names == [v.name for v in s.input_values()]
        results = run(kernel, {name: values[name] for name in names})
        for value, result in zip(s.output_values(), results, strict=True):
            np.testing.assert_array_equal(result, values[value.name])


def test_types_symbolic_dimensions_and_tensors_are_kept_and_nothing_is_copied(tmp_path):
    (tmp_path / "weights").write_bytes(np.ones((4, 4), np.float32).tobytes())
    external = ir.ExternalTensor(
        "weights", 0, 64, ir.DataType.FLOAT, shape=ir.Shape([4, 4]), name="w", base_dir=str(tmp_path)
    )
    b = Builder()
    x = b.input("x", ("n", 4))
    w = ir.Value(name="w", shape=ir.Shape([4, 4]), type=FLOAT, const_value=external)
    b.initializers.append(w)
    y = b.op("MatMul", b.op("Relu", x, shape=("n", 4)), w, shape=("n", 4))
    model = b.model([x], [y])
    kernel = extract(DataflowGraph(model), SubGraph(DataflowGraph(model), [1]), "kernel")
    assert [str(v.shape) for v in kernel.graph.inputs] == ["[n,4]"] == [str(v.shape) for v in kernel.graph.outputs]
    weight = kernel.graph.initializers["w"].const_value
    assert isinstance(weight, ir.ExternalTensor) and weight.path == external.path
    assert model.graph.initializers["w"] is w and w.const_value is external and len(model.graph) == 2
    assert (kernel.graph.name, kernel.ir_version, kernel.opset_imports) == ("kernel", 10, {"": 21})


def test_weights_can_be_inputs_instead():
    b = Builder()
    x = b.input("x")
    constant = b.op("Constant", value=ir.tensor(np.ones(4, np.float32)), shape=(4,))
    y = b.op("Add", b.op("MatMul", x, b.constant(np.ones((4, 4), np.float32))), constant)
    graph = DataflowGraph(b.model([x], [y]))
    bound = extract(graph, SubGraph(graph, [0, 1]), "k")
    assert [v.name for v in bound.graph.inputs] == ["x"] and len(bound.graph.initializers) == 2
    free = extract(graph, SubGraph(graph, [0, 1]), "k", bind_weights=False)
    assert [v.name for v in free.graph.inputs] == ["x", "w0", constant.name] and not free.graph.initializers
    assert check(free).graph.input[1].type.tensor_type.shape.dim[0].dim_value == 4
    feeds = {"x": np.ones((2, 4), np.float32), "w0": np.ones((4, 4), np.float32), constant.name: np.ones(4, np.float32)}
    np.testing.assert_array_equal(run(free, feeds)[0], run(bound, {"x": feeds["x"]})[0])


def test_only_outputs_that_are_read_outside_are_outputs():
    b = Builder()
    x = b.input("x")
    left, right = b.op("Split", x, shape=(2, 2), outputs=2, axis=1, num_outputs=2)
    unused = b.op("Neg", right, shape=(2, 2))
    y = b.op("Relu", left, shape=(2, 2))
    graph = DataflowGraph(b.model([x], [y]))
    assert unused.producer() not in graph
    assert [v.name for v in extract(graph, SubGraph(graph, [0]), "k").graph.outputs] == [left.name]


def if_model():
    """An If whose bodies capture a value that varies and a weight."""
    b, then, other = Builder(), Builder(), Builder()
    x, cond = b.input("x"), b.input("c", (), ir.TensorType(ir.DataType.BOOL))
    w = b.constant(np.full((2, 4), 3, np.float32))
    h = b.op("Relu", x)
    first = ir.Graph([], [then.op("Add", then.op("Tanh", h), w)], nodes=then.nodes, name="then")
    second = ir.Graph([], [other.op("Neg", h)], nodes=other.nodes, name="else")
    y = b.op("If", cond, then_branch=first, else_branch=second)
    return b.model([x, cond], [b.op("Abs", y)])


def test_control_flow_goes_along_with_what_it_captures():
    graph = DataflowGraph(if_model())
    index = next(i for i, n in enumerate(graph.nodes) if n.op_type == "If")
    kernel = extract(graph, SubGraph(graph, [index]), "k")
    names = {v.name for v in kernel.graph.inputs}
    assert names == {"c", graph.node(0).outputs[0].name} and list(kernel.graph.initializers) == ["w0"]
    h = np.array([[1, -2, 3, -4]] * 2, np.float32)
    feeds = {"c": np.array(True), graph.node(0).outputs[0].name: h}
    np.testing.assert_allclose(run(kernel, feeds)[0], np.tanh(h) + 3, rtol=1e-6)


def test_local_functions_that_nodes_call_go_along():
    inner = Builder()
    a = ir.Value(name="a")
    body = ir.Graph([a], [inner.op("Relu", a)], nodes=inner.nodes, opset_imports={"": 21}, name="f")
    function = ir.Function("acme", "Rectify", graph=body, attributes=())
    b = Builder()
    x = b.input("x")
    call = ir.Node("acme", "Rectify", [x], num_outputs=1, name="call")
    call.outputs[0].type, call.outputs[0].shape = FLOAT, ir.Shape((2, 4))
    b.nodes.append(call)
    model = b.model([x], [b.op("Neg", call.outputs[0])])
    model.graph.opset_imports["acme"] = 1
    model = ir.Model(model.graph, ir_version=10, functions=[function])
    graph = DataflowGraph(model)
    kernel = extract(graph, SubGraph(graph, [0]), "k")
    assert list(kernel.functions) == [("acme", "Rectify", "")] and kernel.opset_imports == {"": 21, "acme": 1}
    value = np.array([[-1, 2, -3, 4]] * 2, np.float32)
    np.testing.assert_array_equal(run(kernel, {"x": value})[0], np.maximum(value, 0))
    assert not extract(graph, SubGraph(graph, [1]), "k").functions
