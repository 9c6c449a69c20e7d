"""The CUDA source of a matrix product with its epilogue, from CUTLASS's templates, and how nvcc builds it.

A source holds several tilings of the same product; which is fastest depends on the shapes and is found on the device. In
f32 they multiply without tensor cores, whose products are rounded; those that use them are for TF32.
"""

from __future__ import annotations

import functools
import importlib.util
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from collage.toolchains import CompileError

__all__ = ["ACTIVATIONS", "Build", "find_headers", "find_nvcc", "tilings"]

ACTIVATIONS = {"": "Identity", "relu": "ReLu", "gelu": "GELU"}
"""Epilogues that CUTLASS computes with the accuracy of f32. Its GELU with tanh uses an approximate tanh, so it is left out."""

_SIMT = (
    ("128,128,8", "32,64,8", 4),
    ("128,64,8", "64,32,8", 5),
    ("64,128,8", "32,64,8", 5),
    ("64,64,8", "32,64,8", 5),
    ("32,128,8", "32,64,8", 5),
)
_TENSOR = (
    ("128,128,16", "64,64,16", 4),
    ("128,64,16", "64,32,16", 4),
    ("64,128,16", "32,64,16", 4),
    ("64,64,16", "32,32,16", 4),
)
"""Tile of a block, tile of a warp, stages of the pipeline that loads them."""

_TIMEOUT_S = 300

_HEAD = """\
#include <cuda_runtime.h>
#include <cutlass/cutlass.h>
#include <cutlass/gemm/device/gemm.h>
#include <cutlass/epilogue/thread/activation.h>
#include <cutlass/epilogue/thread/linear_combination_generic.h>

template <class Tile, class Warp, int Stages>
struct Product {{
  using Epilogue = cutlass::epilogue::thread::LinearCombinationGeneric<
      cutlass::epilogue::thread::{activation}, float, {width}, float, float,
      cutlass::epilogue::thread::ScaleType::NoBetaScaling>;
  using Gemm = cutlass::gemm::device::Gemm<
      float, cutlass::layout::RowMajor, float, cutlass::layout::RowMajor, float, cutlass::layout::RowMajor, float,
      cutlass::arch::{unit}, cutlass::arch::Sm80, Tile, Warp, cutlass::gemm::GemmShape<{instruction}>, Epilogue,
      cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<>, Stages, {width}, {width}>;

  static int run(const float* x, const float* w, const float* b, float* y, int m, int n, int k, cudaStream_t stream) {{
    // The bias is a matrix whose rows are all the same one: a stride of 0.
    typename Gemm::Arguments arguments({{m, n, k}}, {{x, k}}, {{w, n}}, {{b, 0}}, {{y, n}}, {{1.0f}});
    Gemm gemm;
    return static_cast<int>(gemm(arguments, nullptr, stream));
  }}
}};

extern "C" int collage_product(
    int tiling, const float* x, const float* w, const float* b, float* y, int m, int n, int k, cudaStream_t stream) {{
  switch (tiling) {{
"""
_CASE = (
    "    case {number}: return Product<cutlass::gemm::GemmShape<{tile}>, cutlass::gemm::GemmShape<{warp}>, {stages}>"
    "::run(x, w, b, y, m, n, k, stream);\n"
)
_TAIL = "  }\n  return -1;\n}\n"


def tilings(tf32: bool) -> int:
    """Return the number of tilings in a source."""
    return len(_TENSOR if tf32 else _SIMT)


@dataclass(frozen=True, slots=True)
class Build:
    """The form of the products that a library computes.

    Attributes:
        activation: A key of ``ACTIVATIONS``.
        aligned: Rows of all matrices begin at multiples of 16 bytes.
        tf32: Products are rounded to TF32, on tensor cores.
        arch: Such as ``sm_90``.
    """

    activation: str
    aligned: bool
    tf32: bool
    arch: str

    def source(self) -> str:
        """The CUDA source."""
        head = _HEAD.format(
            activation=ACTIVATIONS[self.activation],
            width=4 if self.tf32 and self.aligned else 1,
            unit="OpClassTensorOp" if self.tf32 else "OpClassSimt",
            instruction="16,8,8" if self.tf32 else "1,1,1",
        )
        cases = [
            _CASE.format(number=number, tile=tile, warp=warp, stages=stages)
            for number, (tile, warp, stages) in enumerate(_TENSOR if self.tf32 else _SIMT)
        ]
        return head + "".join(cases) + _TAIL

    def library(self) -> bytes:
        """The shared library; products of one kind share theirs, which takes nvcc half a minute.

        Raises:
            CompileError: nvcc or the headers are not here, or it failed.
        """
        return _library(self)


@functools.lru_cache(maxsize=16)
def _library(build: Build) -> bytes:
    nvcc, headers = find_nvcc(), find_headers()
    if nvcc is None or headers is None:
        raise CompileError("cutlass needs nvcc and CUTLASS's headers")
    with tempfile.TemporaryDirectory(prefix="collage-cutlass-") as folder:
        source, library = Path(folder) / "product.cu", Path(folder) / "product.so"
        source.write_text(build.source())
        options = ["-O3", "-std=c++17", f"-arch={build.arch}", "-shared", "-Xcompiler=-fPIC", f"-I{headers}"]
        command = [nvcc, *options, "--expt-relaxed-constexpr", "-o", str(library), str(source)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise CompileError(f"cutlass: nvcc took longer than {_TIMEOUT_S} s") from error
        if done.returncode:
            wrong = [line for line in done.stderr.splitlines() if "error" in line]
            raise CompileError(f"cutlass: nvcc: {(wrong or ['it gives no reason'])[0][:300]}")
        return library.read_bytes()


def find_nvcc() -> str | None:
    """NVIDIA's compiler, None if it is not on the path."""
    return shutil.which("nvcc")


def find_headers() -> Path | None:
    """CUTLASS's headers, which its wheel brings along; None if it is not installed."""
    spec = importlib.util.find_spec("cutlass_library")
    if spec is None or spec.origin is None:
        return None
    headers = Path(spec.origin).parent / "source" / "include"
    return headers if (headers / "cutlass" / "cutlass.h").exists() else None
