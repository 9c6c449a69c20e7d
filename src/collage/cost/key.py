"""Under which key a timing is kept: everything that it depends on, in named parts (design section 7).

Two kernels with equal keys take equally long, so that twelve equal layers are measured once; and a timing is never
reused after anything that it depends on has changed. Parts are named, so that a miss can be explained.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["METHOD", "WorkloadKey"]

METHOD = "evict-2"
"""How timings are taken; changes when they are no longer comparable with older ones."""


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
        context: Cache state that it was measured in, in MiB evicted.
        method: How it was measured.
    """

    kernel: str
    shapes: str
    target: str
    build: str
    machine: str
    threads: int
    context: int
    method: str = METHOD

    def parts(self) -> Mapping[str, str | int]:
        """The named parts."""
        return {name: getattr(self, name) for name in self.__slots__}

    @property
    def digest(self) -> str:
        """What it is filed under."""
        return hashlib.sha256(json.dumps(self.parts(), sort_keys=True).encode()).hexdigest()
