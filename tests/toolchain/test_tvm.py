"""TVM's native code generator keeps the contract, and its schedules change nothing but the time."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collage._errors import TargetError
from collage.target import Target
from collage.testing._toolchain_case import ToolchainTestCase
from collage.testing._toolchain_kernels import KernelCase
from collage.testing._toolchain_kernels import kernel as parsed_kernel
from collage.toolchains import TUNED, CompileError, LoadOptions, Tuner, TuningSession, Unsupported, registry
from collage.toolchains.tvm.toolchain import TvmToolchain
from collage.workers.worker import Worker

pytest.importorskip("tvm")

TARGET = Target.parse("llvm")


class TestTvm(ToolchainTestCase):
    toolchain = TvmToolchain()
    differs = frozenset({"not_finite_relu", "not_finite_max"})  # it drops NaN here
    refuses = frozenset({"dynamic_expand"})


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
    weights |= {"scale": numbers(64, seed=1), "shift": numbers(64, seed=2), "square": numbers(8, 8, seed=3)}
    return KernelCase(
        "plain", text, [numbers(*shape)], {k: v for k, v in weights.items() if re.search(rf"\b{k}\b", body)}
    )


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
    convolution(14, 96, 96, 7, 96, "pads = [3,3,3,3], group = 96", "y = Relu (c)"),
    convolution(9, 8, 48, 3, 1, PAD, "y = Sigmoid (c)"),
    product((5, 64), (64, 144), "y = Add (c, bias)"),
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
    plain((2, 64, 12, 12), 4, "y = GroupNormalization <num_groups = 8> (x, scale, shift)"),
    plain((2, 64, 5, 7), 4, "y = GroupNormalization <num_groups = 8> (x, scale, shift)"),
    plain((2, 64, 12, 12), 4, "i = InstanceNormalization (x, scale, shift) y = Relu (i)"),
    plain((40, 64), 2, "y = LayerNormalization (x, scale, shift)"),
    plain((3, 40, 8, 8), 4, "y = LayerNormalization <axis = -2> (x, square)"),
    plain((1, 96), 2, "y = Softmax (x)"),
    plain((5, 197), 2, "y = Softmax (x)"),
    plain((1, 1, 197), 3, "y = Softmax (x)"),
    plain((1, 4096), 2, "y = LogSoftmax (x)"),
    plain((1, 4096), 2, "s = ReduceSum <keepdims = 0> (x) m = Mul (s, one) y = Mul (x, m)"),
    plain((9, 64), 2, "s = ReduceMean (x) d = Sub (x, s) y = Mul (d, scale)"),
    plain((1, 64), 2, "y = ReduceMax (x, last)"),
    plain((5, 8, 48), 3, "y = Softmax <axis = 1> (x)"),
    plain((12, 33, 128), 3, "y = ReduceMax (x, last)"),
    plain((12, 33, 128), 3, "y = ReduceMin <keepdims = 0> (x, ends)"),
    plain((12, 33, 128), 3, "y = ReduceLogSumExp (x, last)"),
    plain((12, 33, 128), 3, "y = ReduceL2 (x, last)"),
    plain((6, 40, 32), 3, "m = ReduceMean (x, last) d = Sub (x, m) a = Abs (d) s = ReduceSum (a, last) y = Div (d, s)"),
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


def loops_of(case: KernelCase, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The loops that the rule for tiles makes; empty texts where it is not meant for a function."""
    from collage.toolchains.tvm import tile_schedules

    schedule, loops = tile_schedules._schedule, list[str]()

    def noted(sch: Any, place: int) -> Any:
        found = schedule(sch, place)
        loops.append("" if found is None else found.mod.script())
        return found

    monkeypatch.setattr(tile_schedules, "_schedule", noted)
    TvmToolchain().compile(case.model(), TARGET, workspace)
    return loops


