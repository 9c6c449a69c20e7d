"""A toolchain that is three times as fast where it may be rough, and whose roughness depends on the operator."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from collage.target import Target
from collage.toolchains import Availability, Compiled, Kernel, LoadOptions, ToolchainBase
from tests.fixed_time_toolchain import declare_time

ERRORS = {"Relu": 3e-4, "Neg": 3e-4, "Abs": 3e-4, "Tanh": 3e-2}
SECONDS = {"f32": 0.003, "bf16": 0.001}


class RoughToolchain(ToolchainBase):
    name = "rough"
    targets = ("llvm -compiler=rough",)
    options = {"precision": "f32 or bf16"}

    def __init__(self) -> None:
        declare_time()

    def availability(self) -> Availability:
        return Availability(True, "1.0", "rough 1.0", precisions=("bf16",))

    def compile(self, kernel: ir.Model, target: Target, workspace: Path) -> Compiled:
        file = f"{kernel.graph.name}.{target.option('precision', 'f32')}.onnx"
        ir.save(kernel, workspace / file)
        operators = [node.op_type for node in kernel.graph]
        inputs = tuple(str(value.name) for value in kernel.graph.inputs)
        outputs = tuple(str(value.name) for value in kernel.graph.outputs)
        return Compiled(self.name, str(target), (file,), inputs, outputs, metadata={"operators": operators})

    def load(self, compiled: Compiled, target: Target, workspace: Path, options: LoadOptions) -> Kernel:
        return _Kernel(compiled, target.option("precision", "f32") or "f32", workspace)


class _Kernel:
    reuses_outputs = False

    def __init__(self, compiled: Compiled, precision: str, workspace: Path) -> None:
        from onnx.reference import ReferenceEvaluator

        self._inputs = compiled.inputs
        self._evaluator = ReferenceEvaluator(str(workspace / compiled.files[0]))
        operators = compiled.metadata["operators"]
        self._error = sum(ERRORS[operator] for operator in operators) if precision == "bf16" else 0.0
        self._seconds = SECONDS[precision] * len(operators)

    def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
        # The smallest of tensors take no time, so that a call by itself, which is measured with one, costs nothing.
        time.sleep(self._seconds if inputs[0].size > 16 else 0.0)
        outputs = self._evaluator.run(None, dict(zip(self._inputs, inputs, strict=True)))
        return [output * output.dtype.type(1 + self._error) for output in outputs]
