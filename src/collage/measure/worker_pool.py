"""The worker pool of a session: a worker process for each toolchain. The death of one has no effect on the others.

A toolchain whose builds take seconds has further workers, its lanes, which build only.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import Any

from collage._errors import ToolchainError, WorkerDied, WorkerTimeout
from collage.database.database import Database
from collage.measure.quarantine import Quarantine
from collage.runtime import has_bodies
from collage.system.machine import this_machine
from collage.target import Target
from collage.toolchains import Availability, Registry, revision_of
from collage.workers.machine_lock import build_lock
from collage.workers.worker import Worker

__all__ = ["Limits", "WorkerPool", "lane_name"]

_SERVICE = "collage.measure._kernel_worker:KernelWorker"
_LOOK_S = 0.1
_LANE = " lane "
"""The end of the name of a toolchain's further workers, which build beside its first one."""
_WITH_BODIES = " with bodies"
"""The end of the name of the host's worker that also runs kernels of others, and may die of them."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a worker.

    Attributes:
        start_s: Seconds for a worker to come up, and once more to import the packages of its toolchain.
        compile_s: Seconds for one build.
        try_s: Seconds for the build of a single operator, to see if the toolchain takes it.
        run_s: Seconds for one measurement.
        memory_bytes: Memory limit of a worker and all that it starts, and the address space of each of them where
            that can be limited; None is four fifths of the memory of the container or machine.
        deaths: Jobs in a row that must die for a toolchain to be left alone, see ``collage.measure.quarantine``.
        recycle_after: Jobs after which a worker is replaced, so that leaks stay small.
    """

    start_s: float = 60.0
    compile_s: float = 180.0
    try_s: float = 30.0
    run_s: float = 60.0
    memory_bytes: int | None = None
    deaths: int = 3
    recycle_after: int = 400


