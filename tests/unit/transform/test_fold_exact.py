"""What FoldConstant computes is what ONNX Runtime computes: to the bit where it says so, else within rounding."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper, parser
from onnx.backend.test.case.node import collect_testcases
from tests.unit.transform.exactness import ADVERSARIAL, as_numbers, made_of, same_bits
from tests.unit.transform.graphs import run

from collage.frontend import read_model
from collage.transform import FoldConstant, InferType, Sequential, _fold_constant, prepare
from collage.transform._evaluate import _EXACT, _ROUNDED, evaluate

INTEGERS = [dtype for dtype in ADVERSARIAL if dtype.kind in "iu"]
FLOATS = [np.dtype(name) for name in ("float32", "float64", "float16")]
OPERANDS = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Max", "Min", "Equal", "Less", "GreaterOrEqual"), 2),
    **dict.fromkeys(
        ("Abs", "Neg", "Sign", "Relu", "Ceil", "Floor", "Round", "Sqrt", "Reciprocal", "IsNaN", "IsInf"), 1
    ),
    **dict.fromkeys(("BitwiseAnd", "BitwiseXor", "Mod", "Pow"), 2),
    **dict.fromkeys(("BitwiseNot", "ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin"), 1),
    **dict.fromkeys(("Exp", "Log", "Sin", "Cos", "Tanh", "Erf", "Sigmoid", "Atan"), 1),
}


def fold(node: onnx.NodeProto, operands: list[np.ndarray | None], opset: int = 20) -> tuple[onnx.ModelProto, ir.Model]:
    """A model that applies a copy of a node to constants, before and after folding."""
    names = [f"c{index}" if operand is not None else "" for index, operand in enumerate(operands)]
    applied = onnx.NodeProto()  # The node may be one of a case that other tests of the process read too.
    applied.CopyFrom(node)
    del applied.input[:], applied.output[:]
    applied.input.extend(names)
    applied.output.append("made")
    weights = [
        numpy_helper.from_array(np.asarray(operand), name)
        for operand, name in zip(operands, names, strict=True)
        if operand is not None
    ]
    last = helper.make_node("Identity", ["made"], ["y"])
    if _makes_bfloat16(applied):
        last = helper.make_node("Cast", ["made"], ["y"], to=TensorProto.FLOAT)
    graph = helper.make_graph([applied, last], "g", [], [onnx.ValueInfoProto(name="y")], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return model, Sequential([InferType(), FoldConstant()])(ir.from_proto(model))


def _makes_bfloat16(node: onnx.NodeProto) -> bool:
    """It cannot be handed to Python."""
    return node.op_type == "Cast" and node.attribute[0].i == TensorProto.BFLOAT16


def folded_and_not(node: onnx.NodeProto, operands: list[np.ndarray | None], opset: int = 20):
    """The array that a node of constants is folded to, and the one that ONNX Runtime makes; None where one is missing."""
    model, result = fold(node, operands, opset)
    if len(result.graph) != 1:
        return None, None  # what is undefined may end the process that computes it
    (constant,) = result.graph.initializers.values()
    try:
        made, (expected,) = constant.const_value.numpy(), run(model, {})
    except Exception:
        return None, None
    return made, expected.astype(made.dtype) if _makes_bfloat16(node) else expected


def within_rounding(made: np.ndarray, expected: np.ndarray, ulps: int = 4) -> bool:
    """Equal but for a few units in the last place of the number, or of 1: ONNX Runtime computes functions about as well."""
    one, other = made.astype(np.float64), expected.astype(np.float64)
    eps = float(ml_dtypes.finfo(made.dtype).eps)
    finite = np.isfinite(one) & np.isfinite(other)
    near = np.abs(one - other)[finite] <= ulps * eps * np.maximum(np.abs(other[finite]), 1)
    return bool(near.all()) and np.array_equal(one[~finite], other[~finite], equal_nan=True)


@pytest.mark.filterwarnings("ignore")
def test_node_cases_of_the_onnx_package_as_constants():
    """Every attribute and dtype that the operators' own cases have."""
    wrong, compared = [], set()
    for case in collect_testcases(None):
        graph = case.model.graph
        if len(graph.node) != 1 or graph.node[0].op_type not in (*_EXACT, *_ROUNDED) or not case.data_sets:
            continue
        opset = {imported.domain: imported.version for imported in case.model.opset_import}.get("", 0)
        (node,), arrays = graph.node, case.data_sets[0][0]
        by_name = dict(zip([value.name for value in graph.input], arrays, strict=False))
        operands = [by_name.get(name) for name in node.input]
        if len(graph.output) != 1 or not all(each is None or isinstance(each, np.ndarray) for each in operands):
            continue
        made, expected = folded_and_not(node, operands, opset=opset)
        if made is None or expected is None:
            continue
        exact = node.op_type in _EXACT and not (node.op_type in _ROUNDED and made.dtype.kind not in "iub")
        if not (same_bits(made, expected) if exact else within_rounding(made, expected, 32)):
            wrong.append(case.name)
        compared.add(node.op_type)
    assert wrong == []
    assert len(compared) > 60, sorted(compared)


