"""Toolchains: the contract, the registry, and one module for each toolchain.

No toolchain's name occurs outside this room. Third parties add theirs through the entry-point group
``collage.toolchains``.
"""

from collage.toolchains._base import ToolchainBase
from collage.toolchains._contract import (
    Availability,
    Compiled,
    Kernel,
    LoadOptions,
    PatternEntry,
    Profiler,
    Support,
    Toolchain,
)
from collage.toolchains._registry import Registry, registry

__all__ = [
    "Availability",
    "Compiled",
    "Kernel",
    "LoadOptions",
    "PatternEntry",
    "Profiler",
    "Registry",
    "Support",
    "Toolchain",
    "ToolchainBase",
    "registry",
]
