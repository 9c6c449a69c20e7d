"""Toolchains: the contract, the registry, and a folder for each toolchain.

No toolchain's name occurs outside this room. Third parties add theirs through the entry-point group
``collage.toolchains``; `docs/toolchains.md` shows how.
"""

from typing import TYPE_CHECKING

from collage._errors import CollageError, CompileError, PassError, TargetError, ToolchainError, Unsupported, UsageError
from collage.toolchains._base import ToolchainBase, availability_for, loading_availability_for
from collage.toolchains._contract import (
    IN_FLOATS,
    READ_BYTES,
    TUNED,
    AllocatingKernel,
    Availability,
    Compiled,
    EmptyTakingKernel,
    Importer,
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
from collage.toolchains._kernels import (
    check_import_for,
    compile_for,
    kernel_for,
    load_for,
    profile_for,
    support_for,
    written_out,
)
from collage.toolchains._registry import Registry, choose_menu, option_values, registry
from collage.toolchains._revision import revision_of
from collage.toolchains.onnxruntime.stepwise import Perturbation, StepwiseModel
from collage.toolchains.onnxruntime.unoptimised import OriginalSession, UnoptimisedModel
from collage.toolchains.sdk.aligned_memory import ALIGNMENT_BYTES, aligned_bytes, size_bytes
from collage.toolchains.sdk.import_probe import NOT_INSTALLED, importing_here
from collage.toolchains.sdk.model_files import check_options, kernel_name, load_threads, save_kernel
from collage.toolchains.sdk.thread_affinity import HelperThreads, own_threads, started_meanwhile

if TYPE_CHECKING:
    from collage.toolchains._contract import Tensor as Tensor

__all__ = [
    "ALIGNMENT_BYTES",
    "IN_FLOATS",
    "NOT_INSTALLED",
    "READ_BYTES",
    "TUNED",
    "AllocatingKernel",
    "Availability",
    "CollageError",
    "CompileError",
    "Compiled",
    "Device",
    "DeviceKernel",
    "EmptyTakingKernel",
    "HelperThreads",
    "Importer",
    "InPlaceKernel",
    "Kernel",
    "Layout",
    "LoadOptions",
    "OptionValues",
    "OriginalSession",
    "PassError",
    "PatternEntry",
    "Perturbation",
    "Profiler",
    "Recording",
    "Registry",
    "StepwiseModel",
    "Support",
    "TargetError",
    "Toolchain",
    "ToolchainBase",
    "ToolchainError",
    "Tuner",
    "TuningSession",
    "UnoptimisedModel",
    "Unsupported",
    "UsageError",
    "aligned_bytes",
    "availability_for",
    "check_import_for",
    "check_options",
    "choose_menu",
    "compile_for",
    "importing_here",
    "kernel_for",
    "kernel_name",
    "load_for",
    "load_threads",
    "loading_availability_for",
    "option_values",
    "own_threads",
    "profile_for",
    "registry",
    "revision_of",
    "save_kernel",
    "size_bytes",
    "started_meanwhile",
    "support_for",
    "written_out",
]
