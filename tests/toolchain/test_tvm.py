"""TVM's native code generator keeps the contract, and its schedules change nothing but the time."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collage._errors import TargetError
from collage.target import Target
from collage.testing._toolchain_case import ToolchainTestCase
from collage.testing._toolchain_kernels import KernelCase
from collage.testing._toolchain_kernels import kernel as parsed_kernel
from collage.toolchains import TUNED, CompileError, LoadOptions, Tuner, TuningSession, Unsupported
from collage.toolchains.tvm import TvmToolchain

pytest.importorskip("tvm")

TARGET = Target.parse("llvm")


class TestTvm(ToolchainTestCase):
    toolchain = TvmToolchain()
    differs = frozenset({"not_finite_relu", "not_finite_max"})  # it drops NaN here


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def convolution(size: int, inner: int, outer: int, kernel: int, groups: int, attributes: str, after: str) -> KernelCase:
    text = f"(float[2,{inner},{size},{size}] x) => (float[A,B,C,D] y) {{c = Conv <{attributes}> (x, w, b) {after}}}"
    weights = {"w": numbers(outer, inner // groups, kernel, kernel, seed=1), "b": numbers(outer, seed=2)}
    return KernelCase("convolution", text, [numbers(2, inner, size, size)], weights)


def product(left: tuple[int, ...], right: tuple[int, ...], after: str) -> KernelCase:
    shape = ",".join(map(str, left))
    text = f"(float[{shape}] x) => (float[{','.join('ABCD'[: len(left)])}] y) {{c = MatMul (x, w) {after}}}"
    weights = {"w": numbers(*right, seed=1), "bias": numbers(right[-1], seed=2)}
    return KernelCase("product", text, [numbers(*left)], weights)


def plain(shape: tuple[int, ...], rank: int, body: str) -> KernelCase:
    text = f"(float[{','.join(map(str, shape))}] x) => (float[{','.join('ABCDE'[:rank])}] y) {{{body}}}"
    weights = {"last": np.array([-1], np.int64), "ends": np.array([0, -1], np.int64), "one": np.float32([1.5])}
    return KernelCase("plain", text, [numbers(*shape)], {k: v for k, v in weights.items() if f"{k})" in body})


PAD = "pads = [1,1,1,1]"
KERNELS = [
    convolution(14, 16, 64, 3, 1, PAD, "y = Relu (c)"),
    convolution(13, 3, 24, 3, 1, f"{PAD}, strides = [2,2]", "s = Sigmoid (c) y = Mul (c, s)"),
    convolution(14, 32, 32, 3, 32, f"{PAD}, group = 32", "y = Clip (c)"),
    convolution(14, 32, 64, 3, 8, f"{PAD}, group = 8", "y = Identity (c)"),
    convolution(12, 8, 20, 3, 1, "dilations = [2,2]", "y = Relu (c)"),
    convolution(7, 64, 128, 1, 1, "group = 1", "r = Relu (c) y = Add (r, c)"),
    convolution(5, 7, 11, 5, 1, 'auto_pad = "SAME_UPPER"', "y = Tanh (c)"),
    convolution(1, 16, 16, 1, 1, "group = 1", "y = Relu (c)"),
    product((64, 96), (96, 128), "y = Add (c, bias)"),
    product((1, 100), (100, 10), "y = Add (c, bias)"),
    product((197, 64), (64, 192), "a = Add (c, bias) y = Gelu (a)"),
    product((3, 5, 17), (17, 13), "y = Relu (c)"),
    product((2, 4, 8, 16), (2, 4, 16, 32), "y = Identity (c)"),
    product((2, 1), (1, 16), "y = Identity (c)"),
    product((2, 1), (1, 16), "y = Add (c, bias)"),
    product((2, 5, 1), (1, 3), "a = Add (c, bias) y = Relu (a)"),
    convolution(7, 1, 16, 1, 1, "group = 1", "y = Relu (c)"),
    convolution(7, 16, 16, 1, 16, "group = 16", "y = Clip (c)"),
    plain((2, 16, 14, 14), 4, "y = MaxPool <kernel_shape = [3,3], strides = [2,2], pads = [1,1,1,1]> (x)"),
    plain((2, 16, 14, 14), 4, "y = AveragePool <kernel_shape = [2,2], strides = [2,2]> (x)"),
    plain((2, 16, 14, 14), 4, "y = GlobalAveragePool (x)"),
    plain((4, 12, 50, 50), 4, "y = Softmax (x)"),
    plain((3, 1000), 2, "y = LogSoftmax (x)"),
    plain((2, 33, 65), 3, "y = ReduceSum (x, last)"),
    plain((8, 33, 65), 3, "y = ReduceMean (x, ends)"),
    plain((2, 33, 64), 3, "m = ReduceMean (x, last) d = Sub (x, m) q = Mul (d, d) y = ReduceMean (q, last)"),
    plain((64, 257), 2, "a = Exp (x) y = Add (a, one)"),
    plain((3, 5, 7, 11), 4, "y = Transpose <perm = [3,0,2,1]> (x)"),
    plain((6, 40), 2, "a = Relu (x) y = Concat <axis = 1> (a, x)"),
]


@pytest.mark.parametrize("case", KERNELS, ids=[f"{i}_{case.name}" for i, case in enumerate(KERNELS)])
def test_schedules_change_nothing_but_the_time(case: KernelCase, tmp_path: Path) -> None:
    import onnx_ir as ir
    from onnx.reference import ReferenceEvaluator

    toolchain = TvmToolchain()
    compiled = toolchain.compile(case.model(), TARGET, tmp_path)
    loaded = toolchain.load(compiled, TARGET, tmp_path, LoadOptions(threads=2))
    (expected,) = ReferenceEvaluator(ir.to_proto(case.model())).run(None, {"x": case.inputs[0]})
    for _ in range(3):
        (y,) = loaded(case.inputs)
        assert y.shape == expected.shape
        np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("case", [KERNELS[0], KERNELS[8]], ids=["convolution", "product"])
def test_reductions_are_tiled_for_registers(case: KernelCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that does not fit is passed over silently; so whether it fits is seen in the loops that it makes."""
    from collage.toolchains import _tvm_schedules

    schedule, loops = _tvm_schedules._schedule, list[str]()

    def noted(sch: Any, place: int) -> Any:
        found = schedule(sch, place)
        loops.append("" if found is None else found.mod.script())
        return found

    monkeypatch.setattr(_tvm_schedules, "_schedule", noted)
    TvmToolchain().compile(case.model(), TARGET, tmp_path)
    assert any("T.unroll(" in text and "T.vectorized(" in text for text in loops)


