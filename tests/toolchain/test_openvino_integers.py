"""Bounds on integers hold for what is computed, whatever is computed."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from collage.toolchains.openvino.integers import _Known

LIMIT = 50
OPERATORS = (
    *(("Add", 2), ("Sub", 2), ("Mul", 2), ("Div", 2), ("Mod", 2), ("Min", 2), ("Max", 2), ("Sum", 3), ("Where", 2)),
    *(("Neg", 1), ("Abs", 1), ("CumSum", 1), ("ReduceSum", 1), ("ReduceMax", 1), ("Concat", 2), ("Clip", 3)),
    *(
        ("MatMul", 2),
        ("ScatterElements", 2),
        ("ReduceProd", 1),
        ("Pad", 1),
        ("ArgMax", 1),
        ("Shape", 1),
        ("Identity", 1),
    ),
)


def random_graph(seed: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Arithmetic on vectors of four, brought back to that length after each step, with inputs within the limit."""
    random = np.random.default_rng(seed)
    feeds = {f"x{i}": random.integers(-LIMIT, LIMIT + 1, 4) for i in range(2)}
    weights = {"k": random.integers(-9, 10, 4), "big": random.integers(-(10**6), 10**6, 4), "s": np.array([4])}
    weights |= {"zero": np.array(0), "i": np.array([3, 1, 1, 0]), "pads": np.array([1, 1]), "seven": np.array([7])}
    truths = {"t": np.array([True, False, True, False])}
    names, nodes = [*feeds, "k", "big"], []
    for step in range(6):
        op, arity = OPERATORS[random.integers(len(OPERATORS))]
        picked, made = [str(name) for name in random.choice(names, arity)], f"v{step}"
        if op in ("Div", "Mod"):
            picked[1] = "seven"
        extra = {"Where": ["t", *picked], "CumSum": [*picked, "zero"], "Pad": [*picked, "pads"]}
        if op == "ScatterElements":
            picked = [picked[0], "i", picked[1]]
        scalars = [f"{made}_{i}" for i in range(2)] if op == "Clip" else []
        nodes += [
            helper.make_node("ReduceMin", [n], [s], keepdims=0) for n, s in zip(picked[1:], scalars, strict=False)
        ]
        operands = extra.get(op, [picked[0], *scalars] if scalars else picked)
        more = {"Concat": {"axis": 0}, "ScatterElements": {"reduction": "add"}, "ArgMax": {"keepdims": 1}}.get(op, {})
        nodes.append(helper.make_node(op, operands, [made], **more))
        if op in ("ReduceSum", "ReduceMax", "ReduceProd", "ArgMax", "Shape", "MatMul"):
            nodes.append(helper.make_node("Expand", [made, "s"], [f"{made}_wide"]))
            made = f"{made}_wide"
        elif op in ("Concat", "Pad"):
            nodes.append(helper.make_node("Gather", [made, "i"], [f"{made}_four"]))
            made = f"{made}_four"
        names.append(made)
    known = set(feeds) | set(weights) | set(truths)
    made_names = [name for node in nodes for name in node.output if name not in known]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.INT64, [4]) for name in feeds],
        [helper.make_tensor_value_info(name, TensorProto.INT64, None) for name in made_names],
        [numpy_helper.from_array(array, name) for name, array in (weights | truths).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return onnx.shape_inference.infer_shapes(model), feeds


@pytest.mark.parametrize("seed", range(150))
def test_every_computed_number_lies_within_its_bounds(seed: int) -> None:
    proto, feeds = random_graph(seed)
    model, known = ir.from_proto(proto), _Known(LIMIT)
    with np.errstate(over="ignore"):
        results = ReferenceEvaluator(proto).run(None, feeds)
    for value, array in zip(model.graph.outputs, results, strict=True):
        bounds = known.of(value)
        if max(abs(bounds.low), abs(bounds.high)) < 2**62:
            assert bounds.low <= array.min() and array.max() <= bounds.high, (value.name, value.producer(), bounds)
