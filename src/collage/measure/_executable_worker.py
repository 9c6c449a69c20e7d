"""The worker of one finalist: it loads an executable, checks it, and runs it on request. Runs in the child."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from collage._errors import CompileError
from collage.measure.checking import Findings, Rule
from collage.numerics.judge import REDUCED_TOLERANCE
from collage.numerics.value_store import ValueStore, is_beyond_ranges
from collage.runtime import Executable, Recipe, load, same_bytes
from collage.target import Target
from collage.toolchains import Compiled, LoadOptions, OriginalSession, Registry, Toolchain, aligned_bytes, load_for

__all__ = ["ArtefactWorker", "ExecutableWorker", "OriginalFileWorker", "VendorWorker", "registry_of"]

_OFFSET_BYTES = 16
"""Bytes from the begin of a cache line to that of an input. The C library puts large blocks 16 bytes behind a page's begin."""


class _Service:
    """An executable that can be checked and timed.

    Args:
        call: Runs the model on inputs by name; outputs by name.
        inputs: Names of its inputs.
        notes: Notes of the run: kernels that fail, for which the host stands in.
        values: Folders of ``ValueStore``s with the model's inputs and reference outputs. It is checked on all of them.
        weights: Frequencies of the first folders, on which it is timed. They add up to 1.
        lengths: The same with other lengths, for which the host may stand in.
        targets: The targets of its kernels.
        one_thread: True if the calling thread does all the work.
    """

    def __init__(
        self,
        call: Callable[[Mapping[str, Any]], Mapping[str, Any]],
        inputs: Sequence[str],
        values: Sequence[str],
        weights: Sequence[float],
        notes: Sequence[str] = (),
        lengths: Sequence[str] = (),
        targets: Sequence[Target] = (),
        *,
        one_thread: bool = False,
    ) -> None:
        self._targets = list(targets)
        self._processors = sorted(os.sched_getaffinity(0)) if one_thread else []
        self._run = call
        self._notes, self._noted = notes, len(notes)
        self._stores = [ValueStore(Path(folder)) for folder in (*values, *lengths)]
        self._must_run = len(values)
        self._weights = weights
        self._feeds = [{name: _as_callers_have_it(store.input(name)) for name in inputs} for store in self._stores]

    @property
    def call(self) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
        """The function that runs the model."""
        return self._run

    @property
    def timed_feeds(self) -> Sequence[Mapping[str, Any]]:
        """The sets of inputs that it is timed on."""
        return self._feeds[: len(self._weights)]

    @property
    def weights(self) -> Sequence[float]:
        """The share of each of these."""
        return self._weights

    def check(self, tolerance: float) -> dict[str, Any]:
        """Run once on each set of inputs and judge every output; ``Findings`` as JSON."""
        rule = Rule.of(tolerance, self._targets, by_norm=tolerance >= REDUCED_TOLERANCE)
        findings = Findings(rule, self._stores[0], next(iter(self._stores[1:]), None))
        for number, (feeds, store) in enumerate(zip(self._feeds, self._stores, strict=True)):
            outputs = self._run(feeds)
            is_stood_in, self._noted = len(self._notes) > self._noted, len(self._notes)
            # On harder inputs, and on probing ones, the check of each kernel has decided if it may decline or fail.
            if is_stood_in and number < self._must_run and not is_beyond_ranges(store.folder):
                raise CompileError(self._notes[-1])
            for name, value in feeds.items():
                if name in store and not same_bytes(value, store.get(name)):
                    findings.wrong = f"writes over the model's input {name!r}"
                    return findings.as_json()
            where = ""
            if number >= self._must_run:
                tensors = {name: x for name, x in feeds.items() if isinstance(x, np.ndarray)}
                where = f"at other lengths, {', '.join(f'{name}{list(x.shape)}' for name, x in tensors.items())}: "
            findings.look(outputs, store, where, is_original=True)
            if findings.wrong:
                break
        return findings.as_json()

    def run(self, runs: int, warm_up: int, number: int) -> list[float]:
        """Seconds of each of ``runs`` runs, after ``warm_up`` that do not count; the mean by weight, on several occasions.

        What has one thread begins on the processor of this number, with others of the same round. A busy neighbour may slow
        one processor down for seconds: two processes of one artefact seemed 17 % apart where they kept theirs, 3 % with turns.
        """
        if self._processors:
            os.sched_setaffinity(0, {self._processors[number % len(self._processors)]})
            os.sched_setaffinity(0, self._processors)
        call, clock = self._run, time.perf_counter
        timed = list(zip(self._feeds, self._weights, strict=False))
        for _ in range(warm_up):
            for feeds, _ in timed:
                call(feeds)
        samples = []
        for _ in range(runs):
            seconds = 0.0
            for feeds, weight in timed:
                before = clock()
                call(feeds)
                seconds += weight * (clock() - before)
            samples.append(seconds)
        return samples


