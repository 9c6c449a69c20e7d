"""ONNX's own backend cases through the table of torch calls: right, or refused; never wrong, never a crash."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnx_ir.passes.common as passes
import pytest

from collage.testing._toolchain_kernels import kernel
from collage.testing.onnx_suite import cases
from collage.toolchains import Unsupported

torch = pytest.importorskip("torch")

from collage_torch.ops import OPS, Program, from_array, to_array  # noqa: E402

_PASSED_WHEN_WRITTEN = 1250
"""Cases; fewer would mean that operators were lost."""

_FLOAT16_UNITS = 2 * 2.0**-10
"""Two units in the last place of a float16, relatively: ONNX rounds after every step where torch rounds once."""


def verdict(model: onnx.ModelProto, data: Any, rtol: float, atol: float) -> str:
    """``right``, ``refused`` or what is wrong."""
    try:
        module = ir.serde.deserialize_model(model)
        if module.functions:
            passes.InlinePass()(module)
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(module)
        program = Program(module)
        for inputs, outputs in data:
            with torch.inference_mode():
                got = [to_array(torch.as_tensor(y)) for y in program(*(from_array(np.asarray(x)) for x in inputs))]
            for y, wanted in zip(got, outputs, strict=True):
                wanted = np.asarray(wanted)
                if (y.dtype, y.shape) != (wanted.dtype, wanted.shape):
                    return f"{y.dtype}{y.shape} for {wanted.dtype}{wanted.shape}"
                units = _FLOAT16_UNITS if y.dtype == np.float16 else 0.0
                np.testing.assert_allclose(y, wanted, rtol=max(rtol, units), atol=atol)
    except Unsupported as refusal:
        assert str(refusal)
        return "refused"
    except AssertionError as error:
        return f"wrong: {error}"
    return "right"


def test_every_case_of_the_suite_is_right_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLOW_RELEASED_ONNX_OPSET_ONLY", "0")
    counts = {"right": 0, "refused": 0}
    for case in cases(("node",)):
        found = verdict(case.model, case.data, case.rtol, case.atol)
        assert found in counts, f"{case.name}: {found}"
        counts[found] += 1
    assert counts["right"] >= _PASSED_WHEN_WRITTEN


def test_every_row_is_an_operator_of_onnx() -> None:
    known = {schema.name for schema in onnx.defs.get_all_schemas_with_history() if schema.domain == ""}
    assert set(OPS) <= known
    assert len(OPS) >= 140


def run(text: str, inputs: Sequence[np.ndarray], weights: dict[str, np.ndarray] | None = None) -> list[np.ndarray]:
    return [to_array(torch.as_tensor(y)) for y in Program(kernel("k", text, weights))(*map(from_array, inputs))]


def test_shapes_are_computed_on_the_host_and_follow_the_input() -> None:
    text = """(float[N,M] x) => (float[K,P] y) {
        s = Shape (x) n = Gather (s, zero) d = Mul (n, two) r = Unsqueeze (d, zeros)
        m = Concat <axis = 0> (r, minus) y = Reshape (x, m)}"""
    weights = {
        "zero": np.array(0),
        "two": np.array(2),
        "zeros": np.array([0]),
        "minus": np.array([-1]),
    }
    program = Program(kernel("k", text, weights))
    for shape in ((2, 4), (3, 6), (1, 2)):
        x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        (y,) = program(from_array(x))
        np.testing.assert_array_equal(to_array(y), x.reshape(2 * shape[0], -1))


@pytest.mark.parametrize(("opset", "shape"), [(11, (6, 20)), (13, (24, 5))])
def test_softmax_changed_its_meaning_in_opset_13(opset: int, shape: tuple[int, int]) -> None:
    model = kernel("k", "(float[2,3,4,5] x) => (float[2,3,4,5] y) {y = Softmax <axis = A> (x)}".replace("A", "2"))
    model.opset_imports[""] = opset
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)
    (y,) = Program(model)(from_array(x))
    rows = (6, 20) if opset == 11 else None
    wanted = np.exp(x.reshape(rows)) if rows else np.exp(x)
    wanted = wanted / wanted.sum(axis=1 if rows else 2, keepdims=True)
    np.testing.assert_allclose(to_array(y), wanted.reshape(x.shape), rtol=1e-5)
    assert np.prod(shape) == x.size


REFERENCE: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "ReduceSum": lambda x: x.sum(axis=(0, 2), keepdims=True),
    "ReduceMax": lambda x: x.max(axis=(0, 2), keepdims=True),
    "ReduceProd": lambda x: x.prod(axis=(0, 2), keepdims=True),
}


@pytest.mark.parametrize("name", sorted(REFERENCE))
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int64])
def test_reductions_keep_the_type(name: str, dtype: Any) -> None:
    x = np.random.default_rng(0).integers(-3, 4, (2, 3, 4)).astype(dtype)
    kind = {"float32": "float", "int32": "int32", "int64": "int64"}[x.dtype.name]
    text = f"({kind}[2,3,4] x) => ({kind}[1,3,1] y) {{y = {name} (x, axes)}}"
    (y,) = run(text, [x], {"axes": np.array([0, -1])})
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y, REFERENCE[name](x).astype(dtype))


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1)])
@pytest.mark.parametrize("exponent", [-2.0, -0.5, 0.0, 0.5, 1.0, 2.0, 2.5, 3.0])
def test_powers_by_a_number_are_those_by_an_array_also_of_infinities(exponent: float, shape: tuple[int, ...]) -> None:
    x = np.array([-np.inf, -2, -0.0, 0, 0.5, 3, np.inf, np.nan], np.float32)
    y = np.full(shape, exponent, np.float32)
    with np.errstate(all="ignore"):
        wanted = np.power(x, np.full_like(x, exponent)).reshape(np.broadcast_shapes(x.shape, shape))
    unknown = ",".join("ABC"[: wanted.ndim])
    (got,) = run(f"(float[8] x) => (float[{unknown}] y) {{y = Pow (x, e)}}", [x], {"e": y})
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=1e-6)
    np.testing.assert_array_equal(np.signbit(got[got == 0]), np.signbit(wanted[wanted == 0]))


@pytest.mark.parametrize(
    ("text", "index"),
    [
        ("(float[2,N] x) => (float[2,2] y) {y = Gather <axis = 1> (x, i)}", [0, -1]),
        ("(float[2,N] x) => (float[2,2] y) {y = GatherElements <axis = 1> (x, i)}", [[0, -1], [0, -1]]),
    ],
)
def test_indices_from_the_end_follow_the_length(text: str, index: Any) -> None:
    program = Program(kernel("k", text, {"i": np.array(index)}))
    for length in (6, 3, 9):
        x = np.arange(2.0 * length, dtype=np.float32).reshape(2, length)
        with torch.inference_mode():
            (got,) = program(from_array(x))
        np.testing.assert_array_equal(to_array(got), x[:, [0, -1]])


@pytest.mark.parametrize("reduction", ["none", "add", "max"])
def test_scatters_by_indices_that_were_expanded(reduction: str) -> None:
    places = np.array([[3], [-1], [0], [-4]])
    updates = np.arange(24, dtype=np.float32).reshape(4, 6)
    text = f"""(int64[4,1] i, float[4,6] u) => (float[5,6] y) {{
        e = Expand (i, s) y = ScatterElements <axis = 0, reduction = "{reduction}"> (z, e, u)}}"""
    (got,) = run(text, [places, updates], {"s": np.array([4, 6]), "z": np.ones((5, 6), np.float32)})
    wanted = np.ones((5, 6), np.float32)
    for place, row in zip(places[:, 0], updates, strict=True):
        wanted[place] = {"none": row, "add": wanted[place] + row, "max": np.maximum(wanted[place], row)}[reduction]
    np.testing.assert_array_equal(got, wanted)


def test_random_slices_are_numpys() -> None:
    chance = random.Random(0)
    for _ in range(200):
        x = np.arange(60, dtype=np.float32).reshape(5, 12)
        first, last = chance.randint(-15, 15), chance.randint(-15, 15)
        step = chance.choice([-3, -1, 1, 2, 5])
        expected = x[:, slice(first, last, step)]
        if last < -12 and step < 0:
            expected = x[:, slice(first, None, step)]
        weights = {k: np.array([v]) for k, v in (("s", first), ("e", last), ("a", 1), ("t", step))}
        (y,) = run("(float[5,12] x) => (float[5,K] y) {y = Slice (x, s, e, a, t)}", [x], weights)
        np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("length", [2048, 3001])
def test_few_of_many_are_the_first_of_equals(length: int, axis: int, largest: int) -> None:
    shape = [3, 2, 3]
    shape[axis] = length
    random = np.random.default_rng(length)
    x = random.choice(np.float32([-np.inf, -1e30, -1.5, -0.0, 0.0, 1e-40, 2.0, np.inf, np.nan, -np.nan]), shape)
    x = np.where(random.random(shape) < 0.9, random.integers(-900, 900, shape).astype(np.float32), x)
    sizes = ",".join(map(str, shape))
    text = (
        f"(float[{sizes}] x) => (float[A,B,C] v, int64[A,B,C] i) "
        f"{{v, i = TopK <axis = {axis}, largest = {largest}> (x, k)}}"
    )
    values, indices = map(to_array, Program(kernel("k", text, {"k": np.array([500])}))(from_array(x)))
    ranks = np.where(np.isnan(x), np.inf, np.clip(x.astype(np.float64), -1e300, 1e300))  # NaN is above infinity
    order = np.argsort(-ranks if largest else ranks, axis, kind="stable").take(range(500), axis)
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, axis))


@pytest.mark.parametrize(
    ("kind", "value"), [("float", np.inf), ("float", np.nan), ("float16", -1.5), ("int64", 7), ("bool", True)]
)
@pytest.mark.parametrize("constant", [True, False])
def test_what_is_padded_with_may_be_computed_and_need_not_be_known_on_the_host(
    kind: str, value: Any, constant: bool
) -> None:
    x = np.arange(6).reshape(2, 3).astype({"float": "float32"}.get(kind, kind))
    fill, weights = np.array(value, x.dtype), {"pads": np.array([1, 0, 2, -1])}
    given = "" if constant else f", {kind} v"
    text = f"({kind}[2,3] x{given}) => ({kind}[5,2] y) {{y = Pad (x, pads, v)}}"
    program = Program(kernel("k", text, weights | ({"v": fill} if constant else {})))
    assert not program.reads_values_on_host
    (y,) = program(*map(from_array, [x] if constant else [x, fill]))
    np.testing.assert_array_equal(to_array(y), np.pad(x[:, :2], ((1, 2), (0, 0)), constant_values=fill))


@pytest.mark.parametrize("is_constant", [False, True])
@pytest.mark.parametrize("length", [1, 258, 259, 40_000])
def test_products_of_bytes_are_exact_however_many_there_are(length: int, is_constant: bool) -> None:
    """At 40,000 of the largest ones the sum is more than 32 bits hold."""
    w = np.full((length, 1), 255, np.uint8)
    inputs = f"uint8[1,{length}] x" if is_constant else f"uint8[1,{length}] x, uint8[{length},1] w"
    text = f"({inputs}) => (int32[1,1] y) {{y = MatMulInteger (x, w)}}"
    program = Program(kernel("k", text, {"w": w} if is_constant else {}))
    x = np.full((1, length), 255, np.uint8)
    x[0, -1] = 254
    (y,) = program(from_array(x), *([] if is_constant else [from_array(w)]))
    assert to_array(y).tolist() == [[(255 * 255 * length - 255 + 2**31) % 2**32 - 2**31]]


@pytest.mark.parametrize("is_constant", [False, True])
@pytest.mark.parametrize("kind", ["uint8", "int8", "int32", "int64"])
def test_integers_are_divided_by_anything(kind: str, is_constant: bool) -> None:
    """The least divided by -1 ends a process otherwise. A quotient by 0 is 0, as in the reference implementation."""
    least = int(np.iinfo(kind).min)
    x = np.array([[least] * 3, [7, 100, 9]], kind)
    y = np.array([0, 255 if kind == "uint8" else -1, 3], kind)
    given, weights = (f"{kind}[2,3] x", {"y": y}) if is_constant else (f"{kind}[2,3] x, {kind}[3] y", {})
    text = f"({given}) => ({kind}[2,3] q, {kind}[2,3] r) {{q = Div (x, y) r = Mod <fmod = 1> (x, y)}}"
    q, r = run(text, [x] if is_constant else [x, y], weights)
    by_one = 0 if kind == "uint8" else 1
    third = -(-least // 3)
    np.testing.assert_array_equal(q, np.array([[0, least * by_one, third], [0, -100 * by_one, 3]], kind))
    left = [0 if by_one else least, least - 3 * third]
    np.testing.assert_array_equal(r, np.array([[0, *left], [0, 0 if by_one else 100, 0]], kind))


def test_bytes_without_a_range_are_quantised_with_a_scale_of_one() -> None:
    text = "(float[3] x) => (uint8[3] y, float s, uint8 z) {y, s, z = DynamicQuantizeLinear (x)}"
    assert [y.tolist() for y in run(text, [np.zeros(3, np.float32)])] == [[0, 0, 0], 1.0, 0]


def test_a_result_of_several_may_be_the_only_one_that_is_read() -> None:
    text = "(float[3] x) => (uint8[3] y) {y, s, z = DynamicQuantizeLinear (x)}"
    assert [y.tolist() for y in run(text, [np.float32([0, 1, 255])])] == [[0, 1, 255]]


def test_no_elements_take_an_open_dimension() -> None:
    shape = {"shape": np.array([-1, 12])}
    (y,) = run("(float[N,3,4] x) => (float[M,12] y) {y = Reshape (x, shape)}", [np.zeros((0, 3, 4), np.float32)], shape)
    assert y.shape == (0, 12)


def test_what_is_not_above_a_threshold_is_zero_also_if_it_is_not_a_number() -> None:
    (y,) = run("(float[3] x) => (float[3] y) {y = ThresholdedRelu (x)}", [np.array([np.nan, 1, 2], np.float32)])
    assert y.tolist() == [0, 0, 2]


@pytest.mark.parametrize("name", ["Gelu", "HardSwish"])
def test_gates_let_the_largest_numbers_and_infinity_through(name: str) -> None:
    x = np.array([np.inf, 3e38, 1e38, 1e5, 2, -1e38, np.nan], np.float32)
    (y,) = run(f"(float[7] x) => (float[7] y) {{y = {name} (x)}}", [x])
    np.testing.assert_array_equal(y[:4], x[:4])
    assert 1 < y[4] < 2 and y[5] == 0 and np.isnan(y[6])


@pytest.mark.parametrize(
    ("kind", "start", "limit", "delta"),
    [("int16", -30_000, 30_000, 10_000), ("int32", -(2**31), 2**31 - 1, 2**30), ("int64", 2**62, -(2**63), -(2**62))],
)
def test_ranges_may_be_wider_than_half_the_type(kind: str, start: int, limit: int, delta: int) -> None:
    weights = {name: np.array(value, kind) for name, value in (("s", start), ("l", limit), ("d", delta))}
    (y,) = run(f"({kind} x) => ({kind}[N] y) {{r = Range (s, l, d) y = Add (r, x)}}", [np.array(0, kind)], weights)
    assert y.tolist() == list(range(start, limit, delta))


def test_paddings_of_large_integers_are_exact() -> None:
    weights = {"p": np.array([1, 0]), "v": np.array(2**53 + 1)}
    (y,) = run("(int64[1] x) => (int64[2] y) {y = Pad (x, p, v)}", [np.array([7])], weights)
    assert y.tolist() == [2**53 + 1, 7]


def test_slices_may_have_the_largest_step() -> None:
    weights = {name: np.array([value]) for name, value in (("s", 1), ("e", 2**63 - 1), ("a", 0), ("t", 2**63 - 1))}
    (y,) = run("(float[4] x) => (float[1] y) {y = Slice (x, s, e, a, t)}", [np.arange(4, dtype=np.float32)], weights)
    assert y.tolist() == [1]


@pytest.mark.parametrize(("limit", "delta", "count"), [(0.3, 0.1, 4), (1, 0.1, 10), (1, -0.1, 0)])
def test_ranges_of_floats_are_counted_in_doubles(limit: float, delta: float, count: int) -> None:
    weights = {name: np.array(value, np.float32) for name, value in (("s", 0), ("l", limit), ("d", delta))}
    (y,) = run("(float x) => (float[N] y) {r = Range (s, l, d) y = Add (r, x)}", [np.array(0, np.float32)], weights)
    np.testing.assert_allclose(y, delta * np.arange(count), rtol=1e-6)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_bytes_are_not_interpolated(mode: str) -> None:
    text = f'(uint8[1,1,4,4] x) => (uint8[1,1,7,7] y) {{y = Resize <mode = "{mode}"> (x, , , s)}}'
    with pytest.raises(Unsupported, match="integers"):
        run(text, [np.zeros((1, 1, 4, 4), np.uint8)], {"s": np.array([1, 1, 7, 7])})
