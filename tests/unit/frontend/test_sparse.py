"""Sparse constants become dense ones, wherever they are."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

from collage._errors import ModelError
from collage.frontend import Budgets, read_model


def sparse(name: str, dense: np.ndarray, *, flat: bool) -> onnx.SparseTensorProto:
    places = np.flatnonzero(dense) if flat else np.argwhere(dense)
    return onnx.SparseTensorProto(
        values=nh.from_array(dense[dense != 0], name), indices=nh.from_array(places.astype(np.int64)), dims=dense.shape
    )


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, np.int32, np.int64, np.uint8, np.bool_])
@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (2, 3, 4), (0, 4)])
def test_initializers_are_made_dense(dtype: type, shape: tuple[int, ...], flat: bool) -> None:
    random = np.random.default_rng(0)
    dense = (random.integers(0, 2, shape) * random.integers(1, 9, shape)).astype(dtype)
    kind = h.np_dtype_to_tensor_dtype(np.dtype(dtype))
    value = h.make_tensor_value_info("y", kind, shape)
    graph = h.make_graph([h.make_node("Identity", ["w"], ["y"])], "g", [], [value])
    graph.sparse_initializer.append(sparse("w", dense, flat=flat))
    source = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=9)
    before = source.SerializeToString()
    (weight,) = read_model(source).graph.initializers.values()
    assert weight.const_value is not None
    np.testing.assert_array_equal(weight.const_value.numpy(), dense)
    assert source.SerializeToString() == before


def constant_in(place: str, dense: np.ndarray) -> onnx.ModelProto:
    constant = h.make_node("Constant", [], ["c"], sparse_value=sparse("", dense, flat=True))
    y = h.make_tensor_value_info("y", T.FLOAT, dense.shape)
    imports = [h.make_opsetid("", 17), h.make_opsetid("own", 1)]
    functions = []
    if place == "a function":
        functions = [h.make_function("own", "F", [], ["c"], [constant], imports[:1])]
        nodes = [h.make_node("F", [], ["y"], domain="own")]
    elif place == "a body":
        out = h.make_tensor_value_info("c", T.FLOAT, dense.shape)
        bodies = {f"{name}_branch": h.make_graph([constant], name, [], [out]) for name in ("then", "else")}
        nodes = [h.make_node("If", ["b"], ["y"], **bodies)]
    else:
        nodes = [constant, h.make_node("Identity", ["c"], ["y"])]
    inputs = [h.make_tensor_value_info("b", T.BOOL, [])] if place == "a body" else []
    graph = h.make_graph(nodes, "g", inputs, [y])
    return h.make_model(graph, opset_imports=imports, functions=functions, ir_version=9)


@pytest.mark.parametrize("place", ["the graph", "a function", "a body"])
def test_constants_are_made_dense(place: str) -> None:
    dense = np.array([[0, 1.5], [2.5, 0]], np.float32)
    found = read_model(constant_in(place, dense))
    weights = [value.const_value for graph in found.graphs() for value in graph.initializers.values()]
    assert weights
    for weight in weights:
        assert weight is not None
        np.testing.assert_array_equal(weight.numpy(), dense)


def test_dense_bytes_have_a_budget_of_their_own() -> None:
    source = constant_in("the graph", np.eye(8, dtype=np.float32))
    read_model(source, budgets=Budgets(dense_bytes=256))
    with pytest.raises(ModelError, match=r"would have|exceed"):
        read_model(source, budgets=Budgets(dense_bytes=255))
