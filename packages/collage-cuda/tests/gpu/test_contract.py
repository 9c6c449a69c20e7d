"""Every CUDA toolchain keeps the contract, from arrays to arrays and on the device.

Libraries of operators are given one group of nodes at a time; for them the kernels that they are for stand in for those
that every toolchain is tried on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from collage.target import Target
from collage.testing._toolchain_case import ToolchainTestCase, _load
from collage.testing._toolchain_kernels import COMMON, SYMBOLIC, KernelCase, kernel
from collage.toolchains import DeviceKernel, Unsupported
from collage_cuda.cublas import CublasToolchain
from collage_cuda.cudnn import CudnnToolchain
from collage_cuda.cutlass import CutlassToolchain
from collage_cuda.extern import ExternOnCuda
from collage_cuda.inductor import InductorOnCuda
from collage_cuda.onnxruntime import OnnxRuntimeOnCuda
from collage_cuda.tensorrt import TensorRtToolchain
from collage_cuda.tvm import TvmOnCuda


class OnDevice:
    """What holds on the device besides the contract.

    Attributes:
        records: The target whose run is recorded.
        case: Name of the kernel that is tried.
    """

    records: ClassVar[str]
    case: ClassVar[str] = "conv_relu"

    @pytest.fixture(autouse=True)
    def _only_where_this_target_is_available(self) -> None:
        found = self.toolchain.availability_of(Target.parse(self.target))  # type: ignore[attr-defined]
        if not found.available:
            pytest.skip(f"{self.records}: {found.reason}; {found.remedy}")

    def _loaded(self, parsed: Target, folder: Path) -> tuple[DeviceKernel, KernelCase]:
        case = next(case for case in COMMON if case.name == self.case)
        loaded = _load(self.toolchain, case.model(), parsed, folder)  # type: ignore[attr-defined]
        assert isinstance(loaded, DeviceKernel)
        return loaded, case

    def test_on_device_is_the_same_as_from_arrays(self, parsed: Target, tmp_path: Path) -> None:
        loaded, case = self._loaded(parsed, tmp_path)
        made = loaded.on_device([loaded.device.upload(x) for x in case.inputs])
        assert all(y.is_cuda and y.is_contiguous() for y in made)
        for y, wanted in zip(made, loaded(case.inputs), strict=True):
            np.testing.assert_allclose(loaded.device.download(y), wanted, rtol=0, atol=1e-5)

    def test_what_says_it_is_capturable_is(self, parsed: Target, tmp_path: Path) -> None:
        loaded, case = self._loaded(parsed, tmp_path)
        if not loaded.capturable:
            pytest.skip("says that it is not")
        tensors = [loaded.device.upload(x) for x in case.inputs]
        loaded.on_device(tensors)
        recording = loaded.device.record(lambda: loaded.on_device(tensors))
        for factor in (1.0, -0.5, 2.0):
            inputs = [x * np.float32(factor) for x in case.inputs]
            for tensor, x in zip(tensors, inputs, strict=True):
                loaded.device.fill(tensor, x)
            recording.replay()
            for y, wanted in zip(recording.outputs, loaded(inputs), strict=True):
                np.testing.assert_allclose(loaded.device.download(y), wanted, rtol=0, atol=1e-4)

    def test_f32_is_not_rounded_to_tf32(self, parsed: Target, tmp_path: Path) -> None:
        size = 512
        rng = np.random.default_rng(0)
        x, w = (rng.uniform(1, 2, (size, size)).astype(np.float32) for _ in range(2))
        text = f"(float[{size},{size}] x) => (float[{size},{size}] y) {{y = MatMul (x, w)}}"
        try:
            got = _load(self.toolchain, kernel("product", text, {"w": w}), parsed, tmp_path)([x])[0]  # type: ignore[attr-defined]
        except Unsupported:
            pytest.skip("takes no products")
        exact = x.astype(np.float64) @ w.astype(np.float64)
        assert np.abs(got - exact).max() / exact.max() < 5e-6


class LibraryTestCase(OnDevice):
    """For toolchains that take one group of nodes: right on what they take, a sentence on the rest."""

    toolchain: ClassVar[Any]
    target: ClassVar[str]
    takes: ClassVar[frozenset[str]]

    @pytest.fixture
    def parsed(self) -> Target:
        return Target.parse(self.target)

    @pytest.mark.parametrize("case", COMMON, ids=lambda case: case.name)
    def test_common_kernels_are_right_or_refused(self, case: KernelCase, parsed: Target, tmp_path: Path) -> None:
        if case.name not in self.takes:
            with pytest.raises(Unsupported):
                _load(self.toolchain, case.model(), parsed, tmp_path)
            return
        checks = ToolchainTestCase()
        loaded = _load(self.toolchain, case.model(), parsed, tmp_path)
        checks._assert_right(case.model(), case.inputs, loaded(case.inputs))


class TestTvm(OnDevice, ToolchainTestCase):
    toolchain, target, records = TvmOnCuda(), "cuda", "cuda"
    refuses = frozenset({"dynamic_expand"})


class TestExtern(OnDevice, ToolchainTestCase):
    toolchain, target, records = ExternOnCuda(), "cuda -libs=extern-cuda", "cuda -libs=extern-cuda"
    refuses = frozenset({"dynamic_expand"})


class TestOnnxRuntime(OnDevice, ToolchainTestCase):
    toolchain, target, records = OnnxRuntimeOnCuda(), "cuda -compiler=onnxruntime", "cuda -compiler=onnxruntime"

    def test_profile_names_nodes_of_the_kernel(self, parsed: Target, tmp_path: Path) -> None:
        """On a device its profiler reports launches, so that there is no profile."""
        case = self._usual()
        assert (
            self.toolchain.profile(self.toolchain.compile(case.model(), parsed, tmp_path), parsed, tmp_path, [], 1)
            == {}
        )


class TestInductor(OnDevice, ToolchainTestCase):
    toolchain, target, records = InductorOnCuda(), "cuda -compiler=inductor", "cuda -compiler=inductor"
    refuses = SYMBOLIC


class TestTensorRt(OnDevice, ToolchainTestCase):
    toolchain, target, records = TensorRtToolchain(), "cuda -compiler=tensorrt", "cuda -compiler=tensorrt"
    refuses = SYMBOLIC


class TestCudnn(LibraryTestCase):
    toolchain, target, records = CudnnToolchain(), "cuda -libs=cudnn", "cuda -libs=cudnn"
    takes = frozenset({"conv_relu"})


class TestCublas(LibraryTestCase):
    toolchain, target, records = CublasToolchain(), "cuda -libs=cublas", "cuda -libs=cublas"
    takes = frozenset({"matmul"})
    case = "matmul"


class TestCutlass(LibraryTestCase):
    toolchain, target, records = CutlassToolchain(), "cuda -compiler=cutlass", "cuda -compiler=cutlass"
    takes = frozenset({"matmul"})
    case = "matmul"
