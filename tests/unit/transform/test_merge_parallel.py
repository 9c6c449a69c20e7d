"""MergeParallel: any number of branches, the same answers, and nothing where weights are shared or differ in kind."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from collage.transform import MergeParallel, PassContext

FLOAT = TensorProto.FLOAT


def build(nodes, weights, x_shape, outputs, opset=18) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", FLOAT, x_shape)],
        [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    return onnx.shape_inference.infer_shapes(model)


def merged(model: onnx.ModelProto) -> onnx.ModelProto:
    with PassContext(opt_level=3):
        return ir.to_proto(MergeParallel()(ir.from_proto(model)))


def counts(model: onnx.ModelProto, op_type: str) -> int:
    return sum(node.op_type == op_type for node in model.graph.node)


def check(model: onnx.ModelProto, after: onnx.ModelProto, x: np.ndarray) -> None:
    onnx.checker.check_model(after, full_check=True)
    for old, new in zip(
        ReferenceEvaluator(model).run(None, {"x": x}), ReferenceEvaluator(after).run(None, {"x": x}), strict=True
    ):
        np.testing.assert_allclose(new, old, rtol=1e-5, atol=1e-5)


@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(["MatMul", "MatMul+Add", "Gemm", "Gemm transposed", "Conv", "Conv with bias"]),
    sizes=st.lists(st.integers(1, 5), min_size=2, max_size=40),
    opset=st.sampled_from([11, 13, 18]),
)
def test_any_number_of_branches(kind: str, sizes: list[int], opset: int) -> None:
    random = np.random.default_rng(0)
    weights, nodes = {}, []
    for i, size in enumerate(sizes):
        out, operands, attributes = f"o{i}", ["x", f"w{i}"], {}
        if kind.startswith("Conv"):
            weights[f"w{i}"] = random.standard_normal((size, 3, 1, 1)).astype(np.float32)
        else:
            weights[f"w{i}"] = random.standard_normal((4, size)).astype(np.float32)
        if kind == "Gemm transposed":
            weights[f"w{i}"] = np.ascontiguousarray(weights[f"w{i}"].T)
            attributes["transB"] = 1
        if kind in ("MatMul+Add", "Gemm", "Conv with bias"):
            weights[f"b{i}"] = random.standard_normal(size).astype(np.float32)
        if kind in ("Gemm", "Conv with bias"):
            operands.append(f"b{i}")
        nodes.append(helper.make_node(kind.split("+")[0].split()[0], operands, [out], name=f"n{i}", **attributes))
        if kind == "MatMul+Add":
            nodes.append(helper.make_node("Add", [f"b{i}", out], [f"s{i}"], name=f"a{i}"))
            out = f"s{i}"
        nodes.append(helper.make_node("Relu", [out], [f"y{i}"], name=f"r{i}"))
    shape = (2, 3, 5, 5) if kind.startswith("Conv") else (6, 4)
    model = build(nodes, weights, shape, [f"y{i}" for i in range(len(sizes))], opset)
    after = merged(model)
    operator = kind.split("+")[0].split()[0]
    assert (
        counts(after, operator) == 1 and counts(after, "Split") == 1 and counts(after, "Add") == (kind == "MatMul+Add")
    )
    assert sum(t.dims[0] * np.prod(t.dims[1:]) for t in after.graph.initializer if "weight" in t.name) == sum(
        array.size for name, array in weights.items() if name.startswith("w")
    )
    check(model, after, random.standard_normal(shape).astype(np.float32))


def test_queries_keys_and_values_of_rank_three() -> None:
    random = np.random.default_rng(1)
    nodes = [helper.make_node("MatMul", ["x", f"w{i}"], [f"m{i}"], name=f"m{i}") for i in range(3)]
    nodes += [helper.make_node("Neg", [f"m{i}"], [f"y{i}"], name=f"y{i}") for i in range(3)]
    weights = {f"w{i}": random.standard_normal((8, 8)).astype(np.float32) for i in range(3)}
    model = build(nodes, weights, (2, 5, 8), ["y0", "y1", "y2"])
    after = merged(model)
    assert counts(after, "MatMul") == 1
    check(model, after, random.standard_normal((2, 5, 8)).astype(np.float32))


@pytest.mark.parametrize("case", ["shared", "other input", "other attributes", "graph output", "groups", "one"])
def test_what_is_left_alone(case: str) -> None:
    weights = {f"w{i}": np.ones((4, 4, 1, 1), np.float32) for i in range(2)}
    first, second, attributes = ["x", "w0"], ["x", "w1"], {}
    outputs = ["y0", "y1"]
    nodes = []
    if case == "shared":
        second = first
    if case == "other input":
        nodes.append(helper.make_node("Neg", ["x"], ["z"], name="z"))
        second = ["z", "w1"]
    if case == "other attributes":
        attributes = {"pads": [1, 1, 1, 1]}
    if case == "groups":
        weights = {f"w{i}": np.ones((4, 2, 1, 1), np.float32) for i in range(2)}
    group = {"group": 2} if case == "groups" else {}
    nodes += [
        helper.make_node("Conv", first, ["a"], name="a", **group),
        helper.make_node("Conv", second, ["b"], name="b", **attributes, **group),
        helper.make_node("Relu", ["a"], ["y0"], name="ra"),
        helper.make_node("Relu", ["b"], ["y1"], name="rb"),
    ]
    if case == "graph output":
        outputs = ["y0", "b"]
        nodes.pop()
    if case == "one":
        nodes, outputs = [nodes[0], nodes[2]], ["y0"]
    model = build(nodes, weights, (1, 4, 3, 3), outputs)
    assert [n.op_type for n in merged(model).graph.node] == [n.op_type for n in model.graph.node]


def test_it_is_off_by_default() -> None:
    nodes = [helper.make_node("MatMul", ["x", f"w{i}"], [f"m{i}"], name=f"m{i}") for i in range(2)]
    nodes.append(helper.make_node("Add", ["m0", "m1"], ["y"], name="y"))
    model = build(nodes, {f"w{i}": np.ones((4, 4), np.float32) for i in range(2)}, (4, 4), ["y"])
    assert counts(ir.to_proto(MergeParallel()(ir.from_proto(model))), "MatMul") == 2
