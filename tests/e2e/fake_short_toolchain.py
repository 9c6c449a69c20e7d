"""A toolchain that takes operators one by one, and refuses some kernels of several."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from collage._errors import Unsupported
from collage.testing import FakeToolchain
from collage.toolchains import Compiled

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage.target import Target

__all__ = ["ShortToolchain"]


class ShortToolchain(FakeToolchain):
    """Takes no Neg, and at most two operators."""

    def __init__(self) -> None:
        super().__init__(name="short")
        self.worker_arguments = {}

    def compile(self, kernel: ir.Model, target: Target, workspace: Path) -> Compiled:
        if len(kernel.graph) > 2 or any(node.op_type == "Neg" for node in kernel.graph):
            raise Unsupported(f"short does not take {len(kernel.graph)} operators")
        return super().compile(kernel, target, workspace)
