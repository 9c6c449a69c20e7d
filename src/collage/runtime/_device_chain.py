"""Chains: consecutive kernels on one device, between which tensors stay on the device.

A chain is one step of the executor. Values are copied between host and device only at its ends. Within it, consecutive
kernels that can be recorded become one graph, which is replayed. There is one recording for each set of input shapes.
The other kernels are called between recordings. Kernels of any toolchain that declare themselves capturable take part.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from collage.runtime._executor import Executor, Host, Span, Step
from collage.runtime._single_kernel import SingleKernelExecutor
from collage.toolchains import Device, DeviceKernel, Recording

__all__ = ["DeviceChain", "executor_of"]

Values = dict[str, Any]

_MOST_RECORDINGS = 8
"""Input shapes for which a chain keeps recordings; each holds all of the chain's tensors on the device."""


def executor_of(steps: Sequence[Step], inputs: Sequence[str], outputs: Sequence[str], host: Host | None) -> Executor:
    """The executor of some steps: a plain one, unless there are kernels on a device, or there is one only."""
    if not any(isinstance(step.kernel, DeviceKernel) for step in steps):
        kind = SingleKernelExecutor if SingleKernelExecutor.suits(steps, inputs, outputs) else Executor
        return kind(steps, inputs, outputs, host)
    return _ChainExecutor(steps, inputs, outputs, host)


@dataclass(frozen=True, slots=True)
class _Group:
    """Steps ``first`` up to ``end``, the latter not included: a chain, or one step of the host."""

    first: int
    end: int
    chain: DeviceChain | None


class _ChainExecutor(Executor):
    """An executor whose steps are chains, or single kernels of the host."""

    def __init__(self, steps: Sequence[Step], inputs: Sequence[str], outputs: Sequence[str], host: Host | None) -> None:
        steps = _with_movables_moved(steps)
        self._names = (tuple(inputs), tuple(outputs))
        self._groups = list(_groups(steps, outputs))
        self._merged = [_merged(steps, group) for group in self._groups]
        stand_in = None if host is None else _ChainHost(host, steps, self._groups)
        super().__init__(self._merged, inputs, outputs, stand_in)

    def trace(self, values: Sequence[Any], is_empty: bool = False) -> tuple[Sequence[Any], list[Span]]:
        """Run the kernels one at a time, and return for each when it began and when its device had finished."""
        inputs, outputs = self._names
        spans: list[Span] = []
        known = dict(zip(inputs, values, strict=True))
        for step, group in zip(self._merged, self._groups, strict=True):
            given = [known[name] for name in step.inputs]
            if group.chain is not None:
                made, chain_spans = group.chain.trace(given)
                spans += chain_spans
            else:
                began = time.perf_counter_ns()
                made = step.kernel(given)
                spans.append((began, time.perf_counter_ns()))
            known.update(zip(step.outputs, made, strict=True))
        if is_empty:  # Kernels are not right on tensors without elements.
            return self.run_empty(values), spans
        return [copy(known[name]) for name in outputs], spans


class _ChainHost:
    """Stands in for whole chains, kernel by kernel."""

    def __init__(self, host: Host, steps: Sequence[Step], groups: Sequence[_Group]) -> None:
        self._host = host
        self._steps = steps
        self._groups = groups

    def run(self, position: int, inputs: Sequence[Any]) -> Sequence[Any]:
        """The outputs of the chain, or of the step, at a position."""
        return self._each(self._groups[position], inputs, self._host.run)

    def rescue(self, position: int, inputs: Sequence[Any], error: Exception) -> Sequence[Any]:
        """The outputs of a chain whose kernel failed: its kernels run one at a time, from arrays to arrays."""
        group = self._groups[position]
        if group.chain is None:
            return self._host.rescue(group.first, inputs, error)
        return self._each(group, inputs, self._alone)

    def _alone(self, position: int, inputs: Sequence[Any]) -> Sequence[Any]:
        try:
            return self._steps[position].kernel(inputs)
        except Exception as error:
            return self._host.rescue(position, inputs, error)

    def _each(
        self, group: _Group, inputs: Sequence[Any], run: Callable[[int, Sequence[Any]], Sequence[Any]]
    ) -> Sequence[Any]:
        if group.chain is None:
            return run(group.first, inputs)
        values = dict(zip(group.chain.inputs, inputs, strict=True))
        for position in range(group.first, group.end):
            step = self._steps[position]
            made = run(position, [values[name] for name in step.inputs])
            values.update(zip(step.outputs, made, strict=True))
        return [values[name] for name in group.chain.outputs]