@pytest.mark.slow
def test_tiles_beat_the_loops_that_tvm_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    from collage.toolchains import _tvm_schedules

    case = product((256, 256), (256, 256), "y = Relu (c)")
    toolchain, seconds = TvmToolchain(), []
    for name, rule in (("tiles", _tvm_schedules._schedule), ("loops", lambda sch, place: None)):
        monkeypatch.setattr(_tvm_schedules, "_schedule", rule)
        workspace = tmp_path / name
        workspace.mkdir()
        compiled = toolchain.compile(case.model(), TARGET, workspace)
        loaded = toolchain.load(compiled, TARGET, workspace, LoadOptions(threads=1))
        times = []
        for _ in range(8):
            began = time.process_time()
            loaded(case.inputs)
            times.append(time.process_time() - began)
        seconds.append(min(times))
    assert seconds[0] * 2 < seconds[1]


def test_inputs_are_shared_where_their_alignment_allows(tmp_path: Path) -> None:
    case = plain((4, 16), 2, "y = Neg (x)")
    toolchain = TvmToolchain()
    loaded = toolchain.load(toolchain.compile(case.model(), TARGET, tmp_path), TARGET, tmp_path, LoadOptions())
    memory = np.zeros(4 * 16 + 32, np.float32)
    start = -memory.ctypes.data % 64 // 4
    for shift in (0, 1, 3):
        x = memory[start + shift : start + shift + 64].reshape(4, 16)
        x[...] = numbers(4, 16, seed=shift)
        np.testing.assert_array_equal(loaded([x])[0], -x)
        x += 1
        np.testing.assert_array_equal(loaded([x])[0], -x)


def test_tuning_names_equal_loops_alike_and_only_those_that_reduce(tmp_path: Path) -> None:
    toolchain = TvmToolchain()

    def names(case: KernelCase) -> Sequence[str]:
        return toolchain.tuning_workloads(case.model(), TARGET, tmp_path)

    assert isinstance(toolchain, Tuner)
    first, other = product((64, 96), (96, 128), "y = Add (c, bias)"), product((64, 96), (96, 64), "y = Add (c, bias)")
    renamed = KernelCase(
        "renamed", first.text.replace("(c,", "(k,").replace("{c =", "{k ="), first.inputs, first.weights
    )
    assert len(names(first)) == 1
    assert names(first) == names(renamed)
    assert set(names(first)).isdisjoint(names(other))
    assert names(plain((64, 257), 2, "a = Exp (x) y = Add (a, one)")) == ()


