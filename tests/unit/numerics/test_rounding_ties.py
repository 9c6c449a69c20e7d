"""Decisions on computed numbers: whatever rounding can turn over is known to be close."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import parser, shape_inference
from onnx.reference import ReferenceEvaluator

from collage.numerics.rounding_ties import after_decisions, close_decisions

TOLERANCE = 1e-2
HEADER = '<ir_version: 10, opset_import: ["" : 18]>'
COMPARISONS = ("Greater", "GreaterOrEqual", "Less", "LessOrEqual")
ARGUMENTS = st.sampled_from(["ArgMax", "ArgMin"])


def graph_of(text: str) -> tuple[ir.Graph, Any]:
    model = parser.parse_model(f"{HEADER} g {text}")
    return ir.from_proto(shape_inference.infer_shapes(model)).graph, model


def values_of(text: str, inputs: dict[str, Any]) -> tuple[ir.Graph, dict[str, Any]]:
    """A graph, and all its values on some inputs."""
    graph, model = graph_of(text)
    names = [str(value.name) for node in graph for value in node.outputs]
    found = ReferenceEvaluator(model).run(names, inputs)
    values = inputs | dict(zip(names, (np.asarray(value) for value in found), strict=True))
    return graph, values | {name: value.const_value.numpy() for name, value in graph.initializers.items()}  # type: ignore[union-attr]


def close_of(text: str, inputs: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    graph, values = values_of(text, inputs)
    found = close_decisions(graph, lambda value: values.get(str(value.name)), TOLERANCE)
    return {str(decision.value.name): (decision.close, decision.otherwise) for decision in found}


@st.composite
def deciding(draw: st.DrawFn) -> str:
    """An operator that decides on ``c``, and what it returns, ``y``."""
    axis = draw(st.sampled_from([-2, -1, 0, 1]))
    match draw(st.sampled_from(["arg", "top", "compare", "between", "round", "cast"])):
        case "arg":
            last, keep = draw(st.booleans()), draw(st.booleans())
            told = f"axis = {axis}, keepdims = {keep:d}, select_last_index = {last:d}"
            return f"{draw(ARGUMENTS)} <{told}> (c)"
        case "top":
            return f"TopK <axis = {axis}, largest = {draw(st.booleans()):d}> (c, k)"
        case "compare":
            return f"{draw(st.sampled_from(COMPARISONS))} (c, t)"
        case "between":
            return f"{draw(st.sampled_from(COMPARISONS))} (d, c)"
        case "round":
            return f"{draw(st.sampled_from(['Ceil', 'Floor', 'Round', 'Sign']))} (c)"
    return "Cast <to = 7> (c)"


@settings(max_examples=150)
@given(deciding(), st.integers(0, 2**31), st.integers(1, 4))
def test_what_an_error_within_the_tolerance_turns_over_is_close(operator: str, seed: int, count: int) -> None:
    random = np.random.default_rng(seed)
    # Of few digits, so that many lie close together, or are equal.
    x = np.round(random.standard_normal((5, 4)), random.integers(0, 3)).astype(np.float32)
    outputs = "v, y" if operator.startswith("TopK") else "y"
    dtype = "bool" if operator.split()[0] in COMPARISONS else "float" if "(c)" in operator else "int64"
    dtype = "int64" if operator.startswith(("Arg", "Cast")) else dtype
    text = (
        f"(float[5,4] x) => ({dtype}[r,s] y) <float[1] t = {{0.5}}, float[1] one = {{1.0}}, int64[1] k = {{{count}}}> "
        f"{{c = Mul (x, one) d = Neg (c) {outputs} = {operator}}}"
    )
    graph, values = values_of(text, {"x": x})
    reference = values["y"]
    close, otherwise = close_of(text, {"x": x}).get("y", (np.zeros(reference.shape, bool), reference))
    assert close.shape == otherwise.shape == reference.shape and otherwise.dtype == reference.dtype
    assert (otherwise != reference)[close].all()
    for _ in range(5):
        error = TOLERANCE * np.abs(x).max() * random.uniform(-0.999, 0.999, x.shape)
        again = {"c": (x + error).astype(np.float32), "d": (error[::-1] - x).astype(np.float32)}
        decision = graph.node(len(graph) - 1)
        evaluator = ReferenceEvaluator(ir.to_proto(decision))
        told = {str(v.name): again.get(str(v.name), values[str(v.name)]) for v in decision.inputs if v is not None}
        turned = np.asarray(evaluator.run(None, told)[-1]) != reference
        assert not (turned & ~close).any()


@pytest.mark.parametrize(
    "body",
    [
        "y = ArgMax (x)",
        "a = Transpose (x) b = Identity (a) y = ArgMax (b)",
        "a = Mul (x, t) b = Shape (a) y = Identity (b)",
        "a = Cast <to = 7> (x) y = Mul (a, a)",
        "a = Mul (x, t) b, y = TopK <sorted = 0> (a, k)",
        "i = Cast <to = 7> (x) y = Cast <to = 6> (i)",
    ],
)
def test_rounding_decides_nothing_between_numbers_that_are_given(body: str) -> None:
    text = f"(float[5,4] x) => (int64[r,s] y) <float[1] t = {{0.5}}, int64[1] k = {{2}}> {{{body}}}"
    assert not after_decisions(graph_of(text)[0])


def test_what_follows_from_a_decision_is_known_by_name() -> None:
    text = (
        "(float[5,4] x) => (float[r,s] y, float[5,4] z) <float[1] t = {0.5}> "
        "{a = Exp (x) b = ArgMax (a) c = Gather (t, b) y = Neg (c) z = Neg (a)}"
    )
    assert after_decisions(graph_of(text)[0]) == {"b", "c", "y"}


def test_a_constant_has_no_error_of_its_own() -> None:
    text = "(float[3] x) => (bool[3] y) <float[1] far = {100.0}, float[1] one = {1.0}> {c = Mul (x, one) y = Less (c, far)}"
    close, _ = close_of(text, {"x": np.float32([99.4, 50.0, 1.0])})["y"]
    assert close.tolist() == [True, False, False]
    assert not close_of(text, {"x": np.float32([98.4, 50.0, 1.0])})


def test_what_is_no_number_decides_nothing() -> None:
    text = "(float[2,2] x) => (int64[1,2] y) <float[1] one = {1.0}> {c = Mul (x, one) y = ArgMax (c)}"
    assert not close_of(text, {"x": np.float32([[np.nan, 1.0], [1.0, 1.0]])})
    assert "y" in close_of(text, {"x": np.float32([[0.0, 1.0], [1.0, 1.0]])})
    rounded = "(float[3] x) => (float[3] y) <float[1] one = {1.0}> {c = Mul (x, one) y = Round (c)}"
    close, _ = close_of(rounded, {"x": np.float32([np.inf, np.nan, 0.499])})["y"]
    assert close.tolist() == [False, False, True]


def test_two_computed_numbers_may_both_be_off() -> None:
    text = "(float[3] x) => (bool[3] y) <float[1] one = {1.0}> {c = Mul (x, one) d = Neg (c) y = Greater (c, d)}"
    close, _ = close_of(text, {"x": np.float32([100.0, 0.9, 1.1])})["y"]
    assert close.tolist() == [False, True, False]