@pytest.mark.parametrize(
    "case",
    [
        convolution(14, 16, 32, 5, 1, "pads = [2,2,2,2]", "y = Relu (c)"),
        next(case for case in KERNELS if case.name == "product"),
    ],
    ids=lambda c: c.name,
)
def test_reductions_are_tiled_for_registers(case: KernelCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that does not fit is passed over silently; so whether it fits is seen in the loops that it makes."""
    loops = loops_of(case, tmp_path, monkeypatch)
    assert any("T.unroll(" in text and "T.vectorized(" in text for text in loops)


@pytest.mark.parametrize(
    "case",
    [
        convolution(14, 96, 96, 7, 96, "pads = [3,3,3,3], group = 96", "y = Relu (c)"),
        convolution(14, 3, 48, 3, 1, PAD, "y = Sigmoid (c)"),
        product((5, 64), (64, 144), "y = Add (c, bias)"),
    ],
    ids=lambda case: case.name,
)
def test_vectors_are_as_long_as_a_power_of_two(
    case: KernelCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 48 lanes LLVM makes single numbers."""
    lengths = {
        int(n)
        for text in loops_of(case, tmp_path, monkeypatch)
        for n in re.findall(r"T\.vectorized\((?:T\.int64\()?(\d+)\)", text)
    }
    assert 16 in lengths
    assert all(length & length - 1 == 0 for length in lengths), lengths


@pytest.mark.slow
def test_tiles_beat_the_loops_that_tvm_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from collage.toolchains.tvm import tile_schedules

    case = product((256, 256), (256, 256), "y = Relu (c)")
    toolchain, seconds = TvmToolchain(), []
    for name, rule in (("tiles", tile_schedules._schedule), ("loops", lambda sch, place: None)):
        monkeypatch.setattr(tile_schedules, "_schedule", rule)
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


def test_groups_of_symbolic_lengths_are_summed_once_and_not_for_every_channel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from collage.toolchains.tvm.tile_schedules import Reductions

    apply, toolchain, results, scheduled = Reductions.apply, TvmToolchain(), [], []

    def noted(*arguments: Any) -> Any:
        schedule = apply(*arguments)
        scheduled[-1] |= schedule is not None
        return schedule

    monkeypatch.setattr(Reductions, "apply", noted)
    x = np.random.default_rng(0).standard_normal((1, 320, 24, 24)).astype("f")
    for lengths in ("24,24", "H,W"):
        text = f"(float[1,320,{lengths}] x) => (float[1,320,{lengths}] y) {{y = GroupNormalization <num_groups = 32> (x, s, s)}}"
        model = parsed_kernel(f"k{len(lengths)}", text, {"s": np.ones(320, "f")})
        scheduled.append(False)
        loaded = toolchain.load(toolchain.compile(model, TARGET, tmp_path), TARGET, tmp_path, LoadOptions(threads=1))
        results.append(loaded([x])[0])
    np.testing.assert_allclose(*results, rtol=0, atol=1e-5)
    rows = parsed_kernel("rows", "(float[N,96,14] x) => (float[N,96,14] y) {y = Softmax <axis = 1> (x)}")
    scheduled.append(False)
    toolchain.compile(rows, TARGET, tmp_path)
    assert scheduled[1:] == [False, True]


@pytest.mark.parametrize("length", [0, 2])
@pytest.mark.parametrize(
    "text",
    [
        "(float[3,K] x) => (float[3,5] y) {y = Gemm <alpha = 0.5> (x, w)}",
        "(float[3,K] x) => (float[3,5] y) {y = MatMul (x, w)}",
        "(float[3,K] x) => (float[3] y) {y = ReduceProd <keepdims = 0> (x, a)}",
        '(float[3,K] x) => (float[3] y) {y = Einsum <equation = "ij->i"> (x)}',
        "(float[1,2,K,4] x) => (float[1,2,1,1] y) {y = GlobalAveragePool (x)}",
    ],
)
def test_what_is_made_of_nothing_is_refused(text: str, length: int) -> None:
    weights = {"w": np.ones((length, 5), np.float32), "a": np.array([1])}
    used = {name: value for name, value in weights.items() if f" {name})" in text}
    (node,) = parsed_kernel("k", text.replace("K", str(length)), used).graph
    support = TvmToolchain().supports(node, TARGET)
    assert support.ok == bool(length)
    assert length or "uninitialised memory" in str(support.reason)


def test_a_reduction_that_is_told_no_axes_is_taken() -> None:
    text, weights = "(float[3,4] x) => (float[1,1] y) {y = ReduceMax (x, a)}", {"a": np.zeros(0, np.int64)}
    (node,) = parsed_kernel("k", text, weights).graph
    assert TvmToolchain().supports(node, TARGET).ok


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
    ],
)
def test_operators_that_tvm_is_wrong_of_are_refused_in_that_form_only(text: str, ok: str) -> None:
    other = {"0": "1", "": ", r, tr", "s": "t"}[ok]
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