def test_tuned_kernels_are_made_from_their_records_and_no_slower(tmp_path: Path) -> None:
    toolchain, case = TvmToolchain(), product((197, 64), (64, 192), "a = Add (c, bias) y = Gelu (a)")
    target = Target.parse("llvm -trials=6 -seed=3")
    with pytest.raises(Unsupported, match="not tuned"):
        toolchain.compile(case.model(), target, tmp_path)
    slots: list[str] = []

    @contextmanager
    def slot(name: str) -> Iterator[None]:
        slots.append(name)
        yield
        slots.append(f"/{name}")

    session = TuningSession(60.0, building=lambda: slot("build"), measuring=lambda: slot("time"))
    records = toolchain.tune(case.model(), target, tmp_path, session)
    assert set(records) == set(toolchain.tuning_workloads(case.model(), target, tmp_path))
    assert slots == ["build", "/build"] + ["build", "/build", "time", "/time"] * 6
    known = TuningSession(0.0, known=records, measuring=lambda: pytest.fail("known already"))
    assert toolchain.tune(case.model(), target, tmp_path, known) == records

    tuned = case.model()
    tuned.metadata_props[TUNED] = json.dumps(dict(records))
    loaded = toolchain.load(toolchain.compile(tuned, target, tmp_path), target, tmp_path, LoadOptions(threads=2))
    usual = toolchain.load(toolchain.compile(case.model(), TARGET, tmp_path), TARGET, tmp_path, LoadOptions(threads=2))
    np.testing.assert_allclose(loaded(case.inputs)[0], usual(case.inputs)[0], rtol=0, atol=1e-4)


@pytest.mark.parametrize("text", ["[]", "{", '{"a": 1}'])
def test_records_that_are_none_are_an_error_and_no_crash(text: str, tmp_path: Path) -> None:
    model = product((4, 8), (8, 16), "y = Identity (c)").model()
    model.metadata_props[TUNED] = text
    with pytest.raises(CompileError, match="tuning records"):
        TvmToolchain().compile(model, Target.parse("llvm -trials=6 -seed=3"), tmp_path)


def test_a_record_of_nonsense_is_an_error_and_no_crash(tmp_path: Path) -> None:
    toolchain, model = TvmToolchain(), product((4, 8), (8, 16), "y = Identity (c)").model()
    model.metadata_props[TUNED] = json.dumps({"another": "[]"})
    with pytest.raises(CompileError, match="another kernel"):
        toolchain.compile(model, Target.parse("llvm -trials=6 -seed=3"), tmp_path)
    for text in ("null", "[]", '[[["Nonsense", [], {}, []], []], [1.0], {"kind": "llvm"}, []]'):
        names = toolchain.tuning_workloads(model, TARGET, tmp_path)
        model.metadata_props[TUNED] = json.dumps(dict.fromkeys(names, text))
        with pytest.raises(CompileError):
            toolchain.compile(model, Target.parse("llvm -trials=6 -seed=3"), tmp_path)


@pytest.mark.slow
def test_tuning_a_convolution_finds_what_is_at_least_as_fast(tmp_path: Path) -> None:
    import time

    toolchain, case = TvmToolchain(), convolution(28, 128, 128, 3, 1, PAD, "y = Relu (c)")
    target, model = Target.parse("llvm -trials=16 -seed=1"), case.model()
    model.metadata_props[TUNED] = json.dumps(
        dict(toolchain.tune(model, target, tmp_path, TuningSession(120.0, threads=1)))
    )
    options, seconds = LoadOptions(threads=1), []
    for goal, kernel in ((TARGET, case.model()), (target, model)):
        loaded, times = toolchain.load(toolchain.compile(kernel, goal, tmp_path), goal, tmp_path, options), []
        for _ in range(15):
            began = time.process_time()
            loaded(case.inputs)
            times.append(time.process_time() - began)
        seconds.append(min(times))
    assert seconds[1] < 1.25 * seconds[0]


