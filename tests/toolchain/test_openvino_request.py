"""Runs of OpenVINO's kernels: outputs stay readable, inputs are shared, and each error is raised, also after another one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from collage.target import Target
from collage.testing._toolchain_kernels import kernel
from collage.toolchains import LoadOptions
from collage.toolchains.openvino.toolchain import OpenVinoToolchain

pytest.importorskip("openvino")

TARGET = Target.parse("llvm -compiler=openvino")


def test_growing_and_shrinking_shapes_leave_old_outputs_readable(tmp_path: Path) -> None:
    model = kernel("k", "(float[N] x) => (float[N] y) {y = Neg (x)}")
    toolchain = OpenVinoToolchain()
    loaded = toolchain.load(toolchain.compile(model, TARGET, tmp_path), TARGET, tmp_path, LoadOptions())
    kept = []
    for size in (10, 100_000, 3, 1_000_000, 10):
        (y,) = loaded([np.ones(size, np.float32)])
        kept.append(y)
        assert y.shape == (size,) and (y == -1).all()
    assert [y.shape[0] for y in kept] == [10, 100_000, 3, 1_000_000, 10]
    assert not loaded.reuses_outputs
    assert all((y == -1).all() for y in kept)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["float", "int32"])
def test_lengths_that_do_not_fit_are_an_error_each_time(threads: int, dtype: str, tmp_path: Path) -> None:
    """With one thread, OpenVINO's own call returns what an earlier run did."""
    model = kernel("k", f"({dtype}[n] x, {dtype}[m] z) => ({dtype}[k] y) {{y = Add (x, z)}}")
    target = Target.parse(f"llvm -compiler=openvino -threads={threads}")
    toolchain = OpenVinoToolchain()
    compiled = toolchain.compile(model, target, tmp_path)
    loaded = toolchain.load(compiled, target, tmp_path, LoadOptions())

    def ones(count: int) -> np.ndarray:
        return np.ones(count, "float32" if dtype == "float" else dtype)

    for _ in range(2):
        for count in (4, 1):
            (y,) = loaded([ones(4), ones(count)])
            np.testing.assert_array_equal(y, 2 * ones(4))
        with pytest.raises(RuntimeError):
            loaded([ones(4), ones(9)])


@pytest.mark.parametrize("threads", [1, 2])
def test_errors_are_raised_where_only_the_output_has_a_fixed_shape(threads: int, tmp_path: Path) -> None:
    model = kernel("k", "(float[n] x, float[m] z) => (float y) {a = Add (x, z) y = ReduceSum <keepdims = 0> (a)}")
    target = Target.parse(f"llvm -compiler=openvino -threads={threads}")
    toolchain, ones = OpenVinoToolchain(), np.ones(4, np.float32)
    loaded = toolchain.load(toolchain.compile(model, target, tmp_path), target, tmp_path, LoadOptions())
    for _ in range(2):
        assert loaded([ones, ones])[0] == 8
        with pytest.raises(RuntimeError):
            loaded([ones, np.ones(9, np.float32)])


def test_errors_are_raised_where_floats_decide_on_lengths(tmp_path: Path) -> None:
    text = "a = ArgMax <axis = 0> (x) s = Slice (z, first, a) y = Add (s, z)"
    model = kernel("k", f"(float[n] x, float[m] z) => (float[k] y) {{{text}}}", {"first": np.array([0])})
    target = Target.parse("llvm -compiler=openvino -threads=1")
    toolchain, z = OpenVinoToolchain(), np.ones(3, np.float32)
    loaded = toolchain.load(toolchain.compile(model, target, tmp_path), target, tmp_path, LoadOptions())
    assert loaded([np.array([0, 1, 0], np.float32), z])[0].tolist() == [2, 2, 2]
    with pytest.raises(RuntimeError):
        loaded([np.array([0, 0, 1], np.float32), z])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rows", ["2", "r"])
def test_runs_after_one_that_failed_are_right(threads: int, rows: str, tmp_path: Path) -> None:
    """OpenVINO reads memory that is gone, in runs of the lengths of the last one before the error."""
    model = kernel(
        "k",
        f"(float[{rows},n] x, float[m,3] w, float[c] b) => (float[{rows},3] y) {{t = MatMul (x, w) y = Add (t, b)}}",
    )
    target = Target.parse(f"llvm -compiler=openvino -threads={threads}")
    toolchain, random, shared = OpenVinoToolchain(), np.random.default_rng(0), dict[object, object]()
    compiled = toolchain.compile(model, target, tmp_path)
    kernels = [toolchain.load(compiled, target, tmp_path, LoadOptions(shared=shared)) for _ in range(2)]

    def values(length: int, biases: int) -> list[np.ndarray]:
        return [random.standard_normal(shape).astype(np.float32) for shape in ((2, 4), (length, 3), (biases,))]

    for biases in (3, 1, 3, 1, 3):
        for loaded in kernels:
            x, w, b = given = values(4, biases)
            np.testing.assert_allclose(loaded(given)[0], x @ w + b, rtol=1e-4, atol=1e-5)
        with pytest.raises(RuntimeError):
            kernels[0](values(5, 3))


def test_an_output_that_is_an_input_is_a_copy(tmp_path: Path) -> None:
    model = kernel("k", "(float[4] x) => (float[4] y, float[4] x) {y = Neg (x)}")
    toolchain, x = OpenVinoToolchain(), np.ones(4, np.float32)
    _, same = toolchain.load(toolchain.compile(model, TARGET, tmp_path), TARGET, tmp_path, LoadOptions())([x])
    assert not np.shares_memory(same, x)


def test_copies_of_read_only_inputs_last_until_the_run(tmp_path: Path) -> None:
    model = kernel("k", "(float[65536] x, float[65536] z) => (float[65536] y) {y = Sub (x, z)}")
    toolchain = OpenVinoToolchain()
    loaded = toolchain.load(toolchain.compile(model, TARGET, tmp_path), TARGET, tmp_path, LoadOptions())
    x, z = (np.full(65536, value, np.float32) for value in (5, 3))
    x.flags.writeable = z.flags.writeable = False
    np.testing.assert_array_equal(loaded([x, z])[0], np.full(65536, 2, np.float32))
