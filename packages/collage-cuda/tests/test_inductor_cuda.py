"""Inductor's packages, with torch's processor in the place of the device: how they are built, loaded and called."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from collage.target import Target
from collage.testing._toolchain_case import _reference
from collage.testing._toolchain_kernels import COMMON, KernelCase
from collage.toolchains import DeviceKernel, LoadOptions, TargetError, Unsupported
from collage_cuda import cuda_support
from collage_cuda.inductor import InductorOnCuda

pytest.importorskip("torch")
TARGET = Target.parse("cuda -compiler=inductor")


@pytest.fixture
def processor_as_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_support, "require_gpu", lambda: cuda_support.Gpu("none", (9, 0), 132, "13.0"))
    monkeypatch.setattr(cuda_support, "cuda_device", lambda: cuda_support.TorchDevice("cpu"))


@pytest.mark.slow
@pytest.mark.usefixtures("processor_as_device")
@pytest.mark.parametrize("name", ["conv_relu", "attention", "split"])
def test_packages_are_right_and_leave_nothing_behind(name: str, tmp_path: Path) -> None:
    case = next(case for case in COMMON if case.name == name)
    compiled = InductorOnCuda().compile(case.model(), TARGET, tmp_path)
    assert compiled.files == (f"{name}.inductor.pt2",)
    assert [path.name for path in tmp_path.iterdir()] == list(compiled.files)
    loaded = InductorOnCuda().load(compiled, TARGET, tmp_path, LoadOptions())
    assert isinstance(loaded, DeviceKernel) and loaded.capturable
    for y, wanted in zip(loaded(case.inputs), _reference(case.model(), case.inputs), strict=True):
        np.testing.assert_allclose(y, wanted, rtol=0, atol=1e-4)


@pytest.mark.skipif(isinstance(cuda_support.find_gpu(), cuda_support.Gpu), reason="there is a device")
def test_without_a_device_it_says_so(tmp_path: Path) -> None:
    found = InductorOnCuda().availability_of(TARGET)
    assert not found.available and found.reason and found.remedy
    with pytest.raises(Unsupported, match="driver"):
        InductorOnCuda().compile(COMMON[0].model(), TARGET, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["cuda -compiler=inductor -threads=2", "llvm -compiler=inductor -autotune=1"])
def test_options_are_of_their_kind(text: str, tmp_path: Path) -> None:
    with pytest.raises(TargetError):
        InductorOnCuda().compile(COMMON[0].model(), Target.parse(text), tmp_path)


@pytest.mark.parametrize("case", COMMON, ids=lambda case: case.name)
def test_the_table_of_torch_calls_stays_on_the_device(case: KernelCase) -> None:
    """On the device without data, torch refuses tensors of another; results would be of the processor if one was made there."""
    import torch

    from collage_torch.ops import Program

    program = Program(case.model())
    program.place("meta")
    with torch.inference_mode(), torch.device("meta"):
        made = program(*[torch.from_numpy(x).to("meta") for x in case.inputs])
    assert {y.device.type for y in made} == {"meta"}
    assert [tuple(y.shape) for y in made] == [y.shape for y in _reference(case.model(), case.inputs)]
