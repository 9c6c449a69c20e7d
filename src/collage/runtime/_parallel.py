"""Kernels on devices, or in branches: a thread for each core set or branch, and kernels of different ones at once.

A device is a set of this machine's cores. Its kernels are loaded and run by one thread that may only use these cores, and
so do the threads that a kernel starts. A kernel runs when its inputs are ready. A device takes its kernels in the order
in which they become ready. Core sets share the machine's memory, so a copy between them is another name for the same tensor;
in debug mode it is a copy indeed, and every tensor's scope is checked where it is read.

A branch is a device without cores of its own: its thread may run on any, so that processes that share a machine do not
meet on the same one.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

import numpy as np

from collage._errors import ToolchainError
from collage.runtime._executor import Executor, Host, Span, Step, Targets
from collage.runtime._recipe import DeviceLayout, Recipe
from collage.system.machine import usable_core_numbers
from collage.toolchains import Kernel

__all__ = [
    "CoreSets",
    "DeviceExecutor",
    "PlacedStep",
    "branch_steps",
    "checked_steps",
    "devices_used",
    "lanes_of",
    "missing_cores",
    "shared_memory_steps",
]

T = TypeVar("T")
Job = Callable[[], None]


def missing_cores(layout: DeviceLayout) -> str | None:
    """Return a sentence about a device of a layout that this process cannot use; None if it can use all."""
    usable = usable_core_numbers()
    for device, cores in layout.cores.items():
        if not usable.issuperset(cores):
            wanted, listed = (", ".join(map(str, sorted(numbers))) for numbers in (cores, usable))
            return f"device {device} is the cores {wanted}, and this process may use {listed or 'no chosen ones'}"
    return None


class CoreSets:
    """A thread for each device, on its cores. The threads end when this is gone.

    Args:
        cores: The core set of each device; empty for one that may use all.
    """

    def __init__(self, cores: Mapping[str, tuple[int, ...]]) -> None:
        self._queues: dict[str, SimpleQueue[Job | None]] = {}
        for device, numbers in cores.items():
            queue = self._queues[device] = SimpleQueue()
            threading.Thread(target=_serve, args=(queue, numbers), name=f"collage {device}", daemon=True).start()
            weakref.finalize(self, queue.put, None)

    def submit(self, device: str, job: Job) -> None:
        """Run a job, which must not raise, in a device's thread."""
        self._queues[device].put(job)

    def call(self, device: str, function: Callable[[], T]) -> T:
        """Call a function in a device's thread; return its result, or raise its exception."""
        outcome: list[T] = []
        failure: list[BaseException] = []
        done = threading.Event()

        def job() -> None:
            try:
                outcome.append(function())
            except BaseException as error:
                failure.append(error)
            done.set()

        self.submit(device, job)
        done.wait()
        if failure:
            raise failure[0]
        return outcome[0]


def _serve(queue: SimpleQueue[Job | None], cores: tuple[int, ...]) -> None:
    if cores:
        os.sched_setaffinity(0, cores)
    while (job := queue.get()) is not None:
        job()
        # A thread that waits must not keep alive what it did last.
        del job


@dataclass(frozen=True, slots=True)
class PlacedStep:
    """One kernel call, or copy, on a device.

    Attributes:
        step: The function to call.
        device: The device that runs it.
        reads: Scope in which each input must lie; None if it does not matter.
        writes: Scope in which each output lies.
        is_copy: True if it is a copy and not a kernel.
    """

    step: Step
    device: str
    reads: tuple[str | None, ...] = ()
    writes: tuple[str, ...] = ()
    is_copy: bool = False


def shared_memory_steps(recipe: Recipe, kernels: Sequence[Kernel]) -> tuple[list[PlacedStep], list[str]]:
    """The steps of a recipe whose devices share one memory, and names of the model's outputs: copies are left out."""
    original: dict[str, str] = {}
    for copy in _layout(recipe).copies:
        original[copy.result] = original.get(copy.source, copy.source)
    steps = []
    for record, kernel in zip(recipe.kernels, kernels, strict=True):
        inputs = tuple(original.get(name, name) for name in record.inputs)
        steps.append(PlacedStep(Step(record.name, kernel, inputs, record.outputs), str(record.device)))
    return steps, [original.get(port.name, port.name) for port in recipe.outputs]


