"""Models in forms that ONNX allows and that people meet; each with inputs that ONNX Runtime takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

Form = tuple[onnx.ModelProto, list[Mapping[str, Any]]]
FORMS: dict[str, Callable[[], Form]] = {}

X = np.array([[1.5, -2.0, 0.0], [3.0, 0.25, -1.0]], np.float32)


def form(make: Callable[[], Form]) -> Callable[[], Form]:
    FORMS[make.__name__] = make
    return make


def floats(*names: str, shape: tuple[int | str, ...] = (2, 3)) -> list[onnx.ValueInfoProto]:
    return [h.make_tensor_value_info(name, T.FLOAT, shape) for name in names]


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    return h.make_node(op, inputs.split(), outputs.split(), **attributes)


def model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    weights: list[onnx.TensorProto] = [],  # noqa: B006 (not changed)
    *,
    opset: int = 17,
    ir_version: int = 9,
    imports: Mapping[str, int] = {},
    functions: list[onnx.FunctionProto] = [],  # noqa: B006 (not changed)
) -> onnx.ModelProto:
    graph = h.make_graph(nodes, "g", inputs, outputs, weights)
    sets = [h.make_opsetid(domain, version) for domain, version in {"": opset, **imports}.items()]
    return h.make_model(graph, opset_imports=sets, ir_version=ir_version, functions=functions)


@form
def an_input_with_a_default() -> Form:
    weights = [nh.from_array(np.array([2.0], np.float32), "scale")]
    made = model([node("Mul", "x scale", "y")], [*floats("x"), *floats("scale", shape=(1,))], floats("y"), weights)
    return made, [{"x": X}, {"x": X, "scale": np.array([5.0], np.float32)}, {"x": X}]


@form
def a_default_that_is_a_matrix_of_symbolic_size() -> Form:
    weights = [nh.from_array(np.arange(12, dtype=np.float32).reshape(3, 4), "w")]
    inputs = [*floats("w", shape=("k", "n")), *floats("x", shape=("b", "k"))]
    made = model([node("MatMul", "x w", "m"), node("Relu", "m", "y")], inputs, floats("y", shape=("b", "n")), weights)
    return made, [{"x": X}, {"x": X, "w": np.ones((3, 4), np.float32)}, {"x": X, "w": np.ones((3, 2), np.float32)}]


@form
def a_default_that_is_an_output_too() -> Form:
    weights = [nh.from_array(X, "w")]
    made = model([node("Neg", "x", "y")], floats("x", "w"), [*floats("y", "w")], weights)
    return made, [{"x": X}, {"x": X, "w": X + 1}]


@form
def initializers_among_the_inputs_of_an_old_file() -> Form:
    weights = [nh.from_array(np.array([2.0], np.float32), "scale")]
    inputs = [*floats("x"), *floats("scale", shape=(1,))]
    return model([node("Mul", "x scale", "y")], inputs, floats("y"), weights, opset=8, ir_version=3), [{"x": X}]


@form
def an_output_that_is_an_input() -> Form:
    return model([node("Neg", "x", "y")], floats("x"), floats("y", "x")), [{"x": X}]


@form
def an_output_that_is_an_initializer() -> Form:
    return model([node("Neg", "x", "y")], floats("x"), floats("y", "w"), [nh.from_array(X, "w")]), [{"x": X}]


@form
def an_attribute_of_a_function_with_a_default() -> Form:
    inner = node("LeakyRelu", "a", "b")
    inner.attribute.append(onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT))
    slope = h.make_attribute("slope", 0.5)
    function = h.make_function("own", "Leaky", ["a"], ["b"], [inner], [h.make_opsetid("", 17)], [], [slope])
    nodes = [node("Leaky", "x", "m", domain="own"), node("Leaky", "m", "y", domain="own", slope=0.125)]
    return model(nodes, floats("x"), floats("y"), imports={"own": 1}, functions=[function], ir_version=9), [{"x": X}]


@form
def a_domain_that_no_node_uses() -> Form:
    sets = {"com.example.unknown": 7, "ai.onnx.training": 1}
    return model([node("Neg", "x", "y")], floats("x"), floats("y"), imports=sets), [{"x": X}]


@form
def constants_of_all_kinds() -> Form:
    nodes = [
        h.make_node("Constant", [], ["floats"], value_floats=[1.0, 2.0, 3.0]),
        h.make_node("Constant", [], ["ints"], value_ints=[1, 2, 3]),
        h.make_node("Constant", [], ["one_float"], value_float=0.5),
        h.make_node("Constant", [], ["one_int"], value_int=3),
        h.make_node("Constant", [], ["words"], value_strings=["a", "bc", ""]),
        h.make_node("Constant", [], ["word"], value_string="é"),
        node("Mul", "x floats", "m"),
        node("Add", "m one_float", "y"),
        node("Add", "ints one_int", "z"),
        node("Identity", "words", "w"),
        node("Identity", "word", "v"),
    ]
    others = [h.make_tensor_value_info("z", T.INT64, [3]), h.make_tensor_value_info("w", T.STRING, [3])]
    return model(nodes, floats("x"), [*floats("y"), *others, h.make_tensor_value_info("v", T.STRING, [])]), [{"x": X}]


@form
def trailing_empty_inputs_and_outputs() -> Form:
    nodes = [
        h.make_node("Clip", ["x", "low", ""], ["c"]),
        h.make_node("Dropout", ["c", "", ""], ["d", ""]),
        h.make_node("Clip", ["d", "", "high"], ["y"]),
    ]
    weights = [nh.from_array(np.float32(-1), "low"), nh.from_array(np.float32(2), "high")]
    return model(nodes, floats("x"), floats("y"), weights), [{"x": X}]


@form
def nodes_without_names_and_with_those_of_values() -> Form:
    nodes = [
        node("Neg", "x", "a"),
        node("Abs", "a", "b"),
        node("Relu", "b", "c", name="y"),
        node("Exp", "c", "y", name="c"),
    ]
    return model(nodes, floats("x"), floats("y")), [{"x": X}]


@form
def names_of_thousands_of_characters() -> Form:
    name = "x" * 5000
    return model([node("Neg", name, "y", name="n" * 5000)], floats(name), floats("y")), [{name: X}]


@form
def initializers_of_size_zero() -> Form:
    weights = [nh.from_array(np.zeros((0, 3), np.float32), "w"), nh.from_array(np.zeros(0, np.int64), "axes")]
    nodes = [node("Concat", "x w", "c", axis=0), node("ReduceSum", "c axes", "y", noop_with_empty_axes=1)]
    return model(nodes, floats("x"), floats("y"), weights), [{"x": X}]


def quantised(kind: int, opset: int, ir_version: int) -> Form:
    is_float = "FLOAT8" in T.DataType.Name(kind)
    signed = is_float or kind == T.INT4
    items = [-2, 3, 1, 0, -4, 2] if signed else [1, 7, 15, 0, 3, 9]
    weights = [
        h.make_tensor("w", kind, [2, 3], items),
        nh.from_array(np.float32(0.5), "s"),
        h.make_tensor("z", kind, [], [0]),
    ]
    nodes = [node("DequantizeLinear", "w s z", "d"), node("Mul", "x d", "y")]
    return model(nodes, floats("x"), floats("y"), weights, opset=opset, ir_version=ir_version), [{"x": X}]


@form
def weights_of_int4() -> Form:
    return quantised(T.INT4, 21, 10)


@form
def weights_of_uint4() -> Form:
    return quantised(T.UINT4, 21, 10)


@form
def weights_of_float8() -> Form:
    return quantised(T.FLOAT8E4M3FN, 19, 9)


@form
def weights_of_float8_with_another_range() -> Form:
    return quantised(T.FLOAT8E5M2, 19, 9)


@form
def sparse_weights() -> Form:
    values = nh.from_array(np.array([1.0, -2.0], np.float32), "w")
    places = nh.from_array(np.array([[0, 1], [2, 0]], np.int64), "places")
    made = model([node("MatMul", "x w", "y")], floats("x"), floats("y"))
    made.graph.sparse_initializer.append(onnx.SparseTensorProto(values=values, indices=places, dims=[3, 3]))
    return made, [{"x": X}]


@form
def bodies_that_use_names_of_each_other() -> Form:
    def branch(op: str) -> onnx.GraphProto:
        return h.make_graph([node(op, "x", "inner"), node("Relu", "inner", "out")], op, [], floats("out"))

    nodes = [
        h.make_node("If", ["c"], ["a"], then_branch=branch("Neg"), else_branch=branch("Abs")),
        h.make_node("If", ["c"], ["y"], then_branch=branch("Exp"), else_branch=branch("Neg")),
    ]
    made = model(nodes, [*floats("x"), h.make_tensor_value_info("c", T.BOOL, [])], floats("y", "a"))
    return made, [{"x": X, "c": np.array(True)}, {"x": X, "c": np.array(False)}]


@form
def bodies_whose_names_shadow_those_outside() -> Form:
    """A result that is made later outside, a constant, the result of the node itself, and the state of a Loop."""
    condition = h.make_tensor_value_info("c", T.BOOL, [])
    then = h.make_graph(
        [node("Exp", "x", "later"), node("Add", "later w", "a")], "then", [], floats("a"), [nh.from_array(X, "w")]
    )
    otherwise = h.make_graph([node("Neg", "x", "a")], "else", [], floats("a"))
    number = h.make_tensor_value_info("n", T.INT64, [])
    steps = [node("Identity", "c", "on"), node("Neg", "x", "z")]
    body = h.make_graph(
        steps, "body", [number, condition, *floats("x")], [h.make_tensor_value_info("on", T.BOOL, []), *floats("z")]
    )
    nodes = [
        h.make_node("If", ["c"], ["a"], then_branch=then, else_branch=otherwise),
        node("Neg", "x", "later"),
        h.make_node("Loop", ["n", "", "x"], ["y"], body=body),
        node("Mul", "later w", "b"),
    ]
    made = model(nodes, [*floats("x"), condition, number], floats("a", "b", "y"), [nh.from_array(X - 5, "w")])
    return made, [{"x": X, "c": np.array(flag), "n": np.array(3)} for flag in (True, False)]


@form
def no_inputs_at_all() -> Form:
    return model([node("Neg", "w", "y")], [], floats("y"), [nh.from_array(X, "w")]), [{}]


@form
def dimensions_that_are_differences() -> Form:
    nodes = [node("Slice", "a one end axis", "rest"), node("Add", "rest b", "y")]
    weights = [
        nh.from_array(np.array([n], np.int64), name) for name, n in (("one", 1), ("end", 2**31 - 1), ("axis", 0))
    ]
    inputs = [*floats("a", shape=("s0", 3)), *floats("b", shape=("s0 - 1", 3))]
    return model(nodes, inputs, floats("y", shape=("s0 - 1", 3)), weights), [{"a": X, "b": X[1:]}]


@form
def a_batch_made_symbolic_at_the_input_only() -> Form:
    nodes = [node("Relu", "x", "a"), node("MatMul", "a w", "y")]
    made = model(
        nodes,
        floats("x", shape=("batch", 3)),
        floats("y", shape=(1, 3)),
        [nh.from_array(np.eye(3, dtype=np.float32), "w")],
    )
    made.graph.value_info.extend(floats("a", shape=(1, 3)))
    return made, [{"x": X}, {"x": X[:1]}]


@form
def a_list_of_tensors_beside_its_index() -> Form:
    nodes = [node("SequenceAt", "s i", "a"), node("Relu", "a", "y"), node("SequenceLength", "s", "n")]
    number = h.make_tensor_value_info("i", T.INT64, [])
    inputs = [h.make_tensor_sequence_value_info("s", T.FLOAT, (2, 3)), number]
    outputs = [*floats("y"), h.make_tensor_value_info("n", T.INT64, [])]
    return model(nodes, inputs, outputs), [{"s": [X, -X], "i": np.array(1)}, {"s": [X], "i": np.array(0)}]


@form
def a_list_of_tensors_of_different_sizes() -> Form:
    nodes = [node("ConcatFromSequence", "s", "c", axis=0), node("Relu", "c", "y")]
    made = model(nodes, [h.make_tensor_sequence_value_info("s", T.FLOAT, None)], floats("y", shape=("n", 3)))
    return made, [{"s": [X, X[:1]]}, {"s": [-X]}]


@form
def an_optional_that_may_be_absent() -> Form:
    then = h.make_graph([node("OptionalGetElement", "o", "a")], "then", [], floats("a"))
    otherwise = h.make_graph([node("Neg", "x", "b")], "else", [], floats("b"))
    nodes = [
        node("OptionalHasElement", "o", "has"),
        h.make_node("If", ["has"], ["y"], then_branch=then, else_branch=otherwise),
    ]
    tensor = h.make_tensor_type_proto(T.FLOAT, (2, 3))
    inputs = [h.make_value_info("o", h.make_optional_type_proto(tensor)), *floats("x")]
    return model(nodes, inputs, floats("y"), opset=18), [{"o": X, "x": X + 1}, {"o": None, "x": X + 1}]


@form
def two_inputs_of_unknown_rank_that_have_to_fit() -> Form:
    made = model([node("MatMul", "a b", "y")], floats("a", "b"), floats("y"))
    for value in (*made.graph.input, *made.graph.output):
        value.type.tensor_type.ClearField("shape")
    return made, [{"a": X, "b": X.T.copy()}]


@form
def thresholds_that_are_shares() -> Form:
    inputs = [*floats("boxes", shape=(1, "n", 4)), *floats("scores", shape=(1, 1, "n"))]
    inputs += [h.make_tensor_value_info("most", T.INT64, [1]), *floats("overlap", "score", shape=(1,))]
    made = model(
        [node("NonMaxSuppression", "boxes scores most overlap score", "y")],
        inputs,
        [h.make_tensor_value_info("y", T.INT64, ["k", 3])],
    )
    boxes = np.array([[[0, 0, 1, 1], [0, 0, 1, 1.1], [2, 2, 3, 3]]], np.float32)
    scores, least = np.array([[[0.9, 0.8, 0.7]]], np.float32), np.array([0.1], np.float32)
    return made, [{"boxes": boxes, "scores": scores, "most": np.array([5]), "overlap": least + 0.4, "score": least}]


@form
def a_batch_made_symbolic_at_the_input_of_a_reshape() -> Form:
    nodes = [node("Relu", "x", "a"), node("Reshape", "a lengths", "b"), node("MatMul", "b w", "y")]
    weights = [nh.from_array(np.array([-1, 6]), "lengths"), nh.from_array(np.ones((6, 4), np.float32), "w")]
    made = model(nodes, floats("x", shape=("batch", 2, 3)), floats("y", shape=(1, 4)), weights)
    return made, [{"x": X[None]}, {"x": np.stack([X, -X, X])}]


REFUSED: dict[str, tuple[Callable[[], onnx.ModelProto], str]] = {
    "a value made twice": (
        lambda: model([node("Neg", "x", "y"), node("Abs", "x", "y")], floats("x"), floats("y")),
        "already defined",
    ),
    "a node of an unknown domain": (
        lambda: model(
            [node("Own", "x", "y", domain="com.example")], floats("x"), floats("y"), imports={"com.example": 1}
        ),
        "com.example",
    ),
    "a default of another type": (
        lambda: model(
            [node("Neg", "x", "y")], floats("x", shape=(1,)), floats("y"), [nh.from_array(np.array([1]), "x")]
        ),
        "default of input 'x'",
    ),
}
"""By name a model that ONNX Runtime does not run either, and what the refusal says."""
