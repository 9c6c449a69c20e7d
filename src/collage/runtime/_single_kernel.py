"""The executor of one kernel that is the whole model: a call costs little more than the kernel.

Small models take some hundred microseconds. Between two calls of a kernel the processor's caches are full of its data, and
every object that Python touches is fetched again: what takes 3 us in a loop takes 12 there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from collage.runtime._executor import Executor, Host, Step
from collage.toolchains import InPlaceKernel

__all__ = ["SingleKernelExecutor"]


class SingleKernelExecutor(Executor):
    """Runs one step whose inputs and outputs are the model's.

    Args:
        steps: The step; see ``suits``.
        inputs: Names of the model's inputs.
        outputs: Names of the model's outputs.
        host: As for ``Executor``.
    """

    def __init__(self, steps: Sequence[Step], inputs: Sequence[str], outputs: Sequence[str], host: Host | None) -> None:
        super().__init__(steps, inputs, outputs, host)
        (self._only,) = (step.kernel for step in steps)
        self._only_into = self._into[0]
        self._takes = [take for _, take in self._leaving]

    @staticmethod
    def suits(steps: Sequence[Step], inputs: Sequence[str], outputs: Sequence[str]) -> bool:
        """True if there is one step with the model's inputs and outputs in their order, and no output must be copied."""
        if len(steps) != 1 or (steps[0].inputs, steps[0].outputs) != (tuple(inputs), tuple(outputs)):
            return False
        if set(inputs) & set(outputs) or len(set(outputs)) < len(outputs):
            return False
        return isinstance(steps[0].kernel, InPlaceKernel) or not steps[0].kernel.reuses_outputs

    def run(self, values: Sequence[Any]) -> Sequence[Any]:
        """See ``Executor``."""
        into = self._only_into
        try:
            if into is not None:
                into(values, buffers := [take() for take in self._takes])
                return [buffer.view() for buffer in buffers]
            made = self._only(values)
        except Exception as error:
            return self._owned(list(self._rescue(0, values, error)), values, self._apart)
        return self._owned(list(made), values, self._unproven) if self._unproven else made
