"""What is said of CUDA where there may be none: quickly, and without importing anything heavy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from collage import CollageError
from collage.inspection import describe_targets
from collage.target import Target
from collage.testing._toolchain_kernels import COMMON
from collage.toolchains import choose_menu, registry
from collage_cuda import cuda_support
from collage_cuda.inductor import InductorOnCuda
from collage_cuda.onnxruntime import OnnxRuntimeOnCuda
from collage_cuda.tvm import TvmOnCuda

NO_GPU = pytest.mark.skipif(isinstance(cuda_support.find_gpu(), cuda_support.Gpu), reason="there is a device")
STEMS = {
    "cuda",
    "cuda -libs=cudnn",
    "cuda -libs=cublas",
    "cuda -libs=extern-cuda",
    "cuda -compiler=cutlass",
    "cuda -compiler=tensorrt",
    "cuda -compiler=onnxruntime",
    "cuda -compiler=inductor",
}


def test_every_cuda_target_is_listed_with_what_is_missing_and_where_it_ran() -> None:
    rows = {target["target"]: target for row in describe_targets() for target in row["by_target"]}
    assert set(rows) >= STEMS
    for stem in STEMS:
        row = rows[stem]
        assert row["available"] or (row["reason"] and row["remedy"])
        assert row["ever_ran_on"] is None or isinstance(row["ever_ran_on"], str)
    assert all(row["ever_ran_on"] for stem, row in rows.items() if stem.startswith("llvm"))
    json.dumps(rows)


@NO_GPU
def test_all_that_is_missing_is_named_at_once() -> None:
    found = cuda_support.cuda_availability("1.0", "x 1.0", cuda_support.Absence("no package", "pip install it"))
    assert found.reason is not None and found.remedy is not None
    assert found.reason.startswith("no package; ") and "driver" in found.reason
    assert found.remedy.startswith("pip install it; ")


@pytest.mark.parametrize("name", ["cudnn", "cublas", "cutlass", "tensorrt"])
def test_aliases(name: str) -> None:
    target = registry().parse_target(name)
    assert target.kind == "cuda" and target.toolchain == name
    assert registry().parse_target(f"cuda:{name}") == target


@pytest.mark.parametrize("name", ["onnxruntime", "inductor"])
def test_bare_names_stay_with_the_processor(name: str) -> None:
    assert registry().parse_target(name).kind == "llvm"
    assert registry().parse_target(f"cuda:{name}") == Target("cuda", compiler=name)


def test_the_default_menu_names_no_device() -> None:
    assert {target.kind for target in choose_menu(None, registry())} == {"llvm"}


def test_asking_imports_neither_torch_nor_tvm() -> None:
    code = (
        "import sys; from collage.toolchains import registry; from collage.target import Target\n"
        "for t in registry():\n"
        "    for stem in t.targets:\n"
        "        if stem.startswith('cuda'): t.availability_of(Target.parse(stem))\n"
        "print(sorted({'torch', 'tvm', 'tensorrt', 'triton'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.strip() == "[]"


def test_a_driver_that_fails_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    class Driver:
        def cuInit(self, flags: int) -> int:
            return 100

        def cuGetErrorString(self, code: int, text: object) -> int:
            return 0

    monkeypatch.setattr(cuda_support.ctypes, "CDLL", lambda name: Driver())
    cuda_support.find_gpu.cache_clear()
    try:
        found = cuda_support.find_gpu()
    finally:
        cuda_support.find_gpu.cache_clear()
    assert isinstance(found, cuda_support.Absence) and "cuInit returned 100" in found.reason


def test_a_provider_that_is_missing_is_named(tmp_path: Path) -> None:
    toolchain, target = OnnxRuntimeOnCuda(), Target.parse("cuda -compiler=onnxruntime")
    if toolchain.availability_of(target).available:
        pytest.skip("it is there")
    with pytest.raises(CollageError, match="CUDAExecutionProvider"):
        toolchain.compile(COMMON[0].model(), target, tmp_path)


def test_the_processor_is_served_as_by_the_classes_that_are_extended() -> None:
    extended = [OnnxRuntimeOnCuda(), TvmOnCuda(), InductorOnCuda()]
    assert [registry().factory(each.name)[0] for each in extended] == [
        f"{type(each).__module__}:{type(each).__name__}" for each in extended
    ]
    for each in extended:
        plain = type(each).__mro__[2]()
        for stem in plain.targets:
            target = Target.parse(stem)
            assert each.option_values(target) == plain.option_values(target)
            assert each.availability_of(target) == plain.availability_of(target)
            assert each.ran_on(target) == plain.ran_on(target)
