"""A toolchain that computes one type of operator wrongly, or a product beside it: faults that a search for them has to find."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from collage.target import Target
from collage.testing import FakeToolchain
from collage.toolchains import Compiled, Kernel, LoadOptions


class WrongOperator(FakeToolchain):
    """Right but for kernels with all of some operators.

    Args:
        operators: Types of operators, in any order. A kernel that holds each of them is wrong.
    """

    def __init__(self, operators: Sequence[str] = (), name: str = "wrongop") -> None:
        super().__init__(name=name)
        self._operators = set(operators)
        self.worker_arguments = {"operators": list(operators), "name": name}

    def load(self, compiled: Compiled, target: Target, workspace: Path, options: LoadOptions) -> Kernel:
        """A kernel whose outputs are off by a thousandth, if it holds the operators."""
        kernel = super().load(compiled, target, workspace, options)
        if not self._operators <= {node.op_type for node in kernel._evaluator.proto_.graph.node}:  # type: ignore[attr-defined]
            return kernel

        def wrong(inputs: Sequence[Any]) -> Sequence[Any]:
            return [output * 1.001 if output.dtype.kind == "f" else output for output in kernel(inputs)]

        return wrong
