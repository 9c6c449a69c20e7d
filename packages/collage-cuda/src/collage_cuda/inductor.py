"""Inductor for CUDA: Triton kernels and calls of NVIDIA's libraries, compiled ahead of time into one package.

Products and convolutions are chosen between Triton and the libraries by measuring only where the target says
``-autotune=1``: that takes minutes for a large kernel, keeps the device busy meanwhile, and its vendor leaves it off.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collage.toolchains import Availability, CollageError, Compiled, CompileError, LoadOptions, Unsupported
from collage.toolchains.sdk.model_files import check_options, elem_type, one_line
from collage_cuda import cuda_support
from collage_cuda.cuda_library import try_on_zeros
from collage_torch.inductor.toolchain import InductorToolchain

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage.target import Target
    from collage.toolchains import Kernel, OptionValues
    from collage_torch.ops import Program

__all__ = ["InductorOnCuda"]

_PRECISIONS = ("f32", "tf32")
_OPTIONS: OptionValues = {"precision": _PRECISIONS, "autotune": ("0", "1")}


class InductorOnCuda(cuda_support.CudaToolchain, InductorToolchain):
    """Compiles kernels with AOTInductor for the CPU and for CUDA."""

    targets = (*InductorToolchain.targets, "cuda -compiler=inductor")
    options = InductorToolchain.options | {
        "precision": "on CUDA: f32, or tf32: products of 10-bit mantissas, added up in f32 (default f32)",
        "autotune": "on CUDA: 1 to choose products and convolutions by measuring, which takes minutes (default 0)",
    }

    def availability_of(self, target: Target) -> Availability:
        """Return the availability; on CUDA it depends on the device, a CUDA build of torch, and Triton."""
        found = self.availability()
        return _availability(found) if target.kind == "cuda" else found

    def option_values(self, target: Target) -> OptionValues:
        """Return the values that each option takes."""
        return _OPTIONS if target.kind == "cuda" else super().option_values(target)

    def build(self, program: Program, kernel: ir.Model, target: Target, stem: Path, draft: Path) -> Compiled:
        """Compile a program; for CUDA it is exported on the device, and compiled to a package.

        Raises:
            Unsupported: There is no device, or it does not take the kernel.
            CompileError: Inductor failed.
        """
        if target.kind != "cuda":
            return super().build(program, kernel, target, stem, draft)
        cuda_support.require_gpu()
        device = cuda_support.cuda_device()
        program.place(device.name)
        with cuda_support.settings(target.option("precision") == "tf32"):
            package = _build(program, kernel, draft, device.name, target.option("autotune") == "1")
        final = stem.with_name(f"{stem.name}.pt2")
        package.replace(final)
        inputs = tuple(str(value.name) for value in kernel.graph.inputs)
        outputs = tuple(str(value.name) for value in kernel.graph.outputs)
        compiled = Compiled(self.name, str(target), (final.name,), inputs, outputs, metadata={"package": final.name})
        try_on_zeros(self.load(compiled, target, final.parent, LoadOptions()), kernel, self.name)
        return compiled

    def load(self, compiled: Compiled, target: Target, workspace: Path, options: LoadOptions) -> Kernel:
        """Load the library, or the package."""
        if target.kind != "cuda":
            return super().load(compiled, target, workspace, options)
        check_options(target, _OPTIONS)
        device = cuda_support.cuda_device()
        package = _Package(workspace / compiled.metadata["package"])
        return cuda_support.CudaKernel(package, device, tf32=target.option("precision") == "tf32")


def _availability(found: Availability) -> Availability:
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

    from collage_torch.inductor.compiler import caches_in, quiet_compiler

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

    from collage_torch.ops import torch_dtype

    dtype = elem_type(value)
    if dtype is None or value.shape is None or not all(isinstance(size, int) for size in value.shape):
        raise Unsupported(f"inductor's kernels are compiled for fixed shapes ({value.name!r} is {value.shape})")
    shape = [size for size in value.shape if isinstance(size, int)]
    return torch.zeros(shape, dtype=torch_dtype(int(dtype)), device=device)
