"""TVM's profiler: each call of its module counts as a node of the kernel."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.toolchain.least_profile import least_seconds

from collage.target import Target
from collage.toolchains.tvm.toolchain import TvmToolchain

pytest.importorskip("tvm")

TARGET = Target.parse("llvm -threads=1")
SIDE = 64


def model_of(nodes: Sequence[onnx.NodeProto], weights: Mapping[str, np.ndarray], shape: Sequence[int]) -> ir.Model:
    graph = helper.make_graph(
        nodes,
        "kernel",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    return ir.from_proto(onnx.shape_inference.infer_shapes(model, strict_mode=True))


def profile_of(model: ir.Model, shape: Sequence[int], folder: Path) -> Mapping[int, float]:
    toolchain = TvmToolchain()
    compiled = toolchain.compile(model, TARGET, folder)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    return least_seconds(toolchain, compiled, TARGET, folder, [x])


def convolution(x: str, y: str, weight: str) -> onnx.NodeProto:
    return helper.make_node("Conv", [x, weight], [y], pads=[1] * 4)


def weight(rows: int, columns: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((rows, columns, 3, 3)).astype(np.float32)


def test_time_is_with_the_node_that_takes_it(tmp_path: Path) -> None:
    nodes = [
        convolution("x", "a", "narrow"),
        helper.make_node("Relu", ["a"], ["b"]),
        convolution("b", "c", "wide"),
        helper.make_node("Sigmoid", ["c"], ["d"]),
        convolution("d", "y", "back"),
    ]
    weights = {"narrow": weight(8, 4), "wide": weight(96, 8), "back": weight(96, 96)}
    seconds = profile_of(model_of(nodes, weights, [1, 4, SIDE, SIDE]), [1, 4, SIDE, SIDE], tmp_path)
    assert set(seconds) <= {0, 2, 4}, "what is fused counts as the convolution"
    assert seconds[4] > seconds[2] > seconds[0]


def test_calls_of_one_function_count_as_their_own_nodes(tmp_path: Path) -> None:
    nodes = [convolution("x", "a", "w"), convolution("a", "b", "w"), convolution("b", "y", "w")]
    seconds = profile_of(model_of(nodes, {"w": weight(32, 32)}, [1, 32, SIDE, SIDE]), [1, 32, SIDE, SIDE], tmp_path)
    assert set(seconds) >= {0, 1, 2}
    assert max(seconds.values()) < 3 * min(seconds[0], seconds[1], seconds[2])


def test_an_operator_of_several_calls_is_one_node(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Softmax", ["x"], ["a"], axis=-1),
        helper.make_node("Transpose", ["a"], ["b"], perm=[1, 0]),
        helper.make_node("MatMul", ["b", "w"], ["y"]),
    ]
    weights = {"w": np.ones((48, 16), np.float32)}
    seconds = profile_of(model_of(nodes, weights, [48, 64]), [48, 64], tmp_path)
    assert 0 in seconds and 2 in seconds


def test_an_operator_of_several_results_or_of_own_loops_has_its_time(tmp_path: Path) -> None:
    """The time of an operator without a name is taken for that of the next one that has a name."""
    weights = {"count": np.array([40], np.int64), "place": np.arange(20), "scale": np.ones(40, np.float32)}
    nodes = [
        helper.make_node("TopK", ["x", "count"], ["a", "order"], axis=-1),
        helper.make_node("LayerNormalization", ["a", "scale"], ["b"]),
        helper.make_node("Gather", ["b", "place"], ["c"], axis=0),
        helper.make_node("ReduceMax", ["c"], ["d"], axes=[-1]),
        helper.make_node("Tanh", ["d"], ["y"]),
    ]
    seconds = profile_of(model_of(nodes, weights, [48, 64]), [48, 64], tmp_path)
    assert set(seconds) >= {0, 1, 2, 3}
    assert max(seconds, key=lambda place: seconds[place]) == 0


@pytest.mark.parametrize("seed", range(4))
def test_products_of_random_graphs_are_all_found(seed: int, tmp_path: Path) -> None:
    rng, values, nodes, weights = random.Random(seed), ["x"], [], {}
    for i in range(12):
        kind = rng.choice(("MatMul", "Add", "Tanh", "Softmax", "Transpose"))
        inputs = [rng.choice(values[-3:])]
        inputs += [f"w{i}"] if kind == "MatMul" else [rng.choice(values[-3:])] if kind == "Add" else []
        if kind == "MatMul":
            weights[f"w{i}"] = np.eye(SIDE, dtype=np.float32) + np.float32(i)
        nodes.append(helper.make_node(kind, inputs, [f"v{i}"]))
        values.append(f"v{i}")
    total = nodes[0].output[0]
    for i, value in enumerate(values[2:]):
        nodes.append(helper.make_node("Add", [total, value], [f"t{i}"]))
        total = f"t{i}"
    seconds = profile_of(model_of(nodes, weights, [SIDE, SIDE]), [SIDE, SIDE], tmp_path)
    products = {i for i, node in enumerate(nodes) if node.op_type == "MatMul"}
    assert products <= set(seconds) < set(range(len(nodes)))


def test_functions_are_shared_as_without_names() -> None:
    """The nodes that a call computes are written on the call, so that equal loops are compiled once."""
    import tvm
    from tvm import relax

    from collage.toolchains.tvm.importer import import_onnx
    from collage.toolchains.tvm.profiler import fuse_operators

    nodes = [
        node
        for i in range(5)
        for node in (
            convolution(f"v{i}" if i else "x", f"c{i}", "w"),
            helper.make_node("Relu", [f"c{i}"], [f"v{i + 1}"]),
        )
    ]
    model = model_of(nodes, {"w": weight(8, 8)}, [1, 8, 16, 16])
    for i, node in enumerate(model.graph):
        node.name = f"collage_n{i}_"
    steps = [relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern()]
    lowered = tvm.transform.Sequential(steps)(import_onnx(ir.to_proto(model)))
    fused, named = (
        tvm.transform.Sequential([fuse, relax.transform.FuseTIR()])(lowered)
        for fuse in (relax.transform.FuseOps(), fuse_operators())
    )
    assert len(named.functions_items()) == len(fused.functions_items()) < 5


def test_a_refusal_has_the_names_of_the_model() -> None:
    from collage.toolchains.sdk.profiler_names import node_token, with_names

    assert (
        with_names(f"Node {node_token(1)} cannot; {node_token(7)}", {0: "a", 1: "layer/b"})
        == "Node layer/b cannot; collage_n7_"
    )
