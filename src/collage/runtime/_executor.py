"""The executor: kernels in order, each with the results of earlier ones as inputs. No copies, no dictionaries."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from collage._errors import InputError
from collage.runtime._buffers import Lifetime, OutputBuffer, arrays_in_one_block, fits, same_place
from collage.toolchains import AllocatingKernel, EmptyTakingKernel, InPlaceKernel, Kernel, Layout, size_bytes

__all__ = ["Executor", "Host", "Span", "Step", "Targets", "written_to"]

Span = tuple[int, int]
"""Start and end of a step, in ns of ``time.perf_counter_ns``."""

Targets = Sequence[np.ndarray[Any, Any] | None]
"""For each output the array to write it to, or None to allocate memory."""


@dataclass(frozen=True, slots=True)
class Step:
    """One kernel call.

    Attributes:
        name: The kernel's global symbol.
        kernel: The kernel to call.
        inputs: Names of the values it reads, in its order.
        outputs: Names of the values it makes, in its order.
    """

    name: str
    kernel: Kernel
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class Host(Protocol):
    """A fallback that runs a step's operators instead of its kernel."""

    def run(self, position: int, inputs: Sequence[Any]) -> Sequence[Any]:
        """Return the outputs of the step at a position."""
        ...

    def rescue(self, position: int, inputs: Sequence[Any], error: Exception) -> Sequence[Any]:
        """Return the outputs of a step whose kernel failed, or raise."""
        ...


