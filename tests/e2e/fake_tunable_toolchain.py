"""A toolchain whose tuning brings a known gain: what a phase of tuning does with it can be foretold."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from collage._errors import CompileError
from collage.target import Target
from collage.toolchains import TUNED, Compiled, Kernel, LoadOptions, TuningSession
from tests.e2e.fake_interfering_toolchains import TaxedToolchain

SLEEP = time.sleep
"""Builds take the time that they take: they are timed by who asks for them."""


class TunableToolchain(TaxedToolchain):
    """Args: name, milliseconds per operator type, and of those operator types that tuning makes faster, then; a file that
    takes down what is tuned; and operator types that take a second to build.

    Records are handed over one at a time.
    """

    def __init__(
        self,
        name: str,
        milliseconds: dict[str, float],
        tuned: dict[str, float],
        log: str = "",
        tedious: Sequence[str] = (),
    ) -> None:
        super().__init__(name, milliseconds)
        self._tuned, self._log, self._tedious = tuned, log, tedious
        self.options = {"trials": "trials", "seed": "seed"}
        self.worker_arguments = {
            "name": name,
            "milliseconds": milliseconds,
            "tuned": tuned,
            "log": log,
            "tedious": list(tedious),
        }

    def compile(self, kernel: ir.Model, target: Target, workspace: Path) -> Compiled:
        SLEEP(1.0 * sum(node.op_type in self._tedious for node in kernel.graph))
        compiled = super().compile(kernel, target, workspace)
        if target.option("trials") is None:
            return compiled
        if TUNED not in kernel.metadata_props:
            raise CompileError("not tuned")
        records = json.loads(kernel.metadata_props[TUNED])
        milliseconds = {**self.worker_arguments["milliseconds"], **{op: float(ms) for op, ms in records.items()}}
        seconds = sum(milliseconds[node.op_type] for node in kernel.graph) * 1e-3
        return replace(compiled, metadata={"seconds": seconds})

    def load(self, compiled: Compiled, target: Target, workspace: Path, options: LoadOptions) -> Kernel:
        return super().load(compiled, target, workspace, options)

    def tuning_workloads(self, kernel: ir.Model, target: Target, workspace: Path) -> Sequence[str]:
        return sorted({node.op_type for node in kernel.graph} & {*self._tuned})

    def tune(self, kernel: ir.Model, target: Target, workspace: Path, session: TuningSession) -> Mapping[str, str]:
        assert target.option("trials") and target.option("seed")
        found: dict[str, Any] = dict(session.known)
        for name in self.tuning_workloads(kernel, target, workspace):
            if name not in found:
                with session.building(), Path(self._log).open("a") as log:
                    log.write(f"{name}\n")
                with session.measuring():
                    time.sleep(0.1)
                found[name] = str(self._tuned[name])
                break
        return found
