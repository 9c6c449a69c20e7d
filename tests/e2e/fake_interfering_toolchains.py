"""Toolchains whose kernels slow each other: alone each is as fast as it says, after another one it is not."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import onnx_ir as ir

from collage.target import Target
from collage.toolchains import Availability, Compiled, Kernel, LoadOptions, ToolchainBase
from tests.fixed_time_toolchain import declare_time

TAX_S = 0.004


class TaxedToolchain(ToolchainBase):
    """Args: name, and milliseconds per operator type."""

    def __init__(self, name: str, milliseconds: dict[str, float]) -> None:
        self.name = name
        self.targets = (f"llvm -compiler={name}",)
        self.worker_arguments = {"name": name, "milliseconds": milliseconds}
        declare_time()

    def availability(self) -> Availability:
        return Availability(True, "1.0", f"{self.name} {self.worker_arguments['milliseconds']}")

    def compile(self, kernel: ir.Model, target: Target, workspace: Path) -> Compiled:
        file = f"{kernel.graph.name}.{self.name}.onnx"
        ir.save(kernel, workspace / file)
        known: Any = self.worker_arguments["milliseconds"]
        seconds = sum(known[node.op_type] for node in kernel.graph) * 1e-3
        inputs = tuple(str(value.name) for value in kernel.graph.inputs)
        outputs = tuple(str(value.name) for value in kernel.graph.outputs)
        return Compiled(self.name, str(target), (file,), inputs, outputs, metadata={"seconds": seconds})

    def load(self, compiled: Compiled, target: Target, workspace: Path, options: LoadOptions) -> Kernel:
        return _Kernel(compiled, workspace)


class _Kernel:
    reuses_outputs = False
    last: ClassVar[Any] = None

    def __init__(self, compiled: Compiled, workspace: Path) -> None:
        from onnx.reference import ReferenceEvaluator

        self._inputs = compiled.inputs
        self._evaluator = ReferenceEvaluator(str(workspace / compiled.files[0]))
        self._seconds = compiled.metadata["seconds"]

    def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
        taxed = _Kernel.last is not None and _Kernel.last is not self
        _Kernel.last = self
        time.sleep(self._seconds + (TAX_S if taxed else 0.0))
        outputs: Sequence[Any] = self._evaluator.run(None, dict(zip(self._inputs, inputs, strict=True)))
        return outputs
