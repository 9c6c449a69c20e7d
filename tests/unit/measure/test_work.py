"""The work of operators, against counting by loops and against what a runtime reads and writes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from collage.graph import DataflowGraph, IndexSet, SubGraph
from collage.measure.machine_rates import MachineRates
from collage.measure.work import Work, Workload

RATES = MachineRates(1e9, ((1000, 4e9), (10_000, 2e9), (100_000, 1e9)))


def workload(
    nodes: Sequence[onnx.NodeProto], inputs: dict[str, Sequence[int]], weights: dict[str, Any], dtype: Any = np.float32
) -> tuple[DataflowGraph, Workload]:
    """A model of these nodes, whose last results are its outputs, with the shapes of a run by ONNX's reference evaluator."""
    read = {name for node in nodes for name in node.input}
    results = [name for node in nodes for name in node.output if name]
    outputs = [name for name in results if name not in read]
    number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    feeds = {name: np.ones(shape, dtype) for name, shape in inputs.items()}
    arrays = {k: np.ones(v, dtype) if isinstance(v, tuple) else np.asarray(v) for k, v in weights.items()}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, number, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=10)
    for value in model.graph.output:
        value.ClearField("type")
    made = dict(zip(results, ReferenceEvaluator(model).run(results, feeds), strict=True))
    shapes = {name: np.shape(array) for name, array in {**feeds, **arrays, **made}.items()}
    copy = ir.from_proto(model)
    for node in copy.graph:
        for value in node.outputs:
            if value.name:
                value.type = ir.TensorType(ir.DataType.from_numpy(made[value.name].dtype))
    found = DataflowGraph(copy)
    return found, Workload(found, lambda value: shapes[str(value.name)])


def work_of(graph: DataflowGraph, workloads: Workload, *indices: int) -> Work:
    place = SubGraph(graph, IndexSet.from_indices(indices or range(len(graph))))
    found = workloads.of(place)
    assert found is not None
    return found


def alone(
    op_type: str, inputs: dict[str, Any], weights: dict[str, Any], dtype: Any = np.float32, **attributes: Any
) -> Work:
    outputs = {"LSTM": ["y", "h", "c"], "GRU": ["y", "h"]}.get(op_type, ["y"])
    node = helper.make_node(op_type, [*inputs, *weights], outputs, name="n", **attributes)
    return work_of(*workload([node], inputs, weights, dtype))


