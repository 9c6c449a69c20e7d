"""The key under which a timing is kept: everything that it depends on, in named parts.

Two kernels with equal keys take equally long, so that twelve equal layers are measured once; and a timing is never
reused after anything that it depends on has changed. Parts are named, so that a miss can be explained.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["METHOD", "WorkloadKey", "digest_of", "runtime_settings"]

METHOD = "calm-2"
"""Version of the method. It changes when timings are no longer comparable with older ones, or other kernels count as wrong."""

_SETTINGS = re.compile(
    r"_NUM_THREADS$|_MAX_CPU_ISA$|^G?OMP_|^KMP_(AFFINITY|BLOCKTIME|LIBRARY)$|^(LD_PRELOAD|MALLOC_CONF)$"
)


@dataclass(frozen=True, slots=True)
class WorkloadKey:
    """The key of one timing.

    Attributes:
        kernel: Structural hash of the extracted kernel.
        shapes: Concrete shapes that it was measured at, as text.
        target: Printed form, with all options.
        build: The toolchain's build.
        machine: The machine's fingerprint.
        threads: Threads that the kernel may use.
        context: Cache state that it was measured in: MiB that each processor touched between two runs.
        method: The method of measuring.
        settings: Environment variables that runtimes obey, see :func:`runtime_settings`.
    """

    kernel: str
    shapes: str
    target: str
    build: str
    machine: str
    threads: int
    context: int
    method: str = METHOD
    settings: str = ""

    def parts(self) -> Mapping[str, str | int]:
        """The named parts. Settings are left out where there are none, as in keys from before they were kept."""
        parts = {name: getattr(self, name) for name in self.__slots__}
        return parts if self.settings else {name: value for name, value in parts.items() if name != "settings"}

    @property
    def digest(self) -> str:
        """The digest under which a timing is filed."""
        return digest_of(self.parts())


def digest_of(parts: Mapping[str, Any]) -> str:
    """The sha256 of named parts, whatever their order."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def runtime_settings(environment: Mapping[str, str] = os.environ) -> str:
    """The variables that threads, instruction sets and memory of runtimes are set by, as ``NAME=value`` words."""
    return " ".join(f"{name}={value}" for name, value in sorted(environment.items()) if _SETTINGS.search(name))
