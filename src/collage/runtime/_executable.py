"""``Executable``: what ``compile`` returns and ``load`` reads back."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collage._errors import InputError, UsageError
from collage.runtime._artefact import save
from collage.runtime._bodies import load_kernel
from collage.runtime._device_chain import executor_of
from collage.runtime._executor import Executor, Span, Step, written_to
from collage.runtime._explained import explanation_of
from collage.runtime._forks import loading_again, new_pool, note_loading, restart_in_forks
from collage.runtime._machine_fit import fitting_branches
from collage.runtime._memory import page_out
from collage.runtime._parallel import (
    CoreSets,
    DeviceExecutor,
    branch_steps,
    checked_steps,
    devices_used,
    lanes_of,
    missing_cores,
    shared_memory_steps,
)
from collage.runtime._pinned import PinnedFiles
from collage.runtime._profile import Profile
from collage.runtime._recipe import WEIGHTS, DeviceLayout, KernelRecord, Recipe
from collage.runtime._signature import Signature, as_maps, targets_of
from collage.runtime._summary import html_table, one_line
from collage.system.forks import keep_for_ever
from collage.system.machine import usable_cores
from collage.system.scratch import remove_scratch, scratch
from collage.system.texts import counted
from collage.target import Target
from collage.toolchains import Kernel, LoadOptions, Registry, registry

if TYPE_CHECKING:
    from collage.explain import Explanation
    from collage.report import Report
    from collage.runtime._sources import HostKernels

__all__ = ["Executable"]

Inputs = Mapping[str, Any] | Sequence[Any]
_MOST_SHAPES = 256
"""Combinations of inputs' shapes whose plan is remembered."""