class WorkerPool:
    """Hands jobs to toolchains, each in a process of its own.

    Args:
        toolchains: The registry of toolchains.
        database: The database that holds quarantines.
        limits: Limits of workers.
        forgive: Try builds again that an earlier session quarantined.
        workers: Worker processes to use and to leave running; None is the crew's own.
        say: Called with each line of progress.
    """

    def __init__(
        self,
        toolchains: Registry,
        database: Database,
        limits: Limits,
        *,
        forgive: bool,
        workers: dict[str, Worker] | None,
        say: Callable[[str], None],
    ) -> None:
        self._toolchains = toolchains
        self._limits = limits
        self._workers = {} if workers is None else workers
        self._keep_workers = workers is not None
        self._quarantine = Quarantine(database, limits.deaths, forgive=forgive, say=say)
        self._abandoned = threading.Event()
        self._available: dict[str, Availability] = {}
        self._jobs_when_empty: dict[str, int] = {}
        self._say = say

    def close(self) -> None:
        """End all workers, unless they were lent."""
        if not self._keep_workers:
            for worker in self._workers.values():
                worker.kill()

    @property
    def workers(self) -> dict[str, Worker]:
        """The worker processes by name."""
        return self._workers

    def availability(self, target: Target) -> Availability:
        """Return the availability of a target regardless of options, as its toolchain states it in its own process."""
        name = target.build_name
        if name not in self._available:
            try:
                with build_lock():
                    told = self.call(target, "availability", self._limits.start_s, target=str(target))
                lists: dict[str, Any] = {key: tuple(value) for key, value in told.items() if isinstance(value, list)}
                found = Availability(**{**told, **lists})
                if reason := self._quarantine.recorded(target.toolchain, self._with_revision(target, found.build)):
                    found = dataclasses.replace(found, available=False, reason=reason)
                self._available[name] = found
            except ToolchainError as error:
                self._available[name] = Availability(False, reason=str(error))
        return self._available[name]

    def build_of(self, target: Target) -> str:
        """Return the build that a target's timings depend on: that of its toolchain, and the code here that drives it."""
        return self._with_revision(target, self.availability(target).build)

    def _with_revision(self, target: Target, build: str) -> str:
        revision = revision_of(self._toolchains.for_target(target))
        return f"{build}, integration {revision}" if revision else build

    def call(self, target: Target, method: str, timeout_s: float, /, *, lane: int = 0, **params: Any) -> Any:
        """One job for the toolchain that serves a target; a crash is retried once in a fresh worker.

        Args:
            target: The target.
            method: Name of the job.
            timeout_s: Seconds that it may take.
            lane: Number of the worker that does it, among those of the toolchain.
            params: Arguments of the job, JSON values.

        Raises:
            Quarantined: The toolchain died too often, and is not used.
            ToolchainError: It refused, failed or died.
        """
        toolchain = _worker_name(target)
        self._quarantine.check(toolchain)
        if self._abandoned.is_set():
            raise WorkerDied("interrupted")
        worker = self._worker(lane_name(toolchain, lane))
        try:
            try:
                result = worker.call(method, timeout_s, **params)
            except WorkerTimeout:
                raise
            except WorkerDied:
                if self._abandoned.is_set():
                    raise
                result = worker.call(method, timeout_s, **params)
        except WorkerDied as error:
            if not self._abandoned.is_set():
                known = self._available.get(target.build_name)
                build = None if known is None else self._with_revision(target, known.build)
                self._quarantine.died(toolchain, build, error)
            raise
        except ToolchainError:
            self._quarantine.lived(toolchain)
            raise
        self._quarantine.lived(toolchain)
        return result

    def start_all(self, targets: Iterable[Target], first: Callable[[], None] = lambda: None) -> None:
        """Start the workers of all targets side by side; ``availability`` then answers at once.

        Args:
            targets: One or more targets.
            first: Called with the first target's toolchain as soon as that is up. It may call no other.
        """
        by_toolchain: dict[str, list[Target]] = {}
        for target in targets:
            by_toolchain.setdefault(target.toolchain, []).append(target)

        def ask(targets: Iterable[Target]) -> None:
            for target in targets:
                self.availability(target)

        def ask_and_go_on(targets: Iterable[Target]) -> None:
            ask(targets)
            first()

        work = {name: partial(ask, some) for name, some in by_toolchain.items()}
        name, some = next(iter(by_toolchain.items()))
        # While the first one goes on, the others come up as fast as without it.
        self.side_by_side({**work, name: partial(ask_and_go_on, some)}, this_machine().cores + 1)

    def side_by_side(self, work: Mapping[str, Callable[[], None]], most: int | None = None) -> None:
        """Do work for workers, by their names, as much at a time as there are cores, or as ``most`` says."""
        try:
            with ThreadPoolExecutor(max_workers=max(1, min(len(work), most or this_machine().cores))) as pool:
                futures = [pool.submit(part) for part in work.values()]
                try:
                    for future in futures:
                        future.result()
                except BaseException:
                    # Interrupted: whoever waits for the result must not wait for what is under way, nor for what would
                    # be next. Nobody died of itself.
                    self._abandoned.set()
                    left = set(futures)
                    while left:
                        for name in work:  # One that was just coming up, too.
                            self._worker(name).interrupt()
                        left = wait(left, timeout=_LOOK_S).not_done
                    raise
        finally:
            self._abandoned.clear()

    def recycle(self) -> None:
        """Let idle workers unload their kernels, and replace workers that have done many jobs."""
        for name, worker in list(self._workers.items()):  # Others may be coming up meanwhile.
            if worker.jobs_done > self._limits.recycle_after and not worker.busy:
                worker.kill()
            elif worker.alive and not worker.busy and worker.jobs_ever != self._jobs_when_empty.get(name):
                try:
                    worker.call("drop", 30.0)
                    self._jobs_when_empty[name] = worker.jobs_ever
                except ToolchainError as error:
                    self._say(f"worker of {name} was replaced: {error}")

    def _worker(self, toolchain: str) -> Worker:
        own, has_parts, _ = toolchain.partition(_LANE)[0].partition(_WITH_BODIES)
        factory, arguments = self._toolchains.factory(own)
        made_by: dict[str, Any] = {"factory": factory, "arguments": arguments}
        if has_parts:
            made_by["others"] = {name: self._toolchains.factory(name) for name in self._toolchains.names()}
        lent = self._workers.get(toolchain)
        if lent is not None and not lent.serves(_SERVICE, made_by):
            lent.kill()  # It serves another toolchain of this name, or one that was made with other arguments.
            del self._workers[toolchain]
        if toolchain not in self._workers:
            limited = not has_parts and not getattr(self._toolchains.get(own), "reserves_address_space", False)
            # Address space costs nothing: much more of it than a container's memory may be in use.
            address_space_bytes = self._limits.memory_bytes or this_machine().memory_bytes * 4 // 5
            self._workers[toolchain] = Worker(
                _SERVICE,
                made_by,
                memory_bytes=self._limits.memory_bytes,
                address_space_bytes=address_space_bytes if limited else None,
                start_timeout_s=self._limits.start_s,
            )
        return self._workers[toolchain]


def lane_name(toolchain: str, lane: int) -> str:
    """Return the name of one of a toolchain's workers; of the first one it is that of the toolchain."""
    return f"{toolchain}{_LANE}{lane}" if lane else toolchain


def _worker_name(target: Target) -> str:
    """Return the name of the worker that runs kernels for a target."""
    return f"{target.toolchain}{_WITH_BODIES}" if has_bodies(target) else target.toolchain
