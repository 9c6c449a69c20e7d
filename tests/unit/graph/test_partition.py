from __future__ import annotations

import random

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage._errors import PassError, UsageError
from collage.graph import (
    DataflowGraph,
    KernelSpec,
    SubGraph,
    extract,
    kernel_model,
    kernels_of,
    partition,
    structural_hash,
)

from .random_graphs import Builder, check, feeds_of, random_model, run
from .test_extract import if_model

SEEDS = st.integers(0, 10_000)


def random_kernels(graph: DataflowGraph, rng: random.Random) -> list[KernelSpec]:
    """Disjoint admissible sub-graphs that cover some of the graph, some with labelled parts."""
    free, specs = set(range(len(graph))), []
    for _ in range(30):
        inside = {i for i in free if rng.random() < rng.choice([0.2, 0.8])}
        s = SubGraph(graph, inside)
        if not inside or not s.is_admissible:
            continue
        part = SubGraph(graph, {i for i in inside if rng.random() < 0.5})
        rest = SubGraph(graph, inside - set(part))
        if part.inside and rest.inside and part.is_convex and rng.random() < 0.7:
            s = (
                rest.disjoint_union(part.with_label("lib.part")).with_label("lib.whole")
                if rng.random() < 0.5
                else (rest.disjoint_union(part.with_label("lib.part")))
            )
        specs.append(KernelSpec(s, f"kernel_{len(specs)}", {"Compiler": rng.choice("ab"), "target": "llvm"}))
        free -= inside
    return specs


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_partitioning_changes_nothing_and_can_be_read_back(seed):
    model = random_model(seed, 12)
    text, feeds = ir.to_proto(model).SerializeToString(deterministic=True), feeds_of(model)
    graph, rng = DataflowGraph(model), random.Random(seed)
    specs = random_kernels(graph, rng)
    result = partition(model, specs)
    assert ir.to_proto(model).SerializeToString(deterministic=True) == text, "the model was changed"
    for expected, actual in zip(run(model, feeds), run(result, feeds), strict=True):
        np.testing.assert_array_equal(actual, expected)
    for read in (result, ir.from_proto(ir.to_proto(result))):
        calls = kernels_of(read)
        assert sorted(c.node.name for c in calls) == sorted(s.name for s in specs)
        by_name = {c.node.name: c for c in calls}
        for spec in specs:
            call = by_name[spec.name]
            assert spec.attributes.items() <= dict(call.metadata).items()
            assert call.metadata["Primitive"] == "1" and call.metadata["global_symbol"] == call.function.name
            kernel = kernel_model(read, call.node, spec.name)
            check(kernel)
            extracted = extract(graph, spec.sub_graph, spec.name)
            assert structural_hash(kernel) == structural_hash(extracted)
            assert [v.name for v in kernel.graph.inputs] == [v.name for v in extracted.graph.inputs]
            assert [v.name for v in kernel.graph.outputs] == [v.name for v in extracted.graph.outputs]


@settings(max_examples=20, deadline=None)
@given(SEEDS)
def test_partitioning_twice_equals_partitioning_once(seed):
    model = random_model(seed, 10)
    once = partition(model, random_kernels(DataflowGraph(model), random.Random(seed)))
    graph = DataflowGraph(once)
    calls = [i for i in range(len(graph)) if graph.is_kernel_call(i)]
    assert len(calls) == len(kernels_of(once))
    twice = partition(once, [KernelSpec(SubGraph(graph, [i]), "again", {"Compiler": "c"}) for i in calls])
    assert ir.to_proto(twice) == ir.to_proto(once)


def test_a_kernel_cannot_contain_one_that_was_made_earlier():
    model = random_model(1, 8)
    once = partition(model, [KernelSpec(SubGraph(DataflowGraph(model), [0]), "k")])
    graph = DataflowGraph(once)
    everything = SubGraph(graph, range(len(graph)))
    assert "made earlier" in everything.why_invalid()
    with pytest.raises(PassError, match="made earlier"):
        partition(once, [KernelSpec(everything, "all")])


def layers(count):
    b = Builder()
    x = y = b.input("x")
    rng = np.random.default_rng(0)
    for _ in range(count):
        h = b.op("MatMul", y, b.constant(rng.normal(size=(4, 4)).astype(np.float32)))
        y = b.op("Reshape", b.op("Add", y, h), b.constant(np.array([2, 4])))
    return b.model([x], [y])


