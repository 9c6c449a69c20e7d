"""CUTLASS, as far as it goes without a device: what it takes, and that nvcc takes what is generated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from collage.target import Target
from collage.testing._toolchain_kernels import COMMON, kernel
from collage.toolchains import Unsupported
from collage_cuda import cuda_support
from collage_cuda.cutlass import CutlassToolchain
from collage_cuda.cutlass_source import Build, find_headers, find_nvcc

TOOLCHAIN = CutlassToolchain()
TARGET = Target.parse("cuda -compiler=cutlass")
WEIGHTS = {"w": np.ones((8, 4), np.float32), "b": np.ones(4, np.float32)}


@pytest.mark.slow
@pytest.mark.skipif(find_headers() is None or find_nvcc() is None, reason="needs nvcc, and pip install nvidia-cutlass")
@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("aligned", [False, True])
def test_every_kind_of_library_compiles(tf32: bool, aligned: bool) -> None:
    assert b"collage_product" in Build("gelu", aligned, tf32, "sm_90").library()


@pytest.mark.parametrize(
    ("body", "label"),
    [
        ("y = MatMul (x, w)", "cutlass.matmul"),
        ("a = MatMul (x, w) y = Add (a, b)", "cutlass.linear"),
        ("y = Gemm (x, w, b)", "cutlass.linear"),
        ("a = MatMul (x, w) y = Relu (a)", "cutlass.linear_relu"),
        ("a = Gemm (x, w, b) y = Gelu (a)", "cutlass.linear_gelu"),
    ],
)
def test_what_patterns_find_is_one_product(body: str, label: str) -> None:
    used = {name: value for name, value in WEIGHTS.items() if f" {name}" in body}
    model = kernel("k", f"(float[3,8] x) => (float[3,4] y) {{{body}}}", used)
    rows = {row.label: row.pattern for row in TOOLCHAIN.pattern_table()}
    assert max(len(match.nodes) for match in rows[label].find_all(model)) == len(list(model.graph))
    linear = TOOLCHAIN._linear(model.graph, TARGET)
    assert linear.w.shape == (8, 4) and len(linear.nodes) == len(list(model.graph))


@pytest.mark.parametrize(
    "body",
    [
        'a = Gemm (x, w, b) y = Gelu <approximate = "tanh"> (a)',
        "y = Gemm <alpha = 0.5> (x, w, b)",
        "a = MatMul (x, w) c = Relu (a) y = Relu (c)",
        "a = MatMul (x, w) y = Softmax (a)",
    ],
)
def test_the_rest_is_refused(body: str, tmp_path: Path) -> None:
    used = {name: value for name, value in WEIGHTS.items() if f" {name}" in body}
    with pytest.raises(Unsupported, match="cutlass"):
        TOOLCHAIN.compile(kernel("k", f"(float[3,8] x) => (float[3,4] y) {{{body}}}", used), TARGET, tmp_path)


@pytest.mark.skipif(isinstance(cuda_support.find_gpu(), cuda_support.Gpu), reason="there is a device")
def test_without_a_device_it_says_so(tmp_path: Path) -> None:
    found = TOOLCHAIN.availability()
    assert not found.available and found.reason and found.remedy
    case = next(case for case in COMMON if case.name == "matmul")
    with pytest.raises(Unsupported, match="cutlass: "):
        TOOLCHAIN.compile(case.model(), TARGET, tmp_path)
    assert not list(tmp_path.iterdir())
