"""TVM for CUDA, as far as it goes without a device: sources are generated, and NVIDIA's compiler takes them."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collage.target import Target
from collage.testing._toolchain_kernels import COMMON, EDGES, KernelCase
from collage.toolchains import LoadOptions, TargetError, TuningSession, Unsupported
from collage.toolchains.tvm.kernels import import_kernel
from collage_cuda import cuda_support
from collage_cuda import tvm as tvm_cuda
from collage_cuda.tvm import TvmOnCuda

tvm = pytest.importorskip("tvm")
TARGET = Target.parse("cuda -arch=sm_90")
ON_CUDA = {"conv_relu", "matmul", "softmax", "attention", "reduce", "batch_norm_pool", "layer_norm_gelu"}


def sources_of(module: Any) -> list[str]:
    """The CUDA sources in a module that was made where nothing could compile them."""
    own = [str(module.inspect_source())] if module.kind == "cuda" else []
    return own + [text for inner in module.imports for text in sources_of(inner)]


without_gpu = pytest.mark.skipif(
    isinstance(cuda_support.find_gpu(), cuda_support.Gpu), reason="with a device, modules hold machine code"
)


@without_gpu
@pytest.mark.parametrize("case", [c for c in COMMON if c.name in ON_CUDA], ids=lambda case: case.name)
def test_kernels_become_cuda_sources_that_compile(case: KernelCase, tmp_path: Path) -> None:
    built, _ = tvm_cuda.generate(import_kernel(case.model(), tmp_path, tvm_cuda.machine(TARGET)), TARGET)
    (source,) = sources_of(built.mod)
    assert "__global__" in source and "threadIdx.x" in source
    if (nvcc := shutil.which("nvcc")) is None:
        pytest.skip("no nvcc to compile what was generated")
    (tmp_path / "k.cu").write_text(source)
    command = [nvcc, "-cubin", "-arch=sm_90", "-o", str(tmp_path / "k.cubin"), str(tmp_path / "k.cu")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def kernel_code(case: KernelCase, folder: Path, **names: str) -> str:
    """The device functions of a common kernel, without what TVM writes before them."""
    model = case.model()
    for value in (*model.graph.inputs, *model.graph.outputs):
        value.name = names.get(str(value.name), value.name)
    built, _ = tvm_cuda.generate(import_kernel(model, folder, tvm_cuda.machine(TARGET)), TARGET)
    (source,) = sources_of(built.mod)
    return source[source.index('extern "C" __global__') :]


@without_gpu
@pytest.mark.parametrize("name", ["not_finite_relu", "not_finite_max", "softmax", "conv_relu"])
def test_extremes_do_not_lose_nan(name: str, tmp_path: Path) -> None:
    """CUDA's ``max`` returns the other operand of NaN."""
    code = kernel_code(next(case for case in COMMON + EDGES if case.name == name), tmp_path)
    assert not re.search(r"\b(f?max|f?min)f?\(", code) and "?" in code


@without_gpu
def test_names_of_a_model_may_have_any_characters(tmp_path: Path) -> None:
    case = next(case for case in COMMON if case.name == "elementwise")
    code = kernel_code(case, tmp_path, x="/über x:0")
    assert "über" not in code and "U000" not in code and re.search(r"__restrict__ in_0_ptr\b", code)


@pytest.mark.parametrize("shape", [(1, 8), (8, 1), (3, 1, 4), (1,), (), (2, 3)])
def test_tensors_of_length_one_are_compact(shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(max(1, math.prod(shape)), dtype=torch.float32).reshape(shape)
    y = tvm_cuda.compact_tensor(x)
    assert tuple(y.strides or ()) in (tuple(s // 4 for s in x.numpy().copy().strides), ())
    np.testing.assert_array_equal(y.numpy(), x.numpy())


def test_a_library_is_written_for_an_architecture_that_is_not_here(tmp_path: Path) -> None:
    compiled = TvmOnCuda().compile(COMMON[0].model(), TARGET, tmp_path)
    assert compiled.files == ("conv_relu.cuda.arch=sm_90.so",)
    assert [path.name for path in tmp_path.iterdir()] == list(compiled.files)


def test_the_architecture_is_checked(tmp_path: Path) -> None:
    for text in ("cuda -arch=ninety", "cuda -threads=2", "llvm -arch=sm_90"):
        with pytest.raises(TargetError):
            TvmOnCuda().compile(COMMON[0].model(), Target.parse(text), tmp_path)


@pytest.mark.skipif(isinstance(cuda_support.find_gpu(), cuda_support.Gpu), reason="there is a device")
def test_without_a_device_it_says_so(tmp_path: Path) -> None:
    found = TvmOnCuda().availability_of(Target.parse("cuda"))
    assert not found.available and found.reason and found.remedy
    assert TvmOnCuda().availability().available
    with pytest.raises(Unsupported, match="driver"):
        TvmOnCuda().compile(COMMON[0].model(), Target.parse("cuda"), tmp_path)
    compiled = TvmOnCuda().compile(COMMON[0].model(), TARGET, tmp_path)
    with pytest.raises(Unsupported, match="driver"):
        TvmOnCuda().load(compiled, TARGET, tmp_path, LoadOptions())


def test_nothing_is_tuned(tmp_path: Path) -> None:
    model = COMMON[0].model()
    assert TvmOnCuda().tuning_workloads(model, Target.parse("cuda"), tmp_path) == ()
    with pytest.raises(TargetError, match="trials"):
        TvmOnCuda().tune(model, Target.parse("cuda -trials=2 -seed=1"), tmp_path, TuningSession(1.0))
