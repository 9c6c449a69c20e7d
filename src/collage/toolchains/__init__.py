"""Toolchains: the contract, the registry, and a folder for each toolchain.

No toolchain's name occurs outside this room. Third parties add theirs through the entry-point group
``collage.toolchains``; `docs/toolchains.md` shows how.
"""

from collage._errors import CompileError, Unsupported
from collage.toolchains._base import (
    ToolchainBase,
    availability_for,
    compile_for,
    kernel_for,
    loading_availability_for,
    support_for,
    written_out,
)
from collage.toolchains._contract import (
    IN_FLOATS,
    TUNED,
    AllocatingKernel,
    Availability,
    Compiled,
    InPlaceKernel,
    Kernel,
    Layout,
    LoadOptions,
    OptionValues,
    PatternEntry,
    Profiler,
    Support,
    Toolchain,
    Tuner,
    TuningSession,
)
from collage.toolchains._device import Device, DeviceKernel, Recording
from collage.toolchains._registry import Registry, choose_menu, option_values, registry
from collage.toolchains._revision import revision_of
from collage.toolchains.onnxruntime.stepwise import Perturbation, StepwiseModel
from collage.toolchains.onnxruntime.unoptimised import OriginalSession, UnoptimisedModel
from collage.toolchains.sdk.aligned_memory import ALIGNMENT_BYTES, aligned_bytes, size_bytes
from collage.toolchains.sdk.import_probe import NOT_INSTALLED, importing_here
from collage.toolchains.sdk.model_files import check_options, kernel_name, load_threads, save_kernel
from collage.toolchains.sdk.thread_affinity import HelperThreads, own_threads, started_meanwhile
from collage.toolchains.torch.cuda_support import reserves_address_space
from collage.toolchains.tvm.extern.functions import BoundFunction, ExternFunction, ExternLibrary, extern_libraries

__all__ = [
    "ALIGNMENT_BYTES",
    "IN_FLOATS",
    "NOT_INSTALLED",
    "TUNED",
    "AllocatingKernel",
    "Availability",
    "BoundFunction",
    "CompileError",
    "Compiled",
    "Device",
    "DeviceKernel",
    "ExternFunction",
    "ExternLibrary",
    "HelperThreads",
    "InPlaceKernel",
    "Kernel",
    "Layout",
    "LoadOptions",
    "OptionValues",
    "OriginalSession",
    "PatternEntry",
    "Perturbation",
    "Profiler",
    "Recording",
    "Registry",
    "StepwiseModel",
    "Support",
    "Toolchain",
    "ToolchainBase",
    "Tuner",
    "TuningSession",
    "UnoptimisedModel",
    "Unsupported",
    "aligned_bytes",
    "availability_for",
    "check_options",
    "choose_menu",
    "compile_for",
    "extern_libraries",
    "importing_here",
    "kernel_for",
    "kernel_name",
    "load_threads",
    "loading_availability_for",
    "option_values",
    "own_threads",
    "registry",
    "reserves_address_space",
    "revision_of",
    "save_kernel",
    "size_bytes",
    "started_meanwhile",
    "support_for",
    "written_out",
]
