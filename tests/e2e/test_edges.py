"""Small strange models: what a compiler meets sooner or later."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import collage
from tests.e2e.conftest import LENT, MENU, model_of

F, I64 = TensorProto.FLOAT, TensorProto.INT64


def node(op: str, inputs: str, outputs: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


def branch(name: str, op: str) -> onnx.GraphProto:
    return helper.make_graph(
        [node(op, "x", f"{name}_out")], name, [], [helper.make_tensor_value_info(f"{name}_out", F, [3])]
    )


MODELS = {
    "an output is an input": model_of([node("Relu", "x", "y")], {"x": (F, [3])}, {"y": (F, [3]), "x": (F, [3])}, {}),
    "no operators": model_of([], {"x": (F, [3])}, {"x": (F, [3])}, {}),
    "an output is constant": model_of(
        [node("Add", "a a", "c"), node("Relu", "x", "y")],
        {"x": (F, [3])},
        {"c": (F, [2]), "y": (F, [3])},
        {"a": np.ones(2, "f")},
    ),
    "everything is constant": model_of([node("Add", "a a", "c")], {}, {"c": (F, [2])}, {"a": np.ones(2, "f")}),
    "an input is unused": model_of([node("Relu", "x", "y")], {"x": (F, [3]), "u": (I64, [1])}, {"y": (F, [3])}, {}),
    "scalars": model_of([node("Mul", "x x", "y")], {"x": (F, [])}, {"y": (F, [])}, {}),
    "nothing in it": model_of([node("Relu", "x", "y")], {"x": (F, [0, 3])}, {"y": (F, [0, 3])}, {}),
    "a value is used twice by one node": model_of(
        [node("MatMul", "x x", "y")], {"x": (F, [3, 3])}, {"y": (F, [3, 3])}, {}
    ),
    "only views": model_of(
        [node("Reshape", "x s", "y"), node("Squeeze", "x a", "z")],
        {"x": (F, [1, 4])},
        {"y": (F, [2, 2]), "z": (F, [4])},
        {"s": np.array([2, 2]), "a": np.array([0])},
    ),
    "a branch": model_of(
        [
            node("ReduceSum", "x", "s", keepdims=0),
            node("Greater", "s zero", "c"),
            helper.make_node("If", ["c"], ["y"], then_branch=branch("t", "Neg"), else_branch=branch("e", "Abs")),
            node("Relu", "y", "z"),
        ],
        {"x": (F, [3])},
        {"z": (F, [3]), "y": (F, [3])},
        {"zero": np.float32(0)},
    ),
    "sizes that depend on data": model_of(
        [node("NonZero", "x", "n"), node("Transpose", "n", "t"), node("Cast", "t", "y", to=F)],
        {"x": (F, [4])},
        {"y": (F, ["n", 1])},
        {},
    ),
    "integers and booleans": model_of(
        [node("Less", "x k", "b"), node("Where", "b x k", "w"), node("ArgMax", "w", "y", axis=1)],
        {"x": (I64, [2, 5])},
        {"y": (I64, [2, 1]), "b": (TensorProto.BOOL, [2, 5])},
        {"k": np.array([3])},
    ),
    "float64": model_of(
        [node("Exp", "x", "y")], {"x": (TensorProto.DOUBLE, [3])}, {"y": (TensorProto.DOUBLE, [3])}, {}
    ),
}


RACED = {"no operators": MENU, "a branch": MENU[1:2]}
"""Every finalist starts a process of its own; two models do for what all have in common, and few targets for the larger one."""


@pytest.mark.few(5)
@pytest.mark.parametrize(
    ("name", "menu"),
    [
        *((name, RACED.get(name, MENU[1:])) for name in MODELS),
        *(pytest.param(name, MENU, marks=pytest.mark.slow) for name in MODELS if RACED.get(name) != MENU),
    ],
)
def test_compiles_and_matches_onnx_runtime(name: str, menu: Sequence[str]) -> None:
    model = MODELS[name]
    session = ort.InferenceSession(model.SerializeToString())
    options = collage.CompileOptions(finals=name in RACED, finalists=2)
    executable = collage.compile(model, menu, options=options, workers=LENT)
    assert [port.name for port in executable.outputs] == [port.name for port in session.get_outputs()]
    for seed in (1, 2):
        random = np.random.default_rng(seed)
        kinds = {"tensor(float)": "f", "tensor(int64)": "int64", "tensor(double)": "float64"}
        feeds = {i.name: np.asarray(3 * random.standard_normal(i.shape), kinds[i.type]) for i in session.get_inputs()}
        for actual, expected in zip(executable.run(feeds).values(), session.run(None, feeds), strict=True):
            assert actual.shape == expected.shape
            assert actual.dtype == expected.dtype
            np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-6)
