"""Bounds on integers hold for what is computed, whatever is computed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.shape_inference
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from collage._errors import Unsupported
from collage.target import Target
from collage.testing._toolchain_kernels import kernel
from collage.toolchains import LoadOptions
from collage.toolchains.openvino.toolchain import OpenVinoToolchain
from collage.toolchains.sdk.integer_bounds import IntegerBounds

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
    model, known = ir.from_proto(proto), IntegerBounds(LIMIT)
    with np.errstate(over="ignore"):
        results = ReferenceEvaluator(proto).run(None, feeds)
    for value, array in zip(model.graph.outputs, results, strict=True):
        bounds = known.of(value)
        if max(abs(bounds.low), abs(bounds.high)) < 2**62:
            assert bounds.low <= array.min() and array.max() <= bounds.high, (value.name, value.producer(), bounds)


TARGET = Target.parse("llvm -compiler=openvino")
ROUNDED = {
    **{op: f"y = {op} (x, z)" for op in ("Add", "Div", "Max", "Min", "Mod", "Mul", "PRelu", "Pow", "Sub", "Sum")},
    **{op: f"y = {op} (x)" for op in ("Abs", "Neg", "Relu", "Sign", "ReduceL1", "ReduceL2", "ReduceMax", "ReduceMin")},
    **{op: f"y = {op} (x)" for op in ("ReduceMean", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Trilu")},
    "Clip": "y = Clip (x, three, k)",
    "Einsum": 'y = Einsum <equation = "ij,kj->ik"> (x, z)',
    "Gemm": "y = Gemm <transB = 1> (x, z)",
    "MatMul": "t = Transpose (z) y = MatMul (x, t)",
    "Pad": "y = Pad (x, pads, k)",
    "Resize": "y = Resize (x, , scales)",
    "ReverseSequence": "y = ReverseSequence <time_axis = 1, batch_axis = 0> (x, lengths)",
    "Where": "c = Less (x, z) y = Where (c, x, z)",
}
COMPARED = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
CONSTANTS = {
    "lengths": np.array([2, 4]),
    "pads": np.array([0, 1, 0, 1]),
    "scales": np.float32([2, 1]),
}
NEAR = np.array([[2**24, 2**24 + 1, 2**24 + 2, 7], [2**24 + 3, 2**24 + 5, 3, -1]])


def right_or_refused(text: str, constants: dict[str, np.ndarray], feeds: list[np.ndarray], folder: Path) -> bool:
    """Whether a kernel runs; what it makes is compared with the reference."""
    used = {name: np.asarray(x) for name, x in constants.items() if f" {name})" in text or f" {name}," in text}
    model = ir.from_proto(onnx.shape_inference.infer_shapes(ir.to_proto(kernel("k", text, used))))
    toolchain = OpenVinoToolchain()
    try:
        made = toolchain.load(toolchain.compile(model, TARGET, folder), TARGET, folder, LoadOptions())(feeds)
    except Unsupported:
        return False
    inputs = dict(zip((str(value.name) for value in model.graph.inputs), feeds, strict=True))
    with np.errstate(all="ignore"):
        (wanted,) = ReferenceEvaluator(ir.to_proto(model)).run(None, inputs)
    np.testing.assert_array_equal(made[0], wanted)
    return True


@pytest.mark.parametrize("shape", ["2,4", "N,M"])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("op", [*ROUNDED, *COMPARED])
def test_operators_of_integers_that_float32_does_not_hold_are_right_or_refused(
    op: str, dtype: str, shape: str, tmp_path: Path
) -> None:
    body, made = (f"y = {op} (x, z)", "bool") if op in COMPARED else (ROUNDED[op], dtype)
    given = [f"{dtype}[{shape}] x", *([f"{dtype}[{shape}] z"] if " z)" in body else [])]
    constants = CONSTANTS | {name: np.array(n, dtype) for name, n in (("three", 3), ("k", 2**24 + 1))}
    x = NEAR.astype(dtype)
    feeds = [x, np.roll(x, 1)][: len(given)]
    rank = "[P,Q]" if not op.startswith("Reduce") else "[1,1]"
    right_or_refused(f"({', '.join(given)}) => ({made}{rank} y) {{{body}}}", constants, feeds, tmp_path)


@pytest.mark.parametrize("op", COMPARED)
@pytest.mark.parametrize("large", [2**25, 2**31 - 1, -(2**31)])
def test_one_constant_beyond_all_other_integers_is_no_reason_to_refuse(op: str, large: int, tmp_path: Path) -> None:
    x = np.array([2**24 - 1, -(2**24), 0], np.int32)
    text = f"(int32[3] x) => (bool[3] y) {{y = {op} (x, k)}}"
    assert right_or_refused(text, {"k": np.int32(large)}, [x], tmp_path)
    assert not right_or_refused(text, {"k": np.int32(2**24 + 1)}, [x], tmp_path)


def test_tokens_are_compared_until_one_is_larger_than_float32_holds(tmp_path: Path) -> None:
    text = "(int64[2] x) => (bool[2] y) {y = Equal (x, k)}"
    assert right_or_refused(text, {"k": np.int64(7)}, [np.array([7, 2**24 - 1])], tmp_path)
    assert not right_or_refused(text, {"k": np.int64(7)}, [np.array([7, 2**24 + 1])], tmp_path)


@pytest.mark.parametrize(("low", "high", "taken"), [(0, 2**31 - 1, True), (-(2**31), 9, True), (2**26, 2**27, False)])
def test_clip_to_the_end_of_a_type_is_taken(low: int, high: int, taken: bool, tmp_path: Path) -> None:
    ends = {"low": np.int32(low), "high": np.int32(high)}
    x = np.array([5, -5, 2**24 - 1], np.int32)
    assert right_or_refused("(int32[3] x) => (int32[3] y) {y = Clip (x, low, high)}", ends, [x], tmp_path) is taken


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_the_least_integer_is_not_cast_to_false(dtype: str, tmp_path: Path) -> None:
    text = f"({dtype}[2] x) => (bool[2] y) {{y = Cast <to = 9> (x)}}"
    assert right_or_refused(text, {}, [np.array([5, 0], dtype)], tmp_path)
    assert not right_or_refused(text, {}, [np.array([-(2**31), 0], dtype)], tmp_path)


@pytest.mark.parametrize("step", [-(2**63) + 1, -(2**31), -(2**31) + 1, 2**31, 2**63 - 1])
def test_steps_back_that_end_the_process_are_refused(step: int, tmp_path: Path) -> None:
    ends = {"s": np.array([-1 if step < 0 else 0]), "e": np.array([-9 if step < 0 else 9]), "a": np.array([0])}
    text = "(float[4] x) => (float[1] y) {y = Slice (x, s, e, a, t)}"
    x = np.arange(4, dtype=np.float32)
    assert right_or_refused(text, ends | {"t": np.array([step])}, [x], tmp_path) is (step > -(2**31))


def test_bounds_of_integers_that_wrap_around_are_those_of_their_type() -> None:
    text = "(int32[2] x) => (int32[2] y) {a = Mul (x, x) y = Min (a, k)}"
    proto = onnx.shape_inference.infer_shapes(ir.to_proto(kernel("k", text, {"k": np.array(5, np.int32)})))
    assert IntegerBounds(2**24).of(ir.from_proto(proto).graph.outputs[0]).low == -(2**31)


GROWN = {
    "large byte products": "(uint8[1,1025] x, int8[1025,1] w) => (int32[1,1] y) {m = MatMulInteger (x, w) y = Max (m, zero)}",
    "byte products": "(uint8[1,1025] x, int8[1025,1] w) => (int32[1,1] y) {y = MatMulInteger (x, w)}",
    "If": """(int64[1] x, bool c, int64[1] z) => (bool[1] y) {
        t, u = If (c) <then_branch = a () => (int64[1] b, int64[1] v) {b = Add (x, x) v = Add (x, z)},
            else_branch = d () => (int64[1] e, int64[1] f) {e = Neg (x) f = Neg (z)}>
        y = Equal (t, u)}""",
    "Loop": """(int64[1] x, bool c) => (bool[1] y) {
        t = Loop ( n, c, x) <body = b (int64 i, bool g, int64[1] p) => (bool h, int64[1] q) {h = Identity (g) q = Add (p, p)}>
        y = Equal (t, k)}""",
    "CastLike": "(float[1] x, int64[1] z) => (bool[1] y) {t = CastLike (x, z) y = Equal (t, k)}",
}


@pytest.mark.parametrize("kind", GROWN)
def test_integers_that_grow_inside_a_kernel_are_refused(kind: str, tmp_path: Path) -> None:
    constants = {"zero": np.int32(0), "k": np.array([2**28 + 1]), "n": np.int64(8)}
    feeds = {
        "CastLike": [np.float32([2**28]), np.array([0])],
        "If": [np.array([2**23]), np.array(True), np.array([2**23 + 1])],
        "Loop": [np.array([2**20]), np.array(True)],
    }
    of_bytes = [np.full((1, 1025), 255, np.uint8), np.full((1025, 1), 127, np.int8)]
    given = feeds.get(kind, of_bytes)
    assert not right_or_refused(GROWN[kind], constants, given, tmp_path)


def test_sums_of_bytes_that_are_small_or_made_floats_are_taken(tmp_path: Path) -> None:
    x, w = np.full((1, 400), 255, np.uint8), np.full((400, 1), 127, np.int8)
    small = "(uint8[1,400] x, int8[400,1] w) => (int32[1,1] y) {m = MatMulInteger (x, w) y = Clip (m, zero)}"
    assert right_or_refused(small, {"zero": np.int32(0)}, [x, w], tmp_path)
    floats = "(uint8[1,M] x, int8[M,1] w) => (float[1,1] y) {m = MatMulInteger (x, w) y = Cast <to = 1> (m)}"
    assert right_or_refused(floats, {}, [x, w], tmp_path)


def test_a_state_that_stays_small_is_taken(tmp_path: Path) -> None:
    body = "b (int64[1] p, int64[1] v) => (int64[1] q, int64[1] o) {q = Max (p, v) o = Identity (q)}"
    text = f"(int64[3,1] x) => (int64[3,1] y) {{z, y = Scan <num_scan_inputs = 1, body = {body}> ( start, x)}}"
    assert right_or_refused(text, {"start": np.array([0])}, [np.array([[5], [2], [7]])], tmp_path)


def typed(model: ir.Model) -> ir.Model:
    return ir.from_proto(onnx.shape_inference.infer_shapes(ir.to_proto(model)))


BIG = {"p": np.int64(1_000_003), "two": np.int64(2), "many": np.int64(997), "axis": np.int64(0), "axes": np.array([0])}


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        # What a kernel is given is looked at when it runs, so that steps by a constant fit.
        ("(int64[2] x) => (int64[2] y) {y = Add (x, two)}", True),
        ("(int64[2] x, int64[2] z) => (int64[2] y) {y = Sub (x, z)}", True),
        ("(int32[2] x) => (int64[2] y) {c = Cast <to = 7> (x) y = Add (c, two)}", True),
        ("(int64[2] x) => (int64[2] y) {y = Mul (x, p)}", False),
        ("(int64[2] x) => (int64[2] y) {a = Add (x, x) b = Add (a, a) y = Add (b, b)}", True),
        ("(int64[2] x, int64[2] z) => (int64[2] y) {a = Mul (x, z) y = Sub (a, two)}", True),
        ("(int64[2] x, int64[2] z) => (int64[2] y) {a = Mul (x, z) y = Mul (a, z)}", False),
        ("(int64[2] x) => (int64[2] y) {a = Add (x, two) y = Clip (a, one, p)}", True),
        ("(int64[2] x) => (int64[2] y) {y = Pow (x, two)}", False),
        ("(int64[3] x) => (int64[3] y) {y = CumSum (x, axis)}", True),
        ("(int64[N] x) => (int64[N] y) {y = CumSum (x, axis)}", False),
        ("(int64[2] x) => (int64[1] y) {y = ReduceSum (x, axes)}", True),
        ("(int64[2] x) => (int64[1] y) {y = ReduceProd (x)}", False),
        ("(int64[2,2] x) => (int64[2,2] y) {y = MatMul (x, x)}", False),
        ("(int64[2] x, int64[2] i) => (int64[2] y) {y = ScatterElements <reduction = \"mul\"> (x, i, x)}", False),
        # Of numbers that float32 does not have.
        ("(int64[2] x) => (int64[2] y) {y = Mod (x, many)}", False),
        ("(int64[2] x) => (int64[2] y) {y = Div (x, many)}", False),
        ("(uint8[2] x) => (int64[2] y) {c = Cast <to = 7> (x) y = Mod (c, many)}", True),
        # Numbers that came to be in floating point.
        ("(float[2] x) => (int64[2] y) {y = Cast <to = 7> (x)}", False),
        ("(float[2] x) => (int64[2] y) {c = Clip (x, low, high) y = Cast <to = 7> (c)}", True),
        ("(float[4] x, float[2] f) => (float[2] y) {i = Cast <to = 7> (f) y = Gather (x, i)}", True),
        # Types without a sign.
        ("(uint32[2] x, uint32[2] z) => (uint32[2] y) {y = Sub (x, z)}", False),
        ("(uint64[2] x) => (uint64[2] y) {y = Add (x, x)}", True),
        # Places and lengths.
        ("(int64[1,4] ids) => (int64[1,4] y) {e = Equal (ids, two) n = Not (e) c = Cast <to = 7> (n) s = CumSum (c, one) "
         "m = Mul (s, c) y = Add (m, two)}", True),
        ("(float[A,B,C,D] x) => (float[A,N] y) {s = Shape (x) l = Slice (s, axes, ends) r = ReduceProd (l) "
         "n = Div (r, two) t = Concat <axis = 0> (n, minus) y = Reshape (x, t)}", True),
        ("(float[8,16] x) => (int64[8] y) {i = ArgMax <axis = 1, keepdims = 0> (x) y = Mul (i, p)}", True),
        ("(int64[2] x) => (int64[2] y) {i = Gather (table, x) y = Mul (i, p)}", True),
    ],
)  # fmt: skip
def test_integers_that_may_not_fit_are_refused(text: str, accepted: bool, tmp_path: Path) -> None:
    """OpenVINO computes 64-bit integers in 32 bits, and some operators of integers in float32."""
    weights = {**BIG, "low": np.float32(0), "high": np.float32(99), "one": np.int64(1), "ends": np.array([2])}
    weights |= {"minus": np.array([-1]), "table": np.arange(9)}
    weights = {name: value for name, value in weights.items() if f"{name}," in text or f"{name})" in text}
    model = typed(kernel("k", text, weights))
    toolchain = OpenVinoToolchain()
    refusals = [told.reason for node in model.graph if not (told := toolchain.supports(node, TARGET)).ok]
    assert bool(refusals) is not accepted, refusals
    if accepted:
        toolchain.compile(model, TARGET, tmp_path)
    else:
        with pytest.raises(Unsupported, match=r"32 bits|float32"):
            toolchain.compile(model, TARGET, tmp_path)


def test_what_follows_from_a_refused_product_is_refused_too() -> None:
    text = "(int64[2] x) => (int64[2] y) {m = Mul (x, p) y = Identity (m)}"
    model = typed(kernel("k", text, {"p": BIG["p"]}))
    assert [OpenVinoToolchain().supports(node, TARGET).ok for node in model.graph] == [False, False]


@pytest.mark.parametrize(
    "text", ["y = Add (x, one)", "y = Sub (x, one)", "y = Neg (x)", "y = Identity (x) z = Mul (y, one)"]
)
def test_what_is_accepted_is_right_up_to_where_inputs_are_refused(text: str, tmp_path: Path) -> None:
    weights = {"one": np.int64(1)} if "one" in text else {}
    model = typed(kernel("k", f"(int64[4] x) => (int64[4] {'z' if 'z' in text else 'y'}) {{{text}}}", weights))
    toolchain = OpenVinoToolchain()
    loaded = toolchain.load(toolchain.compile(model, TARGET, tmp_path), TARGET, tmp_path, LoadOptions())
    evaluator = ReferenceEvaluator(ir.to_proto(model))
    for exponent in range(24, 40):
        x = np.array([2**exponent - 1, -(2**exponent), 2**exponent, 3])
        try:
            (y,) = loaded([x])
        except Unsupported:
            assert exponent >= 30
        else:
            np.testing.assert_array_equal(y, evaluator.run(None, {"x": x})[0])


def test_each_input_is_held_to_a_limit_of_its_own(tmp_path: Path) -> None:
    text = "(int64[2] ids, int64[2] mask) => (bool[2] e, int64[2] m) {e = Equal (ids, two) m = Mul (mask, mask)}"
    model = typed(kernel("k", text, {"two": np.int64(2)}))
    toolchain = OpenVinoToolchain()
    loaded = toolchain.load(toolchain.compile(model, TARGET, tmp_path), TARGET, tmp_path, LoadOptions())
    equal, product = loaded([np.array([2, 2**24 - 1]), np.array([1, -(2**15)])])
    assert equal.tolist() == [True, False] and product.tolist() == [1, 2**30]
    for ids, mask in (([2, 2**24], [1, 1]), ([2, 3], [1, 2**15])):
        with pytest.raises(Unsupported, match="an input is beyond"):
            loaded([np.array(ids), np.array(mask)])
