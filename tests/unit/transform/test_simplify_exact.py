"""SimplifyExpr keeps every bit: random models that trigger its rules, or nearly do, with awkward numbers and lengths."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper, parser
from tests.unit.transform.exactness import ADVERSARIAL, as_numbers, made_of, same_bits
from tests.unit.transform.graphs import run

from collage.frontend import read_model
from collage.transform import InferType, Sequential, SimplifyExpr, prepare

NEUTRAL = {
    "Add": [-0.0, 0.0, 1e-9],
    "Sub": [0.0, -0.0, 1e-9],
    "Mul": [1.0, 1.000009, -1.0],
    "Div": [1.0, 1.000009, -1.0],
}
TYPES = [dtype for dtype in ADVERSARIAL if dtype.kind != "b"]


def model_of(nodes, weights, dtype, shape) -> onnx.ModelProto:
    onnx_type = ir.DataType.from_numpy(dtype).value
    inputs = [helper.make_tensor_value_info("x", onnx_type, shape)]
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, [onnx.ValueInfoProto(name=nodes[-1].output[0])], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model)


def compare(model: onnx.ModelProto, x: np.ndarray, passes=None) -> ir.Model | None:
    """Run a model before and after; None if it does not run to begin with."""
    result = (passes or Sequential([InferType(), SimplifyExpr()]))(ir.from_proto(model))
    try:
        expected = run(model, {"x": x})
    except Exception:
        return None
    for one, other in zip(expected, run(result, {"x": x}), strict=True):
        assert same_bits(one, other), (model.graph.node, one, other)
    return result


def by_numpy(op_type: str, x: np.ndarray, c: np.ndarray) -> np.ndarray:
    """What an operator computes in its own type; division of integers truncates."""
    with np.errstate(all="ignore"):
        if op_type == "Div" and x.dtype.kind in "iu":
            return np.where(c == 1, x, -x).astype(x.dtype)  # of the divisors here, 1 and -1
        return {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}[op_type](x, c).astype(x.dtype)


def operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


@pytest.mark.parametrize("op_type", NEUTRAL)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_arithmetic_goes_exactly_where_it_changes_no_bit(op_type, dtype):
    """Decided by computing: every awkward number, with every constant near the neutral one, on either side."""
    x = as_numbers(dtype)
    close = as_numbers(dtype) if op_type != "Div" or dtype.kind not in "iu" else np.array([1, 2, 3], dtype)
    with np.errstate(all="ignore"):
        constants = {number.tobytes(): number for number in (*np.array(NEUTRAL[op_type]).astype(dtype), *close)}
    for constant, first in itertools.product(constants.values(), (False, True)):
        if dtype.kind in "iu" and op_type == "Div" and (first or constant not in (1,)):
            continue
        c = np.asarray(constant, dtype)
        operands = ["c", "x"] if first else ["x", "c"]
        model = model_of([helper.make_node(op_type, operands, ["y"])], {"c": c}, dtype, ["n"])
        result = Sequential([InferType(), SimplifyExpr()])(ir.from_proto(model))
        value = by_numpy(op_type, c, x) if first else by_numpy(op_type, x, c)
        assert (operators(result) == ["Identity"]) == same_bits(value, x), (op_type, dtype, c, first)


SHAPES = [(), (1,), (3,), (2, 3), (1, 3), (0, 3), (2, 1), (1, 1, 1)]


def draw_arithmetic(data: st.DataObject) -> None:
    """A chain of arithmetic with constants that are neutral, or nearly so, and broadcast, or not."""
    dtype = data.draw(st.sampled_from([np.dtype(name) for name in ("float32", "float64", "float16", "int32", "int64")]))
    shape = data.draw(st.sampled_from(SHAPES))
    declared = [data.draw(st.sampled_from([dim, f"d{axis}"])) for axis, dim in enumerate(shape)]
    nodes, weights, last = [], {}, "x"
    for index in range(data.draw(st.integers(1, 3))):
        op_type = data.draw(st.sampled_from(sorted(NEUTRAL)))
        number = data.draw(st.sampled_from(NEUTRAL[op_type]))
        if dtype.kind == "i" and op_type == "Div":
            number = 1
        weights[f"c{index}"] = np.full(data.draw(st.sampled_from(SHAPES)), number).astype(dtype)
        operands = [last, f"c{index}"]
        if dtype.kind == "f" or op_type != "Div":
            operands = data.draw(st.permutations(operands))
        nodes.append(helper.make_node(op_type, operands, [last := f"v{index}"]))
    compare(model_of(nodes, weights, dtype, declared), made_of(data, dtype, shape))


def draw_moves(data: st.DataObject) -> None:
    """A chain of Reshape, Transpose, Unsqueeze, Slice and Identity, with lengths that are known or not."""
    dtype = data.draw(st.sampled_from([np.dtype("float32"), np.dtype("int64")]))
    shape = data.draw(st.sampled_from([(2, 3, 4), (1, 6), (0, 3), (2, 0, 2), (5,), (2, 1, 3)]))
    declared = [data.draw(st.sampled_from([dim, f"d{axis}"])) for axis, dim in enumerate(shape)]
    x = made_of(data, dtype, shape)
    nodes, weights, last, now = [], {}, "x", x

    def ints(numbers) -> str:
        name = f"c{len(weights)}"
        weights[name] = np.asarray(numbers, np.int64)
        return name

    for index in range(data.draw(st.integers(2, 5))):
        kind = data.draw(st.sampled_from(["Reshape", "Transpose", "Unsqueeze", "Slice", "Identity"]))
        result, attributes, operands = f"v{index}", {}, [last]
        if kind == "Transpose":
            perm = data.draw(st.permutations(range(now.ndim)))
            attributes = {} if data.draw(st.booleans()) else {"perm": perm}
            now = now.transpose(perm if attributes else None)
        elif kind == "Unsqueeze":
            axes = data.draw(st.lists(st.integers(0, now.ndim), min_size=1, max_size=2, unique=True))
            if data.draw(st.booleans()):
                axes = [axis - now.ndim - len(axes) for axis in axes]
            operands.append(ints(axes))
            now = np.expand_dims(now, tuple(axes))
        elif kind == "Slice":
            axis = data.draw(st.integers(-now.ndim, now.ndim - 1)) if now.ndim else 0
            start = data.draw(st.sampled_from([0, 0, 0, 1, -1, -100]))
            step = data.draw(st.sampled_from([1, 1, 1, 2, -1]))
            # Of the greatest end ONNX Runtime makes the other end where it steps back.
            greatest = [2**63 - 1, 2**31 - 1] if step > 0 else []
            end = data.draw(st.sampled_from([*greatest, 3, 2, -1, 0, -(2**63)]))
            operands += [ints([start]), ints([end]), ints([axis]), ints([step])]
            now = now.take(_places(start, end, step, now.shape[axis]), axis)
        elif kind == "Reshape":
            wanted = list(data.draw(st.sampled_from(_reshapes(now.shape))))
            given = [
                0 if axis < now.ndim and now.shape[axis] == dim and data.draw(st.booleans()) else dim
                for axis, dim in enumerate(wanted)
            ]
            if given and data.draw(st.booleans()) and all(dim > 0 for dim in wanted):
                given[data.draw(st.integers(0, len(given) - 1))] = -1
            copied = all(dim or (axis < now.ndim and now.shape[axis] == 0) for axis, dim in enumerate(wanted))
            if not copied or (0 not in given and data.draw(st.booleans())):
                attributes, given = {"allowzero": 1}, wanted
            operands.append(ints(given))
            now = now.reshape(wanted)
        nodes.append(helper.make_node(kind, operands, [result], **attributes))
        last = result
    assert compare(model_of(nodes, weights, dtype, declared), x) is not None


def _places(start: int, end: int, step: int, length: int) -> list[int]:
    """What a Slice takes of an axis, as ONNX words it."""
    start, end = (place + length if place < 0 else place for place in (start, end))
    least, most = (0, length) if step > 0 else (-1, length - 1)
    return list(range(min(max(start, least + (step < 0)), most), min(max(end, least), most), step))


def _reshapes(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    size = int(np.prod(shape))
    return [shape, (size,), (1, size), (*shape, 1), (size, 1), *([(2, size // 2)] if size % 2 == 0 else [])]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_arithmetic(data):
    draw_arithmetic(data)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_moves(data):
    draw_moves(data)


@pytest.mark.slow
@settings(max_examples=1500, deadline=None)
@given(st.data())
def test_much_random_arithmetic(data):
    draw_arithmetic(data)


@pytest.mark.slow
@settings(max_examples=1500, deadline=None)
@given(st.data())
def test_many_random_moves(data):
    draw_moves(data)


def test_the_epsilon_in_a_logarithm_stays():
    model = model_of(
        [helper.make_node("Add", ["x", "epsilon"], ["a"]), helper.make_node("Log", ["a"], ["y"])],
        {"epsilon": np.asarray(1e-9, np.float32)},
        np.dtype(np.float32),
        [3],
    )
    result = compare(model, np.float32([0, 1, 1e-9]), prepare)
    assert operators(result) == ["Add", "Log"]


@pytest.mark.parametrize("epsilon", [1e-12, 1e-30, 1e-42])
def test_the_epsilon_of_a_layer_norm_stays(epsilon):
    proto = parser.parse_model("""
    <ir_version: 10, opset_import: ["" : 18]> g (float[2, 4] x) => (float[2, 4] y)
    <int64[1] last = {-1}, float epsilon = {1}> {
        mean = ReduceMean (x, last)
        centred = Sub (x, mean)
        square = Mul (centred, centred)
        variance = ReduceMean (square, last)
        safe = Add (variance, epsilon)
        root = Sqrt (safe)
        y = Div (centred, root)
    }""")
    proto.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.asarray(epsilon, np.float32), "epsilon"))
    x = np.float32([[1, 1, 1, 1], [0, 1, 2, 3]])
    prepared = prepare(read_model(proto))
    assert same_bits(run(proto, {"x": x})[0], run(prepared, {"x": x})[0])
    assert np.isfinite(run(prepared, {"x": x})[0]).all()


def test_a_neutral_constant_that_widens_is_kept():
    for shape, constant in (([2], (1, 1)), ([1], (3,)), (["n"], (3,)), ([2, 1], (2, 3)), ([1], (0,)), ([], (1,))):
        model = model_of(
            [helper.make_node("Mul", ["x", "c"], ["y"])],
            {"c": np.ones(constant, np.float32)},
            np.dtype("float32"),
            shape,
        )
        assert operators(SimplifyExpr()(ir.from_proto(model))) == ["Mul"], (shape, constant)


def test_a_neutral_constant_that_widens_nothing_goes():
    for shape, constant in (([2, 3], (1,)), (["n", 3], (1, 1)), ([0, 3], (1,)), ([2], ()), (None, ()), ([], ())):
        model = model_of(
            [helper.make_node("Mul", ["x", "c"], ["y"])],
            {"c": np.ones(constant, np.float32)},
            np.dtype("float32"),
            shape,
        )
        assert operators(SimplifyExpr()(ir.from_proto(model))) == ["Identity"], (shape, constant)


def test_several_neutral_numbers_are_left():
    """Norms of fresh networks have them, and should be what those of trained ones are."""
    model = model_of(
        [helper.make_node("Mul", ["x", "c"], ["y"])], {"c": np.ones(3, np.float32)}, np.dtype("float32"), [3]
    )
    assert operators(SimplifyExpr()(ir.from_proto(model))) == ["Mul"]


def test_a_shape_that_the_file_claims_wrongly_decides_nothing():
    """The first result is claimed to have two axes, and has one, so the product does widen it."""
    proto = parser.parse_model("""
    <ir_version: 10, opset_import: ["" : 18]> g (float[3] x) => (float[m, n] y) <float[1, 1] one = {1}> {
        a = Neg (x)
        y = Mul (a, one)
    }""")
    proto.graph.value_info.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, [1, 3]))
    x = np.float32([2, 3, -0.0])
    assert same_bits(run(prepare(read_model(proto)), {"x": x})[0], np.float32([[-2, -3, 0.0]]))


def test_an_initializer_that_callers_may_override_is_no_constant():
    proto = parser.parse_model("""
    <ir_version: 10, opset_import: ["" : 18]> g (float[2] x, float one) => (float[2] y) <float one = {1}> { y = Mul (x, one) }
    """)
    assert operators(SimplifyExpr()(ir.from_proto(proto))) == ["Mul"]


def test_new_constants_take_no_name_that_is_taken():
    proto = parser.parse_model("""
    <ir_version: 10, opset_import: ["" : 18]> g (float[6] x) => (float[1, 1, 6] y, float[6] z)
    <int64[1] zero = {0}> {
        y_axes = Neg (x)
        a = Unsqueeze (x, zero)
        y = Unsqueeze (a, zero)
        z = Neg (y_axes)
    }""")
    result = SimplifyExpr()(ir.from_proto(proto))
    onnx.checker.check_model(ir.to_proto(result), full_check=True)
    x = np.arange(6, dtype=np.float32)
    assert all(map(same_bits, run(proto, {"x": x}), run(result, {"x": x})))


def test_rules_work_in_functions_and_bodies():
    proto = parser.parse_model("""
    <ir_version: 10, opset_import: ["" : 18, "local" : 1]> g (float[6] x, bool b) => (float[1, 1, 6] y) {
        a = local.wide (x)
        y = If (b) <
            then_branch = t () => (float[1, 1, 6] p) {
                half = Constant <value = float {1}> ()
                p = Mul (a, half)
            },
            else_branch = e () => (float[1, 1, 6] q) { q = Neg (a) }
        >
    }
    <domain: "local", opset_import: ["" : 18]> wide (x) => (y) {
        zero = Constant <value_ints = [0]> ()
        a = Unsqueeze (x, zero)
        y = Unsqueeze (a, zero)
    }""")
    result = SimplifyExpr()(ir.from_proto(proto))
    x = np.arange(6, dtype=np.float32)
    for flag in (True, False):
        feeds = {"x": x, "b": np.asarray(flag)}
        assert same_bits(run(proto, feeds)[0], run(result, feeds)[0])
    (function,) = result.functions.values()
    assert [node.op_type for node in function if node.op_type == "Unsqueeze"] == [
        "Unsqueeze"
    ] * 2  # the first is dead now
    body = next(node for node in result.graph if node.op_type == "If").attributes["then_branch"].as_graph()
    assert "Identity" in [node.op_type for node in body]


def test_bfloat16_is_compared_in_its_own_bits():
    for number, gone in ((1.0, True), (1.0078125, False)):
        c = np.asarray(number, ml_dtypes.bfloat16)
        model = model_of([helper.make_node("Mul", ["x", "c"], ["y"])], {"c": c}, c.dtype, [2])
        assert (operators(SimplifyExpr()(ir.from_proto(model))) == ["Identity"]) == gone


REDUCTIONS = ("ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceProd", "ReduceSum")


@pytest.mark.parametrize("op_type", (*REDUCTIONS, "ArgMax", "ArgMin"))
@pytest.mark.parametrize("version", [13, 18])
@pytest.mark.parametrize("axis", [-1, -2, 1, 2])
def test_reductions_of_empty_batches_have_the_shape_that_onnx_gives_them(op_type: str, version: int, axis: int) -> None:
    kind = "int64" if op_type.startswith("Arg") else "float"
    by_input = version == 18 or op_type == "ReduceSum"
    told = f" <axis = {axis}> (x)" if kind == "int64" else " (x, a)" if by_input else f" <axes = [{axis}]> (x)"
    weights = f"<int64[1] a = {{{axis}}}>" if "a)" in told else ""
    head = f'<ir_version: 8, opset_import: ["" : {version}]> g (float[n,6,8] x) => ({kind}[p,q,r] y)'
    text = f"{head} {weights} {{y = {op_type}{told}}}"
    model = parser.parse_model(text)
    result = Sequential([InferType(), SimplifyExpr()])(ir.from_proto(model))
    shape = [6, 8]
    shape[axis % 3 - 1] = 1
    (empty,) = run(result, {"x": np.zeros((0, 6, 8), np.float32)})
    assert empty.shape == (0, *shape)
    x = np.random.default_rng(0).standard_normal((2, 6, 8)).astype(np.float32)
    assert same_bits(run(model, {"x": x})[0], run(result, {"x": x})[0])


def test_axes_of_what_always_has_elements_stay_as_they_are() -> None:
    text = (
        '<ir_version: 8, opset_import: ["" : 13]> g (float[2,6] x) => (float[2,1] y) {y = ReduceMax <axes = [-1]> (x)}'
    )
    result = Sequential([InferType(), SimplifyExpr()])(ir.from_proto(parser.parse_model(text)))
    assert result.graph.node(0).attributes.get_ints("axes") == (-1,)


def test_axes_beyond_the_rank_stay_as_they_are() -> None:
    text = (
        '<ir_version: 8, opset_import: ["" : 13]> g (float[n,6] x) => (float[n,1] y) {y = ReduceMax <axes = [-3]> (x)}'
    )
    model = ir.from_proto(parser.parse_model(text))
    SimplifyExpr()(model)
    assert model.graph.node(0).attributes.get_ints("axes") == (-3,)
