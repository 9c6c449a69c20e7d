"""Native CUDA code that calls libraries: TVM's kernels, in which labelled parts are calls of cuDNN and cuBLAS.

``cuda -libs=extern-cuda`` is to ``cuda`` as ``llvm -libs=extern`` is to ``llvm``. Kernels of ``cuda -libs=cudnn`` and
``cuda -libs=cublas`` consist of the same calls. All work is on torch's current stream, that of TVM's loops too.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collage.toolchains import Availability, Compiled, LoadOptions
from collage.toolchains.tvm.kernels import link, tvm_availability
from collage_cuda import cuda_support
from collage_cuda import tvm as tvm_cuda
from collage_cuda.cublas import CublasToolchain
from collage_cuda.cudnn import CudnnToolchain
from collage_extern.functions import BoundFunction, ExternFunction, ExternLibraries, ExternLibrary
from collage_extern.toolchain import ExternToolchain

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage.target import Target
    from collage.toolchains import Kernel, OptionValues
    from collage_cuda.cuda_library import TorchCudaLibrary

__all__ = ["GROUP", "ExternOnCuda", "cublas", "cudnn", "library_of"]

GROUP = "collage.extern_functions_on_cuda"
"""The entry-point group of libraries whose functions take tensors on the device."""


def cudnn() -> ExternLibrary:
    """The functions of cuDNN."""
    return library_of(CudnnToolchain())


def cublas() -> ExternLibrary:
    """The functions of cuBLAS."""
    return library_of(CublasToolchain())


def library_of(toolchain: TorchCudaLibrary) -> ExternLibrary:
    """Return the calls of a library as functions, those that compute more operators first."""
    rows = reversed(toolchain.pattern_table())
    bind, refusal = partial(_bind, toolchain), partial(_why_not, toolchain)
    functions = tuple(ExternFunction(row.label, row.pattern, bind, refusal) for row in rows)
    return ExternLibrary(toolchain.name, toolchain.availability().build, functions)


class ExternOnCuda(cuda_support.CudaToolchain, ExternToolchain):
    """Compiles kernels of native CUDA code and calls of libraries."""

    name = "extern-cuda"
    targets = ("cuda -libs=extern-cuda",)
    options = {
        "opt-level": "0 to 3: TVM's own optimisation level (default 3)",
        "arch": "the architecture to compile for, such as sm_90 (default: the device's)",
    }

    @property
    def _libraries(self) -> ExternLibraries:
        return self._given or _installed()

    def availability(self) -> Availability:
        """Return if TVM can compile for the device, and which libraries offer functions."""
        found = tvm_cuda.cuda_availability(tvm_availability(with_torch=True))
        builds = ", ".join(library.build for library in self._libraries)
        return Availability(**{**vars(found), "build": f"{found.build}, {builds}"})

    def option_values(self, target: Target) -> OptionValues:
        """Return the values that each option takes.

        Raises:
            TargetError: The architecture is none.
        """
        return tvm_cuda.cuda_options(target)

    def _goal(self, target: Target) -> Any:
        return tvm_cuda.machine(target)

    def _build(self, module: Any, target: Target, library: Path) -> tuple[Sequence[str], Sequence[int]]:
        built, lent = tvm_cuda.generate(module, target)
        link(built, library)
        return [library.name], lent

    def _kernel(self, workspace: Path, compiled: Compiled, threads: int) -> Kernel:
        cuda_support.require_gpu()
        device = cuda_support.cuda_device()
        machine = tvm_cuda.Machine(workspace / compiled.files[0], compiled, device)
        return cuda_support.CudaKernel(machine, device, capturable=False)

    def load(self, compiled: Compiled, target: Target, workspace: Path, options: LoadOptions) -> Kernel:
        """Bind the functions on the device, and load the library while they are registered."""
        cuda_support.require_gpu()
        return super().load(compiled, target, workspace, options)


@functools.cache
def _installed() -> ExternLibraries:
    return ExternLibraries(entry_points(group=GROUP))


def _why_not(toolchain: TorchCudaLibrary, nodes: Sequence[ir.Node]) -> str | None:
    """Return why a library has no call for operators that match a pattern, or None."""
    head = next(node for node in nodes if node.op_type in toolchain.heads)
    found = toolchain.group(head, "cpu", "f32")
    return None if found is not None else f"{toolchain.name} has no single call for this {head.op_type}"


def _bind(toolchain: TorchCudaLibrary, model: ir.Model, threads: int) -> BoundFunction:
    """Return a function of tensors on the device. Where there is no device, what is checked on a compilation is still checked."""
    import torch

    is_here = isinstance(cuda_support.find_gpu(), cuda_support.Gpu)
    program = toolchain.program(model, cuda_support.cuda_device().name if is_here else "cpu", "f32")

    def call(*tensors: Any) -> None:
        *inputs, out = (torch.from_dlpack(tensor.__dlpack__()) for tensor in tensors)
        with cuda_support.settings(tf32=False):
            out.copy_(program(*inputs)[0])

    return call