def convolution_flops(x: Sequence[int], w: Sequence[int], strides: Sequence[int], groups: int) -> int:
    """A multiplication and an addition for each tap of each output, counted by walking over all of them, without padding."""
    rows, columns = ((x[2 + i] - w[2 + i]) // strides[i] + 1 for i in (0, 1))
    count = 0
    for _, out, _, _ in itertools.product(range(x[0]), range(w[0]), range(rows), range(columns)):
        group = out // (w[0] // groups)
        channels = range(group * w[1], (group + 1) * w[1])
        count += 2 * sum(1 for _ in itertools.product(channels, range(w[2]), range(w[3])))
    return count


@pytest.mark.parametrize(
    ("x", "w", "strides", "groups"),
    [
        ((2, 6, 9, 8), (4, 6, 3, 3), (1, 1), 1),
        ((1, 6, 9, 8), (4, 3, 3, 2), (2, 1), 2),
        ((1, 6, 9, 8), (6, 1, 5, 5), (2, 2), 6),
        ((1, 6, 4, 4), (12, 1, 1, 1), (1, 1), 6),
    ],
)
def test_convolutions(x: Any, w: Any, strides: Any, groups: int) -> None:
    found = alone("Conv", {"x": x}, {"w": w, "b": (w[0],)}, strides=strides, group=groups)
    height, width = ((x[2 + i] - w[2 + i]) // strides[i] + 1 for i in (0, 1))
    assert found.flops == convolution_flops(x, w, strides, groups)
    assert found.weight_bytes == 4 * (math.prod(w) + w[0])
    assert found.other_bytes == 4 * (math.prod(x) + x[0] * w[0] * height * width)


def test_a_transposed_convolution_does_each_tap_of_each_input() -> None:
    found = alone("ConvTranspose", {"x": (1, 6, 5, 5)}, {"w": (6, 4, 2, 2)}, strides=[2, 2], group=1)
    assert found.flops == 2 * (6 * 5 * 5) * (4 * 2 * 2)
    assert found.other_bytes == 4 * (6 * 25 + 4 * 100)


@pytest.mark.parametrize(
    ("a", "b", "flops"),
    [
        ((5, 7), (7, 3), 2 * 5 * 7 * 3),
        ((2, 4, 5, 7), (2, 4, 7, 3), 2 * 8 * 5 * 7 * 3),
        ((2, 4, 5, 7), (7, 3), 2 * 8 * 5 * 7 * 3),
        ((7,), (7, 3), 2 * 7 * 3),
        ((5, 7), (7,), 2 * 5 * 7),
    ],
)
def test_products(a: Any, b: Any, flops: int) -> None:
    assert alone("MatMul", {"a": a, "b": b}, {}).flops == flops
    both = alone("MatMul", {"a": a, "b": b}, {}, np.float64)
    assert both.flops == 2 * flops, "a register holds half as many"
    assert both.other_bytes == 2 * alone("MatMul", {"a": a, "b": b}, {}).other_bytes


@pytest.mark.parametrize("transposed", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_gemm_either_way_round(transposed: tuple[int, int]) -> None:
    a, b = ((5, 7), (7, 5))[transposed[0]], ((7, 3), (3, 7))[transposed[1]]
    found = alone("Gemm", {"a": a}, {"b": b, "c": (3,)}, transA=transposed[0], transB=transposed[1])
    assert found == Work(2 * 5 * 7 * 3, 4 * (21 + 3), 4 * (35 + 15))


@pytest.mark.parametrize(("op_type", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_recurrent_layers(op_type: str, gates: int) -> None:
    steps, batch, size, hidden = 4, 1, 5, 6
    weights = {"w": (1, gates * hidden, size), "r": (1, gates * hidden, hidden)}
    found = alone(op_type, {"x": (steps, batch, size)}, weights, hidden_size=hidden)
    # Each gate of each step: a matrix times the input, and one times the state.
    assert found.flops == steps * batch * gates * 2 * (hidden * size + hidden * hidden)
    assert found.weight_bytes == 4 * gates * hidden * (size + hidden)
    states = {"LSTM": 2, "GRU": 1}.get(op_type, 0)
    assert found.other_bytes == 4 * (steps * size + steps * hidden + states * hidden)


@pytest.mark.parametrize(
    ("equation", "a", "b", "flops"),
    [
        ("bij,bjk->bik", (2, 3, 4), (2, 4, 5), 2 * 2 * 3 * 4 * 5),
        ("ij,kj", (3, 4), (5, 4), 2 * 3 * 4 * 5),
        ("...ij,jk->...ik", (2, 3, 4), (4, 5), 2 * 2 * 3 * 4 * 5),
        ("ij,ij->ij", (3, 4), (3, 4), 2 * 3 * 4),
    ],
)
def test_einsum(equation: str, a: Any, b: Any, flops: int) -> None:
    assert alone("Einsum", {"a": a, "b": b}, {}, equation=equation).flops == flops


def test_elementwise_operators_move_bytes_only_and_inner_values_stay_inside() -> None:
    nodes = [
        helper.make_node("Add", ["x", "x"], ["s"], name="0"),
        helper.make_node("Mul", ["s", "c"], ["m"], name="1"),
        helper.make_node("Relu", ["m"], ["y"], name="2"),
        helper.make_node("Greater", ["y", "x"], ["z"], name="3"),
    ]
    graph, found = workload(nodes, {"x": (10, 3)}, {"c": np.ones(3, np.float32)})
    assert work_of(graph, found, 0) == Work(0, 0, 4 * (30 + 30)), "one value that is read twice is read once"
    assert work_of(graph, found, 1) == Work(0, 12, 4 * (30 + 30))
    assert work_of(graph, found, 0, 1, 2) == Work(0, 12, 4 * (30 + 30))
    assert work_of(graph, found, 3) == Work(0, 0, 4 * (30 + 30) + 30), "booleans are bytes"


def test_views_cost_nothing_and_what_is_read_through_them_is_read_once() -> None:
    nodes = [
        helper.make_node("Reshape", ["x", "flat"], ["f"], name="0"),
        helper.make_node("Transpose", ["f"], ["t"], name="1", perm=[1, 0, 2]),
        helper.make_node("Shape", ["t"], ["s"], name="2"),
        helper.make_node("Add", ["t", "t"], ["a"], name="3"),
        helper.make_node("Unsqueeze", ["a", "axis"], ["u"], name="4"),
        helper.make_node("Transpose", ["u"], ["y"], name="5", perm=[0, 3, 2, 1]),
    ]
    weights = {"flat": np.array([1, 6, 5]), "axis": np.array([0])}
    graph, found = workload(nodes, {"x": (5, 6)}, weights)
    by_name = {str(node.name): i for i, node in enumerate(graph.nodes)}
    for view in "0124":
        assert found.is_free(SubGraph(graph, IndexSet(1 << by_name[view])))
        assert work_of(graph, found, by_name[view]) == Work(0, 0, 0)
    assert work_of(graph, found, *(by_name[name] for name in "0134")) == Work(0, 0, 4 * (30 + 30))
    assert work_of(graph, found, by_name["5"]) == Work(0, 0, 4 * (30 + 30)), "this one moves everything"


def test_parts_of_a_tensor_are_read_as_far_as_they_are_taken() -> None:
    gather = alone("Gather", {}, {"table": (1000, 8), "rows": np.arange(3)})
    assert gather == Work(0, 0, 0), "a constant"
    nodes = [
        helper.make_node("Gather", ["table", "rows"], ["g"], name="0"),
        helper.make_node("Slice", ["x", "from", "to"], ["y"], name="1"),
    ]
    weights = {"table": (1000, 8), "from": np.array([0]), "to": np.array([2])}
    graph, found = workload([nodes[1]], {"x": (50, 4)}, {k: weights[k] for k in ("from", "to")})
    assert work_of(graph, found) == Work(0, 0, 4 * (8 + 8))
    rows = helper.make_node("Cast", ["r"], ["rows"], name="c", to=TensorProto.INT64)
    graph, found = workload([rows, nodes[0]], {"r": (3,)}, {"table": (1000, 8)})
    assert work_of(graph, found, 1) == Work(0, 4 * 24, 8 * 3 + 4 * 24)


def test_weights_in_few_bits_are_read_as_they_are_stored() -> None:
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "scale"], ["w"], name="0"),
        helper.make_node("MatMul", ["x", "w"], ["y"], name="1"),
    ]
    weights = {"q": np.ones((16, 8), np.int8), "scale": np.float32(0.5)}
    graph, found = workload(nodes, {"x": (2, 16)}, weights)
    assert work_of(graph, found, 1) == Work(2 * 2 * 16 * 8, 16 * 8 + 4, 4 * (32 + 16))
    assert found.weight_bytes == 16 * 8 + 4


def test_what_has_bodies_or_is_not_of_onnx_is_not_known() -> None:
    node = ir.Node("com.example", "Own", [ir.Value(name="x")], outputs=[ir.Value(name="y")], name="own")
    graph = DataflowGraph(ir.Model(ir.Graph(node.inputs, node.outputs, nodes=[node], name="g"), ir_version=10))  # type: ignore[arg-type]
    assert Workload(graph, lambda _: None).of(SubGraph(graph, IndexSet(1))) is None


def test_the_limit_is_arithmetic_or_memory_and_weights_come_from_where_all_fit() -> None:
    assert Work(1e9, 0, 0).limit_s(RATES, 0) == 1.0
    assert Work(1.0, 0, 1000).limit_s(RATES, 0) == pytest.approx(1000 / 4e9)
    assert Work(1.0, 0, 1001).limit_s(RATES, 0) == pytest.approx(1001 / 2e9)
    assert Work(1.0, 500, 1000).limit_s(RATES, 1e9) == pytest.approx(500 / 1e9 + 1000 / 4e9)


def test_a_near_cache_counts_as_fast_as_a_far_one_if_it_seems_slower() -> None:
    assert MachineRates(1.0, ((10, 1.0), (20, 5.0), (30, 2.0))).bandwidth(5) == 5.0