def checked_steps(recipe: Recipe, kernels: Sequence[Kernel]) -> tuple[list[PlacedStep], list[str]]:
    """The steps of a recipe with copies that copy, each with the scopes that it demands, and the model's outputs."""
    layout = _layout(recipe)
    steps = []
    for copy in layout.copies:
        step = Step(f"copy of {copy.source}", _Copy(), (copy.source,), (copy.result,))
        steps.append(PlacedStep(step, _device_of(copy.dst), (copy.src,), (copy.dst,), is_copy=True))
    for record, kernel in zip(recipe.kernels, kernels, strict=True):
        step = Step(record.name, kernel, record.inputs, record.outputs)
        steps.append(PlacedStep(step, str(record.device), record.reads, record.writes))
    return steps, [port.name for port in recipe.outputs]


def lanes_of(recipe: Recipe, most: int) -> list[str]:
    """Return the name of the thread that runs each kernel of a recipe with branches.

    Args:
        recipe: The recipe of the executable.
        most: The most branches that run at the same time. Further ones share the threads of these.
    """
    numbers = sorted({kernel.branch for kernel in recipe.kernels if kernel.branch is not None})
    lanes = {number: f"branch {1 + i % most}" for i, number in enumerate(numbers)}
    return ["trunk" if kernel.branch is None else lanes[kernel.branch] for kernel in recipe.kernels]


def branch_steps(recipe: Recipe, kernels: Sequence[Kernel], lanes: Sequence[str]) -> list[PlacedStep]:
    """Return the steps of a recipe with branches, each on the thread of its lane."""
    return [
        PlacedStep(Step(record.name, kernel, record.inputs, record.outputs), lane)
        for record, kernel, lane in zip(recipe.kernels, kernels, lanes, strict=True)
    ]


def devices_used(recipe: Recipe) -> list[str]:
    """Devices on which a recipe has kernels, or to which it copies: outputs may be wanted where nothing is computed."""
    copied_to = (_device_of(copy.dst) for copy in _layout(recipe).copies)
    return list(dict.fromkeys([*(str(kernel.device) for kernel in recipe.kernels), *copied_to]))


def _device_of(scope: str) -> str:
    return scope.partition("/")[0]


class _Copy:
    reuses_outputs = False

    def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
        return [np.array(inputs[0])]


def _layout(recipe: Recipe) -> DeviceLayout:
    if recipe.devices is None:
        raise ValueError("the recipe has no devices")
    return recipe.devices


