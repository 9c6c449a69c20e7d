"""Models of operator sets before 13 compute the same after they were read."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser
from tests.unit.frontend.operators_of_old_sets import Array, Case, cases, floats
from tests.unit.transform.graphs import assert_same, run

from collage.frontend import read_model

OPERATORS = sorted({case.operator for case in cases()})

_LEFT = {
    "BatchNormalization": "statistics of each place, and training",
    "Resize": "scales that are computed",
    "Tile": "one axis, and how often",
    "Add And Div Equal Greater Less Mul Or Pow Sub Xor": "an axis counted from the end, of which the definition says nothing",
}


def laid(function: Callable[[Array, Array], Array]) -> Callable[[Case], Array]:
    """A binary operator whose second operand lies along the axes of the first one from ``axis`` on."""

    def compute(case: Case) -> Array:
        left, right = case.inputs[:2]
        assert left is not None and right is not None
        axis = case.attributes.get("axis", left.ndim - right.ndim)
        assert axis >= 0
        return function(left, right.reshape(right.shape + (1,) * (left.ndim - axis - right.ndim)))

    return compute


def slopes(case: Case) -> Array:
    x, slope = case.inputs[:2]
    assert x is not None and slope is not None
    return np.where(x > 0, x, x * slope.reshape(1, -1, *[1] * (x.ndim - 2)))


def cast(case: Case) -> Array:
    assert case.inputs[0] is not None
    return case.inputs[0].astype(helper.tensor_dtype_to_np_dtype(TensorProto.DataType.Value(case.attributes["to"])))


def pooled(case: Case) -> Array:
    p = case.attributes.get("p", 2.0)
    return (np.abs(np.asarray(case.inputs[0])) ** p).sum((2, 3), keepdims=True) ** (1 / p)


BY_DEFINITION: dict[str, tuple[int, Callable[[Case], Array]]] = {
    "Add": (7, laid(np.add)),
    "And": (7, laid(np.logical_and)),
    "Cast": (6, cast),
    "Concat": (4, lambda case: np.concatenate([np.asarray(x) for x in case.inputs], case.attributes.get("axis", 1))),
    "Div": (7, laid(lambda a, b: (a / b if a.dtype.kind == "f" else a // b).astype(a.dtype))),
    "Equal": (7, laid(np.equal)),
    "GlobalLpPool": (2, pooled),
    "Greater": (7, laid(np.greater)),
    "Less": (7, laid(np.less)),
    "Mul": (7, laid(np.multiply)),
    "Or": (7, laid(np.logical_or)),
    "PRelu": (7, slopes),
    "Pow": (7, laid(np.power)),
    "Sub": (7, laid(np.subtract)),
    "Xor": (7, laid(np.logical_xor)),
}
"""What operators compute before a set, where ONNX Runtime does not know them and other readers get some of them wrong."""


def by_openvino(model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    openvino = pytest.importorskip("openvino")
    core = openvino.Core()
    compiled = core.compile_model(
        core.read_model(model.SerializeToString()), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    results = compiled(feeds)
    return [results[number] for number in range(len(compiled.outputs))]


def expected(case: Case, version: int) -> list[Array]:
    """What the model computes as it is written: by ONNX Runtime if that reads it."""
    before, compute = BY_DEFINITION.get(case.operator, (0, None))
    if compute is not None and version < before:
        return [compute(case)]
    if case.operator == "Dropout" and version < 7:
        x = np.asarray(case.inputs[0])
        return [x, np.zeros_like(x)][: case.outputs]
    if case.operator == "Split" and len(case.inputs) == 2 and version < 2:
        return np.split(np.asarray(case.inputs[0]), np.cumsum(np.asarray(case.inputs[1], int))[:-1])
    model = case.model(version)
    try:
        return run(model, case.feeds())
    except Exception:
        if version >= 7:
            raise
    return by_openvino(model, case.feeds())


def check(case: Case, version: int, **declared: bool) -> bool:
    """Compares, and tells if the model was raised."""
    read = read_model(case.model(version, **declared))
    if read.opset_imports.get("", 13) < 13:
        reason = next((names for names in _LEFT if case.operator in names.split()), None)
        assert reason or declared, f"{case} of set {version} is left"
        if version < 7:
            return False
    assert_same(expected(case, version), run(read, case.feeds()))
    return read.opset_imports.get("", 13) >= 13


@functools.cache
def of(operator: str) -> tuple[Case, ...]:
    return tuple(case for case in cases() if case.operator == operator)


@pytest.mark.parametrize("operator", OPERATORS)
def test_operators_mean_what_they_meant(operator: str) -> None:
    """A sample: each fifth way to write the operator, each in another one of its sets."""
    compared = 0
    for number, case in enumerate(of(operator)[::5]):
        if versions := case.versions():
            check(case, versions[number % len(versions)])
            compared += 1
    assert compared


@pytest.mark.slow
@pytest.mark.parametrize("operator", OPERATORS)
def test_operators_mean_what_they_meant_in_every_set(operator: str) -> None:
    assert any([check(case, version) for case in of(operator) for version in case.versions()])


@pytest.mark.slow
@pytest.mark.parametrize("operator", OPERATORS)
def test_operators_mean_what_they_meant_whatever_is_known_of_their_inputs(operator: str) -> None:
    for case, declared in itertools.product(of(operator), ({"ranks": False}, {"fixed": False})):
        for version in case.versions()[::3]:
            check(case, version, **declared)


def in_a_branch(nodes: list[onnx.NodeProto], version: int, *weights: onnx.TensorProto) -> onnx.ModelProto:
    """Nodes from ``x`` to ``t`` in a branch that reads ``x`` from around. The other branch does so, too."""
    shape = [3, 3, 3, 3]
    other = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    for node in other:
        node.output[:] = [f"{name}_other" for name in node.output]
        node.input[:] = [f"{name}_other" if any(name in n.output for n in nodes) else name for name in node.input]
    branches = {
        f"{name}_branch": helper.make_graph(body, name, [], [helper.make_tensor_value_info(result, 1, None)])
        for name, body, result in (("then", nodes, "t"), ("else", other, "t_other"))
    }
    graph = helper.make_graph(
        [helper.make_node("If", ["c"], ["y"], **branches)],
        "g",
        [
            helper.make_tensor_value_info("x", 1, shape),
            helper.make_tensor_value_info("c", 9, [1] if version < 7 else []),
            *(helper.make_tensor_value_info(weight.name, weight.data_type, weight.dims) for weight in weights),
        ],
        [helper.make_tensor_value_info("y", 1, None)],
        weights,
    )
    return helper.make_model(graph, ir_version=3, opset_imports=[helper.make_opsetid("", version)])


X = floats(3, 3, 3, 3)


@pytest.mark.parametrize(
    ("node", "version"),
    [
        (helper.make_node("Hardmax", ["x"], ["t"], axis=2), 7),
        (helper.make_node("Softmax", ["x"], ["t"]), 9),
        (helper.make_node("Upsample", ["x", "scales"], ["t"], mode="linear"), 9),
        (helper.make_node("Resize", ["x", "scales"], ["t"], mode="nearest"), 10),
        (helper.make_node("Dropout", ["x"], ["o", "t"]), 8),
    ],
)
def test_operators_in_bodies_mean_what_they_meant(node: onnx.NodeProto, version: int) -> None:
    scales = numpy_helper.from_array(np.float32([1, 1, 1.7, 2]), "scales")
    proto = in_a_branch([node], version, scales)
    feeds: dict[str, Any] = {"x": X, "c": np.array(True)}
    model = read_model(proto)
    assert model.opset_imports[""] == 13
    assert_same(run(proto, feeds), run(model, feeds))


def test_operands_in_bodies_lie_along_their_axes() -> None:
    s = floats(3, seed=1)
    proto = in_a_branch(
        [
            helper.make_node("Mul", ["x", "s"], ["m"], broadcast=1, axis=1),
            helper.make_node("Sub", ["m", "s"], ["t"], broadcast=1, axis=2),
        ],
        6,
        numpy_helper.from_array(s, "s"),
    )
    (y,) = run(read_model(proto), {"x": X, "c": np.array([True])})
    np.testing.assert_allclose(y, X * s.reshape(3, 1, 1) - s.reshape(3, 1), rtol=1e-6)


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_operands_lie_along_their_axes_after_others_that_do(axis: int) -> None:
    """No shape is declared, and those that are, of values between, are wrong."""
    nodes = [
        helper.make_node("Neg", ["x"], ["n"]),
        helper.make_node("Add", ["n", "s"], ["a"], broadcast=1, axis=axis),
        helper.make_node("PRelu", ["a", "s"], ["p"]),
        helper.make_node("Greater", ["p", "s"], ["g"], broadcast=1, axis=axis),
        helper.make_node("And", ["g", "f"], ["y"], broadcast=1, axis=axis),
    ]
    values = {"x": X, "s": floats(3, seed=1), "f": np.array([True, False, True])}
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
            for k, v in values.items()
        ],
        [helper.make_tensor_value_info("y", TensorProto.BOOL, None)],
        value_info=[helper.make_tensor_value_info("a", TensorProto.FLOAT, [3])],
    )
    (y,) = run(read_model(helper.make_model(graph, ir_version=3, opset_imports=[helper.make_opsetid("", 6)])), values)
    s, f = (values[name].reshape(3, *[1] * (3 - axis)) for name in "sf")
    a = -X + s
    p = np.where(a > 0, a, a * values["s"].reshape(3, 1, 1))
    np.testing.assert_array_equal(y, (p > s) & f)


def test_what_is_left_is_at_least_of_the_first_set_that_runtimes_read() -> None:
    proto = parser.parse_model("""
        <ir_version: 3, opset_import: ["" : 6]>
        g (float[2, 3, 4, 5] x, float[3, 4, 5] s) => (float[2, 3, 4, 5] y) {
            a = Mul <broadcast = 1, axis = 1> (x, s)
            y = BatchNormalization <spatial = 0, is_test = 1> (a, s, s, s, s)
        }
    """)
    model = read_model(proto)
    assert model.opset_imports[""] == 7
    x, s = floats(2, 3, 4, 5), np.abs(floats(3, 4, 5, seed=1)) + np.float32(0.5)
    (y,) = run(model, {"x": x, "s": s})
    np.testing.assert_allclose(y, (x * s - s) / np.sqrt(s + np.float32(1e-5)) * s + s, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("is_inside", [False, True])
@pytest.mark.parametrize("bounds", [{}, {"min": -0.5}, {"max": 0.5}, {"min": -0.5, "max": 0.5}])
@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_a_clip_has_bounds_of_its_type(dtype: Any, bounds: dict[str, float], is_inside: bool) -> None:
    """ONNX Runtime computes no Clip of these types before set 11, where bounds are those of float32 if none are given."""
    x = np.array([-np.inf, -6e4, 0, 0.25, 6e4, np.inf, np.nan], dtype)
    if dtype == np.float64:
        x = np.append(x, [1e300, -1e39])
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    value, result = (helper.make_tensor_value_info(name, kind, x.shape) for name in "xy")
    nodes = [helper.make_node("Clip", ["a" if is_inside else "x"], ["y"], **bounds)]
    if is_inside:
        nodes.insert(0, helper.make_node("Neg", ["x"], ["a"]))
    graph = helper.make_graph(nodes, "g", [value], [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 10)], ir_version=5)
    largest = float(np.finfo(np.float32).max)
    with np.errstate(over="ignore"):
        low, high = np.array([bounds.get("min", -largest), bounds.get("max", largest)]).astype(dtype)
    (found,) = run(read_model(model), {"x": x})
    np.testing.assert_array_equal(found, np.clip(-x if is_inside else x, low, high))
