"""A toolchain whose kernels take a number of threads, which makes them no faster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from collage.target import Target
from collage.testing import FakeToolchain
from collage.toolchains import Compiled

__all__ = ["ThreadedToolchain"]


class ThreadedToolchain(FakeToolchain):
    """A toolchain with the option ``threads`` that can say where the time goes.

    Args:
        seconds: Of every operator by type.
    """

    options: Mapping[str, str] = {"threads": "number of threads"}

    def __init__(self, seconds: Mapping[str, float]) -> None:
        super().__init__(seconds=seconds, name="threaded")
        self.worker_arguments = {"seconds": dict(seconds)}
        self._of_type = seconds

    def profile(
        self, compiled: Compiled, target: Target, workspace: Path, inputs: Sequence[Any], repeats: int
    ) -> Mapping[tuple[int, ...], float]:
        nodes = onnx.load(workspace / compiled.files[0]).graph.node
        return {(place,): self._of_type[node.op_type] for place, node in enumerate(nodes)}
