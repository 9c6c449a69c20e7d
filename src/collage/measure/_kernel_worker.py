"""The jobs that a toolchain's worker does: build, check, sample, profile, capture. Runs in the child."""

from __future__ import annotations

import gc
import hashlib
import importlib
import os
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from collage._errors import CompileError, Unsupported
from collage.graph import load_mapped
from collage.measure._executable_worker import registry_of
from collage.measure.checking import Findings, Rule
from collage.measure.sampling import SamplingPlan, sample, sample_kernel
from collage.numerics.value_store import ValueStore, is_beyond_ranges, is_only_told, probe_of
from collage.runtime import WEIGHTS, ControlFlowKernel, Executor, Step, aligned_copy, load_kernel, same_bytes, trim
from collage.target import Target
from collage.toolchains import (
    Compiled,
    Kernel,
    LoadOptions,
    Profiler,
    Toolchain,
    Tuner,
    TuningSession,
    availability_for,
    check_import_for,
    compile_for,
    importing_here,
    kernel_for,
    load_for,
    profile_for,
)
from collage.workers._worker_main import end_if_forked
from collage.workers.machine_lock import build_lock, measurement_lock

__all__ = ["KernelWorker"]

_COLD_BYTES = 16 << 20
"""The most that activations take of a processor's caches, see ``collage.measure.cache_pressure``."""
_CHAIN = 32


