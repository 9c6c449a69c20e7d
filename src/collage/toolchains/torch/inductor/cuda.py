"""Inductor for CUDA: Triton kernels and calls of NVIDIA's libraries, compiled ahead of time into one package.

Products and convolutions are chosen between Triton and the libraries by measuring only where the target says
``-autotune=1``: that takes minutes for a large kernel, keeps the device busy meanwhile, and its vendor leaves it off.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collage._errors import CollageError, CompileError, Unsupported
from collage.toolchains._contract import Availability, Compiled
from collage.toolchains.sdk.model_files import check_options, elem_type, kernel_name, one_line
from collage.toolchains.torch import cuda_support
from collage.toolchains.torch.cuda_library import try_on_zeros

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage.target import Target
    from collage.toolchains._contract import Kernel, OptionValues
    from collage.toolchains.torch.ops import Program

__all__ = ["OPTIONS", "availability", "compile_kernel", "load_kernel"]

_PRECISIONS = ("f32", "tf32")
OPTIONS: OptionValues = {"precision": _PRECISIONS, "autotune": ("0", "1")}


def availability(found: Availability) -> Availability:
    """Return if Inductor, which was found for the processor, can also compile for the device."""
    missing = None
    triton = cuda_support.package_version("triton")
    if not found.available:
        missing = cuda_support.Absence(str(found.reason), str(found.remedy))
    elif isinstance(carrier := cuda_support.torch_cuda(), cuda_support.Absence):
        missing = carrier
    elif triton is None:
        missing = cuda_support.Absence("triton is not installed, which compiles its kernels", "pip install triton")
    return cuda_support.cuda_availability(
        found.version, f"{found.build}, triton {triton}", missing, reduced=_PRECISIONS[1:]
    )


def compile_kernel(kernel: ir.Model, program: Program, target: Target, workspace: Path) -> Compiled:
    """Export a kernel's program on the device and compile it to a package.

    Raises:
        Unsupported: There is no device, or it does not take the kernel.
        CompileError: Inductor failed.
    """
    check_options(target, OPTIONS)
    cuda_support.require_gpu()
    device = cuda_support.cuda_device()
    name = kernel_name(kernel)
    draft = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=workspace))
    try:
        program.place(device.name)
        with cuda_support.settings(target.option("precision") == "tf32"):
            package = _build(program, kernel, draft, device.name, target.option("autotune") == "1")
        options = "".join(f".{option}={value}" for option, value in target.options)
        final = workspace / f"{name}.inductor{options}.pt2"
        package.replace(final)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    inputs = tuple(str(value.name) for value in kernel.graph.inputs)
    outputs = tuple(str(value.name) for value in kernel.graph.outputs)
    compiled = Compiled("inductor", str(target), (final.name,), inputs, outputs, metadata={"package": final.name})
    try_on_zeros(load_kernel(compiled, target, workspace), kernel, "inductor")
    return compiled


def load_kernel(compiled: Compiled, target: Target, workspace: Path) -> Kernel:
    """Load a package."""
    check_options(target, OPTIONS)
    device = cuda_support.cuda_device()
    package = _Package(workspace / compiled.metadata["package"])
    return cuda_support.CudaKernel(package, device, tf32=target.option("precision") == "tf32")


class _Package:
    """A package's entry, called with tensors.

    It is loaded for one thread at a time: the bookkeeping for several asks the device whether it is done, which cannot be
    recorded into a CUDA graph.
    """

    def __init__(self, path: Path) -> None:
        import torch

        single_threaded, runners, device_index = True, 1, -1
        self._loader = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", single_threaded, runners, device_index)

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        return [y.contiguous() for y in self._loader.boxed_run(list(inputs))]


def _build(program: Program, kernel: ir.Model, draft: Path, device: str, autotune: bool) -> Path:
    import torch
    import torch._inductor as inductor

    from collage.toolchains.torch.inductor.compiler import caches_in, quiet_compiler

    examples = tuple(_zeros(value, device) for value in kernel.graph.inputs)
    choices = {
        "aot_inductor.precompile_headers": False,  # torch remembers where they are; they are gone with the draft
        "compile_threads": 1,  # builds of several toolchains run side by side
        "freezing": True,  # weights are constants, so laid out for the kernels that read them
        "max_autotune": autotune,
    }
    try:
        with caches_in(draft), quiet_compiler(), torch.no_grad(), torch.device(device):
            exported = torch.export.export(program, examples, strict=False)
            made = inductor.aoti_compile_and_package(
                exported, package_path=str(draft / "kernel.pt2"), inductor_configs=choices
            )
    except CollageError:
        raise
    except Exception as error:
        raise CompileError(f"inductor: {one_line(error)}") from error
    return Path(str(made))


def _zeros(value: ir.Value, device: str) -> Any:
    import torch

    from collage.toolchains.torch.ops import torch_dtype

    dtype = elem_type(value)
    if dtype is None or value.shape is None or not all(isinstance(size, int) for size in value.shape):
        raise Unsupported(f"inductor's kernels are compiled for fixed shapes ({value.name!r} is {value.shape})")
    shape = [size for size in value.shape if isinstance(size, int)]
    return torch.zeros(shape, dtype=torch_dtype(int(dtype)), device=device)