class Executor:
    """Runs steps over slots, one run at a time.

    Kernels that write in place get buffers. Values that stay within a run share a block that is planned once, by lifetime.
    Outputs get buffers that have no other reference. The slot of any other value is emptied after its last use.

    Args:
        steps: The steps, in the order in which they run.
        inputs: Names of the model's inputs.
        outputs: Names of the model's outputs.
        host: Fallback for kernels that fail. Without one the run fails.
        in_order: True if steps run in this order only. Otherwise buffers are not shared.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        inputs: Sequence[str],
        outputs: Sequence[str],
        host: Host | None = None,
        *,
        in_order: bool = True,
    ) -> None:
        names = list(dict.fromkeys([*inputs, *(name for step in steps for name in step.outputs)]))
        slot = {name: index for index, name in enumerate(names)}
        last_use = {name: position for position, step in enumerate(steps) for name in step.inputs}
        memory = _Memory(steps, inputs, outputs)
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
        self._into = [step.kernel.run_into if isinstance(step.kernel, InPlaceKernel) else None for step in steps]
        self._program = list(zip(self._into, self._steps, strict=True))
        self._outputs = tuple(slot[name] for name in outputs)
        self._template: list[Any] = [None] * self._width
        self._block: Any = None
        for name, array in memory.arrays_within(in_order).items():
            self._template[slot[name]] = array
            self._block = array.base
        self._leaving = [(slot[name], OutputBuffer(layout).take) for name, layout in memory.leaving.items()]
        self._written = {outputs.index(name): (slot[name], layout) for name, layout in memory.leaving.items()}
        # An output must outlive the next run, and be the caller's alone: it is copied where its memory may belong to a
        # kernel, to the caller, or to another output.
        first = {name: outputs.index(name) for name in kept}
        self._views = [i for i, name in enumerate(outputs) if name in memory.leaving and first[name] == i]
        self._lent = [i for i, name in enumerate(outputs) if memory.lies_in[name] and i not in self._views]
        self._lent += [i for i, name in enumerate(outputs) if not memory.lies_in[name] and first[name] != i]
        new = [i for i, name in enumerate(outputs) if not memory.lies_in[name] and first[name] == i]
        proven = {name for step in steps if _allocates(step.kernel) for name in step.outputs}
        self._unproven = [i for i in new if outputs[i] not in proven]
        # Where the host stands in for a kernel, nothing is proven, and nothing was written in place.
        self._apart = [*self._views, *new]
        self._host = host
        self._rescue = host.rescue if host is not None else _fail

    def run(self, values: Sequence[Any]) -> Sequence[Any]:
        """Run all steps on inputs in the model's order, and return outputs in the model's order."""
        slots, suspects = self._slots(values), self._unproven
        # The same as calling _call and _settle, spelt out: calls would double what a kernel costs on top of itself.
        for position, (into, (kernel, inputs, outputs, dead)) in enumerate(self._program):
            given = [slots[i] for i in inputs]
            try:
                if into is None:
                    made = kernel(given)
                else:
                    into(given, made := [slots[i] for i in outputs])
            except Exception as error:
                made, suspects = self._rescue(position, given, error), self._apart
            for index, value in zip(outputs, made, strict=True):
                slots[index] = value
            for index in dead:
                slots[index] = None
        return self._owned([slots[i] for i in self._outputs], values, suspects)

    def run_empty(self, values: Sequence[Any]) -> Sequence[Any]:
        """Run like ``run``, where an input has no elements: the host stands in for kernels that do not take such a tensor."""
        if self._host is None:
            return self.run(values)
        slots = self._slots(values)
        for position in range(len(self._steps)):
            self._settle(position, slots, self._call(position, slots, is_empty=True))
        return self._owned([slots[i] for i in self._outputs], values, self._apart)

    def run_to(self, values: Sequence[Any], targets: Targets, is_empty: bool = False) -> Sequence[Any]:
        """Run like ``run``, and write outputs to arrays of the caller: in place where a kernel can, else by copying.

        Raises:
            InputError: The shape of an output is not that of its array.
        """
        return written_to(self.run_empty(values) if is_empty else self._run_in_place(values, targets), targets)

    def _run_in_place(self, values: Sequence[Any], targets: Targets) -> Sequence[Any]:
        slots = self._slots(values, targets)
        for position in range(len(self._steps)):
            self._settle(position, slots, self._call(position, slots))
        return self._owned([slots[i] for i in self._outputs], values, self._apart)

    def trace(self, values: Sequence[Any], is_empty: bool = False) -> tuple[Sequence[Any], list[Span]]:
        """Run like ``run``, or like ``run_empty``, and return when each step's kernel began and ended."""
        spans: list[Span] = []
        slots = self._slots(values)
        for position in range(len(self._steps)):
            began = time.perf_counter_ns()
            made = self._call(position, slots, is_empty)
            spans.append((began, time.perf_counter_ns()))
            self._settle(position, slots, made)
        return self._owned([slots[i] for i in self._outputs], values, self._apart), spans

    def _slots(self, values: Sequence[Any], targets: Targets = ()) -> list[Any]:
        slots = self._template.copy()
        slots[: self._inputs] = values
        for index, take in self._leaving:
            slots[index] = take()
        for position, (index, layout) in self._written.items() if targets else ():
            target = targets[position]
            # Views that other libraries made of the caller's array do not name it as their base.
            if target is not None and fits(target, layout) and not any(_meets(target, value) for value in values):
                slots[index] = target
        return slots

    def _call(self, position: int, slots: list[Any], is_empty: bool = False) -> Sequence[Any]:
        kernel, inputs, outputs, _ = self._steps[position]
        into = self._into[position]
        values = [slots[i] for i in inputs]
        if is_empty and self._host is not None and not _takes_empty(kernel) and any(map(_has_nothing, values)):
            return self._host.run(position, values)
        try:
            if into is None:
                return kernel(values)
            into(values, made := [slots[i] for i in outputs])
            return made
        except Exception as error:
            return self._rescue(position, values, error)

    def _settle(self, position: int, slots: list[Any], made: Sequence[Any]) -> None:
        _, _, outputs, dead = self._steps[position]
        for index, value in zip(outputs, made, strict=True):
            slots[index] = value
        for index in dead:
            slots[index] = None

    def _owned(self, results: list[Any], values: Sequence[Any], suspects: Sequence[int]) -> list[Any]:
        """Results that the caller may write to, and nothing else changes; some are looked at for whether they are new."""
        for i in self._views:
            results[i] = results[i].view()
        for i in self._lent:
            results[i] = _own(results[i])
        # Runtimes pass an input on, give one tensor out twice, or forbid writing to it, and few documents say when.
        for i in suspects:
            made = results[i]
            if isinstance(made, np.ndarray):
                others = values if len(results) == 1 else [*values, *results[:i], *results[i + 1 :]]
                if not made.flags.writeable or _shares_memory(made, self._block, others):
                    results[i] = made.copy()
        return results


