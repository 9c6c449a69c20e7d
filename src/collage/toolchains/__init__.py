"""Toolchains: the contract, the registry, and one module for each toolchain.

No toolchain's name occurs outside this room. Third parties add theirs through the entry-point group
``collage.toolchains``.
"""

from collage.toolchains._base import ToolchainBase
from collage.toolchains._contract import (
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
)
from collage.toolchains._registry import Registry, registry

__all__ = [
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
    "registry",
]