@pytest.mark.parametrize(
    ("data", "indices", "axis", "taken"),
    [
        ("5,3", "5,3", 0, True),
        ("5,3", "2,3", 0, True),
        ("5,3", "2,3", -2, True),
        ("5,3", "2,2", 0, False),
        ("5,3", "2,3", 1, False),
        ("N,3", "N,3", 1, True),
        ("N,3", "M,3", 1, False),
        ("N,3", "M,3", 0, True),
    ],
)
def test_scattering_fewer_rows_than_there_are_is_refused(data: str, indices: str, axis: int, taken: bool) -> None:
    arguments = f"float[{data}] x, int64[{indices}] i, float[{indices}] u"
    (node,) = parsed_kernel(
        "k", f"({arguments}) => (float[{data}] y) {{y = ScatterElements <axis = {axis}> (x, i, u)}}"
    ).graph
    assert TvmToolchain().supports(node, TARGET).ok is taken


@pytest.mark.parametrize(
    ("length", "scale", "taken"), [(5, 0.5, False), (5, 0.4, True), (5, 2.0, True), ("N", 2.0, True), ("N", 0.4, False)]
)
def test_scales_that_make_no_whole_lengths_are_refused(length: int | str, scale: float, taken: bool) -> None:
    text = f"(float[1,1,1,{length}] x) => (float[A,B,C,D] y) {{y = Resize (x, , s)}}"
    (node,) = parsed_kernel("k", text, {"s": np.array([1, 1, 1, scale])}).graph
    assert TvmToolchain().supports(node, TARGET).ok is taken


@pytest.mark.parametrize(
    ("dtype", "taken"), [("float", True), ("uint8", True), ("int32", False), ("int64", False), ("double", False)]
)
def test_a_resize_is_refused_of_what_is_wider_than_float32(dtype: str, taken: bool) -> None:
    text = f'({dtype}[1,1,4] x) => ({dtype}[A,B,C] y) {{y = Resize <mode = "nearest"> (x, , s)}}'
    (node,) = parsed_kernel("k", text, {"s": np.float32([1, 1, 2])}).graph
    assert TvmToolchain().supports(node, TARGET).ok is taken


@pytest.mark.parametrize(
    ("shape", "attributes", "sizes", "ignored"),
    [
        ("1,2,4,4", 'mode = "linear"', [1, 2, 3, 2], None),
        ("1,2,4,4", 'mode = "linear", antialias = 1', [1, 2, 3, 2], "antialias"),
        ("1,2,4,4", 'keep_aspect_ratio_policy = "not_larger"', [1, 2, 3, 8], "keep_aspect_ratio_policy"),
        ("1,2,4,4", "axes = [2,3]", [8, 8], "axes"),
        ("1,2,4,4", 'mode = "nearest"', [1, 4, 4, 8], "channels"),
        ("1,2,N,4", 'mode = "nearest"', [1, 2, 4, 8], None),
        ("N,2,4,4", 'mode = "nearest"', [1, 2, 4, 8], "batch"),
    ],
)
def test_a_resize_is_refused_of_which_tvm_ignores_something(
    shape: str, attributes: str, sizes: list[int], ignored: str | None
) -> None:
    text = f"(float[{shape}] x) => (float[A,B,C,D] y) {{y = Resize <{attributes}> (x, , , s)}}"
    (node,) = parsed_kernel("k", text, {"s": np.array(sizes)}).graph
    support = TvmToolchain().supports(node, TARGET)
    assert support.ok is (ignored is None)
    assert (ignored or "") in (support.reason or "")


ROUNDED = {
    "ceil": math.ceil,
    "floor": math.floor,
    "round_prefer_ceil": lambda place: math.floor(place + Fraction(1, 2)),
    "round_prefer_floor": lambda place: math.ceil(place - Fraction(1, 2)),
}