class DeviceChain:
    """Kernels of one device in a row, behind the contract of kernels.

    Args:
        steps: Their steps, in order.
        wanted: Names of values that are used after the chain.

    Attributes:
        inputs: Names of the values that come from before the chain.
        outputs: Names of its outputs.
    """

    reuses_outputs = False

    def __init__(self, steps: Sequence[Step], wanted: frozenset[str]) -> None:
        made: set[str] = set()
        inputs: dict[str, None] = {}
        for step in steps:
            inputs.update((name, None) for name in step.inputs if name not in made)
            made.update(step.outputs)
        self.inputs = tuple(inputs)
        self.outputs = tuple(name for step in steps for name in step.outputs if name in wanted)
        self._stretch = _Stretch(steps, frozenset(self.outputs))
        self._device = _kernel(steps[0]).device
        self._stretches = list(_stretches(steps, frozenset(self.outputs)))
        self._seen: set[Any] = set()
        self._programs: dict[Any, _Program | None] = {}
        """Fixed chains by shapes of inputs; None if kernels are better called one by one."""

    def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Run the chain from arrays to arrays.

        The first run of new shapes goes kernel by kernel, so that libraries can choose algorithms and reserve memory;
        the second time they are recorded, and then replayed.
        """
        values = self._replayed(inputs) or self._stretch.run(self._uploaded(inputs))
        return [self._device.download(values[name]) for name in self.outputs]

    def trace(self, inputs: Sequence[Any]) -> tuple[Sequence[Any], list[Span]]:
        """Run kernel by kernel, waiting for each, and return how long the device took."""
        values, spans = self._uploaded(inputs), []
        for step in self._stretch.steps:
            began = time.perf_counter_ns()
            seconds = self._device.seconds(partial(_run, step, values))
            spans.append((began, began + round(seconds * 1e9)))
        return [self._device.download(values[name]) for name in self.outputs], spans

    def _replayed(self, inputs: Sequence[Any]) -> Values | None:
        key = tuple((x.shape, x.dtype.str) for x in inputs)
        if key not in self._programs:
            if key in self._seen and len(self._programs) < _MOST_RECORDINGS:
                self._programs[key] = self._program(inputs)
            self._seen.add(key)
        program = self._programs.get(key)
        try:
            return program.run(inputs) if program is not None else None
        except Exception:  # A shape that depends on data, say; if a kernel is at fault, calling it will tell.
            self._programs[key] = None
            return None

    def _program(self, inputs: Sequence[Any]) -> _Program | None:
        if not any(stretch.capturable for stretch in self._stretches):
            return None
        try:
            return _Program(self._device, self._stretches, self._uploaded(inputs))
        except Exception:  # As above.
            return None

    def _uploaded(self, inputs: Sequence[Any]) -> Values:
        return {name: self._device.upload(x) for name, x in zip(self.inputs, inputs, strict=True)}


class _Stretch:
    """Steps that can all be recorded, or that are called.

    Args:
        steps: Kernel calls and copies, in order.
        wanted: Names of values that are used after them.
    """

    def __init__(self, steps: Sequence[Step], wanted: frozenset[str]) -> None:
        self.steps = steps
        self.capturable = _kernel(steps[0]).capturable
        self.wanted = [name for step in steps for name in step.outputs if name in wanted]
        last = {name: position for position, step in enumerate(steps) for name in (*step.inputs, *step.outputs)}
        made = {name for step in steps for name in step.outputs if name not in wanted}
        self._dead = [[name for name in made if last[name] == position] for position in range(len(steps))]

    def run(self, values: Values) -> Values:
        """Add the results of the steps to ``values``, and remove values that no later step needs: their memory is reused."""
        for step, dead in zip(self.steps, self._dead, strict=True):
            _run(step, values)
            for name in dead:
                del values[name]
        return values


class _Program:
    """A chain for one set of input shapes: recordings, and calls of kernels that cannot be recorded, at fixed addresses."""

    def __init__(self, device: Device, stretches: Sequence[_Stretch], inputs: Values) -> None:
        self._device = device
        self._inputs = list(inputs.values())
        self._values = inputs
        self._parts: list[Callable[[], None]] = []
        for position, stretch in enumerate(stretches):
            read_later = {name for later in stretches[position + 1 :] for step in later.steps for name in step.inputs}
            self._parts.append(self._recorded(stretch) if stretch.capturable else self._called(stretch, read_later))

    def run(self, inputs: Sequence[Any]) -> Values:
        """All values that are wanted, by name."""
        for tensor, x in zip(self._inputs, inputs, strict=True):
            self._device.fill(tensor, x)
        for part in self._parts:
            part()
        return self._values

    def _recorded(self, stretch: _Stretch) -> Callable[[], None]:
        def work() -> Sequence[Any]:
            made = stretch.run(dict(self._values))
            return [made[name] for name in stretch.wanted]

        recording: Recording = self._device.record(work)
        self._values.update(zip(stretch.wanted, recording.outputs, strict=True))
        return recording.replay

    def _called(self, stretch: _Stretch, read_later: set[str]) -> Callable[[], None]:
        """Call steps, and copy their results to the addresses that later recordings read."""
        made = stretch.run(dict(self._values))
        fixed = {name: self._device.copy(made[name]) for name in stretch.wanted if name in read_later}
        self._values.update({name: made[name] for name in stretch.wanted} | fixed)

        def call() -> None:
            made = stretch.run(dict(self._values))
            for name in stretch.wanted:
                if name in fixed:
                    self._device.fill(fixed[name], made[name])
                else:
                    self._values[name] = made[name]

        return call


def _run(step: Step, values: Values) -> None:
    made = _kernel(step).on_device([values[name] for name in step.inputs])
    values.update(zip(step.outputs, made, strict=True))


def _kernel(step: Step) -> DeviceKernel:
    assert isinstance(step.kernel, DeviceKernel)
    return step.kernel


def _with_movables_moved(steps: Sequence[Step]) -> Sequence[Step]:
    """Steps of the host that stand right after a step on a device and can run there (views) do: tensors need not leave."""
    moved: list[Step] = []
    for step in steps:
        before = moved[-1].kernel if moved else None
        move = getattr(step.kernel, "moved_to", None)
        if move is not None and isinstance(before, DeviceKernel) and set(step.inputs) & set(_made_on(before, moved)):
            kernel = move(before.device)
            step = step if kernel is None else replace(step, kernel=kernel)
        moved.append(step)
    return moved


def _made_on(kernel: DeviceKernel, steps: Sequence[Step]) -> Iterator[str]:
    name = kernel.device.name
    return (output for step in steps if _device_name(step) == name for output in step.outputs)


def _groups(steps: Sequence[Step], outputs: Sequence[str]) -> Iterator[_Group]:
    """Maximal runs of steps on one device, and the steps in between."""
    first = 0
    while first < len(steps):
        end = first + 1
        where = _device_name(steps[first])
        while where is not None and end < len(steps) and _device_name(steps[end]) == where:
            end += 1
        later = {name for step in steps[end:] for name in step.inputs}
        chain = None if where is None else DeviceChain(steps[first:end], frozenset({*later, *outputs}))
        yield _Group(first, end, chain)
        first = end


def _merged(steps: Sequence[Step], group: _Group) -> Step:
    if group.chain is None:
        return steps[group.first]
    name = steps[group.first].name if group.end == group.first + 1 else f"{steps[group.first].name}..."
    return Step(name, group.chain, group.chain.inputs, group.chain.outputs)


def _device_name(step: Step) -> str | None:
    return step.kernel.device.name if isinstance(step.kernel, DeviceKernel) else None


def _stretches(steps: Sequence[Step], wanted: frozenset[str]) -> Iterator[_Stretch]:
    """Runs of steps that can all be recorded, or that all cannot."""
    first = 0
    for end in range(1, len(steps) + 1):
        if end == len(steps) or _kernel(steps[end]).capturable != _kernel(steps[first]).capturable:
            later = {name for step in steps[end:] for name in step.inputs}
            yield _Stretch(steps[first:end], wanted | later)
            first = end
