"""The executor: kernels in order, each handed what the ones before it made. No copies, no dictionaries."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from collage.toolchains import Kernel

__all__ = ["Executor", "Host", "Span", "Step"]

Span = tuple[int, int]
"""When a step began and ended, in ns of ``time.perf_counter_ns``."""


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


class Host(Protocol):
    """Who can run a step's operators instead of its kernel."""

    def run(self, position: int, inputs: Sequence[Any]) -> Sequence[Any]:
        """The outputs of the step at a position."""
        ...

    def rescue(self, position: int, inputs: Sequence[Any], error: Exception) -> Sequence[Any]:
        """The outputs of a step whose kernel failed; or raises."""
        ...


class Executor:
    """Runs steps over slots; a value's slot is emptied after its last use, so that its memory can serve again.

    It keeps nothing between runs: as many may go on at once as its kernels allow, which is one by their contract.

    Args:
        steps: In the order in which they run.
        inputs: Names of the model's inputs.
        outputs: Names of the model's outputs.
        host: Stands in where a kernel fails; without one the failure is the run's.
    """

    def __init__(
        self, steps: Sequence[Step], inputs: Sequence[str], outputs: Sequence[str], host: Host | None = None
    ) -> None:
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
        self._copies = any(self._copied)
        self._whole = self._only_kernel(steps, inputs, outputs)
        self._host = host
        self._rescue = host.rescue if host is not None else _fail

    def run(self, values: Sequence[Any]) -> Sequence[Any]:
        """Runs all steps on inputs in the model's order; returns outputs in the model's order."""
        if self._whole is not None:
            try:
                results: Sequence[Any] = self._whole(values)
            except Exception as error:
                results = self._rescue(0, values, error)
        else:
            results = self._run_steps(values)
        return self._owned(results) if self._copies else results

    def run_empty(self, values: Sequence[Any]) -> Sequence[Any]:
        """Runs like ``run``, where an input has no elements: kernels that are given such a tensor are left to the host.

        Toolchains get nothing wrong as often as nothing: one leaves reductions over it unwritten. Nor is there anything
        to gain.
        """
        if self._host is None:
            return self.run(values)
        slots = self._slots(values)
        for position, (_, inputs, _, _) in enumerate(self._steps):
            given = [slots[i] for i in inputs]
            if any(isinstance(value, np.ndarray) and not value.size for value in given):
                made = self._host.run(position, given)
            else:
                made = self._call(position, slots)
            self._settle(position, slots, made)
        return self._owned([slots[i] for i in self._outputs])

    def trace(self, values: Sequence[Any]) -> tuple[Sequence[Any], list[Span]]:
        """Runs like ``run``, and tells when each step's kernel began and ended."""
        spans: list[Span] = []
        slots = self._slots(values)
        for position in range(len(self._steps)):
            began = time.perf_counter_ns()
            made = self._call(position, slots)
            spans.append((began, time.perf_counter_ns()))
            self._settle(position, slots, made)
        return self._owned([slots[i] for i in self._outputs]), spans

    def _run_steps(self, values: Sequence[Any]) -> Sequence[Any]:
        slots = self._slots(values)
        # The same as calling _call and _settle, spelt out: calls would double what a kernel costs on top of itself.
        for position, (kernel, inputs, outputs, dead) in enumerate(self._steps):
            try:
                made = kernel([slots[i] for i in inputs])
            except Exception as error:
                made = self._rescue(position, [slots[i] for i in inputs], error)
            if len(outputs) == 1:
                slots[outputs[0]] = made[0]
            else:
                for index, value in zip(outputs, made, strict=True):
                    slots[index] = value
            for index in dead:
                slots[index] = None
        return [slots[i] for i in self._outputs]

    def _slots(self, values: Sequence[Any]) -> list[Any]:
        slots: list[Any] = [None] * self._width
        slots[: self._inputs] = values
        return slots

    def _call(self, position: int, slots: list[Any]) -> Sequence[Any]:
        kernel, inputs, _, _ = self._steps[position]
        values = [slots[i] for i in inputs]
        try:
            return kernel(values)
        except Exception as error:
            return self._rescue(position, values, error)

    def _settle(self, position: int, slots: list[Any], made: Sequence[Any]) -> None:
        _, _, outputs, dead = self._steps[position]
        for index, value in zip(outputs, made, strict=True):
            slots[index] = value
        for index in dead:
            slots[index] = None

    def _owned(self, results: Sequence[Any]) -> Sequence[Any]:
        return [_own(value) if copy else value for value, copy in zip(results, self._copied, strict=True)]

    @staticmethod
    def _only_kernel(steps: Sequence[Step], inputs: Sequence[str], outputs: Sequence[str]) -> Kernel | None:
        """The kernel that is the whole model, if there is one: it needs no slots."""
        if len(steps) == 1 and steps[0].inputs == tuple(inputs) and steps[0].outputs == tuple(outputs):
            return steps[0].kernel
        return None


def _fail(position: int, inputs: Sequence[Any], error: Exception) -> Sequence[Any]:
    raise error


def _own(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value
