"""Debug mode: every kernel is checked at its border, on every call."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from collage._errors import ToolchainError
from collage.runtime._recipe import KernelRecord
from collage.runtime._signature import Port
from collage.toolchains import Kernel

__all__ = ["CheckedKernel"]


class CheckedKernel:
    """A kernel that believes nobody: neither its inputs, nor that it leaves them alone, nor its outputs.

    Args:
        kernel: What is called.
        record: Of the kernel.
        source: The kernel as a model, which says what types and shapes are right.
    """

    def __init__(self, kernel: Kernel, record: KernelRecord, source: ir.Model) -> None:
        self._kernel = kernel
        self._record = record
        self.reuses_outputs = kernel.reuses_outputs
        ports = {str(v.name): Port.of(v) for v in (*source.graph.inputs, *source.graph.outputs)}
        self._inputs = [ports[name] for name in record.inputs]
        self._outputs = [ports[name] for name in record.outputs]

    def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Calls the kernel.

        Raises:
            ToolchainError: A value is not what the model says, or an input was changed; names the kernel and the value.
        """
        self._check("is given", self._inputs, inputs)
        before = [_digest(value) for value in inputs]
        outputs = self._kernel(inputs)
        for port, value, digest in zip(self._inputs, inputs, before, strict=True):
            if _digest(value) != digest:
                raise ToolchainError(
                    f"kernel {self._record.name} ({self._record.target}) changed its input {port.name!r}"
                )
        self._check("returned", self._outputs, outputs)
        return outputs

    def _check(self, verb: str, ports: Sequence[Port], values: Sequence[Any]) -> None:
        who = f"kernel {self._record.name} ({self._record.target}) {verb}"
        if len(ports) != len(values):
            raise ToolchainError(f"{who} {len(values)} values where it has {len(ports)}")
        for port, value in zip(ports, values, strict=True):
            if port.dtype is None:
                continue
            if not isinstance(value, np.ndarray):
                raise ToolchainError(f"{who} a {type(value).__name__} for {port}")
            if not _fits(port, value):
                raise ToolchainError(f"{who} {value.dtype}{list(value.shape)} for {port}")
            if not value.flags.c_contiguous:
                raise ToolchainError(f"{who} {port}, but not in row-major order")


def _fits(port: Port, value: np.ndarray[Any, Any]) -> bool:
    if value.dtype.kind != "O" and value.dtype.name != port.dtype:
        return False
    if port.shape is None:
        return True
    same_rank = len(port.shape) == value.ndim
    return same_rank and all(
        not isinstance(wanted, int) or wanted == length for wanted, length in zip(port.shape, value.shape, strict=True)
    )


def _digest(value: Any) -> bytes | None:
    if not isinstance(value, np.ndarray) or value.dtype.kind == "O":
        return None
    return hashlib.blake2b(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data).digest()
