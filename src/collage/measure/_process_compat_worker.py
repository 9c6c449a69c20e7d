"""Several toolchains in one process, to test if they work together. Runs in the child."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from collage.target import Target
from collage.toolchains import Kernel, LoadOptions, Toolchain

__all__ = ["ProcessCompatWorker"]

_SIZE = 64
_ROUNDS = 3
_TOLERANCE = 1e-3
_PROBES: Mapping[str, Callable[[Any], Any]] = {"MatMul": lambda x: x @ x, "Add": lambda x: x + x}


class ProcessCompatWorker:
    """Loads toolchains one after the other, as an executable does.

    Args:
        members: For each toolchain ``factory`` (``module:Class``), its ``arguments``, and one of its targets as ``target``.
        workspace: Folder for their kernels.
    """

    def __init__(self, members: Sequence[Mapping[str, Any]], workspace: str) -> None:
        self._members = members
        self._workspace = Path(workspace)

    def probe(self) -> str | None:
        """Build a kernel on each toolchain and run them in turns; return the fault that shows, or None."""
        cores = os.sched_getaffinity(0)
        loaded = {member["target"]: self._load(member) for member in self._members}
        kernels = {target: made for target, made in loaded.items() if made is not None}
        x = np.linspace(-1.0, 1.0, _SIZE * _SIZE, dtype=np.float32).reshape(_SIZE, _SIZE)
        for _ in range(_ROUNDS):
            for target, (kernel, expected) in kernels.items():
                found = np.asarray(kernel([x])[0])
                if found.shape != x.shape or not np.allclose(found, expected(x), _TOLERANCE, _TOLERANCE):
                    return f"{target} computes wrongly in the company of others"
        if os.sched_getaffinity(0) != cores:
            return "one of them keeps the process from some of its cores"
        return None

    def _load(self, member: Mapping[str, Any]) -> tuple[Kernel, Any] | None:
        """A kernel that wakes the toolchain's threads, a plainer one where it does not take that.

        None if it takes neither. Then only the presence of its library is tested.
        """
        module, _, name = member["factory"].partition(":")
        toolchain: Toolchain = getattr(importlib.import_module(module), name)(**member["arguments"])
        target = Target.parse(member["target"])
        for op_type, expected in _PROBES.items():
            with contextlib.suppress(Exception):
                return self._built(toolchain, target, op_type), expected
        return None

    def _built(self, toolchain: Toolchain, target: Target, op_type: str) -> Kernel:
        compiled = toolchain.compile(_twice(op_type, toolchain.name), target, self._workspace)
        return toolchain.load(compiled, target, self._workspace, LoadOptions())


def _twice(op_type: str, owner: str) -> ir.Model:
    """``op(x, x)``."""

    def value(name: str) -> ir.Value:
        return ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([_SIZE, _SIZE]))

    x, y = value("x"), value("y")
    node = ir.Node("", op_type, [x, x], outputs=[y], name="node")
    name = f"collage_sharing_{owner}_{op_type.lower()}"
    return ir.Model(ir.Graph([x], [y], nodes=[node], opset_imports={"": 17}, name=name), ir_version=10)