def written_to(results: Sequence[Any], targets: Targets) -> Sequence[Any]:
    """Return results, and in place of some the caller's arrays, to which they are copied unless they are there.

    Raises:
        InputError: The shape of a result is not that of its array.
    """
    for position, target in enumerate(targets):
        if target is None or same_place(result := results[position], target):
            continue
        if np.shape(result) != target.shape:
            raise InputError(
                f"output {position} has shape {list(np.shape(result))}, and is to be written to {list(target.shape)}"
            )
        np.copyto(target, result, casting="no")
    return [result if target is None else target for result, target in zip(results, targets, strict=True)]


class _Memory:
    """The memory of values, as far as it is known before a run.

    Attributes:
        lies_in: For each value, the values whose memory it may share, itself included. Empty if its kernel allocates memory.
        leaving: Values that kernels write in place and that leave the run, and their layouts.
    """

    def __init__(self, steps: Sequence[Step], inputs: Sequence[str], outputs: Sequence[str]) -> None:
        self.lies_in: dict[str, set[str]] = {name: {name} for name in inputs}
        self._layouts: dict[str, Layout] = {}
        self._first: dict[str, int] = {}
        self._last: dict[str, int] = {}
        for position, step in enumerate(steps):
            for name in step.inputs:
                self._last |= dict.fromkeys(self.lies_in.get(name, {name}), position)
            if isinstance(step.kernel, InPlaceKernel):
                self._layouts |= zip(step.outputs, step.kernel.layouts, strict=True)
                self._first |= dict.fromkeys(step.outputs, position)
                self.lies_in |= {name: {name} for name in step.outputs}
            elif step.kernel.reuses_outputs:
                # What a view returns lies where its input does.
                passed_on = set().union(*(self.lies_in.get(name, {name}) for name in step.inputs))
                self.lies_in |= {name: {name, *passed_on} for name in step.outputs}
            else:
                self.lies_in |= {name: set() for name in step.outputs}
        left = {name for name in outputs if name in self._layouts}
        self.leaving = {name: layout for name, layout in self._layouts.items() if name in left}
        end = len(steps)
        for name in outputs:
            self._last |= dict.fromkeys(self.lies_in[name], end)

    def arrays_within(self, in_order: bool) -> dict[str, np.ndarray[Any, Any]]:
        """A buffer for every value that is written in place and stays within the run."""
        within = {name: layout for name, layout in self._layouts.items() if name not in self.leaving}
        lifetimes = []
        for name, layout in within.items():
            first = self._first[name] if in_order else 0
            lifetimes.append(Lifetime(size_bytes(layout), first, max(first, self._last.get(name, 0))))
        return dict(zip(within, arrays_in_one_block(list(within.values()), lifetimes), strict=True))


def _allocates(kernel: Kernel) -> bool:
    return isinstance(kernel, AllocatingKernel) and kernel.allocates_outputs


def _takes_empty(kernel: Kernel) -> bool:
    return isinstance(kernel, EmptyTakingKernel) and kernel.takes_empty


def _has_nothing(value: Any) -> bool:
    return isinstance(value, np.ndarray) and not value.size


def _fail(position: int, inputs: Sequence[Any], error: Exception) -> Sequence[Any]:
    raise error


def _shares_memory(array: np.ndarray[Any, Any], block: Any, others: Iterable[Any]) -> bool:
    """True if an array is in a run's own block, or shares memory with others."""
    base = array.base
    if base is None:  # It owns its memory: others lie there only if they are the same array, or views of it.
        return any(other is array or (isinstance(other, np.ndarray) and other.base is array) for other in others)
    return base is block or any(_meets(array, other) for other in others)


def _meets(array: np.ndarray[Any, Any], other: Any) -> bool:
    return isinstance(other, np.ndarray) and np.may_share_memory(array, other)


def _own(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value