class ExecutableWorker(_Service):
    """Runs one executable on stored inputs.

    Args:
        recipe: ``Recipe`` as JSON.
        workspace: Folder of its files.
        values: See ``_Service``.
        weights: The same.
        lengths: The same.
        factories: The factory of each toolchain, by name: ``module:Class`` and keyword arguments.
    """

    def __init__(
        self,
        recipe: Mapping[str, Any],
        workspace: str,
        values: Sequence[str],
        weights: Sequence[float],
        lengths: Sequence[str],
        factories: Mapping[str, tuple[str, Mapping[str, Any]]],
    ) -> None:
        toolchains = registry_of(factories)
        made = Recipe.from_json(recipe)
        self._executable = executable = Executable(made, Path(workspace), toolchains=toolchains)
        inputs = [port.name for port in executable.inputs]
        targets = [Target.parse(kernel.target) for kernel in made.kernels]
        one_thread = _has_one_thread(made)
        super().__init__(
            _runner(executable), inputs, values, weights, executable.notes, lengths, targets, one_thread=one_thread
        )

    def answer(self, values: Sequence[str], into: Sequence[str]) -> None:
        """Answer the inputs in each of several stores, and put the outputs into others.

        Raises:
            CompileError: A kernel failed, and the host stood in for it.
        """
        executable = self._executable
        for source, goal in zip(values, into, strict=True):
            store, answers, noted = ValueStore(Path(source)), ValueStore(Path(goal)), len(executable.notes)
            feeds = {port.name: store.input(port.name) for port in executable.inputs if store.holds_input(port.name)}
            found = executable.run_tensors(feeds)
            if len(executable.notes) > noted:
                raise CompileError(executable.notes[-1])
            for name, value in found.items():
                answers.put_answer(name, value)
            answers.flush()

    def shares(self, runs: int) -> list[float]:
        """Return the share of each kernel in a whole run: medians over runs, and the mean by weight over occasions."""
        each = max(1, runs // len(self._weights))
        profiles = [self._executable.profile(feeds, runs=each) for feeds in self.timed_feeds]
        whole_s = sum(weight * one.total_us for one, weight in zip(profiles, self._weights, strict=True))
        return [
            sum(w * one.total_us * one.kernels[place].share for one, w in zip(profiles, self._weights, strict=True))
            / whole_s
            for place in range(len(profiles[0].kernels))
        ]


class ArtefactWorker(_Service):
    """Runs an artefact as its users do.

    Args:
        artefact: Its folder; verified, and rebuilt where it does not fit.
        values: See ``_Service``.
        weights: The same.
    """

    def __init__(self, artefact: str, values: Sequence[str], weights: Sequence[float]) -> None:
        self._executable = executable = load(artefact)
        inputs = [port.name for port in executable.inputs]
        one_thread = _has_one_thread(executable.recipe)
        super().__init__(_runner(executable), inputs, values, weights, executable.notes, one_thread=one_thread)


def _has_one_thread(recipe: Recipe) -> bool:
    return all(_threads(Target.parse(kernel.target), recipe.threads) == 1 for kernel in recipe.kernels)


def _threads(target: Target, threads: int) -> int:
    """Return the threads of a kernel on a target; 0 is the toolchain's default."""
    return int(target.option("threads") or threads)


def _runner(executable: Executable) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    """Return the function that runs an executable and returns tensors, which are compared."""
    return executable.run_tensors if any(port.classes for port in executable.outputs) else executable.run


class VendorWorker(_Service):
    """Runs the original model on one toolchain, with its vendor's defaults.

    Args:
        factory: ``module:Class`` of the toolchain.
        arguments: Keyword arguments of the class.
        compiled: The result of the toolchain: ``Compiled`` as JSON.
        target: Printed form.
        workspace: The folder with its files.
        values: See ``_Service``.
        weights: The same.
        threads: Threads to use; 0 is the toolchain's default.
        exclusive: True if nothing else runs in this process.
    """

    def __init__(
        self,
        factory: str,
        arguments: Mapping[str, Any],
        compiled: Mapping[str, Any],
        target: str,
        workspace: str,
        values: Sequence[str],
        weights: Sequence[float],
        threads: int,
        exclusive: bool = True,
    ) -> None:
        made = Compiled.from_json(compiled)
        options, parsed = LoadOptions(threads, exclusive=exclusive), Target.parse(target)
        kernel = load_for(_make(factory, arguments), made, parsed, Path(workspace), options)

        def call(feeds: Mapping[str, Any]) -> Mapping[str, Any]:
            return dict(zip(made.outputs, kernel([feeds[name] for name in made.inputs]), strict=True))

        super().__init__(call, made.inputs, values, weights, one_thread=_threads(parsed, threads) == 1)
        self._precision = getattr(kernel, "precision", None)

    def check(self, tolerance: float) -> dict[str, Any]:
        """Check as every service does, and return the type that the kernel computes in, if it states one."""
        return {**super().check(tolerance), "precision": self._precision}


class OriginalFileWorker(_Service):
    """Runs a model's file as its users do: on ONNX Runtime, with its defaults.

    Args:
        path: The file, as it was given.
        values: See ``_Service``.
        weights: The same.
        threads: Threads to use; 0 is ONNX Runtime's default.
    """

    def __init__(self, path: str, values: Sequence[str], weights: Sequence[float], threads: int) -> None:
        model = OriginalSession(Path(path), threads)
        stores = [ValueStore(Path(folder)) for folder in values]
        known = [name for name in model.inputs if all(store.holds_input(name) for store in stores)]
        super().__init__(model.run, known, values, weights, one_thread=threads == 1)


def _as_callers_have_it(value: Any) -> Any:
    """Return a tensor where NumPy puts most arrays: not at the begin of a cache line.

    Some toolchains copy such inputs. Left to chance, a model of 14 microseconds took 20 in every second process.
    """
    if not isinstance(value, np.ndarray) or value.dtype.hasobject:
        return value
    copy: np.ndarray[Any, Any] = aligned_bytes(value.nbytes, _OFFSET_BYTES).view(value.dtype).reshape(value.shape)
    copy[...] = value
    return copy


def registry_of(factories: Mapping[str, tuple[str, Mapping[str, Any]]]) -> Registry:
    """Return a registry of the toolchains with these makers."""
    toolchains = Registry(())
    for factory, arguments in factories.values():
        toolchains.add(_make(factory, arguments))
    return toolchains


def _make(factory: str, arguments: Mapping[str, Any]) -> Toolchain:
    module, _, name = factory.partition(":")
    toolchain: Toolchain = getattr(importlib.import_module(module), name)(**arguments)
    return toolchain