@pytest.mark.parametrize("length", [2048, 32768, 40961])
def test_what_is_normalised_by_long_rows_is_no_vector_of_that_length(length: int, tmp_path: Path) -> None:
    text = f"(float[1,3,{length}] x, float[3] s, float[3] b) => (float[1,3,{length}] y) {{y = InstanceNormalization (x, s, b)}}"
    toolchain, model = TvmToolchain(), parsed_kernel("k", text)
    loaded = toolchain.load(toolchain.compile(model, TARGET, tmp_path), TARGET, tmp_path, LoadOptions(threads=1))
    random = np.random.default_rng(0)
    x, s, b = (random.standard_normal(shape).astype("f") for shape in ((1, 3, length), (3,), (3,)))
    wide = x.astype("d")
    wanted = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(loaded([x, s, b])[0], wanted * s[:, None] + b[:, None], rtol=0, atol=1e-4)


def test_concat_with_nothing_is_refused_and_with_something_is_not() -> None:
    for size, ok in ((0, False), (1, True)):
        model = parsed_kernel(
            "k", f"(float[2] x, float[{size}] z) => (float[{2 + size}] y) {{y = Concat <axis = 0> (x, z)}}"
        )
        (node,) = model.graph
        assert TvmToolchain().supports(node, Target.parse("llvm")).ok == ok


@pytest.mark.parametrize(
    ("text", "ok"),
    [
        (
            "(float[2,2] x, float[2] v) => (float[2,2] y) {y = BatchNormalization <training_mode = %s> (x, v, v, v, v)}",
            "0",
        ),
        ("(float[2] x) => (float[2] y) {y = Dropout (x%s)}", ""),
        ("(float[3,1] x, int64[3] t) => (float[A,B,C] y) {y = Expand (x, %s)}", "s"),
        ("(float[1,6,4] b, float[1,1,6] x, int64[1] t) => (int64[A,3] y) {y = NonMaxSuppression (b, x, %s)}", "s"),
        ('(float[1,4,2,2] x) => (float[1,1,4,4] y) {y = SpaceToDepth <blocksize = 2, mode = "%s"> (x)}', "DCR"),
    ],
)
def test_operators_that_tvm_is_wrong_of_are_refused_in_that_form_only(text: str, ok: str) -> None:
    other = {"0": "1", "": ", r, tr", "s": "t", "DCR": "CRD"}[ok]
    weights = {
        "r": np.array(0.5, np.float32),
        "tr": np.array(True),
        "s": np.array([2, 1, 6]),
    }
    for choice, taken in ((ok, True), (other, False)):
        form = text % choice
        used = {name: x for name, x in weights.items() if f" {name})" in form or f" {name}," in form}
        (node,) = parsed_kernel("k", form, used).graph
        assert TvmToolchain().supports(node, TARGET).ok is taken


@pytest.mark.parametrize(("scale", "taken"), [(0.5, False), (0.4, True), (2.0, True)])
def test_scales_that_make_no_whole_lengths_are_refused(scale: float, taken: bool) -> None:
    text = "(float[1,1,1,5] x) => (float[A,B,C,D] y) {y = Resize (x, , s)}"
    (node,) = parsed_kernel("k", text, {"s": np.array([1, 1, 1, scale])}).graph
    assert TvmToolchain().supports(node, TARGET).ok is taken


@pytest.mark.parametrize(
    ("attributes", "sizes", "ignored"),
    [
        ('mode = "linear"', [1, 2, 3, 2], None),
        ('mode = "linear", antialias = 1', [1, 2, 3, 2], "antialias"),
        ('keep_aspect_ratio_policy = "not_larger"', [1, 2, 3, 8], "keep_aspect_ratio_policy"),
        ("axes = [2,3]", [8, 8], "axes"),
        ('mode = "nearest"', [1, 4, 4, 8], "channels"),
    ],
)
def test_a_resize_is_refused_of_which_tvm_ignores_something(
    attributes: str, sizes: list[int], ignored: str | None
) -> None:
    text = f"(float[1,2,4,4] x) => (float[A,B,C,D] y) {{y = Resize <{attributes}> (x, , , s)}}"
    (node,) = parsed_kernel("k", text, {"s": np.array(sizes)}).graph
    support = TvmToolchain().supports(node, TARGET)
    assert support.ok is (ignored is None)
    assert (ignored or "") in (support.reason or "")


@pytest.mark.parametrize(("dtype", "taken"), [("float", False), ("int64", True)])
def test_one_hot_is_refused_of_floats(dtype: str, taken: bool) -> None:
    text = f"(int64[3] x, {dtype}[2] v) => ({dtype}[3,4] y) {{y = OneHot (x, n, v)}}"
    (node,) = parsed_kernel("k", text, {"n": np.array(4)}).graph
    assert TvmToolchain().supports(node, TARGET).ok is taken


