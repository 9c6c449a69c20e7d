"""What tuning found, kept by workload: nothing is tuned twice, in whichever model it occurs."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping

import onnx_ir as ir

from collage.cost.database import Database
from collage.cost.key import runtime_settings
from collage.cost.workshop import Workshop
from collage.machine import this_machine
from collage.target import Target

__all__ = ["TuningRecords"]


class TuningRecords:
    """Tunes kernels, and remembers what came of it.

    Args:
        workshop: Whose workers tune.
        database: Where records are kept: the texts of the toolchains themselves.
    """

    def __init__(self, workshop: Workshop, database: Database) -> None:
        self._workshop = workshop
        self._database = database

    def tune(self, kernel: ir.Model, target: Target, budget_s: float) -> str | None:
        """The records of a kernel as its model is to carry them; what is not known is tuned.

        Args:
            kernel: The kernel.
            target: Its target, with trials and seed.
            budget_s: Seconds that tuning may take. What it cuts short is not used: it would not be what the target says.

        Returns:
            The value of the property ``collage.toolchains.TUNED``; None if nothing in the kernel can be tuned, or in time.

        Raises:
            ToolchainError: It could not be tuned.
        """
        workloads = self._workshop.tuning_workloads(kernel, target)
        if not workloads:
            return None
        known = {name: text for name in workloads if (text := self._database.fact(**self._name(name, target)))}
        fresh = [name for name in workloads if name not in known]
        began = time.monotonic()
        found = self._workshop.tune(kernel, target, budget_s, known) if fresh else known
        if time.monotonic() - began > budget_s or any(name not in found for name in workloads):
            return None
        for name in fresh:
            self._database.keep_fact(found[name], **self._name(name, target))
        return json.dumps({name: found[name] for name in sorted(workloads)})

    def _name(self, workload: str, target: Target) -> Mapping[str, str | int]:
        return {
            "fact": "tuning-1",
            "workload": workload,
            "target": str(target),
            "build": self._workshop.availability(target.toolchain).build,
            "machine": this_machine().fingerprint,
            "threads": self._workshop.threads,
            "settings": runtime_settings(),
        }