@pytest.mark.parametrize("transformation", ["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"])
@pytest.mark.parametrize("nearest", ROUNDED)
def test_the_nearest_elements_are_those_of_exact_coordinates_or_refused(
    transformation: str, nearest: str, tmp_path: Path
) -> None:
    attributes = f'mode = "nearest", coordinate_transformation_mode = "{transformation}", nearest_mode = "{nearest}"'
    toolchain, taken = TvmToolchain(), 0
    for n, m in ((8, 7), (7, 9), (3, 8), (4, 2), (2, 6), (5, 10), (10, 5), (6, 4)):
        text = f"(float[1,1,{n}] x) => (float[1,1,{m}] y) {{y = Resize <{attributes}> (x, , , s)}}"
        model = parsed_kernel(f"k{n}_{m}", text, {"s": np.array([1, 1, m])})
        if not toolchain.supports(model.graph.node(0), TARGET).ok:
            continue
        taken += 1
        x = np.arange(n, dtype=np.float32).reshape(1, 1, n)
        (y,) = toolchain.load(toolchain.compile(model, TARGET, tmp_path), TARGET, tmp_path, LoadOptions())([x])
        ratio = Fraction(n - 1, m - 1) if transformation == "align_corners" else Fraction(n, m)
        shift = Fraction(1, 2) if "half_pixel" in transformation else Fraction(0)
        places = [ratio * (i + shift) - shift for i in range(m)]
        rounding = ROUNDED[nearest]
        assert y.reshape(-1).tolist() == [min(max(rounding(c), 0), n - 1) for c in places], (n, m)
    assert taken >= 5


@pytest.mark.parametrize(
    ("shape", "sizes", "taken"), [("8", 7, False), ("7", 8, True), ("8", 16, True), ("16", 8, True), ("3", 9, True)]
)
def test_a_resize_is_refused_whose_coordinates_lie_between_elements(shape: str, sizes: int, taken: bool) -> None:
    text = f'(float[1,1,{shape}] x) => (float[A,B,C] y) {{y = Resize <mode = "nearest"> (x, , , s)}}'
    (node,) = parsed_kernel("k", text, {"s": np.array([1, 1, sizes])}).graph
    assert TvmToolchain().supports(node, TARGET).ok is taken


@pytest.mark.parametrize("dtype", ["uint32", "uint64"])
@pytest.mark.parametrize("op_type", ["Add", "Mul", "Sub", "Sum"])
def test_unsigned_arithmetic_that_may_wrap_is_refused(op_type: str, dtype: str) -> None:
    (node,) = parsed_kernel("k", f"({dtype}[2] x) => ({dtype}[2] y) {{y = {op_type} (x, x)}}").graph
    assert "never wraps" in (TvmToolchain().supports(node, TARGET).reason or "")
    (node,) = parsed_kernel("k", f"({dtype}[2] x) => ({dtype}[2] y) {{y = Max (x, x)}}").graph
    assert TvmToolchain().supports(node, TARGET).ok


@pytest.mark.parametrize(("dtype", "taken"), [("float", True), ("int32", False), ("int64", False)])
def test_a_mean_of_integers_is_refused(dtype: str, taken: bool) -> None:
    (node,) = parsed_kernel("k", f"({dtype}[3] x) => ({dtype}[1] y) {{y = ReduceMean (x)}}").graph
    assert TvmToolchain().supports(node, TARGET).ok is taken


def test_a_quantisation_by_what_comes_is_refused() -> None:
    text = "(float[3] x) => (uint8[3] y, float s, uint8 z) {y, s, z = DynamicQuantizeLinear (x)}"
    (node,) = parsed_kernel("k", text).graph
    assert not TvmToolchain().supports(node, TARGET).ok


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


def test_where_artefacts_are_loaded_torch_is_never_hidden() -> None:
    # Another thread of the user's may import it just then, and other kernels may be torch's own.
    pytest.importorskip("torch")
    program = (
        "import sys\n"
        "from collage.toolchains import importing_here, registry\n"
        "with importing_here():\n"
        "    assert registry().get('tvm').availability().available\n"
        "assert 'tvm' in sys.modules and sys.modules.get('torch')\n"
    )
    subprocess.run(
        [sys.executable, "-c", program], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )


@pytest.mark.parametrize(("alias", "with_torch"), [("tvm", False), ("extern", True)])
def test_a_worker_imports_torch_only_where_it_is_of_use(alias: str, with_torch: bool) -> None:
    pytest.importorskip("torch")
    factory, arguments = registry().factory(alias)
    told = {"factory": factory, "arguments": arguments}
    with Worker(
        "tests.toolchain._witness:Witness", told, environment={"PYTHONPATH": os.pathsep.join(sys.path)}
    ) as worker:
        assert worker.call("availability", 60.0, target=registry().get(alias).targets[0])["available"]
        assert worker.call("imported", 60.0, name="tvm")
        assert worker.call("imported", 60.0, name="torch") == with_torch
        # What is left out is not lost.
        assert worker.call("can_import", 60.0, name="torch")
