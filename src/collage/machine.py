"""Facts about this machine that decide whether two timings may be compared."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["Machine", "this_machine"]

_CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class Machine:
    """What a timing depends on besides the kernel and its toolchain (design section 7, workload key).

    Attributes:
        cpu: Model name of the processor.
        isa: Digest of the processor's instruction-set flags.
        flags: These flags, sorted.
        cores: Number of processors that this process may use.
        memory_bytes: Physical memory.
        system: Operating system and architecture.
    """

    cpu: str
    isa: str
    flags: tuple[str, ...]
    cores: int
    memory_bytes: int
    system: str

    @property
    def fingerprint(self) -> str:
        """A short digest; equal on machines whose timings are comparable. Memory size does not count."""
        facts = {**asdict(self), "memory_bytes": 0}
        del facts["flags"]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def usable_cores() -> int:
    """Number of processors that this process may use."""
    return len(usable_core_numbers()) or os.cpu_count() or 1


def usable_core_numbers() -> frozenset[int]:
    """The processors that this thread may use; none where the system cannot tell, and so not choose either."""
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()


@functools.cache
def this_machine() -> Machine:
    """The machine this process runs on."""
    info = _cpuinfo()
    name = info.get("model name") or platform.processor() or platform.machine()
    flags = sorted((info.get("flags") or info.get("Features") or "").split())
    family = "/".join(info.get(key, "") for key in ("cpu family", "model", "stepping"))
    return Machine(
        cpu=f"{name} ({family})" if family.strip("/") else name,
        isa=hashlib.sha256(" ".join(flags).encode()).hexdigest()[:16],
        flags=tuple(flags),
        cores=usable_cores(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        system=f"{platform.system()} {platform.machine()}",
    )


def _cpuinfo() -> dict[str, str]:
    """The first processor's entry in /proc/cpuinfo; empty where there is none."""
    if not _CPUINFO.exists():
        return {}
    first = _CPUINFO.read_text().split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}
