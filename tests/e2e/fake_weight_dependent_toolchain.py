"""A toolchain that is fast, and right only for some weights: kernels of equal key are not all right."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from collage.target import Target
from collage.toolchains import Availability, Compiled, Kernel, LoadOptions, ToolchainBase
from tests.fixed_time_toolchain import declare_time

SECONDS = {"Mul": 0.001, "Neg": 0.020}


class PickyToolchain(ToolchainBase):
    """Multiplies wrongly by weights whose first element is negative."""

    name = "picky"
    targets = ("llvm -compiler=picky",)

    def __init__(self) -> None:
        declare_time()

    def availability(self) -> Availability:
        return Availability(True, "1.0", "picky 1.0")

    def compile(self, kernel: ir.Model, target: Target, workspace: Path) -> Compiled:
        file = f"{kernel.graph.name}.picky.onnx"
        ir.save(kernel, workspace / file)
        inputs = tuple(str(value.name) for value in kernel.graph.inputs)
        outputs = tuple(str(value.name) for value in kernel.graph.outputs)
        weights = [value.const_value.numpy() for value in kernel.graph.initializers.values() if value.const_value]
        facts = {
            "wrong": any(weight.flat[0] < 0 for weight in weights),
            # The kernel by which the cost of a call is found has a Neg too.
            "seconds": sum(SECONDS[n.op_type] for n in kernel.graph)
            if kernel.graph.name != "collage_empty_picky"
            else 0.0,
        }
        return Compiled(self.name, str(target), (file,), inputs, outputs, metadata=facts)

    def load(self, compiled: Compiled, target: Target, workspace: Path, options: LoadOptions) -> Kernel:
        return _Kernel(compiled, workspace)


class _Kernel:
    reuses_outputs = False

    def __init__(self, compiled: Compiled, workspace: Path) -> None:
        from onnx.reference import ReferenceEvaluator

        self._compiled = compiled
        self._evaluator = ReferenceEvaluator(str(workspace / compiled.files[0]))

    def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
        time.sleep(self._compiled.metadata["seconds"])
        outputs = self._evaluator.run(None, dict(zip(self._compiled.inputs, inputs, strict=True)))
        return [output + 1 for output in outputs] if self._compiled.metadata["wrong"] else outputs