class KernelWorker:
    """Serves one toolchain.

    Args:
        factory: ``module:Class`` of the toolchain.
        arguments: Keyword arguments of the class.
        others: The same of all toolchains by name, for a worker whose kernels hold kernels of others.
    """

    def __init__(
        self,
        factory: str,
        arguments: Mapping[str, Any] | None = None,
        others: Mapping[str, tuple[str, Mapping[str, Any]]] | None = None,
    ) -> None:
        self._server = os.getpid()
        module, _, name = factory.partition(":")
        self._toolchain: Toolchain = getattr(importlib.import_module(module), name)(**(arguments or {}))
        self._others = dict(others or {})
        self._loaded: dict[tuple[str, str, str], Kernel] = {}
        self._capturing: dict[tuple[Any, ...], tuple[tuple[str, ...], Kernel]] = {}

    def availability(self, target: str) -> dict[str, Any]:
        """Return the toolchain's answers about itself and one of its targets."""
        with importing_here(alone=True):
            return asdict(availability_for(self._toolchain, Target.parse(target)))

    def build(self, kernel: str, target: str, workspace: str, threads: int) -> dict[str, Any]:
        """Compile a kernel and load it, so that a kernel that cannot be loaded fails here.

        Args:
            kernel: Name of an ONNX file in the workspace.
            target: Printed form.
            workspace: The folder.
            threads: Threads that the kernel may use; 0 is the toolchain's default.

        Returns:
            ``Compiled`` as JSON.
        """
        folder, goal = Path(workspace), Target.parse(target)
        model = load_mapped(folder / kernel)
        compiled = compile_for(self._toolchain, model, goal, folder)
        result = compiled.as_json()
        self._kernel(result, goal, folder, threads)
        return result

    def check_import(self, kernel: str, target: str, workspace: str) -> None:
        """Let the toolchain, an ``Importer``, read a kernel.

        Args:
            kernel: Name of an ONNX file in the workspace.
            target: Printed form.
            workspace: The folder.

        Raises:
            ToolchainError: It cannot be read.
        """
        folder = Path(workspace)
        check_import_for(self._toolchain, load_mapped(folder / kernel), Target.parse(target), folder)

    def sample(
        self,
        compiled: dict[str, Any],
        target: str,
        workspace: str,
        threads: int,
        values: str,
        inputs: Sequence[str],
        plan: dict[str, Any],
    ) -> list[float]:
        """Time a kernel on the model's real values.

        Args:
            compiled: The result of ``build``.
            target: Printed form.
            workspace: The folder.
            threads: As for ``build``.
            values: Folder of a ``ValueStore``.
            inputs: Names of the kernel's inputs in the store, in order.
            plan: A ``SamplingPlan`` as JSON.

        Returns:
            Seconds of each timed run.
        """
        kernel = self._kernel(compiled, Target.parse(target), Path(workspace), threads)
        return sample_kernel(kernel, _arrays(ValueStore(Path(values)), inputs), SamplingPlan(**plan))

    def check(
        self,
        compiled: dict[str, Any],
        target: str,
        workspace: str,
        threads: int,
        values: Sequence[str],
        lengths: Sequence[str],
        inputs: Sequence[str],
        expected: Sequence[str],
        tolerance: float,
    ) -> dict[str, Any]:
        """Run a kernel on the model's real values and judge its outputs.

        A kernel that writes over its inputs is wrong too, since other kernels read them. At other lengths than the
        user's, and on probing inputs, it may fail, since the host stands in for kernels that do; it must not be wrong.
        On harder inputs, such as masks with holes, it may decline by ``Unsupported``.

        Args:
            compiled: The result of ``build``.
            target: Printed form.
            workspace: The folder.
            threads: As for ``build``.
            values: Folders of ``ValueStore``s, one for each set of inputs that the model was run on.
            lengths: The same for inputs of other lengths.
            inputs: Names of the kernel's inputs in the stores, in order.
            expected: Names of its outputs in the stores, in order; those that a store marks as random are not checked.
            tolerance: See ``collage.numerics.judge``.

        Returns:
            ``Findings`` as JSON.
        """
        kernel = self._kernel(compiled, Target.parse(target), Path(workspace), threads)
        rule = Rule.of(tolerance, [Target.parse(target)], by_norm=True)
        usual, *others = (ValueStore(Path(folder)) for folder in values[:2])
        findings = Findings(rule, usual, next(iter(others), None))
        # It first meets, and is left with, the lengths that it is timed on.
        for folder in (*values[:1], *lengths, *values[:0:-1]):
            store = ValueStore(Path(folder))
            if is_only_told(folder) or not all(store.holds_input(name) for name in inputs):
                continue  # A probe of a large model: its outputs alone are known.
            arrays = _arrays(store, inputs)
            try:
                outputs = list(kernel(arrays))
            except Exception as error:
                may_fail = folder in lengths or probe_of(folder)
                if not may_fail and not (isinstance(error, Unsupported) and is_beyond_ranges(folder)):
                    raise
                continue
            end_if_forked(self._server)
            for name, array in zip(inputs, arrays, strict=True):
                if name in store and not same_bytes(array, store.get(name)):
                    findings.wrong = f"writes over its input {name!r}"
                    return findings.as_json()
            where = f"at other lengths, {_shapes(inputs, arrays)}: " if folder in lengths else ""
            findings.look(dict(zip(expected, outputs, strict=True)), store, where, is_original=False)
            if findings.wrong:
                break
        return findings.as_json()

    def profile(
        self, compiled: dict[str, Any], target: str, workspace: str, values: str, inputs: Sequence[str], repeats: int
    ) -> list[tuple[tuple[int, ...], float]]:
        """Steps by the places of their nodes, with their seconds; none if the toolchain has no profiler."""
        if not isinstance(self._toolchain, Profiler):
            return []
        arrays = _arrays(ValueStore(Path(values)), inputs)
        made = Compiled.from_json(compiled)
        found = profile_for(self._toolchain, made, Target.parse(target), Path(workspace), arrays, repeats)
        return [(tuple(map(int, step)), float(seconds)) for step, seconds in found.items()]

    def can_tune(self) -> bool:
        """Return True if the toolchain tunes."""
        return isinstance(self._toolchain, Tuner)

    def tuning_workloads(self, kernel: str, target: str, workspace: str) -> list[str]:
        """Return the parts of a kernel that can be tuned, by name."""
        folder = Path(workspace)
        assert isinstance(self._toolchain, Tuner)
        goal = Target.parse(target)
        model = kernel_for(self._toolchain, load_mapped(folder / kernel), goal)
        return list(self._toolchain.tuning_workloads(model, goal, folder))

    def tune(
        self, kernel: str, target: str, workspace: str, threads: int, budget_s: float, known: dict[str, str]
    ) -> dict[str, str]:
        """Records of a kernel's workloads; the toolchain takes the slots itself, turn by turn."""
        folder = Path(workspace)
        assert isinstance(self._toolchain, Tuner)
        session = TuningSession(budget_s, threads, known, build_lock, measurement_lock)
        goal = Target.parse(target)
        model = kernel_for(self._toolchain, load_mapped(folder / kernel), goal)
        return dict(self._toolchain.tune(model, goal, folder, session))

    def overheads(
        self, compiled: dict[str, Any], target: str, workspace: str, threads: int, cores: int
    ) -> dict[str, float]:
        """See ``MeasureSession.overheads``; the kernel has one input, float32 [16], and one output of the same shape."""
        kernel = self._kernel(compiled, Target.parse(target), Path(workspace), threads)
        tensor = np.ones(16, np.float32)
        kernel([tensor])
        end_if_forked(self._server)
        cold = sample_kernel(kernel, [tensor], SamplingPlan(_COLD_BYTES, cores, least=20, spread=0.0))
        names = [f"v{i}" for i in range(_CHAIN + 1)]
        steps = [Step(f"k{i}", kernel, (names[i],), (names[i + 1],)) for i in range(_CHAIN)]
        chain = Executor(steps, names[:1], names[-1:])
        hot = SamplingPlan(budget_s=0.05, least=50, most=500, spread=0.0)
        alone_s = statistics.median(sample(lambda: [kernel([tensor]) for _ in range(_CHAIN)], [], hot)) / _CHAIN
        chained_s = statistics.median(sample(lambda: chain.run([tensor]), [], hot)) / _CHAIN
        return {"dispatch_s": statistics.median(cold), "launch_s": max(0.0, chained_s - alone_s)}

    def capture(self, kernel: str, target: str, workspace: str, values: str, inputs: Sequence[str]) -> list[str]:
        """Run a model once and keep all its outputs.

        Returns:
            The names that are in the store now.
        """
        store = ValueStore(Path(values))
        for name, value in self._captured(kernel, target, workspace, store, inputs):
            store.put(name, value)
        store.flush()
        return list(store)

    def record_bodies(
        self,
        compiled: dict[str, Any],
        target: str,
        workspace: str,
        threads: int,
        values: str,
        inputs: Sequence[str],
        folder: str,
    ) -> list[int]:
        """Run an operator with bodies, and keep the inputs of each body in its first, its middle and its last run.

        Args:
            compiled: The operator; each of its bodies is one kernel.
            target: Printed form.
            workspace: The folder of its files.
            threads: As for ``build``.
            values: Folder of a ``ValueStore``.
            inputs: Names of the kernel's inputs in the store, in order.
            folder: Folder in which ``ValueStore``s are made, named by the numbers of body and occasion.

        Returns:
            The number of runs of each body.
        """
        kernel = self._kernel(compiled, Target.parse(target), Path(workspace), threads)
        assert isinstance(kernel, ControlFlowKernel)
        arrays = _arrays(ValueStore(Path(values)), inputs)
        counts = Counter[int]()
        kernel.record = lambda body, given: counts.update([body])
        kernel(arrays)
        wanted = {body: (0, runs // 2, runs - 1) for body, runs in counts.items()}
        seen = Counter[int]()

        def keep(body: int, given: Mapping[str, Any]) -> None:
            for occasion, run in enumerate(wanted.get(body, ())):
                if run == seen[body]:
                    store = ValueStore(Path(folder) / f"{body}_{occasion}")
                    for name, value in given.items():
                        store.put_input(name, value)
                    store.flush()
            seen[body] += 1

        kernel.record = keep
        kernel(arrays)
        kernel.record = None
        return [counts[body] for body in range(kernel.bodies)]

    def drop(self) -> None:
        """Forget all loaded kernels, and give their memory back."""
        self._loaded.clear()
        self._capturing.clear()
        trim()
        # What is left stays until the process ends. To look at all of TVM's modules again takes 40 ms and more.
        gc.freeze()

    def _captured(
        self, kernel: str, target: str, workspace: str, store: ValueStore, inputs: Sequence[str]
    ) -> Iterator[tuple[str, Any]]:
        """Run a model once; a model is loaded once for all sets of inputs that follow each other."""
        folder, goal = Path(workspace), Target.parse(target)
        weights = folder / WEIGHTS
        place = weights.stat() if weights.exists() else None  # Another file has another number, or is younger.
        told = hashlib.sha256((folder / kernel).read_bytes()).hexdigest()
        key = target, workspace, told, place and (place.st_ino, place.st_mtime_ns)
        if key not in self._capturing:
            compiled = compile_for(self._toolchain, load_mapped(folder / kernel), goal, folder)
            loaded = load_for(self._toolchain, compiled, goal, folder, LoadOptions())
            self._capturing = {**dict(list(self._capturing.items())[-1:]), key: (compiled.outputs, loaded)}
        names, loaded = self._capturing[key]
        return zip(
            names, loaded([store.get(name) if name in store else store.input(name) for name in inputs]), strict=True
        )

    def _kernel(self, compiled: dict[str, Any], target: Target, workspace: Path, threads: int) -> Kernel:
        key = (compiled["files"][0] if compiled["files"] else repr(compiled), str(target), str(workspace))
        if key not in self._loaded:
            made = Compiled.from_json(compiled)
            if made.toolchain != self._toolchain.name:
                raise CompileError(f"{self._toolchain.name} was handed a kernel of {made.toolchain}")
            own = self._toolchain.name
            toolchains = registry_of(
                {name: self._others[name] for name in {leaf.toolchain for leaf in made.leaves} - {own}}
            )
            toolchains.add(self._toolchain)
            self._loaded[key] = load_kernel(made, target, workspace, LoadOptions(threads=threads), toolchains)
        return self._loaded[key]


def _shapes(names: Sequence[str], arrays: Sequence[Any]) -> str:
    tensors = [(name, array) for name, array in zip(names, arrays, strict=True) if isinstance(array, np.ndarray)]
    return ", ".join(f"{name}{list(array.shape)}" for name, array in tensors)


def _arrays(store: ValueStore, names: Sequence[str]) -> list[Any]:
    return [aligned_copy(store.get(name)) if name in store else store.input(name) for name in names]