def test_equal_kernels_share_a_function_if_their_attributes_are_equal():
    model = layers(4)
    graph = DataflowGraph(model)
    compilers = ["a", "a", "b", "a"]
    specs = [
        KernelSpec(SubGraph(graph, range(3 * k, 3 * k + 3)), f"layer{k}", {"Compiler": compilers[k]}) for k in range(4)
    ]
    result = partition(model, specs)
    assert [c.node.op_type for c in kernels_of(result)] == ["layer0", "layer0", "layer2", "layer0"]
    assert [c.node.name for c in kernels_of(result)] == ["layer0", "layer1", "layer2", "layer3"]
    assert len(result.functions) == 2
    for k, call in enumerate(kernels_of(result)):
        kernel = kernel_model(result, call.node, "k")
        weight = kernel.graph.initializers[f"w{2 * k}"].const_value
        assert np.shares_memory(weight.numpy(), model.graph.initializers[f"w{2 * k}"].const_value.numpy())
    feeds = feeds_of(model)
    np.testing.assert_array_equal(run(result, feeds)[0], run(model, feeds)[0])


def test_small_constants_are_inside_and_weights_are_passed():
    model = layers(1)
    result = partition(model, [KernelSpec(SubGraph(DataflowGraph(model), [0, 1, 2]), "k")])
    call = kernels_of(result)[0]
    assert [v.name for v in call.node.inputs] == ["x", "w0"]
    assert [n.op_type for n in call.function].count("Constant") == 1
    assert list(result.graph.initializers) == ["w0"]
    assert 10 <= result.ir_version <= 13 and result.opset_imports["collage"] == 1


def test_kernels_that_share_a_function_pass_their_weights_in_one_order():
    b = Builder()
    x = y = b.input("x")
    rng = np.random.default_rng(0)
    for first, second in (("a", "b"), ("d", "c")):
        for name in (first, second):
            y = b.op("MatMul", y, b.constant(rng.normal(size=(4, 4)).astype(np.float32), name))
    model = b.model([x], [y])
    graph = DataflowGraph(model)
    result = partition(model, [KernelSpec(SubGraph(graph, [k, k + 1]), f"k{k}") for k in (0, 2)])
    assert len(result.functions) == 1
    np.testing.assert_array_equal(run(result, feeds_of(model))[0], run(model, feeds_of(model))[0])


def test_names_at_the_call_do_not_clash_with_names_inside():
    model = layers(1)
    result = partition(model, [KernelSpec(SubGraph(DataflowGraph(model), [0, 1, 2]), "k")])
    call = kernels_of(result)[0]
    inner = [v.name for node in call.function for v in node.outputs if v not in call.function.outputs]
    result.graph.inputs[0].name, result.graph.initializers["w0"].name = inner[-2], inner[-1]
    kernel = kernel_model(result, call.node, "k")
    names = [v.name for v in (*kernel.graph.inputs, *(v for n in kernel.graph for v in n.outputs))]
    assert len({*names, *kernel.graph.initializers}) == len(names) + len(kernel.graph.initializers)
    x = feeds_of(model)["x"]
    np.testing.assert_array_equal(run(kernel, {inner[-2]: x})[0], run(model, {"x": x})[0])


def test_labelled_parts_become_composite_functions_inside():
    model = layers(1)
    graph = DataflowGraph(model)
    s = SubGraph(graph, [0, 1]).with_label("lib.dense_add").disjoint_union(SubGraph(graph, [2]))
    result = partition(model, [KernelSpec(s, "k", {"Compiler": "lib"})])
    composites = [f for f in result.functions.values() if "Composite" in f.metadata_props]
    assert [f.metadata_props["Composite"] for f in composites] == ["lib.dense_add"]
    assert "Primitive" not in composites[0].metadata_props
    kernel = kernel_model(result, kernels_of(result)[0].node, "k")
    assert [n.metadata_props.get("Composite") for n in kernel.graph] == ["lib.dense_add#0"] * 2 + [None]
    assert structural_hash(kernel) != structural_hash(extract(graph, SubGraph(graph, [0, 1, 2]), "k"))
    check(result)


def test_kernels_that_feed_each_other_are_refused():
    b = Builder()
    x = b.input("x")
    a1, b1 = b.op("Relu", x), b.op("Neg", x)
    a2, b2 = b.op("Tanh", b1), b.op("Abs", a1)
    model = b.model([x], [a2, b2])
    graph = DataflowGraph(model)
    index = {n.op_type: i for i, n in enumerate(graph.nodes)}
    first, second = (SubGraph(graph, [index[p], index[q]]) for p, q in (("Relu", "Tanh"), ("Neg", "Abs")))
    assert first.is_convex and second.is_convex
    assert not (first.is_admissible and second.is_admissible)
    with pytest.raises(PassError, match="circle"):
        partition(model, [KernelSpec(first, "a"), KernelSpec(second, "b")])


