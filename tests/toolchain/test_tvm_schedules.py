"""The schedules of TVM's kernels change nothing but the time."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.toolchain.tvm_cases import PAD, convolution, plain, product

from collage.target import Target
from collage.testing._toolchain_kernels import KernelCase
from collage.testing._toolchain_kernels import kernel as parsed_kernel
from collage.toolchains import LoadOptions
from collage.toolchains.tvm.toolchain import TvmToolchain

pytest.importorskip("tvm")

TARGET = Target.parse("llvm")


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
    convolution(7, 24, 1, 1, 1, "group = 1", "y = Sigmoid (c)"),
    convolution(14, 24, 1, 3, 1, PAD, "s = Sigmoid (c) y = Mul (c, s)"),
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
    plain((3, 32, 40), 3, "y = Transpose <perm = [0,2,1]> (x)"),
    plain((3, 12, 5, 8), 4, "t = Transpose <perm = [3,2,1,0]> (x) y = Relu (t)"),
    plain((2, 48, 6, 16), 4, "t = Transpose <perm = [0,3,2,1]> (x) e = Exp (t) y = Mul (t, e)"),
    plain((24, 24), 2, "t = Transpose <perm = [1,0]> (x) y = Add (t, x)"),
    plain((20, 1, 36), 3, "t = Transpose <perm = [2,1,0]> (x) y = Sigmoid (t)"),
    plain((6, 40), 2, "a = Relu (x) y = Concat <axis = 1> (a, x)"),
]


@pytest.mark.few(12)
@pytest.mark.parametrize("case", KERNELS, ids=[f"{i}_{case.name}" for i, case in enumerate(KERNELS)])
def test_schedules_change_nothing_but_the_time(
    case: KernelCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does TVM refuse one, and compile the kernel with slower passes."""
    import onnx_ir as ir
    from onnx.reference import ReferenceEvaluator

    from collage.toolchains.tvm import kernels

    monkeypatch.setattr(kernels, "_ATTEMPTS", kernels._ATTEMPTS[:1])

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
        convolution(14, 3, 32, 3, 1, PAD, "y = Relu (c)"),
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


@pytest.mark.parametrize("window", [3, 15, 33])
def test_short_rows_of_windows_are_written_out(window: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Channel by channel, neighbours in a tile share what they read."""
    pads = f"pads = [{', '.join([str(window // 2)] * 4)}]"
    case = convolution(20, 64, 64, window, 64, f"{pads}, group = 64", "y = Relu (c)")  # 20 columns fill no vectors.
    loops = loops_of(case, tmp_path, monkeypatch)
    assert any(f"T.unroll(T.int64({window}))" in text for text in loops) == (window <= 31)


@pytest.mark.parametrize(
    ("shape", "rows"), [((1, 64, 24), 8), ((1, 64, 96), 16), ((1, 64, 7), None), ((1, 65, 96), None)]
)
def test_a_matrix_is_transposed_in_tiles(
    shape: tuple[int, ...], rows: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If rows lie a power of two apart, a cache cannot hold a whole column."""
    case = plain(shape, 3, "t = Transpose <perm = [0,2,1]> (x) y = Relu (t)")
    *_, loops = loops_of(case, tmp_path, monkeypatch)
    tile = re.search(r"T\.int64\((\d+)\)\):\n\s+for \w+ in T\.vectorized\(T\.int64\(8\)\)", loops)
    assert (tile and int(tile[1])) == rows


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