class DeviceExecutor(Executor):
    """Runs steps on devices, each as soon as its inputs are ready. One run at a time.

    Args:
        steps: Steps in an order in which each comes after the producers of its inputs; copies may come first.
        inputs: Names of the model's inputs.
        outputs: Names of the model's outputs.
        devices: The threads.
        host: Stands in where a kernel fails; without one the failure is the run's.
        arrivals: Scope in which each input arrives. If it is given, the scope of every tensor that is read is checked.
    """

    def __init__(
        self,
        steps: Sequence[PlacedStep],
        inputs: Sequence[str],
        outputs: Sequence[str],
        devices: CoreSets,
        host: Host | None = None,
        arrivals: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__([placed.step for placed in steps], inputs, outputs, host, in_order=False)
        self._placed = tuple(steps)
        self._devices = devices
        maker = {name: position for position, placed in enumerate(steps) for name in placed.step.outputs}
        feeds: list[list[int]] = [[] for _ in steps]
        self._needed = []
        for position, placed in enumerate(steps):
            makers = {maker[name] for name in placed.step.inputs if name in maker}
            self._needed.append(len(makers))
            for made_by in makers:
                feeds[made_by].append(position)
        self._feeds = [tuple(readers) for readers in feeds]
        self._uses = [0] * self._width
        for _, read, _, _ in self._steps:
            for index in set(read):
                self._uses[index] += 1
        for index in self._outputs:
            self._uses[index] += 1
        self._arrivals = None if arrivals is None else [arrivals.get(name) for name in inputs]

    def run(self, values: Sequence[Any]) -> Sequence[Any]:
        """Run all steps on inputs in the model's order, and return outputs in the model's order."""
        return self._results(self._go(values), values)

    def _run_in_place(self, values: Sequence[Any], targets: Targets) -> Sequence[Any]:
        return self._results(self._go(values, targets), values)

    def run_empty(self, values: Sequence[Any]) -> Sequence[Any]:
        """Run like ``run``; kernels that are given a tensor without elements are left to the host."""
        return self._results(self._go(values, is_empty=True), values)

    def trace(self, values: Sequence[Any], is_empty: bool = False) -> tuple[Sequence[Any], list[Span]]:
        """Run, and return when each kernel began and ended; those of different devices may overlap."""
        run = self._go(values, is_empty=is_empty)
        spans = [span for span, placed in zip(run.spans, self._placed, strict=True) if not placed.is_copy]
        return self._results(run, values), spans

    def _results(self, run: _Run, values: Sequence[Any]) -> Sequence[Any]:
        return self._owned([run.slots[i] for i in self._outputs], values, self._apart)

    def _go(self, values: Sequence[Any], targets: Targets = (), is_empty: bool = False) -> _Run:
        run = _Run(self._slots(values, targets), list(self._needed), list(self._uses), is_empty)
        if self._arrivals is not None:
            run.scopes = [*self._arrivals, *([None] * (self._width - self._inputs))]
        first = [position for position, needed in enumerate(self._needed) if not needed]
        run.in_flight = len(first)
        self._submit(run, first)
        if first:
            run.wait()
        if run.error is not None:
            raise run.error
        return run

    def _submit(self, run: _Run, positions: Iterable[int]) -> None:
        for position in positions:
            self._devices.submit(self._placed[position].device, partial(self._perform, run, position))

    def _perform(self, run: _Run, position: int) -> None:
        """Run one step on its device's thread, and return the steps that are ready after it."""
        made: Sequence[Any] | None = None
        began = time.perf_counter_ns()
        if run.error is None:
            try:
                made = self._made(run, position)
            except BaseException as error:
                run.error = run.error or error
        run.spans[position] = began, time.perf_counter_ns()
        self._submit(run, self._after(run, position, made))

    def _made(self, run: _Run, position: int) -> Sequence[Any]:
        outputs = self._steps[position][2]
        if run.scopes is not None:
            self._check(run.scopes, position)
        made = self._call(position, run.slots, run.is_empty)
        if len(made) != len(outputs):
            raise ToolchainError(
                f"kernel {self._placed[position].step.name} returned {len(made)} values of {len(outputs)}"
            )
        return made

    def _after(self, run: _Run, position: int, made: Sequence[Any] | None) -> list[int]:
        """Settles a step; returns those that wait for nothing any more."""
        _, inputs, outputs, _ = self._steps[position]
        with run.lock:
            ready = []
            if made is not None and run.error is None:
                for index, value in zip(outputs, made, strict=True):
                    run.slots[index] = value
                for index in set(inputs):
                    run.uses[index] -= 1
                    if not run.uses[index]:
                        run.slots[index] = None
                if run.scopes is not None:
                    for index, scope in zip(outputs, self._placed[position].writes, strict=True):
                        run.scopes[index] = scope
                for reader in self._feeds[position]:
                    run.needed[reader] -= 1
                    if not run.needed[reader]:
                        ready.append(reader)
            run.in_flight += len(ready) - 1
            if not run.in_flight:
                run.done.set()
        return ready

    def _check(self, scopes: Sequence[str | None], position: int) -> None:
        """Raise ToolchainError where a step would be handed a tensor of another scope than it reads."""
        placed, inputs = self._placed[position], self._steps[position][1]
        for name, slot, wanted in zip(placed.step.inputs, inputs, placed.reads, strict=True):
            if wanted not in (None, scopes[slot]):
                raise ToolchainError(
                    f"{placed.step.name} reads {name!r} in {wanted}, and got a tensor in {scopes[slot]}"
                )


class _Run:
    """The state of one run of a ``DeviceExecutor``. Its lock guards its lists."""

    def __init__(self, slots: list[Any], needed: list[int], uses: list[int], is_empty: bool) -> None:
        self.slots, self.needed, self.uses, self.is_empty = slots, needed, uses, is_empty
        self.spans: list[Span] = [(0, 0)] * len(needed)
        self.scopes: list[str | None] | None = None
        self.error: BaseException | None = None
        self.in_flight = 0
        self.lock = threading.Lock()
        self.done = threading.Event()

    def wait(self) -> None:
        """Wait for the last step that was begun: kernels must be at rest before they are called again."""
        interrupt: BaseException | None = None
        while not self.done.is_set():
            try:
                self.done.wait()
            except BaseException as error:  # People interrupt again what does not end at once.
                # An event that is interrupted as its wait begins or ends fails to release its lock, and raises that instead.
                is_of_event = isinstance(error, RuntimeError) and error.__context__ is not None
                interrupt = interrupt or (error.__context__ if is_of_event else error)
                self.error = self.error or interrupt
        if interrupt is not None:
            raise interrupt