def test_overlapping_and_foreign_kernels_are_refused():
    model = layers(1)
    graph = DataflowGraph(model)
    with pytest.raises(PassError, match="two kernels"):
        partition(model, [KernelSpec(SubGraph(graph, [0, 1]), "a"), KernelSpec(SubGraph(graph, [1, 2]), "b")])
    with pytest.raises(PassError, match="another model"):
        partition(layers(1), [KernelSpec(SubGraph(graph, [0]), "a")])


def test_kernels_may_lie_inside_control_flow_bodies():
    model = if_model()
    node = next(n for n in model.graph if n.op_type == "If")
    then = node.attributes["then_branch"].as_graph()
    body = DataflowGraph(then, model=model)
    result = partition(model, [KernelSpec(SubGraph(body, [0, 1]), "inner", {"Compiler": "a"})])
    inner = next(n for n in result.graph if n.op_type == "If").attributes["then_branch"].as_graph()
    assert [c.node.name for c in kernels_of(result, inner)] == ["inner"] and not kernels_of(result)
    check(result)
    for flag in (True, False):
        feeds = {"x": np.array([[1, -2, 3, -4]] * 2, np.float32), "c": np.array(flag)}
        np.testing.assert_array_equal(run(result, feeds)[0], run(model, feeds)[0])


def test_a_control_flow_node_may_be_inside_a_kernel():
    model = if_model()
    graph = DataflowGraph(model)
    result = partition(model, [KernelSpec(SubGraph(graph, range(len(graph))), "all")])
    assert len(result.graph) == 1
    for flag in (True, False):
        feeds = {"x": np.array([[1, -2, 3, -4]] * 2, np.float32), "c": np.array(flag)}
        np.testing.assert_array_equal(run(result, feeds)[0], run(model, feeds)[0])


def test_a_node_that_calls_nothing_is_no_kernel():
    model = layers(1)
    with pytest.raises(UsageError, match="calls no function"):
        kernel_model(model, model.graph[0], "k")


def test_external_weights_survive(tmp_path):
    array = np.arange(16, dtype=np.float32).reshape(4, 4)
    (tmp_path / "weights").write_bytes(array.tobytes())
    model = layers(1)
    external = ir.ExternalTensor(
        "weights", 0, 64, ir.DataType.FLOAT, shape=ir.Shape([4, 4]), name="w0", base_dir=str(tmp_path)
    )
    model.graph.initializers["w0"].const_value = external
    result = partition(model, [KernelSpec(SubGraph(DataflowGraph(model), [0, 1, 2]), "k")])
    kernel = kernel_model(result, kernels_of(result)[0].node, "k")
    for made in (result, kernel):
        weight = made.graph.initializers["w0"].const_value
        assert isinstance(weight, ir.ExternalTensor) and (weight.path, weight.offset) == (external.path, 0)


def test_absent_inputs_and_unnamed_outputs_are_kept():
    rng = np.random.default_rng(0)
    b = Builder()
    x = b.input("x", (3, 2, 4))
    weights = [b.constant(rng.normal(size=shape).astype(np.float32)) for shape in ((1, 8, 4), (1, 8, 2), (1, 16))]
    states, last, cell = b.op("LSTM", x, *weights, None, None, None, shape=(1, 2, 2), outputs=3, hidden_size=2)
    states.name = cell.name = ""
    y = b.op("Clip", last, None, b.constant(np.float32(0.1)), shape=(1, 2, 2))
    model = b.model([x], [y])
    graph = DataflowGraph(model)
    result = partition(model, [KernelSpec(SubGraph(graph, [0, 1]), "both", {"Compiler": "a"})])
    feeds = feeds_of(model)
    np.testing.assert_array_equal(run(result, feeds)[0], run(model, feeds)[0])
    kernel = kernel_model(result, kernels_of(result)[0].node, "k")
    np.testing.assert_array_equal(run(kernel, feeds)[0], run(model, feeds)[0])


def test_outputs_of_a_kernel_have_the_types_of_the_call_if_its_function_states_none():
    model = random_model(3, 6)
    result = partition(model, [KernelSpec(SubGraph(DataflowGraph(model), {0}), "k")])
    (function,), call = result.functions.values(), kernels_of(result)[0].node
    for value in function.outputs:
        value.type, value.shape = None, None
    kernel = kernel_model(result, call, "k")
    for value, at_call in zip(kernel.graph.outputs, call.outputs, strict=True):
        assert at_call.type is not None
        assert (value.type, value.shape) == (at_call.type, at_call.shape)


def test_a_model_without_kernels_stays_as_it_is():
    model = random_model(5, 8)
    assert ir.to_proto(partition(model, [])) == ir.to_proto(model)