@pytest.mark.parametrize(("outputs", "taken"), [("float[2,3] y", True), ("float[2,3] y, float[2,1] m", False)])
def test_a_normalisation_is_refused_where_more_than_its_result_is_used(outputs: str, taken: bool) -> None:
    text = f"(float[2,3] x, float[3] s) => ({outputs}) {{y, m = LayerNormalization (x, s)}}"
    (node,) = parsed_kernel("k", text).graph
    assert TvmToolchain().supports(node, TARGET).ok is taken


@pytest.mark.parametrize("operator", ["ReduceMax", "ReduceMin"])
@pytest.mark.parametrize(
    ("axes", "keepdims", "shape"), [([-1], 1, "6,1"), ([0], 0, "5"), ([0, 1], 0, ""), ([1, 0], 1, "1,1")]
)
@pytest.mark.parametrize("dtype", ["float", "double", "float16"])
def test_extremes_of_infinities_are_infinite(
    operator: str, axes: list[int], keepdims: int, shape: str, dtype: str, tmp_path: Path
) -> None:
    x = numbers(6, 5).astype({"float": np.float32}.get(dtype, dtype))
    x[1], x[2], x[:, 3] = -np.inf, np.inf, -np.inf
    x[3], x[4, :2] = np.finfo(x.dtype).min, np.finfo(x.dtype).max
    text = f"({dtype}[6,5] x) => ({dtype}{f'[{shape}]' if shape else ''} y) {{y = {operator} <keepdims = {keepdims}> (x, axes)}}"
    for sign in (1, -1):
        agrees(KernelCase("extreme", text, [sign * x], {"axes": np.array(axes)}), tmp_path / str(sign))


@pytest.mark.parametrize("operator", ["Max", "Min", "Mean", "Sum"])
@pytest.mark.parametrize("shapes", [[(), ()], [(), (), ()], [(3,)], [(2, 1), (3,), ()], [(1, 3), (2, 1, 1)]])
def test_operators_of_many_inputs_broadcast_all_of_them(
    operator: str, shapes: list[tuple[int, ...]], tmp_path: Path
) -> None:
    inputs = [np.asarray(numbers(*shape, seed=i), np.float32) for i, shape in enumerate(shapes)]
    stacked = np.stack(np.broadcast_arrays(*inputs))
    expected = getattr(stacked, operator.lower())(axis=0)
    ports = ", ".join(f"{declared(x)} {name}" for x, name in zip(inputs, "abc", strict=False))
    body = f"{declared(expected)} y) {{y = {operator} ({', '.join('abc'[: len(inputs)])})}}"
    case, toolchain = KernelCase("many", f"({ports}) => ({body}", inputs), TvmToolchain()
    loaded = toolchain.load(toolchain.compile(case.model(), TARGET, tmp_path), TARGET, tmp_path, LoadOptions())
    (y,) = loaded(inputs)
    assert (y.dtype, y.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(y, expected, rtol=1e-6)


def declared(x: np.ndarray) -> str:
    return f"float[{','.join(map(str, x.shape))}]" if x.ndim else "float"


def test_attention_yields_nothing_where_all_is_masked(tmp_path: Path) -> None:
    mask = np.array([[True, False, True], [False, False, False], [True, True, True]])
    text = """(float[3,3] scores, bool[3,3] mask) => (float[3,3] y) {
        bias = Where (mask, zero, low)  masked = Add (scores, bias)  p = Softmax (masked)
        top = ReduceMax (bias, last)  none = Equal (top, low)  y = Where (none, zero, p)}"""
    weights = {"zero": np.float32([0]), "low": np.float32([-np.inf]), "last": np.array([-1])}
    agrees(KernelCase("masked", text, [numbers(3, 3), mask], weights), tmp_path)


@pytest.mark.parametrize(("axis", "scale"), [(1, (8, 5, 6)), (-3, (5, 1)), (2, (5, 6)), (2, (6,)), (3, (6,))])
@pytest.mark.parametrize("bias", ["", ", b"])
def test_what_a_convolution_makes_is_normalised_over_all_that_is_asked(
    axis: int, scale: tuple[int, ...], bias: str, tmp_path: Path
) -> None:
    """TVM's own importer turned the image channels-last, and not the scale, of which it then read what lay behind."""
    body = f"c = Conv (x, w) r = Relu (c) y = LayerNormalization <axis = {axis}> (r, s{bias})"
    weights = {"w": numbers(8, 4, 1, 1), "s": numbers(*scale, seed=1), "b": numbers(*scale, seed=2)}
    used = {name: weights[name] for name in (*"ws", *("b" if bias else ""))}
    case = KernelCase("normalised", f"(float[2,4,5,6] x) => (float[2,8,5,6] y) {{{body}}}", [numbers(2, 4, 5, 6)], used)
    agrees(case, tmp_path, within=1e-5)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint64, np.int8])
