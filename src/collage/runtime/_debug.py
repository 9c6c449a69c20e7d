"""Debug mode: every kernel is checked at its border, on every call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from collage._errors import ToolchainError
from collage.runtime._buffers import aligned_copy, same_bytes
from collage.runtime._recipe import KernelRecord
from collage.runtime._signature import Port
from collage.toolchains import Kernel

__all__ = ["CheckedKernel"]

Array = np.ndarray[Any, np.dtype[Any]]


class CheckedKernel:
    """A wrapper that checks a kernel's inputs and outputs, and that the kernel does not change its inputs.

    The kernel gets aligned, writeable copies of its inputs. Some runtimes overwrite inputs whose memory is aligned, and copy
    the others.

    Args:
        kernel: The kernel to call.
        record: The kernel's record in the recipe.
        source: The kernel as a model. It states the types and shapes that are right.
    """

    def __init__(self, kernel: Kernel, record: KernelRecord, source: ir.Model) -> None:
        self._kernel = kernel
        self._who = f"kernel {record.name} ({record.target})"
        self.reuses_outputs = kernel.reuses_outputs
        ports = {str(v.name): Port.of(v) for v in (*source.graph.inputs, *source.graph.outputs)}
        self._inputs = [ports[name] for name in record.inputs]
        self._outputs = [ports[name] for name in record.outputs]
        self._last: Sequence[Any] = ()

    def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Call the kernel.

        Raises:
            ToolchainError: A value does not have the model's type or shape, an input was changed, or an output shares
                memory. Names the kernel and the value.
        """
        self._check("is given", self._inputs, inputs)
        lent = [aligned_copy(value) if _has_memory(value) else value for value in inputs]
        outputs = self._kernel(lent)
        for port, value, mine in zip(self._inputs, inputs, lent, strict=True):
            if _has_memory(value) and not same_bytes(value, mine):
                raise ToolchainError(f"{self._who} changed its input {port.name!r}")
        self._check("returned", self._outputs, outputs)
        if not self.reuses_outputs:
            self._check_apart(outputs, lent, "one of its inputs")
            self._check_apart(outputs, self._last, "what it returned before")
            self._last = outputs
        return outputs

    def _check(self, verb: str, ports: Sequence[Port], values: Sequence[Any]) -> None:
        who = f"{self._who} {verb}"
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

    def _check_apart(self, outputs: Sequence[Any], others: Sequence[Any], what: str) -> None:
        for port, value in zip(self._outputs, outputs, strict=True):
            if any(_has_memory(value) and _has_memory(other) and np.may_share_memory(value, other) for other in others):
                raise ToolchainError(f"{self._who} returned {port.name!r} in the memory of {what}")


def _fits(port: Port, value: Array) -> bool:
    if value.dtype.kind != "O" and value.dtype.name != port.dtype:
        return False
    if port.shape is None:
        return True
    same_rank = len(port.shape) == value.ndim
    return same_rank and all(
        not isinstance(wanted, int) or wanted == length for wanted, length in zip(port.shape, value.shape, strict=True)
    )


def _has_memory(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind != "O"
