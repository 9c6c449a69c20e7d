"""What the rest of a model leaves of a kernel's caches, from one of its runs to the next.

Every other kernel runs in between, on all processors. Their weights are read once; memory for activations is used over and
over, so that some megabytes are all that it takes of a cache, however many there are of it (see ``collage.cost.clutter``).
Touching them also takes about as long as the kernels before do, so that the helpers of this one's toolchain have gone to sleep,
as they have in a plan.

Five plans of ten kernels of light models, on two toolchains each, were run in turn with bursts of their kernels, all in one
process. Where activations were touched once, up to 16 MiB, sums were 0 to 10 % too low from the fourth run of a burst on; where
up to 12 MiB are touched twice, 2 % too low to 6 % too high; 16 MiB twice, 3 to 11 % too high; 8 MiB twice, 4 to 11 % too low.
Before, when one processor touched weights alone, they were 7 to 28 % too low.
"""

from __future__ import annotations

from functools import cached_property

import onnx_ir as ir

from collage.cost.clutter import REUSED_BYTES
from collage.cost.jobs import weight_bytes
from collage.cost.values import ValueStore
from collage.target import Target

__all__ = ["Surroundings"]

_CACHE_BYTES = 32 << 20
"""More than this is not worth touching: no cache of one processor holds it."""


class Surroundings:
    """What lies around the kernels of one model.

    Args:
        model_bytes: Weights of the whole model.
        values: All values of its reference run, by the time that anything is asked.
        cores: Number of processors that kernels run on.
    """

    def __init__(self, model_bytes: int, values: ValueStore, cores: int) -> None:
        self._model_bytes = model_bytes
        self._values = values
        self._cores = cores

    def touched_bytes(self, kernel: ir.Model, target: Target) -> int:
        """Bytes that each processor touches between two runs of a kernel, or a device; 0 for the whole model."""
        weights = max(0, self._model_bytes - weight_bytes(kernel))
        if target.kind != "llvm":
            return min(_CACHE_BYTES, weights)
        graph = kernel.graph
        own = {str(value.name) for value in (*graph.inputs, *(value for node in graph for value in node.outputs))}
        everything = (
            weights + self._value_bytes - sum(self._values.nbytes(name) for name in own if name in self._values)
        )
        read_once = min(_CACHE_BYTES, weights // self._cores)
        used_again = min(REUSED_BYTES, max(0, everything) // self._cores)
        # Of what is used again, twice as much goes through the caches (see ``Clutter.touch``).
        return read_once if read_once >= 2 * used_again else used_again

    @cached_property
    def _value_bytes(self) -> int:
        return sum(map(self._values.nbytes, self._values))
