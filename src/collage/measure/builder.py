"""Kernels in a workspace: they are written to it, built once for each target, and released when they fill memory."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import onnx_ir as ir

from collage._errors import ToolchainError
from collage.measure.jobs import Counters, Job, may_hold_bytes, weight_bytes
from collage.measure.worker_pool import Limits, WorkerPool, lane_name
from collage.runtime import compile_bodies, has_bodies, page_out
from collage.system.machine import free_memory_bytes, this_machine
from collage.target import Target
from collage.toolchains import Compiled
from collage.workers.machine_lock import build_lock

__all__ = ["Builds", "Built"]

# A further worker takes about as long to start and to import its toolchain.
_WORTH_A_LANE_S = 2.0
# TVM's worker takes half of that while it builds.
_LANE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Built:
    """The result of a build.

    Attributes:
        result: ``collage.toolchains.Compiled`` as JSON, or why there is none.
        build_s: Seconds that the build took.
    """

    result: dict[str, Any] | ToolchainError
    build_s: float


class Builds:
    """The kernels of one workspace.

    Args:
        worker_pool: The workers that build them.
        workspace: Folder for kernels, with the model's weights file.
        counters: Counts the builds.
        threads: Threads that each kernel may use; 0 is the toolchains' default.
        limits: Limits of a build.
        say: Called with each line of progress.
    """

    def __init__(
        self,
        worker_pool: WorkerPool,
        workspace: Path,
        counters: Counters,
        *,
        threads: int,
        limits: Limits,
        say: Callable[[str], None],
    ) -> None:
        self._pool = worker_pool
        self._workspace = workspace
        self._counters = counters
        self._threads = threads
        self._limits = limits
        self._say = say
        self._compiled: dict[tuple[str, str], dict[str, Any]] = {}
        self._ahead: dict[tuple[str, str], Built] = {}
        self._slowest_s: dict[str, float] = {}
        self._held: dict[str, int] = {}

    def compiled(self, kernel: ir.Model, target: Target) -> dict[str, Any]:
        """``collage.toolchains.Compiled`` as JSON; compiled before in this session, a kernel is not compiled again.

        Raises:
            ToolchainError: It could not be built.
        """
        name = _name_of(kernel, target)
        if name not in self._compiled and has_bodies(target):
            self._compiled[name] = self._with_bodies(kernel, target)
        if name not in self._compiled:
            built = self.build(kernel, target)
            if isinstance(built.result, ToolchainError):
                raise built.result
            self.relieve(kernel)
        return self._compiled[name]

    def build_all(self, jobs: Sequence[Job]) -> list[Built]:
        """Build side by side: each toolchain in a worker, and in several if its builds take seconds."""
        queues: dict[str, deque[int]] = {}
        for index, job in enumerate(jobs):
            queues.setdefault(job.target.toolchain, deque()).append(index)
        results: dict[int, Built] = {}

        def build_some(toolchain: str, lane: int) -> None:
            if lane and self._slowest_s.get(toolchain, 0.0) < _WORTH_A_LANE_S:
                return
            while True:
                try:
                    index = queues[toolchain].popleft()
                except IndexError:
                    return
                job = jobs[index]
                if (ahead := self._ahead.pop(_name_of(job.kernel, job.target), None)) is not None:
                    results[index] = ahead
                    continue
                self._say(f"building {job.kernel.graph.name} on {job.target.short}")
                results[index] = self.build(job.kernel, job.target, lane=lane)

        lanes = max(1, min(this_machine().cores, free_memory_bytes() // _LANE_BYTES))
        work = [(name, lane) for lane in range(lanes) for name, queue in queues.items() if lane < len(queue)]
        self._pool.side_by_side({lane_name(*each): partial(build_some, *each) for each in work})
        return [results[index] for index in range(len(jobs))]

    def build_ahead(self, jobs: Sequence[Job]) -> None:
        """Build kernels side by side that are measured one after the other later."""
        made = self.build_all(jobs)
        self._ahead |= {_name_of(job.kernel, job.target): built for job, built in zip(jobs, made, strict=True)}

    def build(self, kernel: ir.Model, target: Target, timeout_s: float | None = None, *, lane: int = 0) -> Built:
        """Compile a kernel. A worker then holds it, until ``relieve`` or ``tidy`` has it forgotten.

        Each kernel inside an operator with bodies is compiled by its own toolchain.

        Args:
            kernel: The kernel.
            target: Its target.
            timeout_s: Seconds that it may take; None is the limit of all builds.
            lane: Number of the worker that builds it, among those of its toolchain.
        """
        if has_bodies(target):
            started = time.monotonic()
            try:
                return Built(self.compiled(kernel, target), time.monotonic() - started)
            except ToolchainError as error:
                return Built(error, time.monotonic() - started)
        file = self.write(kernel)
        with build_lock():
            started = time.monotonic()  # Standing in line is no part of building.
            try:
                made: dict[str, Any] = self._pool.call(
                    target,
                    "build",
                    timeout_s or self._limits.compile_s,
                    lane=lane,
                    kernel=file,
                    target=str(target),
                    workspace=str(self._workspace),
                    threads=self._threads,
                )
            except ToolchainError as error:
                return Built(error, time.monotonic() - started)
            took_s = time.monotonic() - started
        self._slowest_s[target.toolchain] = max(took_s, self._slowest_s.get(target.toolchain, 0.0))
        self._compiled[_name_of(kernel, target)] = made
        self._counters.built += 1
        return Built(made, took_s)

    def _with_bodies(self, kernel: ir.Model, target: Target) -> dict[str, Any]:
        def build(model: ir.Model, owner: Target) -> Compiled:
            return Compiled.from_json(self.compiled(model, owner))

        made = compile_bodies(kernel, target, self._workspace, build).as_json()
        self._counters.built += 1
        return made

    def write(self, kernel: ir.Model) -> str:
        """Write a kernel into the workspace, beside the weights that it refers to.

        Returns:
            The file's name.
        """
        file = f"{kernel.graph.name}.in.onnx"
        ir.save(kernel, self._workspace / file)
        return file

    def relieve(self, kernel: ir.Model) -> None:
        """After a job that loaded a kernel: has all kernels forgotten where they may take much memory by now."""
        self._held[str(kernel.graph.name)] = weight_bytes(kernel)
        if sum(self._held.values()) > may_hold_bytes():
            self.tidy()

    def tidy(self) -> None:
        """Let workers unload their kernels, and this process release the weights that it mapped."""
        self._held.clear()
        self._pool.recycle()
        page_out(self._workspace)


def _name_of(kernel: ir.Model, target: Target) -> tuple[str, str]:
    return str(kernel.graph.name), str(target)
