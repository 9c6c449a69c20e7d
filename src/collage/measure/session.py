"""The session: where kernels are built and measured, in worker processes that may die.

Builds of one batch run side by side, one per toolchain. Then the batch is measured, one kernel at a time. Meanwhile no
process of Collage builds anything. Known timings come from the database. Outcomes are data, not exceptions.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import onnx_ir as ir

from collage._errors import ToolchainError
from collage.cost.outcome import Outcome, failed
from collage.cost.statistics import Summary, summarise, weighted_mean
from collage.cost.workload_key import WorkloadKey, runtime_settings
from collage.database import FactKind
from collage.database.database import Database
from collage.graph import structural_hash
from collage.measure.arbiter import Arbiter
from collage.measure.builder import Builds, Built
from collage.measure.jobs import Counters, Job, batches, inner_targets, weight_bytes
from collage.measure.operator_work import WORK, work_of
from collage.measure.quarantine import Quarantined
from collage.measure.sampling import SamplingPlan
from collage.measure.track import ComparisonPlan
from collage.measure.work import shape_in
from collage.measure.worker_pool import Limits, WorkerPool
from collage.numerics.value_store import ValueStore
from collage.status import Status
from collage.system.machine import free_memory_bytes, this_machine
from collage.target import HOST_TARGET, Target
from collage.toolchains import Availability, Compiled, Registry
from collage.workers.machine_lock import build_lock, measurement_lock
from collage.workers.worker import Worker

__all__ = ["MeasureSession"]

_T = TypeVar("_T")
_MIB = 1 << 20
# The figure is for readers. On models that take longer, nothing depends on it.
_NOISE_S = 5.0
_NOISE: FactKind[Mapping[str, float]] = FactKind("noise", Mapping[str, float])
_PATIENCE_S = 600.0
"""Longest wait for the timing of another machine. One that hangs delays others so long, and blocks none."""


class MeasureSession:
    """Builds and measures kernels of one model.

    Attributes:
        say: Called with each line of progress.
        values: The model's inputs and intermediate values, at its most frequent lengths.
        occasions: All on which kernels are timed, with their shares of all runs; the first is ``values``.
        other_folders: Folders of further value stores on which kernels are checked.
        length_folders: The same with other lengths, at which kernels may refuse to run, but must not be wrong.
        reference_model: File of the model that outputs are judged by: the original, or else the prepared one.
        model: Digest of the model as the user gave it.
        arbiter: Settles doubts on outputs.

    Args:
        toolchains: The registry of toolchains.
        database: The database that holds timings.
        workspace: Folder for kernels, with the model's weights file.
        threads: Threads that each kernel may use; 0 is the toolchains' default.
        remeasure: Do not look up timings in the database.
        limits: Limits of workers; None is the limit of ``Limits``.
        workers: Worker processes to use and to leave running; None is the session's own.
        say: Called with each line of progress.
    """

    def __init__(
        self,
        toolchains: Registry,
        database: Database,
        workspace: Path,
        *,
        threads: int = 0,
        remeasure: bool = False,
        limits: Limits | None = None,
        workers: dict[str, Worker] | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.database = database
        self.workspace = workspace
        self.threads = threads
        self._remeasure = remeasure
        self._limits = limits = limits or Limits()
        self.say = say
        self._session: dict[str, Outcome] = {}
        self._pool = WorkerPool(toolchains, database, limits, forgive=remeasure, workers=workers, say=say)
        self.counters = Counters()
        self._builds = Builds(self._pool, workspace, self.counters, threads=threads, limits=limits, say=say)
        self._verified: set[tuple[str, str]] = set()
        self.values = ValueStore(workspace / "values")
        self.occasions = [(self.values, 1.0)]
        self.other_folders: list[Path] = []
        self.length_folders: list[Path] = []
        self.reference_model: Path | None = None
        self.model = ""
        self.arbiter = Arbiter(limits.memory_bytes, workers)

    def __enter__(self) -> MeasureSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all workers, unless they were lent."""
        self._pool.close()
        self.arbiter.close()

    @property
    def cores(self) -> int:
        """Number of processors that kernels run on."""
        return self.threads or this_machine().cores

    @property
    def value_folders(self) -> list[str]:
        """Folders of the values that kernels are checked on: of all occasions, in order, and then further ones."""
        return [str(values.folder) for values, _ in self.occasions] + [str(folder) for folder in self.other_folders]

    @property
    def weights(self) -> list[float]:
        """The share of each occasion, in order."""
        return [weight for _, weight in self.occasions]

    def availability(self, target: Target) -> Availability:
        """Return the availability of a target, as its toolchain states it in a process of its own."""
        return self._pool.availability(target)

    def build_of(self, target: Target) -> str:
        """Return the build that a target's timings depend on; see ``WorkerPool.build_of``."""
        return self._pool.build_of(target)

    def start_all(self, targets: Iterable[Target], first: Callable[[], None] = lambda: None) -> None:
        """Start the toolchains of all targets side by side, which takes some of them seconds; see ``WorkerPool.start_all``."""
        self._pool.start_all(targets, first)

    def key(self, job: Job) -> WorkloadKey:
        """Under which key a job's timing is kept."""
        met = [(_shapes(job, values), weight) for values, weight in self._distinct_occasions(job)]
        return WorkloadKey(
            kernel=job.structure,
            shapes=met[0][0] if len(met) == 1 else " | ".join(f"{weight:.6g} of {shapes}" for shapes, weight in met),
            target=str(job.target),
            build="; ".join(
                dict.fromkeys(self.build_of(target) for target in (job.target, *inner_targets(job.kernel)))
            ),
            machine=this_machine().fingerprint,
            threads=self.threads,
            context=job.context_bytes // _MIB,
            settings=runtime_settings(),
        )

    def measure(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Build and measure kernels. Known timings are reused, and equal kernels are measured once.

        Returns:
            One outcome per job, in order.
        """
        keys = [self.key(job) for job in jobs]
        outcomes: dict[str, Outcome] = {}
        fresh: dict[str, tuple[WorkloadKey, Job]] = {}
        for key, job in zip(keys, jobs, strict=True):
            if key.digest in outcomes or key.digest in fresh:
                continue
            if (found := self._recall(key)) is not None:
                outcomes[key.digest] = found
            else:
                fresh[key.digest] = (key, job)
        for batch in batches(fresh.values()):
            built = self._builds.build_all([job for _, job in batch])
            left = [(key, job, made) for (key, job), made in zip(batch, built, strict=True)]
            # First the kernels that no machine like this one is measuring, then the results of the others.
            for patience_s in (0.0, _PATIENCE_S):
                elsewhere = []
                for key, job, made in left:
                    if (outcome := self._settle(key, job, made, patience_s)) is None:
                        elsewhere.append((key, job, made))
                    else:
                        outcomes[key.digest] = self._session[key.digest] = outcome
                left = elsewhere
            self._builds.tidy()
        return [outcomes[key.digest] for key in keys]

    def build_ahead(self, jobs: Sequence[Job], model: ir.Model) -> None:
        """Build kernels side by side that are measured one after the other, as far as their timings are not known.

        Models too large to have several of in memory are left for later. Builds leave processors idle, on which the noise of
        a prepared model is measured meanwhile.
        """
        largest = max((weight_bytes(job.kernel) for job in jobs), default=0)
        fresh = [job for job in jobs if self._known(self.key(job))[0] is None]
        if not fresh or ComparisonPlan.of_model(largest, free_memory_bytes()).one_at_a_time:
            return
        known = self.database.local_fact(_NOISE, **self._fact_of_noise(model))
        with ThreadPoolExecutor(1) as beside:
            noise = beside.submit(self._noise) if known is None and self.reference_model is not None else None
            try:
                self._builds.build_ahead(fresh)
                if noise is not None:
                    self._keep_noise(noise.result(), model)
            except BaseException:
                self.arbiter.interrupt()
                raise

    def measure_again(self, job: Job) -> Outcome | None:
        """Measure a kernel that this session measured once more; of two latencies the lower one is kept.

        Returns:
            The outcome that counts from now on; None if this session did not measure the kernel, or if it did not run.
        """
        key = self.key(job)
        first = self._session.get(key.digest)
        if first is None or first.time is None or first.recorded:
            return None
        self.say(f"measuring {job.kernel.graph.name} on {job.target.short} again")
        try:
            made = self._builds.compiled(job.kernel, job.target)
        except ToolchainError:
            return None  # It was built before, and by a sound toolchain will be again.
        try:
            with measurement_lock():
                again = self._measure(job, made, first)
        except Quarantined:
            return None
        finally:
            self._builds.relieve(job.kernel)
        if not again.ok:
            return again
        best = min(first, again, key=lambda outcome: outcome.cost)
        self._session[key.digest] = best
        self.database.record(key, best)
        return best

    def recall(self, job: Job) -> Outcome | None:
        """Return the known outcome of a kernel without building or measuring it, or None."""
        return self._recall(self.key(job))

    def recall_fact(self, kind: FactKind[_T], **name: Any) -> _T | None:
        """Return a fact of the database, or None if there is none, or if everything is measured again."""
        return None if self._remeasure else self.database.fact(kind, **name)

    def build(self, kernel: ir.Model, target: Target) -> Compiled:
        """Compile a kernel that will be run, unless this session has compiled it before.

        Raises:
            ToolchainError: It could not be built.
        """
        return Compiled.from_json(self._builds.compiled(kernel, target))

    def try_build(self, kernel: ir.Model, target: Target) -> ToolchainError | None:
        """Return the error of building a kernel, or None if it can be built."""
        found = self._builds.build(kernel, target, min(self._limits.compile_s, self._limits.try_s)).result
        return found if isinstance(found, ToolchainError) else None

    def try_import(self, kernel: ir.Model, target: Target) -> ToolchainError | None:
        """Return the error of a toolchain that is an ``Importer`` and cannot read a kernel, or None if it can."""
        file = self._builds.write(kernel)
        try:
            with build_lock():
                self._call(target, "check_import", self._limits.try_s, kernel=file)
        except ToolchainError as error:
            return error
        return None

    def check(self, job: Job) -> str | None:
        """Return the reason why a kernel is wrong on this model's values, or None if it is right.

        A latency may be that of another kernel of equal key, which has other weights and met other values.

        Raises:
            ToolchainError: It could not be built or run.
        """
        name = str(job.kernel.graph.name), str(job.target)
        if name in self._verified:
            return None
        made = self._builds.compiled(job.kernel, job.target)
        with build_lock():
            told = self._checked(job, made)
            found = self._settled(job, self._pool.call(job.target, "check", self._limits.run_s, **told))
        self._builds.relieve(job.kernel)
        if not found["wrong"]:
            self._verified.add(name)
        return found["wrong"] or None

    def overheads(self, kernel: ir.Model, target: Target) -> Mapping[str, float]:
        """Return the cost of calling a toolchain, measured with a kernel that does next to nothing.

        Returns:
            ``dispatch_s``: one call, with cold caches, as inside a model; ``launch_s``: the cost of each kernel of a
            chain beyond its own call.

        Raises:
            ToolchainError: The kernel could not be built or run.
        """
        made = self._builds.compiled(kernel, target)
        with measurement_lock():
            found: Mapping[str, float] = self._call(
                target, "overheads", self._limits.run_s, compiled=made, threads=self.threads, cores=self.cores
            )
        return found

    def can_tune(self, target: Target) -> bool:
        """Return True if a target's toolchain finds faster code by trials."""
        try:
            return bool(self._pool.call(target, "can_tune", self._limits.start_s))
        except ToolchainError:
            return False

    def tuning_workloads(self, kernel: ir.Model, target: Target) -> list[str]:
        """Return the parts of a kernel that can be tuned, by name.

        Raises:
            ToolchainError: The toolchain cannot list them.
        """
        file = self._builds.write(kernel)
        with build_lock():
            found: list[str] = self._call(target, "tuning_workloads", self._limits.try_s, kernel=file)
        return found

    def tune(self, kernel: ir.Model, target: Target, budget_s: float, known: Mapping[str, str]) -> dict[str, str]:
        """Records of a kernel's workloads, those that are known included.

        Raises:
            ToolchainError: It could not be tuned.
        """
        found: dict[str, str] = self._call(
            target,
            "tune",
            budget_s + self._limits.compile_s,
            kernel=self._builds.write(kernel),
            threads=self.threads,
            budget_s=budget_s,
            known=dict(known),
        )
        return found

    def profile(
        self, kernel: ir.Model, target: Target, inputs: Sequence[str], repeats: int = 3
    ) -> Mapping[tuple[int, ...], float]:
        """Seconds of the steps of a kernel, see ``Profiler``; empty if the toolchain has no profiler.

        Raises:
            ToolchainError: It could not be built or profiled.
        """
        made = self._builds.compiled(kernel, target)
        with measurement_lock():
            found = self._call(
                target,
                "profile",
                self._limits.run_s,
                compiled=made,
                values=str(self.workspace / "values"),
                inputs=list(inputs),
                repeats=repeats,
            )
        self._builds.relieve(kernel)
        return {tuple(step): seconds for step, seconds in found}

    def capture(self, model: ir.Model, target: Target, values: ValueStore) -> None:
        """Run a model once on the inputs that a value store holds, and add all its outputs to the store.

        Raises:
            ToolchainError: It could not be run.
        """
        file = self._builds.write(model)
        with build_lock():
            self._call(
                target,
                "capture",
                self._limits.compile_s + self._limits.run_s,
                kernel=file,
                values=str(values.folder),
                inputs=[str(value.name) for value in model.graph.inputs],
            )
        self._builds.relieve(model)
        values.reload()

    def record_bodies(self, kernel: ir.Model, target: Target, values: ValueStore, folder: Path) -> list[int]:
        """Run an operator with bodies, and keep the inputs of each body in stores; see ``KernelWorker.record_bodies``.

        Returns:
            The number of runs of each body.

        Raises:
            ToolchainError: It could not be built or run.
        """
        made = self._builds.compiled(kernel, target)
        with build_lock():
            found: list[int] = self._call(
                target,
                "record_bodies",
                self._limits.run_s,
                compiled=made,
                threads=self.threads,
                values=str(values.folder),
                inputs=[str(value.name) for value in kernel.graph.inputs],
                folder=str(folder),
            )
        return found

    def written(self, model: ir.Model) -> Path:
        """Return the file of a model in the workspace."""
        return self.workspace / self._builds.write(model)

    def noise(self, model: ir.Model) -> float | None:
        """Return what float arithmetic itself errs on the outputs of a prepared model, relative to their sizes.

        It is measured on the first inputs, once for each model and host.
        """
        if self.reference_model is None:
            return None
        if (told := self.database.local_fact(_NOISE, **self._fact_of_noise(model))) is None:
            told = self._noise()
            self._keep_noise(told, model)
        return max((told or {}).values(), default=None)

    def _keep_noise(self, told: Mapping[str, float] | None, model: ir.Model) -> None:
        if told is not None:
            self.database.keep_local_fact(_NOISE, told, **self._fact_of_noise(model))

    def _fact_of_noise(self, model: ir.Model) -> dict[str, str]:
        names = [str(value.name) for value in model.graph.inputs if value.name in self.values]
        inputs = hashlib.sha256(b"".join(self.values.get(name).tobytes() for name in names)).hexdigest()
        return {"model": structural_hash(model), "inputs": inputs, "host": self.build_of(HOST_TARGET)}

    def _noise(self) -> Mapping[str, float] | None:
        assert self.reference_model is not None
        with build_lock():
            return self.arbiter.noise(self.reference_model, self.values.folder, _NOISE_S)

    @property
    def workers(self) -> dict[str, Worker]:
        """The worker processes, for a session of a part of the model."""
        return self._pool.workers

    def _call(self, target: Target, job: str, limit_s: float, **more: Any) -> Any:
        """Have a worker of a target's toolchain do a job in the session's workspace; see ``WorkerPool.call``."""
        return self._pool.call(target, job, limit_s, target=str(target), workspace=str(self.workspace), **more)

    def _recall(self, key: WorkloadKey) -> Outcome | None:
        """Return the known outcome, and count it."""
        known, is_elsewhere = self._known(key)
        self.counters.elsewhere += is_elsewhere
        self.counters.recorded += known is not None
        return known

    def _known(self, key: WorkloadKey) -> tuple[Outcome | None, bool]:
        """Return the known outcome, from this session or from the database, and if another machine measured it."""
        if (known := self._session.get(key.digest)) is not None or self._remeasure:
            return known, False
        found = self.database.find(key)
        is_elsewhere = found is not None and found.origin != self.database.origin
        # What failed elsewhere may have met another limit, or too little memory: it is tried here.
        if found is None or (is_elsewhere and not found.outcome.ok):
            return None, False
        return found.outcome, is_elsewhere

    def _settle(self, key: WorkloadKey, job: Job, made: Built, patience_s: float) -> Outcome | None:
        """Measure a built kernel, and record the outcome.

        Returns:
            The outcome; None if a machine like this one is measuring the kernel, and there is no patience to wait for it.
        """
        if isinstance(made.result, ToolchainError):
            outcome = failed(made.result, made.build_s)
            if not isinstance(made.result, Quarantined):
                self.database.record(key, outcome)
            return outcome
        self.say(f"measuring {job.kernel.graph.name} on {job.target.short}")
        with self.database.claimed(key, patience_s) as is_mine:
            if not is_mine and not patience_s:
                return None
            with measurement_lock():
                # Another tuner may have measured it while this one stood in line.
                if (found := self._recall(key)) is not None:
                    return found
                try:
                    outcome = self._measure(job, made.result, Outcome(Status.OK, build_s=made.build_s))
                except Quarantined as error:
                    return failed(error, made.build_s)
            self.counters.measured += 1
            self.database.record(key, outcome)
            if outcome.ok and len(self._distinct_occasions(job)) == 1:
                work = work_of(job.kernel.graph, partial(shape_in, self.values))
                self.database.keep_fact(
                    WORK, dataclasses.replace(work, model=self.model), kernel=key.kernel, shapes=key.shapes
                )
        return outcome

    def _measure(self, job: Job, compiled: dict[str, Any], known: Outcome) -> Outcome:
        """Check a kernel, time it, and check it once more.

        Some are right at first only: those whose buffers are overrun, or whose threads run a race.

        Args:
            job: The kernel.
            compiled: The result of its build.
            known: Its outcome so far. If that has a time, the kernel is not checked before it is timed again.
        """
        told = self._checked(job, compiled)
        check = partial(self._pool.call, job.target, "check", self._limits.run_s, **told)
        time = None
        try:
            found: dict[str, Any] = {"wrong": None, "max_rel": known.error} if known.ok else self._settled(job, check())
            error = found["max_rel"]
            if not found["wrong"]:
                time = self._time(job, told)
                found = self._settled(job, check(values=told["values"][: len(self.occasions)], lengths=[]))
        except Quarantined:
            raise
        except ToolchainError as failure:
            return failed(failure, known.build_s)
        if found["wrong"]:
            return Outcome(Status.WRONG, found["wrong"], None, found["max_rel"], known.build_s)
        self._verified.add((str(job.kernel.graph.name), str(job.target)))
        return Outcome(Status.OK, None, time, error, known.build_s)

    def _settled(self, job: Job, findings: dict[str, Any]) -> dict[str, Any]:
        """Return the findings on a kernel, without doubts."""
        if not findings["doubts"]:
            return findings
        return self.arbiter.settle(findings, self.written(job.kernel))

    def _time(self, job: Job, told: Mapping[str, Any]) -> Summary:
        """Return how long a kernel takes: the mean of all occasions by their weight."""
        kernel = {name: told[name] for name in ("compiled", "target", "workspace", "threads", "inputs")}
        parts = []
        for values, weight in self._distinct_occasions(job):
            # What is hopeless on one occasion is so on all of them.
            abandon_above_s = min(job.abandon_above_s / weight, 1e9)
            plan = SamplingPlan(job.context_bytes // _MIB * _MIB, self.cores, abandon_above_s=abandon_above_s)
            samples = self._pool.call(
                job.target,
                "sample",
                self._limits.run_s,
                **kernel,
                values=str(values.folder),
                plan=dataclasses.asdict(plan),
            )
            parts.append((summarise(samples), weight))
        return weighted_mean(parts)

    def _distinct_occasions(self, job: Job) -> list[tuple[ValueStore, float]]:
        """Return the occasions that differ for a kernel. If none of its lengths is symbolic, there is one."""
        met: dict[str, tuple[ValueStore, float]] = {}
        for values, weight in self.occasions:
            shapes = _shapes(job, values)
            first, share = met.get(shapes, (values, 0.0))
            met[shapes] = first, share + weight
        return list(met.values())

    def _checked(self, job: Job, compiled: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments with which a worker runs a kernel on the model's values and checks it."""
        return {
            "compiled": compiled,
            "target": str(job.target),
            "workspace": str(self.workspace),
            "threads": self.threads,
            "values": self.value_folders,
            "lengths": [str(folder) for folder in self.length_folders],
            "inputs": list(job.inputs),
            "expected": list(job.outputs),
            "tolerance": job.tolerance,
        }


def _shapes(job: Job, values: ValueStore) -> str:
    """Return the inputs of a kernel on one occasion, and its outputs if their lengths depend on more than shapes."""

    def told(names: Iterable[str]) -> str:
        return " ".join(f"{values.shape(name)}{values.dtype(name)}" if name in values else "?" for name in names)

    outputs = job.kernel.graph.outputs
    if all(value.shape is not None and value.shape.is_static() for value in outputs):
        return told(job.inputs)
    return f"{told(job.inputs)} -> {told(job.outputs)}"
