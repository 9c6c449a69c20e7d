"""TVM's native code generator for CUDA: its own pipeline, with the GPU schedules that it has for untuned loops.

Kernels are not recorded into CUDA graphs: their intermediate values come from a pool that TVM shares between all modules of
a process, so that memory which a recording writes may meanwhile hold something else.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collage.toolchains import Availability, Compiled, CompileError, LoadOptions, TargetError, Unsupported
from collage.toolchains.sdk.libraries import path_to_load
from collage.toolchains.sdk.model_files import check_options, kernel_name, one_line
from collage.toolchains.tvm.kernels import LEVELS, import_kernel, link, machine_facts
from collage.toolchains.tvm.pipeline import named_pipeline, noting_lent_outputs
from collage.toolchains.tvm.toolchain import TvmToolchain
from collage_cuda import cuda_support

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage.target import Target
    from collage.toolchains import Kernel, OptionValues

__all__ = ["Machine", "TvmOnCuda", "compact_tensor", "cuda_availability", "cuda_options", "generate"]

_OPTIONS: OptionValues = {"opt-level": LEVELS, "arch": ()}
_ALIGNMENT = 64
"""Bytes; TVM refuses tensors that begin elsewhere."""
_LIMITS = {
    "max_threads_per_block": 1024,
    "thread_warp_size": 32,
    "max_shared_memory_per_block": 49152,  # What every device grants a kernel that does not ask for more.
}


class TvmOnCuda(cuda_support.CudaToolchain, TvmToolchain):
    """Compiles kernels with TVM's own code generators for the CPU and for CUDA."""

    targets = (*TvmToolchain.targets, "cuda")
    options = TvmToolchain.options | {
        "arch": "on CUDA: the architecture to compile for, such as sm_90 (default: the device's)"
    }

    def availability_of(self, target: Target) -> Availability:
        """Return the availability; on CUDA it depends on the device and a compiler for it."""
        found = self.availability()
        return cuda_availability(found) if target.kind == "cuda" else found

    def loading_availability_of(self, target: Target) -> Availability:
        """The runtime of compiled kernels. On CUDA it takes as much as compiling."""
        return self.availability_of(target) if target.kind == "cuda" else super().loading_availability_of(target)

    def option_values(self, target: Target) -> OptionValues:
        """Return the values that each option takes.

        Raises:
            TargetError: The architecture is none.
        """
        return cuda_options(target) if target.kind == "cuda" else super().option_values(target)

    def compile(self, kernel: ir.Model, target: Target, workspace: Path) -> Compiled:
        """Import, fuse, schedule and generate code, and link a shared library."""
        if target.kind != "cuda":
            return super().compile(kernel, target, workspace)
        check_options(target, self.option_values(target))
        # By target, since a process that has loaded a library gets the same one again under the same name.
        options = "".join(f".{option}={value}" for option, value in target.options)
        library = workspace / f"{kernel_name(kernel)}.cuda{options}.so"
        built, lent = generate(import_kernel(kernel, workspace, machine(target)), target)
        link(built, library)
        inputs = tuple(str(value.name) for value in kernel.graph.inputs)
        outputs = tuple(str(value.name) for value in kernel.graph.outputs)
        facts = machine_facts(kernel.graph, lent)
        return Compiled(self.name, str(target), (library.name,), inputs, outputs, metadata=facts)

    def load(self, compiled: Compiled, target: Target, workspace: Path, options: LoadOptions) -> Kernel:
        """Load the library into a virtual machine of Relax."""
        if target.kind != "cuda":
            return super().load(compiled, target, workspace, options)
        check_options(target, self.option_values(target))
        cuda_support.require_gpu()
        device = cuda_support.cuda_device()
        return cuda_support.CudaKernel(
            Machine(workspace / compiled.files[0], compiled, device), device, capturable=False
        )

    def tuning_workloads(self, kernel: ir.Model, target: Target, workspace: Path) -> Sequence[str]:
        """The loop nests that can be tuned; none on CUDA."""
        return () if target.kind == "cuda" else super().tuning_workloads(kernel, target, workspace)


def cuda_availability(found: Availability) -> Availability:
    """Return if TVM, which works on the processor, can also compile for the device."""
    missing = None
    if not found.available:
        missing = cuda_support.Absence(str(found.reason), str(found.remedy))
    elif not _has_cuda_runtime():
        missing = cuda_support.Absence("this build of apache-tvm has no CUDA runtime", "install one that has")
    elif _compiler() is None:
        reason = "neither NVRTC's bindings nor nvcc, which compile TVM's CUDA sources"
        missing = cuda_support.Absence(reason, "pip install cuda-python, or install the CUDA toolkit")
    return cuda_support.cuda_availability(found.version, found.build, missing)


def _has_cuda_runtime() -> bool:
    spec = importlib.util.find_spec("tvm")
    return (
        spec is not None and spec.origin is not None and any(Path(spec.origin).parent.rglob("libtvm_runtime_cuda.so"))
    )