def test_signs_are_those_that_the_type_has(dtype: type[np.number[Any]], tmp_path: Path) -> None:
    name, limits = np.dtype(dtype).name, np.iinfo(dtype)
    x = np.array([0, 1, 7, limits.min, limits.max], dtype)
    agrees(KernelCase("sign", f"({name}[5] x) => ({name}[5] y) {{y = Sign (x)}}", [x]), tmp_path)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("exponent", [np.array(1), np.array(3.0, np.float32), np.array(8, np.int32)])
def test_powers_of_integers_are_exact(dtype: str, exponent: np.ndarray, tmp_path: Path) -> None:
    text = f"({dtype}[2,5] x) => ({dtype}[2,5] y) {{y = Pow (x, p)}}"
    x = np.arange(-5, 5).reshape(2, 5).astype(dtype)
    agrees(KernelCase("power", text, [x], {"p": exponent}), tmp_path)


@pytest.mark.parametrize("auto_pad", ["NOTSET", "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize(
    ("rank", "attributes", "wanted"),
    [
        (1, "", [4]),
        (2, "", [1, 2]),
        (1, ", strides = [2], output_padding = [1]", [9]),
        (2, ", strides = [3,2]", [12, 7]),
        (2, ", strides = [2,2]", [8, 8]),
        (3, ", strides = [2,2,2]", [8, 9, 7]),
    ],
)
def test_transposed_convolutions_reach_the_shape_that_they_are_given(
    rank: int, attributes: str, wanted: list[int], auto_pad: str, tmp_path: Path
) -> None:
    import onnx_ir as ir
    import onnxruntime

    length, made = ",".join(["4"] * rank), ",".join(map(str, wanted))
    body = f'ConvTranspose <auto_pad = "{auto_pad}", output_shape = [{made}]{attributes}> (x, w, b)'
    text = f"(float[2,3,{length}] x) => (float[2,5,{made}] y) {{y = {body}}}"
    weights = {"w": numbers(3, 5, *[3] * rank, seed=1), "b": numbers(5, seed=2)}
    model, x, toolchain = parsed_kernel("k", text, weights), numbers(2, 3, *[4] * rank), TvmToolchain()
    # ONNX's own reference cannot crop as it must here.
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": x})
    (y,) = toolchain.load(toolchain.compile(model, TARGET, tmp_path), TARGET, tmp_path, LoadOptions())([x])
    assert y.shape == expected.shape
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("port", "wanted", "reason"), [("float[1,1,2]", 9, "larger shape"), ("float[1,1,N]", 4, "cannot import")]
)
def test_transposed_convolutions_to_a_shape_out_of_reach_are_refused(
    port: str, wanted: int, reason: str, tmp_path: Path
) -> None:
    text = f"({port} x) => (float[1,1,{wanted}] y) {{y = ConvTranspose <output_shape = [{wanted}]> (x, w)}}"
    model = parsed_kernel("k", text, {"w": np.ones((1, 1, 3), np.float32)})
    with pytest.raises(Unsupported, match=reason):
        TvmToolchain().compile(model, TARGET, tmp_path)


INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_a_shift_out_of_a_number_leaves_its_sign(direction: str, dtype: str, tmp_path: Path) -> None:
    limits = np.iinfo(dtype)
    values = np.array([0, 1, 7, limits.max, limits.min, limits.max // 3], dtype)
    places = np.array([0, 1, 3, limits.bits - 1, limits.bits, limits.bits + 1, limits.max, limits.min // 2], dtype)
    x, n = (both.reshape(-1).copy() for both in np.meshgrid(values, places))
    text = f'({dtype}[48] x, {dtype}[48] n) => ({dtype}[48] y) {{y = BitShift <direction = "{direction}"> (x, n)}}'
    agrees(KernelCase("shift", text, [x, n]), tmp_path, exactly=True)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_remainders_of_floats_are_those_of_the_exact_quotient(dtype: type[np.floating[Any]], tmp_path: Path) -> None:
    numerators = [0.0, -0.0, 1, -1, 3, -3, 1e4, -1e4, np.inf, -np.inf, np.nan]
    divisors = [2, -2, 0.1, -0.1, np.inf, -np.inf, 0.0, -0.0, np.nan]
    x, n = (both.reshape(-1).astype(dtype) for both in np.meshgrid(numerators, divisors))
    name = {"float32": "float", "float64": "double"}.get(x.dtype.name, x.dtype.name)
    text = f"({name}[99] x, {name}[99] n) => ({name}[99] y, {name}[99] s) {{y = Mod (x, n) s = Reciprocal (y)}}"
    agrees(KernelCase("remainder", text, [x, n]), tmp_path, exactly=True)  # the reciprocal tells 0 from -0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_mish_of_negative_numbers_keeps_its_digits(dtype: type[np.floating[Any]], tmp_path: Path) -> None:
    x = np.array([-80, -20, -10, -1, -0.0, 0, 1e-4, 1, 19.9, 20.1, 100, 1e30], dtype)
    name = {"float32": "float", "float64": "double"}[x.dtype.name]
    model = parsed_kernel("mish", f"({name}[12] x) => ({name}[12] y) {{y = Mish (x)}}")
    toolchain = TvmToolchain()
    (y,) = toolchain.load(toolchain.compile(model, TARGET, tmp_path), TARGET, tmp_path, LoadOptions())([x])
    wide = x.astype(np.longdouble)
    expected = wide * np.tanh(np.logaddexp(np.longdouble(0), wide))
    np.testing.assert_allclose(y, expected, rtol=8 * np.finfo(dtype).eps)


def test_truth_values_are_compared(tmp_path: Path) -> None:
    x, z = np.array([0, 1, 0, 1], bool), np.array([0, 0, 1, 1], bool)
    agrees(KernelCase("equal", "(bool[4] x, bool[4] z) => (bool[4] y) {y = Equal (x, z)}", [x, z]), tmp_path)


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4)])
@pytest.mark.parametrize("operator", ["RMSNormalization", "LayerNormalization"])
def test_what_is_normalised_as_a_whole_may_have_any_shape(
    operator: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    port = f"float[{','.join(map(str, shape))}]"
    text = f"({port} x, {port} s) => ({port} y) {{y = {operator} <axis = 0> (x, s)}}"
    agrees(KernelCase("whole", text, [numbers(*shape), numbers(*shape, seed=1)]), tmp_path, within=1e-5)


def test_a_shape_that_is_an_output_is_a_tensor(tmp_path: Path) -> None:
    text = "(float[N,3,M] x) => (int64[2] y, float[N,3,M] z) {y = Shape <start = 1> (x) z = Neg (x)}"
    for length in (2, 5):
        agrees(KernelCase("shape", text, [numbers(4, 3, length)]), tmp_path / str(length))


HALVES = {
    "chain": "p = Mul (x, z) s = Add (p, x) q = Mul (s, s) d = Sub (q, p) y = Div (d, z)",
    "chosen": "n = Neg (x) c = Less (x, z) w = Where (c, n, z) y = Max (w, x)",
    "moved": "t = Transpose <perm = [1,0]> (x) u = Transpose <perm = [1,0]> (t) y = Concat <axis = 0> (u, z)",
    "rounded": "f = Cast <to = 1> (x) e = Exp (f) h = Cast <to = 10> (e) s = Sqrt (h) y = Mul (s, x)",
}


@pytest.mark.parametrize("body", HALVES.values(), ids=list(HALVES))
def test_float16_is_rounded_by_each_operator_once(body: str, tmp_path: Path) -> None:
    x, z = (numbers(16, 33, seed=seed).astype(np.float16) for seed in (1, 2))
    x[0, :6] = [0, -0.0, np.inf, -np.inf, 6e-8, 65504]
    text = f"(float16[16,33] x, float16[16,33] z) => (float16[A,B] y) {{{body}}}"
    agrees(KernelCase("half", text, [x, z]), tmp_path, exactly=True)


@pytest.mark.parametrize("body", ["y = Softplus (x)", "y = MatMul (x, x)", "y = ReduceSum (x)", "y = Tanh (x)"])
def test_float16_is_refused_where_code_would_round_between_steps(body: str, tmp_path: Path) -> None:
    model = parsed_kernel("k", f"(float16[8,8] x) => (float16[A,B] y) {{{body}}}")
    (node,) = model.graph
    assert "float16" in str(TvmToolchain().supports(node, TARGET).reason)
    with pytest.raises(Unsupported, match="float16"):
        TvmToolchain().compile(model, TARGET, tmp_path)


def agrees(case: KernelCase, workspace: Path, *, exactly: bool = False, within: float = 0) -> None:
    """Runs a case on TVM and on ONNX's reference."""
    import onnx_ir as ir
    from onnx.reference import ReferenceEvaluator

    workspace.mkdir(exist_ok=True)
    model, toolchain = case.model(), TvmToolchain()
    names = [str(value.name) for value in model.graph.inputs]
    with np.errstate(all="ignore"):
        expected = ReferenceEvaluator(ir.to_proto(model)).run(None, dict(zip(names, case.inputs, strict=True)))
    got = toolchain.load(toolchain.compile(model, TARGET, workspace), TARGET, workspace, LoadOptions())(case.inputs)
    for y, wanted in zip(got, expected, strict=True):
        assert (y.dtype, y.shape) == (np.asarray(wanted).dtype, np.shape(wanted))
        np.testing.assert_allclose(y, wanted, rtol=0 if exactly else 1e-6, atol=within)


def test_on_cuda_nothing_is_tuned(tmp_path: Path) -> None:
    model = product((64, 96), (96, 128), "y = Add (c, bias)").model()
    assert TvmToolchain().tuning_workloads(model, Target.parse("cuda"), tmp_path) == ()
    with pytest.raises(TargetError, match="trials"):
        TvmToolchain().tune(model, Target.parse("cuda -trials=2 -seed=1"), tmp_path, TuningSession(1.0))


IDLE = [
    "Add ({0}, zero)",
    "CastLike ({0}, {0})",
    "Clip ({0})",
    "Concat <axis = 0> ({0})",
    'Einsum <equation = "ij->ij"> ({0})',
    "Identity ({0})",
    "Max ({0})",
    "Mean ({0})",
    "Mul ({0}, one)",
    "Pad ({0}, nowhere)",
    "ReduceSum <noop_with_empty_axes = 1> ({0})",
    "Slice ({0}, from, to)",
    "Tile ({0}, once)",
    "Transpose <perm = [0, 1]> ({0})",
    "If (true) <then_branch = yes () => (float[4,4] b{0}) {{b{0} = Identity ({0})}}, "
    "else_branch = no () => (float[4,4] d{0}) {{d{0} = Neg ({0})}}>",
]
"""Operators in forms that leave what they are given as it is."""


@pytest.mark.parametrize("operator", IDLE)
def test_outputs_lie_in_memory_of_their_own(operator: str, tmp_path: Path) -> None:
    body = "n = Neg (x) " + " ".join(f"{y} = {operator.format(x)}" for y, x in zip("abc", "xnw", strict=True))
    text = f"(float[4,4] x) => ({', '.join(f'float[4,4] {y}' for y in 'abcn')}) {{{body}}}"
    weights = {
        "zero": np.array(0, np.float32),
        "one": np.array(1, np.float32),
        "true": np.array(True),
        "nowhere": np.zeros(4, np.int64),
        "from": np.zeros(2, np.int64),
        "to": np.array([4, 4]),
        "once": np.ones(2, np.int64),
        "w": numbers(4, 4, seed=1),
    }
    used = {name: value for name, value in weights.items() if name in re.findall(r"\w+", text)}
    block = np.empty(128, np.uint8)
    x = block[-block.ctypes.data % 64 :][:64].view(np.float32).reshape(4, 4)  # read where it lies
    x[...] = numbers(4, 4)
    toolchain = TvmToolchain()
    compiled = toolchain.compile(parsed_kernel("k", text, used), TARGET, tmp_path)
    loaded = toolchain.load(compiled, TARGET, tmp_path, LoadOptions())
    for _ in range(2):
        outputs = loaded([x])
        for y, expected in zip(outputs, (x, -x, weights["w"], -x), strict=True):
            np.testing.assert_array_equal(y, expected)
        assert not any(np.shares_memory(y, z) for y, z in itertools.combinations([*outputs, x], 2))
        for y in outputs:
            y[...] = 7  # as callers may, and the next kernel in a buffer that is used again


@pytest.mark.parametrize("operator", ["ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceSumSquare"])
def test_reductions_that_only_copy_are_refused(operator: str, tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="given no axes"):
        body = f"y = {operator} <noop_with_empty_axes = 1> (x)"
        TvmToolchain().compile(plain((4, 16), 2, body).model(), TARGET, tmp_path)
