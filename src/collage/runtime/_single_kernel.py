"""The executor of one kernel that is the whole model: a call costs little more than the kernel.

Small models take some hundred microseconds. Between two calls of a kernel the processor's caches are full of its data, and
every object that Python touches is fetched again: what takes 3 us in a loop takes 12 there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from collage._errors import ToolchainError
from collage.runtime._executor import Executor, Host, Step
from collage.toolchains import InPlaceKernel

__all__ = ["SingleKernelExecutor"]


class SingleKernelExecutor(Executor):
    """Runs one step whose inputs and outputs are the model's, in any order.

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
        self._count = len(outputs)
        self._takes = [take for _, take in self._leaving]
        self._arrange = _permutation(inputs, steps[0].inputs)
        self._order = _permutation(steps[0].outputs, outputs)

    @staticmethod
    def suits(steps: Sequence[Step], inputs: Sequence[str], outputs: Sequence[str]) -> bool:
        """True if there is one step with the model's inputs and outputs, each once, and no output must be copied."""
        if len(steps) != 1 or set(inputs) & set(outputs):
            return False
        for own, whole in (steps[0].inputs, inputs), (steps[0].outputs, outputs):
            if sorted(own) != sorted(whole) or len(set(whole)) < len(whole):
                return False
        return isinstance(steps[0].kernel, InPlaceKernel) or not steps[0].kernel.reuses_outputs

    def run(self, values: Sequence[Any]) -> Sequence[Any]:
        """See ``Executor``."""
        into, suspects = self._only_into, self._unproven
        if self._arrange is not None:
            values = self._arrange(values)
        try:
            if into is not None:
                into(values, buffers := [take() for take in self._takes])
                made: Sequence[Any] = [buffer.view() for buffer in buffers]
            else:
                made = self._only(values)
                if len(made) != self._count:
                    raise ToolchainError(f"a kernel of {self._count} outputs returned {len(made)}")
        except Exception as error:
            made, suspects = self._rescue(0, values, error), self._apart
        if self._order is not None:
            made = self._order(made)
        return self._owned(list(made), values, suspects) if suspects else made


def _permutation(names: Sequence[str], wanted: Sequence[str]) -> Callable[[Sequence[Any]], Sequence[Any]] | None:
    """Return what puts values of these names in the wanted order, or None if they are in it."""
    return None if tuple(names) == tuple(wanted) else itemgetter(*map(list(names).index, wanted))
