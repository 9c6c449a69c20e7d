"""Records of tuning, by workload and by kernel. Nothing is tuned twice, in whichever model it occurs.

A workload is a part of a kernel that a toolchain tunes, such as one loop nest; a completely tuned kernel is stored with
the records of all its workloads, so that later compilations find it without the toolchain. The time and the gain of its
tuning are stored too, to predict those of other kernels.
"""

from __future__ import annotations

import functools
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import onnx_ir as ir

from collage.cost.outcome import Outcome
from collage.cost.workload_key import digest_of, runtime_settings
from collage.database import Database, FactKind
from collage.measure.jobs import Job
from collage.measure.session import MeasureSession
from collage.system.codec import Share
from collage.system.machine import this_machine
from collage.target import Target

__all__ = ["TunedKernel", "TuningForecast", "TuningRecords", "effort_s", "tuned_digest"]

_FIRST_TRIALS = 16.0
_FIRST_RATIO = 0.7
_RUNS = 8


@dataclass(frozen=True, slots=True)
class TunedKernel:
    """The result of tuning a kernel.

    Attributes:
        records: The value of the property ``collage.toolchains.TUNED``.
        took_s: Seconds that tuning took; 0 if every workload was known already.
        effort_s: Seconds of one trial, as foretold from the kernel before it was tuned, see :func:`effort_s`.
        ratio: Time of the tuned kernel as a share of the untuned one.
    """

    records: str
    took_s: Share
    effort_s: Share
    ratio: Share


_TUNED_KERNEL: FactKind[TunedKernel] = FactKind("tuned", TunedKernel)
_WORKLOAD: FactKind[str] = FactKind("tuning", str)


@dataclass(frozen=True, slots=True)
class TuningForecast:
    """The expected duration and gain of tuning, from those of earlier tunings.

    Attributes:
        efforts: Times a kernel's effort that its tuning takes.
        ratio: Time of a tuned kernel as a share of the untuned one.
    """

    efforts: float
    ratio: float

    @classmethod
    def of(cls, known: Sequence[TunedKernel]) -> TuningForecast:
        """The medians over known tunings, with the default guess as one more sample."""
        efforts = [kernel.took_s / kernel.effort_s for kernel in known if kernel.took_s > 0 and kernel.effort_s > 0]
        ratios = [kernel.ratio for kernel in known]
        return cls(statistics.median([_FIRST_TRIALS, *efforts]), statistics.median([_FIRST_RATIO, *ratios]))


def effort_s(untuned: Outcome) -> float:
    """Seconds of one trial on a kernel: a build and a few runs."""
    return untuned.build_s + (_RUNS * untuned.time.median_s if untuned.time is not None else 0.0)


class TuningRecords:
    """Tunes kernels, and keeps the records.

    Args:
        measure_session: Its workers tune, and its database holds records: the texts of the toolchains themselves.
    """

    def __init__(self, measure_session: MeasureSession) -> None:
        self._session = measure_session
        self._database = measure_session.database
        self._tuners: dict[str, bool] = {}

    def can_tune(self, target: Target) -> bool:
        """Return True if kernels of this target may be tuned: its toolchain can, and its kernels are not tuned ones."""
        name = target.toolchain
        if name not in self._tuners:
            self._tuners[name] = self._session.can_tune(target)
        return self._tuners[name] and target.option("trials") is None

    def tune(self, kernel: ir.Model, target: Target, budget_s: float) -> tuple[str, float] | None:
        """The records of a kernel, for the metadata of its model; unknown workloads are tuned.

        Each record is kept as soon as the toolchain returns it, so an interrupted tuning continues from there.

        Args:
            kernel: The kernel.
            target: Its target, with trials and seed.
            budget_s: Seconds that tuning may take.

        Returns:
            The value of the property ``collage.toolchains.TUNED``, and seconds that it would have taken had nothing been
            known, 0 if everything was; None if nothing in the kernel can be tuned, or not all of it in time.

        Raises:
            ToolchainError: It could not be tuned.
        """
        workloads = self._session.tuning_workloads(kernel, target)
        records = {
            name: text for name in workloads if (text := self._database.fact(_WORKLOAD, **self._name(name, target)))
        }
        missing = [name for name in workloads if name not in records]
        new, began = len(missing), time.monotonic()
        while missing and (left_s := budget_s - (time.monotonic() - began)) > 0:
            found = self._session.tune(kernel, target, left_s, records)
            fresh = [name for name in missing if name in found]
            if not fresh:
                break
            for name in fresh:
                records[name] = found[name]
                self._database.keep_fact(_WORKLOAD, found[name], **self._name(name, target))
            missing = [name for name in missing if name not in records]
        if missing or not workloads:
            return None
        took_s = (time.monotonic() - began) * len(workloads) / new if new else 0.0
        return json.dumps(records, sort_keys=True), took_s

    def keep(self, job: Job, tuned: TunedKernel) -> None:
        """Note a kernel that was tuned through; the job is that of measuring it."""
        name = self._kernel_name(job)
        self._database.keep_fact(_TUNED_KERNEL, tuned, **name)
        self._here[digest_of(dict(name))] = (str(job.target), tuned)

    def find(self, job: Job) -> TunedKernel | None:
        """Return the result of tuning the kernel of a job, in any model; None if it was not tuned."""
        _, found = self._here.get(digest_of(self._kernel_name(job)), ("", None))
        return found

    def any(self) -> bool:
        """Return True if any kernel was tuned on this machine."""
        return bool(self._here)

    def forecast(self, target: Target) -> TuningForecast:
        """Return the expected duration and gain of tuning for a target, with its trials and seed."""
        return TuningForecast.of([tuned for name, tuned in self._here.values() if name == str(target)])

    @functools.cached_property
    def _here(self) -> dict[str, tuple[str, TunedKernel]]:
        return _tuned_here(self._database)

    def _kernel_name(self, job: Job) -> Mapping[str, str | int]:
        """The key of a kernel's tuning: its timing key without the model around it, on which tuning does not depend."""
        parts = self._session.key(job).parts()
        return {name: part for name, part in parts.items() if name not in ("context", "method")}

    def _name(self, workload: str, target: Target) -> Mapping[str, str | int]:
        return {
            "workload": workload,
            "target": str(target),
            "build": self._session.build_of(target),
            "machine": this_machine().fingerprint,
            "threads": self._session.threads,
            "settings": runtime_settings(),
        }


def tuned_digest(database: Database) -> str:
    """Return a digest of all that was tuned on this machine: it changes when one more kernel is."""
    return digest_of({name: asdict(tuned) for name, (_, tuned) in _tuned_here(database).items()})


def _tuned_here(database: Database) -> dict[str, tuple[str, TunedKernel]]:
    """Return all kernels that were tuned on this machine, or on one like it, with their targets."""
    machine = this_machine().fingerprint
    return {
        digest_of(name): (str(name["target"]), tuned)
        for name, tuned in database.facts(_TUNED_KERNEL)
        if name.get("machine") == machine and "target" in name
    }
