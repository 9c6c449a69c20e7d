"""Toolchains for two kinds of device, both of which are this machine: placing can be tested anywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from collage.target import Target
from collage.toolchains import Compiled
from tests.fixed_time_toolchain import DeclaredToolchain


class NearToolchain(DeclaredToolchain):
    """A toolchain that can say where the time goes.

    Args:
        seconds: Of every operator by type.
        name: What it is called.
        kind: The target kind that it serves.
    """

    def __init__(self, seconds: dict[str, float], name: str = "near", kind: str = "llvm") -> None:
        super().__init__(seconds=seconds, name=name)
        self.targets = (f"{kind} -compiler={name}",)
        self.worker_arguments = {"seconds": seconds, "name": name, "kind": kind}
        self._of_type = seconds

    def profile(
        self, compiled: Compiled, target: Target, workspace: Path, inputs: Sequence[Any], repeats: int
    ) -> Mapping[tuple[int, ...], float]:
        nodes = onnx.load(workspace / compiled.files[0]).graph.node
        return {(place,): self._of_type[node.op_type] for place, node in enumerate(nodes)}


class TextureToolchain(NearToolchain):
    """A toolchain whose kernels read their first argument from another memory of the device than they write to."""

    def compile(self, kernel: ir.Model, target: Target, workspace: Path) -> Compiled:
        made = super().compile(kernel, target, workspace)
        scopes = {"inputs": ["texture", *[None] * (len(made.inputs) - 1)], "outputs": ["global"]}
        return replace(made, metadata={**made.metadata, "memory_scopes": scopes})
