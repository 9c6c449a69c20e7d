"""Facts about this machine that decide whether two timings may be compared."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from collage.system.cgroups import free_in_groups_bytes, limit_of_groups_bytes, processor_quota

__all__ = ["Machine", "free_memory_bytes", "this_machine", "thread_count", "threads_of_quota", "usable_memory_bytes"]

_CPUINFO = Path("/proc/cpuinfo")
_TOPOLOGY = Path("/sys/devices/system/cpu")
_MEMINFO = Path("/proc/meminfo")
_INT8 = frozenset(("avx512_vnni", "avx_vnni", "amx_int8"))
"""Instruction sets with products of bytes, by /proc/cpuinfo's names."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine, as far as a timing depends on it: a part of the workload key.

    Attributes:
        cpu: Model name of the processor.
        isa: Digest of the processor's instruction-set flags.
        flags: These flags, sorted.
        cores: Number of processors that this process may use.
        physical_cores: Number of cores that these belong to: two threads of one core are slower than two cores.
        quota: Share of a processor's time, or number of processors' time, that a container may take, None for no limit.
        memory_bytes: Physical memory.
        system: Operating system and architecture.
    """

    cpu: str
    isa: str
    flags: tuple[str, ...]
    cores: int
    physical_cores: int
    quota: float | None
    memory_bytes: int
    system: str

    @property
    def multiplies_bytes_at_once(self) -> bool:
        """True if an instruction adds products of bytes in 32 bits. Without it, they are slower, or saturate in 16 bits."""
        return not _INT8.isdisjoint(self.flags)

    @property
    def saturates_products_of_bytes(self) -> bool:
        """True if toolchains add products of bytes in pairs in 16 bits, the fastest way of x86 processors without VNNI."""
        return "ssse3" in self.flags and not self.multiplies_bytes_at_once

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


def physical_cores(processors: Iterable[int], topology: Path = _TOPOLOGY) -> int:
    """Number of cores, in all packages, that some processors belong to; where the system does not say, their own number."""
    return len({_core_of(number, topology) for number in processors})


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
        physical_cores=physical_cores(usable_core_numbers()),
        quota=processor_quota(),
        memory_bytes=_memory_bytes(),
        system=f"{platform.system()} {platform.machine()}",
    )


def _memory_bytes() -> int:
    if hasattr(os, "sysconf"):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    import psutil  # late: systems with ``sysconf`` do without

    return int(psutil.virtual_memory().total)


def threads_of_quota(quota: float) -> int:
    """Return the threads that a container's quota, in processors, leaves work for: at least 1, else the nearest number."""
    return max(1, round(quota))


def thread_count(machine: Machine | None = None, processors: int | None = None) -> int:
    """Return the number of threads that a container leaves work for, 0 if it leaves the whole machine.

    Runtimes count the machine's cores. In a container with a quota their threads are stopped as soon as it is spent, and some
    runs take far longer than most. In one with fewer processors they take turns on these.

    Args:
        machine: The machine. This one by default.
        processors: Number of processors that the system has. This machine's by default.
    """
    machine = this_machine() if machine is None else machine
    processors = (os.cpu_count() or machine.cores) if processors is None else processors
    quota = math.inf if machine.quota is None else threads_of_quota(machine.quota)
    if machine.cores >= processors and quota >= machine.physical_cores:
        return 0
    return int(min(machine.physical_cores, quota))


def _core_of(number: int, topology: Path) -> tuple[str, ...]:
    facts = topology / f"cpu{number}" / "topology"
    try:
        return tuple((facts / name).read_text().strip() for name in ("physical_package_id", "core_id"))
    except OSError:
        return ("processor", str(number))


def _cpuinfo() -> dict[str, str]:
    """The first processor's entry in /proc/cpuinfo; empty if there is none."""
    if not _CPUINFO.exists():
        return {}
    first = _CPUINFO.read_text().split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def usable_memory_bytes() -> int:
    """Return the memory that this process could take alone: the machine's, or the limit of its container."""
    in_groups = limit_of_groups_bytes()
    return this_machine().memory_bytes if in_groups is None else min(this_machine().memory_bytes, in_groups)


def free_memory_bytes(meminfo: Path = _MEMINFO) -> int:
    """Memory that may still be taken, by a container's limit too; 0 if the system does not tell."""
    try:
        lines = meminfo.read_text().splitlines()
        (free,) = (int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError):
        return 0
    in_groups = free_in_groups_bytes()
    return free if in_groups is None else min(free, in_groups)