class Executable:
    """A compiled model: kernels of one or several toolchains behind one call.

    Several threads may run it at the same time. Each run needs a context: buffers and kernels of its own. A context is loaded
    when it is first needed. There are at most ``contexts`` of them. If all are in use, further runs wait.

    Inputs are NumPy arrays, tensors of PyTorch, or objects that support DLPack. Outputs are NumPy arrays, or tensors of
    PyTorch if an input was one.

    Args:
        recipe: The plan as values: kernels and their files.
        workspace: The folder that holds its files.
        owns_workspace: The folder is one of ``make_scratch``, to be removed when the executable is gone.
        toolchains: The registry of its toolchains.
        contexts: Number of runs that may go on at the same time. None takes the
            number in the recipe, or else the number of cores divided by the threads of a kernel. That is one if each
            kernel uses all cores, since two such runs at once take longer than one after the other.
        debug: Check every call of a kernel: types, shapes, layout, and that inputs do not change.
        is_lazy: Load no kernel before the first run, or ``warm_up``.
        threads: Threads of each kernel; None takes the number in the recipe.
        specialised: Executables of the same model for some lengths only. Each runs the calls whose lengths it takes.

    Attributes:
        inputs: The model's inputs.
        outputs: The model's outputs.
        specialised: The executables for some lengths only.
        report: The report of ``compile``, see ``collage.report.Report``; an empty one if there is none.
        notes: Remarks on loading and running, such as kernels that were rebuilt.
    """

    def __init__(
        self,
        recipe: Recipe,
        workspace: Path,
        *,
        owns_workspace: bool = False,
        toolchains: Registry | None = None,
        contexts: int | None = None,
        debug: bool = False,
        is_lazy: bool = False,
        threads: int | None = None,
        specialised: Sequence[Executable] = (),
    ) -> None:
        self.recipe = recipe
        self.specialised = tuple(specialised)
        self._by_shapes: dict[tuple[Any, ...], Executable] = {}
        self.workspace = workspace
        self.inputs = recipe.inputs
        self.outputs = recipe.outputs
        self.report = recipe.report
        self.notes: list[str] = []
        self._bind = Signature(recipe.inputs, recipe.empty).bind
        self._output_names = tuple(port.name for port in recipe.outputs)
        self._maps = [port for port in recipe.outputs if port.classes]
        self._numbered = tuple(enumerate(self._output_names))
        cores = usable_cores()
        threads = recipe.threads if threads is None else threads
        branches, notes = fitting_branches(recipe, threads)
        self.notes += notes
        wanted = cores if recipe.devices is not None or branches > 1 else threads or cores
        limit = contexts or recipe.streams or max(1, cores // wanted)
        # A kernel alone may keep the machine to itself; with others, of the same toolchain too, it must be quiet between
        # runs: threads that spin for the last kernel take the cores from the next one.
        streams = limit if contexts or recipe.streams else 1
        kernels = sum(len(kernel.compiled.leaves) for kernel in recipe.kernels)
        options = LoadOptions(threads, exclusive=kernels * limit == 1, streams=streams)
        available = toolchains or registry()
        self._pinned = PinnedFiles(workspace, (*recipe.files, WEIGHTS))
        self._loader = partial(
            _Loader, recipe, workspace, self._pinned, available, options, self.notes, debug, branches
        )
        self._limit = limit
        self._contexts = new_pool(self._loader().executor, limit, is_lazy=is_lazy)
        restart_in_forks(self)
        if owns_workspace:
            weakref.finalize(self, remove_scratch, workspace)

    def run(self, inputs: Inputs = (), *, out: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Run the model.

        Args:
            inputs: Tensors by name, or in the model's order.
            out: Arrays, or tensors of PyTorch, that outputs are written to, by name. They are returned for these outputs. A
                kernel writes to one in place if its lengths are fixed and the memory is aligned to 64 bytes. Otherwise its
                output is copied there. An array may be an input too, such as the cache of a decoder.

        Returns:
            Outputs by name, in the model's order. An output of ``ZipMap`` is a list of maps.

        Raises:
            InputError: A name, type or shape does not fit.
            ToolchainError: A kernel failed, and the host could not run its operators either.
        """
        values, restore, is_empty = self._bind(inputs)
        contexts = self._owner(values)._contexts if self.specialised and not is_empty else self._contexts
        if out:
            results = contexts.run(values, is_empty, targets_of(self.outputs, out))
            restored = results if restore is None else map(restore, results)
            return {**self._with_maps(dict(zip(self._output_names, restored, strict=True))), **out}
        results = contexts.run(values, is_empty)
        if restore is not None:
            results = [restore(value) for value in results]
        # A loop, since making a ``zip`` costs a microsecond where a kernel has filled the caches.
        outputs: dict[str, Any] = {}
        for position, name in self._numbered:
            outputs[name] = results[position]
        return self._with_maps(outputs) if self._maps else outputs

    def _with_maps(self, outputs: dict[str, Any]) -> dict[str, Any]:
        return outputs | {port.name: as_maps(port, outputs[port.name]) for port in self._maps}

    def run_tensors(self, inputs: Inputs = ()) -> dict[str, Any]:
        """Run the model, and return the tensors behind outputs that are lists of maps; otherwise like ``run``."""
        values, restore, is_empty = self._bind(inputs)
        results = (self if is_empty else self._owner(values))._contexts.run(values, is_empty)
        restored = results if restore is None else map(restore, results)
        return dict(zip(self._output_names, restored, strict=True))

    def add_plans(self, specialised: Sequence[Executable], report: Report) -> None:
        """Have plans for some lengths run the calls with these lengths from now on.

        Args:
            specialised: Executables of the same model, with the same outputs.
            report: The report that names them.
        """
        self.specialised += tuple(specialised)
        self._by_shapes = {}
        self.recipe, self.report = replace(self.recipe, report=report), report

    def plan_for(self, inputs: Inputs = ()) -> Executable:
        """Return the executable that runs such inputs: this one, or one of ``specialised``.

        Args:
            inputs: As for ``run``.

        Raises:
            InputError: A name, type or shape does not fit.
        """
        values, _, is_empty = self._bind(inputs)
        return self if is_empty else self._owner(values)

    def _owner(self, values: Sequence[Any]) -> Executable:
        """Return the executable that runs these tensors, in the model's order."""
        if not self.specialised:
            return self
        shapes = tuple([getattr(value, "shape", None) for value in values])
        found = self._by_shapes.get(shapes)
        if found is None:
            if len(self._by_shapes) >= _MOST_SHAPES:
                self._by_shapes.clear()
            found = self._by_shapes[shapes] = next((one for one in self.specialised if one._takes(values)), self)
        return found

    def _takes(self, values: Sequence[Any]) -> bool:
        """Return True if kernels were checked at the lengths of these tensors, which the model takes."""
        try:
            return not self._bind(dict(zip((port.name for port in self.inputs), values, strict=True)))[2]
        except InputError:
            return False

    def __call__(self, *inputs: Any) -> Any:
        """Run the model on inputs in the model's order, and return its output, or a tuple of them as the model lists them."""
        outputs = self.run(inputs)
        results = tuple(outputs[name] for name in self.recipe.listed or outputs)
        return results[0] if len(results) == 1 else results

    async def arun(self, inputs: Inputs = ()) -> dict[str, Any]:
        """Run the model in a thread, so that an event loop goes on meanwhile; otherwise like ``run``."""
        import asyncio  # Late: it imports sockets and encryption, and hardly a process needs it.

        return await asyncio.to_thread(self.run, inputs)

    def trace(
        self, inputs: Inputs = (), *, out: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], Sequence[Span]]:
        """Run the model once, and return the start and end of each kernel.

        Args:
            inputs: As for ``run``.
            out: As for ``run``. Outputs are copied there.

        Returns:
            Outputs as of ``run``, and a pair of times for each kernel of ``plan_for(inputs)``, in ns of
            ``time.perf_counter_ns``.

        Raises:
            InputError: A name, type or shape does not fit.
            ToolchainError: A kernel failed, and the host could not run its operators either.
        """
        values, restore, is_empty = self._bind(inputs)
        targets = targets_of(self.outputs, out or {})
        owner = self if is_empty else self._owner(values)
        results, spans = owner._contexts.apart(partial(owner._traced, values, is_empty))
        results = written_to(results, targets)
        restored = results if restore is None else map(restore, results)
        return {**dict(zip(self._output_names, restored, strict=True)), **(out or {})}, spans

    def _traced(self, values: Sequence[Any], is_empty: bool) -> tuple[Sequence[Any], Sequence[Span]]:
        context = self._contexts.hold()
        try:
            return context.trace(values, is_empty)
        finally:
            self._contexts.release(context)

    def profile(self, inputs: Inputs = (), *, runs: int = 20) -> Profile:
        """Time every kernel where it stands, in whole runs of the model.

        Args:
            inputs: As for ``run``.
            runs: Number of runs that count. A fifth as many run before them.

        Raises:
            InputError: A name, type or shape does not fit.
            UsageError: ``runs`` is not at least 1.
        """
        if runs < 1:
            raise UsageError(f"a profile takes at least one run, not {runs}")
        if self.specialised and (owner := self.plan_for(inputs)) is not self:
            return owner.profile(inputs, runs=runs)
        spans, totals_ns = self._contexts.apart(partial(self._timed, inputs, -(-runs // 5) + runs))
        return Profile.of(self.recipe.kernels, spans[-runs:], totals_ns[-runs:])

    def _timed(self, inputs: Inputs, runs: int) -> tuple[list[list[Span]], list[int]]:
        context = self._contexts.hold()
        spans, totals_ns = [], []
        try:
            for _ in range(runs):
                began = time.perf_counter_ns()
                values, _, is_empty = self._bind(inputs)
                _, kernels = context.trace(values, is_empty)
                totals_ns.append(time.perf_counter_ns() - began)
                spans.append(kernels)
        finally:
            self._contexts.release(context)
        return spans, totals_ns

    def warm_up(self, inputs: Inputs | None = None) -> None:
        """Load the kernels of every context, so that no request waits for it: a server is ready when this returns.

        Args:
            inputs: As for ``run``. If they are given, every context runs once. Runtimes start threads and set memory aside
                in their first run.

        Raises:
            InputError: A name, type or shape does not fit.
            ToolchainError: A kernel cannot be loaded or run.
        """
        for one in (self, *self.specialised):
            one._contexts.apart(one._contexts.fill)
        if inputs is not None:
            for _ in range(self._limit):  # The context that was used last is the last in the queue.
                self.run(inputs)

    def hold_for_fork(self, until: float) -> Callable[[], None]:
        """Have no run begin until the result is called, and wait for those that began, to a time of ``time.monotonic``."""
        return self._contexts.hold_all(until)

    def restart_in_fork(self) -> None:
        """Load kernels again, for a fork of the process that loaded them; called there, before anything else runs."""
        make = self._loader().executor
        if self._contexts.is_loaded:
            keep_for_ever(self._contexts)
            make = loading_again(make)
        self._contexts = new_pool(make, self._limit, is_lazy=True)

    def explain(self) -> Explanation:
        """Explain the plan: its kernels and their runner-ups, the candidates that lost, and those that were not measured.

        ``explain().node(name)`` and ``explain().target(name)`` answer further questions.

        Raises:
            ArtefactError: There is no record of what was tried, or it is damaged.
        """
        return explanation_of(self.recipe, self.workspace)

    def save(self, path: str | Path, *, recipe_only: bool = False) -> Path:
        """Write the artefact, atomically: it is there whole, or as it was before.

        Args:
            path: A folder, or a file whose name ends in ``.zip``; it does not exist, or is an artefact to replace.
            recipe_only: Leave compiled kernels out. ``load`` builds them, for the machine that it runs on.

        Returns:
            The path.

        Raises:
            UsageError: The path holds something other than an artefact, or cannot be written.
            ArtefactError: This executable was loaded from a folder that another artefact has replaced.
        """
        for one in (self, *self.specialised):
            one._pinned.check()
        if not self.specialised:
            return save(self.recipe, self.workspace, Path(path), recipe_only=recipe_only)
        # Late: a process that only runs an artefact does not write one.
        from collage.runtime._packing import pack

        with scratch() as folder:
            each = [
                save(one.recipe, one.workspace, folder / f"{number}.collage", recipe_only=recipe_only)
                for number, one in enumerate((self, *self.specialised))
            ]
            pack(each, path)
        return Path(path)

    def __repr__(self) -> str:
        more = f"; {counted(len(self.specialised), 'plan')} for some lengths" if self.specialised else ""
        return f"<collage.Executable: {one_line(self.recipe)}{more}>"

    def _repr_html_(self) -> str:
        """Return a table of the kernels, which notebooks show in place of ``repr``."""
        return html_table(self.recipe)


class _Loader:
    """Makes executors of a recipe, and is their host."""

    def __init__(
        self,
        recipe: Recipe,
        workspace: Path,
        pinned: PinnedFiles,
        toolchains: Registry,
        options: LoadOptions,
        notes: list[str],
        debug: bool,
        branches: int,
    ) -> None:
        self._recipe = recipe
        self._workspace = workspace
        self._pinned = pinned
        self._toolchains = toolchains
        self._options = options if options.streams == 1 else replace(options, shared={})
        self._notes = notes
        self._debug = debug
        self._branches = branches
        self._kernels: HostKernels | None = None

    def executor(self) -> Executor:
        """Load every kernel again."""
        note_loading()
        executor = self._executor()
        self._pinned.check()
        return executor

    def _executor(self) -> Executor:
        recipe = self._recipe
        if recipe.devices is not None:
            return self._on_devices(recipe.devices)
        if self._branches > 1 and not self._debug:
            return self._in_branches()
        kernels = self._checked([self._load(record, self._options) for record in recipe.kernels])
        page_out(self._workspace)
        steps = [
            Step(record.name, kernel, record.inputs, record.outputs)
            for record, kernel in zip(recipe.kernels, kernels, strict=True)
        ]
        inputs, outputs = ([port.name for port in ports] for ports in (recipe.inputs, recipe.outputs))
        return executor_of(steps, inputs, outputs, None if self._debug else self)

    def _in_branches(self) -> Executor:
        """Load every kernel again, each in the thread of its branch."""
        recipe, loads = self._recipe, [partial(self._load, record, self._options) for record in self._recipe.kernels]
        lanes = lanes_of(recipe, self._branches)
        threads = CoreSets(dict.fromkeys(lanes, ()))
        kernels = [threads.call(lane, load) for lane, load in zip(lanes, loads, strict=True)]
        page_out(self._workspace)
        inputs, outputs = ([port.name for port in ports] for ports in (recipe.inputs, recipe.outputs))
        return DeviceExecutor(branch_steps(recipe, kernels, lanes), inputs, outputs, threads, self)

    def _on_devices(self, layout: DeviceLayout) -> Executor:
        """Load every kernel again, each on its device."""
        recipe, problem = self._recipe, missing_cores(layout)
        if (
            problem is not None
            and (note := f"{problem}: kernels run one after the other, on any core") not in self._notes
        ):
            self._notes.append(note)
        cores = layout.cores if problem is None else {}
        devices = CoreSets({name: cores.get(name, ()) for name in devices_used(recipe)})
        kernels = []
        for record in recipe.kernels:
            threads = len(cores.get(str(record.device), ())) or self._options.threads
            load = partial(self._load, record, LoadOptions(threads))
            kernels.append(devices.call(str(record.device), load))
        page_out(self._workspace)
        inputs = [port.name for port in recipe.inputs]
        if self._debug:
            steps, outputs = checked_steps(recipe, self._checked(kernels))
            return DeviceExecutor(steps, inputs, outputs, devices, None, layout.inputs)
        steps, outputs = shared_memory_steps(recipe, kernels)
        if not cores:
            return executor_of([placed.step for placed in steps], inputs, outputs, self)
        return DeviceExecutor(steps, inputs, outputs, devices, self)

    def _load(self, record: KernelRecord, options: LoadOptions) -> Kernel:
        return load_kernel(record.compiled, Target.parse(record.target), self._workspace, options, self._toolchains)

    def run(self, position: int, inputs: Sequence[Any]) -> Sequence[Any]:
        """The host in place of a kernel; see ``HostKernels``."""
        return self._host().run(position, inputs)

    def rescue(self, position: int, inputs: Sequence[Any], error: Exception) -> Sequence[Any]:
        """The host in place of a kernel that failed; see ``HostKernels``."""
        return self._host().rescue(position, inputs, error)

    def _host(self) -> HostKernels:
        if self._kernels is None:
            # Late: it imports onnx_ir, which running compiled kernels does not need.
            from collage.runtime._sources import HostKernels

            self._kernels = HostKernels(self._recipe, self._workspace, self._pinned, self._toolchains, self._notes)
        return self._kernels

    def _checked(self, kernels: Sequence[Kernel]) -> Sequence[Kernel]:
        """Return the kernels, checked at their borders in debug mode."""
        if not self._debug:
            return kernels
        # Late: both import onnx_ir, which running compiled kernels does not need.
        from collage.runtime._debug import CheckedKernel
        from collage.runtime._sources import KernelSources

        sources = KernelSources(self._workspace / self._recipe.model_file)
        return [
            CheckedKernel(kernel, record, sources.model(record.name))
            for kernel, record in zip(kernels, self._recipe.kernels, strict=True)
        ]
