"""Toolchains: the contract, the registry, and one module for each toolchain.

No toolchain's name occurs outside this room. Third parties add theirs through the entry-point group
``collage.toolchains``.
"""

from collage.toolchains._base import ToolchainBase
from collage.toolchains._contract import (
    TUNED,
    Availability,
    Compiled,
    Device,
    DeviceKernel,
    InPlaceKernel,
    Kernel,
    Layout,
    LoadOptions,
    PatternEntry,
    Profiler,
    Recording,
    Support,
    Toolchain,
    Tuner,
    TuningSession,
)
from collage.toolchains._registry import Registry, registry

__all__ = [
    "TUNED",
    "Availability",
    "Compiled",
    "Device",
    "DeviceKernel",
    "InPlaceKernel",
    "Kernel",
    "Layout",
    "LoadOptions",
    "PatternEntry",
    "Profiler",
    "Recording",
    "Registry",
    "Support",
    "Toolchain",
    "ToolchainBase",
    "Tuner",
    "TuningSession",
    "registry",
]