def check_operator(op_type: str, operands: list[np.ndarray], **attributes) -> bool:
    """Compare one operator; False if there is nothing to compare."""
    made, expected = folded_and_not(helper.make_node(op_type, [], [], **attributes), operands)
    if made is None or expected is None:
        return False
    exact = op_type in _EXACT and (op_type not in _ROUNDED or made.dtype.kind in "iub")
    assert same_bits(made, expected) if exact else within_rounding(made, expected), (op_type, operands, made, expected)
    return True


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op_type", OPERANDS)
def test_operators_on_adversarial_numbers(op_type):
    """All pairs of awkward numbers of every type, at once and each alone: one that is uncertain keeps all others."""
    compared = 0
    for dtype in (*INTEGERS, *FLOATS):
        numbers = as_numbers(dtype)
        groups = [numbers, numbers[np.isfinite(numbers.astype(np.float64))], numbers[3:6]]
        if op_type in ("ReduceSum", "ReduceProd") and dtype.kind == "f":
            groups = [numbers[:9], numbers[3:6]]  # of others a sum in single precision leaves the range
        for group in groups:
            pairs = np.array(list(itertools.product(group, repeat=OPERANDS[op_type])), dtype)
            operands = [np.ascontiguousarray(column) for column in pairs.T]
            attributes = {"fmod": 1} if op_type == "Mod" and dtype.kind == "f" else {}
            compared += check_operator(op_type, operands, **attributes)
    assert compared


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("to", ["FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "INT8", "INT64", "UINT8", "INT32", "BOOL"])
def test_casts_of_adversarial_numbers(to):
    compared = 0
    for dtype in ADVERSARIAL:
        numbers = as_numbers(dtype)
        for group in (numbers, *np.array_split(numbers, len(numbers))):
            made, expected = folded_and_not(helper.make_node("Cast", [], [], to=getattr(TensorProto, to)), [group])
            if made is None or expected is None:
                continue
            compared += 1
            if to == "BFLOAT16":
                expected = expected.view(ml_dtypes.bfloat16)
            assert same_bits(made, expected), (dtype, to, group, made, expected)
    assert compared > 20


REFUSED = {
    "integer division by zero": ("Div", [np.int32([1, 2]), np.int32([1, 0])], {}),
    "the quotient that does not fit": ("Div", [np.int32([-(2**31)]), np.int32([-1])], {}),
    "a remainder of zero": ("Mod", [np.int64([1]), np.int64([0])], {}),
    "a shift beyond the width": ("BitShift", [np.uint8([1]), np.uint8([8])], {"direction": "LEFT"}),
    "a power that rounds": ("Pow", [np.int64([3]), np.int64([39])], {}),
    "a sum that a double does not hold": ("ReduceSum", [np.int64([2**53, 1])], {}),
    "a negative power of an integer": ("Pow", [np.int64([2]), np.int64([-1])], {}),
    "a number out of range": ("Cast", [np.float32([3e9])], {"to": TensorProto.INT32}),
    "NaN as an integer": ("Cast", [np.float32([np.nan])], {"to": TensorProto.INT64}),
    "a double that is rounded twice": ("Cast", [np.float64([1 + 2**-11 + 2**-30])], {"to": TensorProto.FLOAT16}),
    "NaN in a minimum": ("Min", [np.float32([1]), np.float32([np.nan])], {}),
    "zeros of both signs": ("Max", [np.float32([0.0]), np.float32([-0.0])], {}),
    "NaN clipped": ("Clip", [np.float32([np.nan]), np.float32(0), np.float32(1)], {}),
    "a range that rounding decides": ("Range", [np.float32(0), np.float32(1), np.float32(0.1)], {}),
    "a range that no double counts": ("Range", [np.int64(2**62), np.int64(2**62 + 3), np.int64(1)], {}),
    "a remainder that a double rounds": ("Mod", [np.uint64([2**64 - 7]), np.uint64([2])], {"fmod": 1}),
    "an infinity without a bound": ("Clip", [np.float32([np.inf, 1]), np.float32(0)], {}),
    "a slice back from before the start": ("Slice", [np.arange(3), *(np.int64([i]) for i in (-5, -5, 0, -1))], {}),
    "a scalar that is not zero": ("NonZero", [np.float32(3)], {}),
    "an empty list of axes": ("Squeeze", [np.zeros((1, 2), np.float32), np.zeros(0, np.int64)], {}),
    "a sum of one, whose zero keeps its sign": ("Sum", [np.float32(-0.0)], {}),
    "what is computed in many ways": ("Softmax", [np.float32([1, 2])], {"axis": 0}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_runtimes_differ_on_is_not_folded(case):
    op_type, operands, attributes = REFUSED[case]
    _, result = fold(helper.make_node(op_type, [], [], **attributes), operands)
    assert [node.op_type for node in result.graph] == [op_type, "Identity"]


def outputs_agree(text: str, inputs: dict[str, np.ndarray]) -> ir.Model:
    proto = parser.parse_model(text)
    prepared = prepare(read_model(proto))
    for one, other in zip(run(proto, inputs), run(prepared, inputs), strict=True):
        if isinstance(one, list):
            assert len(one) == len(other) and all(map(same_bits, one, other))
        else:
            assert same_bits(one, other), (one, other)
    return prepared


def test_a_row_of_a_reshaped_shape_is_no_length():
    """The library takes an index of rows for one of elements."""
    x = np.zeros((2, 3, 4, 5), np.float32)
    outputs_agree(
        """<ir_version: 10, opset_import: ["" : 18]> g (float[a, b, c, d] x) => (int64[n, 2] y)
        <int64[2] two = {2, 2}, int64[1] last = {1}> {
            s = Shape (x)
            r = Reshape (s, two)
            y = Gather <axis = 0> (r, last)
        }""",
        {"x": x},
    )


def test_a_difference_of_lengths_may_be_negative():
    outputs_agree(
        """<ir_version: 10, opset_import: ["" : 18]> g (float[n, 4] x) => (int64[1] y)
        <int64[1] five = {-5}, int64[1] first = {0}> {
            s = Shape (x)
            n = Gather <axis = 0> (s, first)
            less = Add (n, five)
            y = Abs (less)
        }""",
        {"x": np.zeros((2, 4), np.float32)},
    )


def test_a_sum_of_lengths_is_not_the_length_of_that_name():
    outputs_agree(
        """<ir_version: 10, opset_import: ["" : 18]> g (float[a] p, float[b] q, float["a+b"] x) => (float[n] y)
        <int64[1] one = {1}> {
            m = Shape (p)
            n = Shape (q)
            s = Add (m, n)
            y = Reshape (x, s)
        }""".replace('"a+b"', "ab"),
        {"p": np.zeros(2, np.float32), "q": np.zeros(4, np.float32), "x": np.arange(6, dtype=np.float32)},
    )


def test_what_is_split_at_places_keeps_its_axis():
    outputs_agree(
        """<ir_version: 10, opset_import: ["" : 17]> g (float[2, 3] x) => (seq(float[1, 3]) y)
        <int64[2] sizes = {1, 1}> { y = SplitToSequence <axis = 0, keepdims = 0> (x, sizes) }""",
        {"x": np.arange(6, dtype=np.float32).reshape(2, 3)},
    )


def test_a_default_that_callers_may_override_is_no_constant():
    proto = parser.parse_model("""
    <ir_version: 10, opset_import: ["" : 18]> g (float[2, 3] x, int64[2] shape) => (float[a, b] y)
    <int64[2] shape = {2, 3}> { y = Reshape (x, shape) }""")
    assert [node.op_type for node in FoldConstant()(ir.from_proto(proto)).graph] == ["Reshape"]


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_random_chains_of_constants(data):
    check_chain(data)


@pytest.mark.slow
@settings(max_examples=1500, deadline=None)
@given(st.data())
def test_many_random_chains_of_constants(data):
    check_chain(data)


def check_chain(data: st.DataObject) -> None:
    """Integer arithmetic, comparisons and moves, several deep."""
    dtype = data.draw(st.sampled_from([np.dtype("int64"), np.dtype("int32"), np.dtype("float32"), np.dtype("float64")]))
    names, nodes, weights = [], [], []
    for index in range(3):
        array = made_of(data, dtype, data.draw(st.sampled_from([(), (1,), (3,), (2, 3), (0, 3)])))
        weights.append(numpy_helper.from_array(array, f"c{index}"))
        names.append(f"c{index}")
    for index in range(data.draw(st.integers(1, 5))):
        division = ["Div"] if dtype.kind == "f" else []  # of integers it may end the process
        kinds = ["Add", "Sub", "Mul", "Max", "Neg", "Abs", "Unsqueeze", "Concat", *division]
        op_type = data.draw(st.sampled_from(kinds))
        chosen = [data.draw(st.sampled_from(names)) for _ in range(1 if op_type in ("Neg", "Abs", "Unsqueeze") else 2)]
        attributes = {"axis": 0} if op_type == "Concat" else {}
        if op_type == "Unsqueeze":
            chosen.append("zero")
        nodes.append(helper.make_node(op_type, chosen, [f"v{index}"], **attributes))
        names.append(f"v{index}")
    nodes.append(helper.make_node("Identity", [names[-1]], ["y"]))
    weights.append(numpy_helper.from_array(np.int64([0]), "zero"))
    graph = helper.make_graph(nodes, "g", [], [onnx.ValueInfoProto(name="y")], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    result = Sequential([InferType(), FoldConstant()])(ir.from_proto(model))
    try:
        expected = run(model, {})
    except Exception:
        return
    assert all(map(same_bits, expected, run(result, {})))


def test_constant_bounds_of_range_are_scalars() -> None:
    """ONNX Runtime takes a vector of one element as a bound, unless it is constant."""
    model = ir.from_onnx_text("""
        <ir_version: 10, opset_import: ["" : 18]>
        g (float[2] x) => (float[k] y) 
            <float[1] limit = {3.0}, float zero = {0.0}, float[1] step = {1.0}, int64[1] lows = {0}, int64[1] highs = {1}>
        {
            doubled = Mul (limit, step)
            range = Range (zero, doubled, step)
            part = Slice (x, lows, highs)
            y = Mul (range, part)
        }
    """)
    folded = FoldConstant()(model)
    (node,) = (node for node in folded.graph if node.op_type == "Range")
    assert [value.const_value.shape.rank() for value in node.inputs] == [0, 0, 0]
    session = onnxruntime.InferenceSession(ir.to_proto(folded).SerializeToString())
    np.testing.assert_array_equal(session.run(None, {"x": np.float32([2, 9])})[0], np.float32([0, 2, 4]))


GROWN = {
    "lengths of a compressed constant": """{
        some = Compress <axis = 0> (z, kept)
        row = Unsqueeze (some, first)
        column = Unsqueeze (some, second)
        made = Mul (row, column)""",
    "more paddings than inference looks at": """{
        pads = Mul (root, root)
        made = Pad (corner, pads)""",
}
GROWN_FROM = {
    "z": np.ones(1024, np.float32),
    "kept": np.ones(1024, bool),
    "first": np.int64([0]),
    "second": np.int64([1]),
    "corner": np.ones([1] * 11, np.float32),
    "root": np.int64([0] * 11 + [300] + [0] * 10),
}


@pytest.mark.parametrize("case", GROWN)
def test_large_results_of_unknown_size_are_not_computed(case, monkeypatch):
    """They would be dropped afterwards, and a small file could take all memory."""
    sizes = []

    def counted(*arguments):
        made = evaluate(*arguments)
        sizes.append(0 if made is None else made.nbytes)
        return made

    monkeypatch.setattr(_fold_constant, "evaluate", counted)
    proto = parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 18]> g (float[1] x) => (float[1] y, float[k, l] n) {GROWN[case]}
            n = Flatten (made)
            y = Abs (x)
        }}""")
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in GROWN_FROM.items())
    prepare(read_model(proto))
    assert 0 < max(sizes) <= 64 * 1024


@pytest.mark.parametrize("columns", [100, 700])
@pytest.mark.parametrize(
    ("ends", "is_read_whole", "is_folded"),
    [
        ([(400, 800), (0, 400), (800, 1200)], False, True),
        ([(0, 1200), (0, 1200)], False, False),
        ([(0, 400), (400, 1200)], True, False),
    ],
)
def test_all_parts_of_a_large_constant_are_folded_if_it_goes_with_them(
    ends: list[tuple[int, int]], is_read_whole: bool, is_folded: bool, columns: int
) -> None:
    """PyTorch's exporter puts the gates of a recurrent layer in another order so, and kernels want constant weights."""
    weight = np.random.default_rng(0).standard_normal((1200, columns)).astype(np.float32)
    parts = [f"Slice(w, begin_{n}, end_{n})" for n in range(len(ends))]
    text = "".join(f"part_{n} = {part}\n" for n, part in enumerate(parts))
    text += f"all = Concat<axis = 0>({', '.join(f'part_{n}' for n in range(len(ends)))})\n"
    text += "y = MatMul(all, x)\n" + ("z = Neg(w)\n" if is_read_whole else "z = Neg(x)\n")
    model = parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 20]> g (float[{columns}, 2] x) => (float[a, 2] y, float[c, d] z) {{ {text} }}'
    )
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    for n, (begin, end) in enumerate(ends):
        model.graph.initializer.append(numpy_helper.from_array(np.array([begin]), f"begin_{n}"))
        model.graph.initializer.append(numpy_helper.from_array(np.array([end]), f"end_{n}"))
    folded = Sequential([InferType(), FoldConstant()])(ir.from_proto(model))
    assert ("Slice" not in {node.op_type for node in folded.graph}) == is_folded
    x = np.ones((columns, 2), np.float32)
    for ours, theirs in zip(run(folded, {"x": x}), run(ir.from_proto(model), {"x": x}), strict=True):
        np.testing.assert_array_equal(ours, theirs)
