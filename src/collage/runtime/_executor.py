"""The executor: kernels in order, each handed what the ones before it made. No copies, no dictionaries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from collage.toolchains import Kernel

__all__ = ["Executor", "Step"]


@dataclass(frozen=True, slots=True)
class Step:
    """One kernel call.

    Attributes:
        name: The kernel's global symbol.
        kernel: What to call.
        inputs: Names of the values it reads, in its order.
        outputs: Names of the values it makes, in its order.
    """

    name: str
    kernel: Kernel
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class Executor:
    """Runs steps over slots; a value's slot is emptied after its last use, so that its memory can serve again."""

    def __init__(self, steps: Sequence[Step], inputs: Sequence[str], outputs: Sequence[str]) -> None:
        names = list(dict.fromkeys([*inputs, *(name for step in steps for name in step.outputs)]))
        slot = {name: index for index, name in enumerate(names)}
        last_use = {name: position for position, step in enumerate(steps) for name in step.inputs}
        kept = set(outputs)
        self._width = len(names)
        self._inputs = len(inputs)
        self._steps = [
            (
                step.kernel,
                tuple(slot[name] for name in step.inputs),
                tuple(slot[name] for name in step.outputs),
                tuple(slot[n] for n in dict.fromkeys(step.inputs) if last_use[n] == position and n not in kept),
            )
            for position, step in enumerate(steps)
        ]
        self._outputs = tuple(slot[name] for name in outputs)
        # An output must outlive the next run: it is copied where its memory belongs to a kernel, or to the caller.
        lent = {name for step in steps if step.kernel.reuses_outputs for name in step.outputs} | set(inputs)
        self._copied = tuple(name in lent for name in outputs)
        self._whole = self._only_kernel(steps, inputs, outputs)
        self._copies = any(self._copied)

    def run(self, values: Sequence[Any]) -> Sequence[Any]:
        """Runs all steps on inputs in the model's order; returns outputs in the model's order."""
        if self._whole is not None:
            results: Sequence[Any] = self._whole(values)
        else:
            slots: list[Any] = [None] * self._width
            slots[: self._inputs] = values
            for kernel, inputs, outputs, dead in self._steps:
                made = kernel([slots[i] for i in inputs])
                for index, value in zip(outputs, made, strict=True):
                    slots[index] = value
                for index in dead:
                    slots[index] = None
            results = [slots[i] for i in self._outputs]
        if not self._copies:
            return results
        return [_own(value) if copy else value for value, copy in zip(results, self._copied, strict=True)]

    @staticmethod
    def _only_kernel(steps: Sequence[Step], inputs: Sequence[str], outputs: Sequence[str]) -> Kernel | None:
        """The kernel that is the whole model, if there is one: it needs no slots."""
        if len(steps) == 1 and steps[0].inputs == tuple(inputs) and steps[0].outputs == tuple(outputs):
            return steps[0].kernel
        return None


def _own(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value