def _compiler() -> str | None:
    """TVM's name of the compiler that is here."""
    try:
        if importlib.util.find_spec("cuda.bindings") is not None:
            return "nvrtc"
    except ModuleNotFoundError:
        pass
    return "nvcc" if shutil.which("nvcc") else None


def cuda_options(target: Target) -> OptionValues:
    """Return the values that each option of native code for the device takes.

    Raises:
        TargetError: The architecture is not ``sm_`` and a number.
    """
    arch = target.option("arch")
    if arch is not None and not re.fullmatch(r"sm_\d{2,3}a?", arch):
        raise TargetError(f"target {str(target)!r}: -arch is written as in sm_90, not {arch!r}")
    return _OPTIONS


def machine(target: Target) -> Any:
    """TVM's target: the option ``arch``, or the device at hand."""
    import tvm

    arch = target.option("arch")
    if arch is None:
        gpu = cuda_support.find_gpu()
        if isinstance(gpu, cuda_support.Absence):
            raise Unsupported(f"tvm: {gpu.reason}; {gpu.remedy}")
        arch = gpu.arch
    return tvm.target.Target({"kind": "cuda", "arch": arch, **_LIMITS}, host={"kind": "llvm"})


def generate(module: Any, target: Target) -> tuple[Any, Sequence[int]]:
    """Schedules a Relax module for the device and generates its code.

    Returns:
        An executable of Relax, and which of its outputs lie in memory that is not theirs alone.

    Raises:
        CompileError: TVM failed.
    """
    import tvm
    from tvm.relax.backend.cuda import pipeline

    goal = machine(target)
    lent: list[int] = []
    os.environ.setdefault("TVM_CUDA_COMPILE_MODE", _compiler() or "nvrtc")
    try:
        with goal, tvm.transform.PassContext(opt_level=int(target.option("opt-level") or "3")):
            passes = [
                tvm.relax.transform.DecomposeOpsForInference(),
                *pipeline.library_dispatch_passes(goal),
                *pipeline.legalize_passes(goal),
                *pipeline.dataflow_lower_passes(goal),
                noting_lent_outputs(lent),
                *pipeline.finalize_passes(goal),
            ]
            loops = named_pipeline("collage.cuda", device_last=[_extremes_keep_nan()])
            built = tvm.compile(
                module, target=goal, relax_pipeline=tvm.transform.Sequential(passes), tir_pipeline=loops
            )
    except Exception as error:
        raise CompileError(f"tvm: {one_line(error)}") from error
    return built, lent


def _extremes_keep_nan() -> Any:
    """The pass that writes extremes of floats as comparisons: CUDA's ``max`` and ``min`` return the other operand of NaN.

    It runs last: reductions over threads are recognised by their extremes, and simplifications know nothing of NaN.
    """
    import tvm_ffi
    from tvm import tirx

    def compared(node: Any) -> Any:
        a, b = node.a, node.b
        if not str(a.ty.dtype).startswith(("float", "bfloat")):
            return node
        low, high = (b, a) if isinstance(node, tirx.Max) else (a, b)
        return tirx.Select(high > low, a, tirx.Select(high <= low, b, a + b))

    def write(function: Any, *_: Any) -> Any:
        body = tvm_ffi.structural_map(function.body, ((tirx.Max, tirx.Min), compared))
        return function.with_body(body)

    return tirx.transform.prim_func_pass(write, opt_level=0, name="ExtremesKeepNan")


def compact_tensor(x: Any) -> Any:
    """TVM's tensor in the memory of torch's row-major one. Torch exports a stride of 1 for a length of 1, which TVM refuses."""
    import tvm

    if min(x.shape, default=2) > 1:
        return tvm.runtime.from_dlpack(x)
    return tvm.runtime.from_dlpack(x.reshape(-1))._create_view(tuple(x.shape))


class Machine:
    """The entry function of a library, called with tensors that share torch's memory."""

    def __init__(self, library: Path, compiled: Compiled, device: cuda_support.TorchDevice) -> None:
        import torch
        import tvm
        import tvm_ffi

        self._torch = torch
        self._place = tvm.cuda(0)
        self._on_stream = tvm_ffi.use_raw_stream
        self._machine = tvm.relax.VirtualMachine(tvm.runtime.load_module(path_to_load(library)), self._place)
        self._main = self._machine["main"]
        self._lent = frozenset(compiled.metadata["lent"])
        self._is_tuple = len(compiled.outputs) > 1
        self._device = device

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        """Run it on torch's current stream."""
        stream = self._torch.cuda.current_stream(self._device.name).cuda_stream
        if not all(x.numel() for x in inputs):
            raise Unsupported("tvm does not take empty tensors on a device")
        tensors = [x.clone() if x.data_ptr() % _ALIGNMENT else x for x in inputs]
        with self._on_stream(self._place, stream):
            result = self._main(*map(compact_tensor, tensors))
        made = [self._torch.from_dlpack(y) for y in (result if self._is_tuple else (result,))]
        return [y.clone() if i in self._lent else y for i, y in enumerate(made)]
