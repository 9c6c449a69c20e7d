"""The machine that an artefact was made on, against this one: does its native code run here, and how near is it?

Native code runs on the kind of machine that it was compiled on. It also runs on a machine of the same system whose
processor has every instruction-set flag of that machine, and more. Everything else is another machine.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from collage.system.machine import Machine, this_machine

__all__ = ["MACHINE_KEY", "Fit", "MadeOn", "fingerprint_facts"]

MACHINE_KEY = "fingerprint"
"""Key of the manifest that holds the result of ``fingerprint_facts``. Artefacts of earlier versions lack it."""

_MOST_FLAGS = 4096
_LONGEST_TEXT = 200

# Flags of /proc/cpuinfo that name no instructions of programs: what the kernel or a hypervisor sees, counts or repairs.
# Two machines with one processor differ in them as soon as their kernels do.
_NAMES = """
    acpi amd_lbr_v2 amd_ppin aperfmperf apic arat arch_capabilities arch_lbr arch_perfmon art avic bpext bts
    bus_lock_detect cat_l2 cat_l3 cdp_l2 cdp_l3 cmp_legacy constant_tsc cpb cpuid cpuid_fault cqm cqm_llc cqm_mbm_local
    cqm_mbm_total cqm_occup_llc cr8_legacy dca debug_swap decodeassists ds_cpl dtes64 dtherm dts epb ept ept_ad est
    extapic extd_apicid flexpriority flush_l1d flushbyasid hfi ht hw_pstate hwp hwp_act_window hwp_epp hwp_notify
    hwp_pkg_req hypervisor ibpb ibrs ibrs_enhanced ibs ida intel_ppin intel_pt invpcid_single irperf lbrv mba mca mce
    md_clear mtrr nonstop_tsc nopl npt nrip_save osvw overflow_recov pae pat pausefilter pbe pcid pconfig pdcm pebs
    perfctr_core perfctr_llc perfctr_nb perfmon_v2 pfthreshold pge pln proc_feedback pse pse36 pti pts rdt_a
    rep_good rrsba_ctrl sev sev_es skinit sme smca smep smap smx split_lock_detect ss ssbd stibp succor svm svm_lock tce
    tm tm2 topoext tpr_shadow tsc_adjust tsc_deadline_timer tsc_known_freq tsc_reliable tsc_scale umip v_spec_ctrl
    v_vmsave_vmload vgif virt_ssbd vmcb_clean vme vmx vnmi vpid wdt x2apic x2avic xtopology xtpr
"""
_NO_INSTRUCTIONS = frozenset(_NAMES.split())


class Fit(IntEnum):
    """The ways in which a plan fits this machine, the best first."""

    SAME = 0
    """The machine with this fingerprint: its timings hold."""
    SAME_KIND = 1
    """The same system and instruction set: native code runs, and cores or quota differ."""
    SMALLER = 2
    """The same system and a part of this machine's instruction set: native code runs."""
    OTHER = 3
    """Another system or instructions that this machine lacks: native code is not loaded."""


@dataclass(frozen=True, slots=True)
class MadeOn:
    """The machine of a compilation, as far as a manifest describes it. Texts may be anything that is printable.

    Attributes:
        system: Operating system and architecture.
        isa: Digest of the processor's instruction-set flags.
        cores: Number of processors that the compilation might use, 0 if it is not known.
        quota: Number of processors' time that a container might take, None for no limit.
        fingerprint: ``Machine.fingerprint``, empty for artefacts of earlier versions.
        cpu: Model name of the processor, empty for artefacts of earlier versions.
        flags: Instruction-set flags, empty if they are not known or do not belong to ``isa``.
    """

    system: str
    isa: str
    cores: int = 0
    quota: float | None = None
    fingerprint: str = ""
    cpu: str = ""
    flags: frozenset[str] = frozenset()

    @classmethod
    def read(cls, manifest: Mapping[str, Any]) -> MadeOn:
        """Return the machine that a manifest describes. Facts of another form than Collage writes are taken as unknown."""
        machine, processors = _mapping(manifest.get("machine")), _mapping(manifest.get("processors"))
        told = _mapping(manifest.get(MACHINE_KEY))
        cores, quota, isa = processors.get("cores"), processors.get("quota"), _text(machine.get("isa"))
        return cls(
            system=_text(machine.get("system")),
            isa=isa,
            cores=cores if type(cores) is int and 0 < cores < 1 << 20 else 0,
            quota=float(quota) if isinstance(quota, int | float) and 0 < quota < 1 << 20 else None,
            fingerprint=_text(told.get("digest")),
            cpu=_text(told.get("cpu")),
            flags=_flags(told.get("flags"), isa),
        )

    @property
    def identity(self) -> tuple[str, ...]:
        """Facts that are equal on machines that can use each other's plans."""
        known = (self.system, self.isa, str(self.cores), str(self.quota))
        return (self.fingerprint,) if self.fingerprint else known

    def fit(self, here: Machine | None = None) -> Fit:
        """Return how well a plan of this machine fits another one, by default the one that this process runs on."""
        here = this_machine() if here is None else here
        if self.system != here.system:
            return Fit.OTHER
        if self.isa == here.isa:
            return Fit.SAME if self.fingerprint == here.fingerprint else Fit.SAME_KIND
        wanted = self.flags - _NO_INSTRUCTIONS
        return Fit.SMALLER if wanted and wanted <= frozenset(here.flags) else Fit.OTHER

    def distance(self, here: Machine | None = None) -> tuple[float, ...]:
        """Return a sort key for the plans of machines, the nearest first."""
        here = this_machine() if here is None else here
        ours, theirs = (cores if quota is None else min(cores, quota) for cores, quota in _processors(here, self))
        apart = abs(math.log2(theirs / ours)) if ours > 0 and theirs > 0 else math.inf
        common = len((self.flags - _NO_INSTRUCTIONS) & frozenset(here.flags))
        return self.fit(here), self.cpu != here.cpu, -common, apart

    def __str__(self) -> str:
        cores = f"{self.cores} core{'' if self.cores == 1 else 's'}" if self.cores else ""
        quota = f"a quota of {self.quota:g}" if self.quota is not None else ""
        known = [part for part in (self.cpu, cores, quota, self.system or "an unknown system") if part]
        return ", ".join(known) + (f" [{self.fingerprint}]" if self.fingerprint else "")


def fingerprint_facts() -> dict[str, Any]:
    """Return the facts about this machine for a manifest, besides ``machine`` and ``processors``."""
    machine = this_machine()
    return {"digest": machine.fingerprint, "cpu": machine.cpu, "flags": list(machine.flags)}


def _processors(here: Machine, made_on: MadeOn) -> tuple[tuple[int, float | None], tuple[int, float | None]]:
    return (here.cores, here.quota), (made_on.cores, made_on.quota)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    known = isinstance(value, str) and len(value) <= _LONGEST_TEXT and value.isprintable()
    return str(value) if known else ""


def _flags(value: Any, isa: str) -> frozenset[str]:
    """Return the flags whose digest is ``isa``. Others belong to another machine, or to a manifest that was edited."""
    if not isinstance(value, list) or len(value) > _MOST_FLAGS or not all(isinstance(flag, str) for flag in value):
        return frozenset()
    digest = hashlib.sha256(" ".join(value).encode(errors="replace")).hexdigest()[:16]
    return frozenset(value) if digest == isa else frozenset()
