"""The memory that the rest of a model touches between two runs of a kernel.

Every other kernel runs in between, on all processors. Their weights are read once. Memory for activations is reused, so
it takes only some megabytes of a cache. Touching this memory also takes about as long as the earlier kernels would.
Meanwhile the helper threads of this kernel's toolchain go to sleep, as in a plan.

The limits are from plans of 6 to 24 kernels that ran in turns with their kernels alone. With activations of up to 16 MiB, sums
were at most 5 % off. With weights alone they were 7 to 28 % too low.
"""

from __future__ import annotations

from functools import cached_property

import onnx_ir as ir

from collage.measure.jobs import weight_bytes
from collage.numerics.value_store import ValueStore
from collage.target import Target

__all__ = ["CachePressure"]

_CACHE_BYTES = 32 << 20
"""More than this is not worth touching: no cache of one processor holds it."""
_REUSED_BYTES = 16 << 20
"""The most that activations take of a processor's caches."""


class CachePressure:
    """The surroundings of the kernels of one model.

    Args:
        model_bytes: Weights of the whole model.
        values: All values of its reference run. It must be complete before the first call.
        cores: Number of processors that kernels run on.
    """

    def __init__(self, model_bytes: int, values: ValueStore, cores: int) -> None:
        self._model_bytes = model_bytes
        self._values = values
        self._cores = cores

    def flush_bytes(self, kernel: ir.Model, target: Target) -> int:
        """Bytes that each processor touches between two runs of a kernel, or a device; 0 for the whole model."""
        weights = max(0, self._model_bytes - weight_bytes(kernel))
        if target.kind != "llvm":
            return min(_CACHE_BYTES, weights)
        graph = kernel.graph
        own = {str(value.name) for value in (*graph.inputs, *(value for node in graph for value in node.outputs))}
        everything = (
            weights + self._value_bytes - sum(self._values.nbytes(name) for name in own if name in self._values)
        )
        return max(
            min(_CACHE_BYTES, weights // self._cores),
            min(_REUSED_BYTES, max(0, everything) // self._cores),
        )

    @cached_property
    def _value_bytes(self) -> int:
        return sum(map(self._values.nbytes, self._values))
