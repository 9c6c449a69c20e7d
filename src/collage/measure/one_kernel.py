"""The cost of one kernel, measured as inside a compilation: in a worker process, with cold caches, and checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from collage.cost.cost import Cost
from collage.cost.outcome import Outcome
from collage.cost.statistics import Interval
from collage.database.database import Database
from collage.frontend import Lengths, check_given, place_weights, read_model, separate_lengths, with_lengths_of
from collage.measure.estimator import MeasuringCostEstimator
from collage.measure.jobs import weight_bytes
from collage.measure.reference_run import capture_made_up
from collage.measure.session import MeasureSession
from collage.status import Status
from collage.system.scratch import scratch
from collage.target import TargetLike
from collage.toolchains import Registry, registry
from collage.transform import prepare
from collage.workers.worker import Worker

__all__ = ["KernelCost", "measure"]


@dataclass(frozen=True, slots=True)
class KernelCost:
    """The cost of a kernel on a target.

    Attributes:
        cost: The median latency, or ``Cost.INVALID`` if it cannot be built, crashes or is wrong.
        interval: The 95 % interval of the median, in seconds; None if the cost is invalid.
        status: The end of building and measuring it.
        reason: One sentence, if the cost is invalid.
        error: Largest difference from the reference, relative to the largest reference value; None if unknown.
        build_s: Seconds that building took.
        is_recorded: True if the timing comes from the database.
    """

    cost: Cost
    interval: Interval | None
    status: Status
    reason: str | None = None
    error: float | None = None
    build_s: float = 0.0
    is_recorded: bool = False

    @classmethod
    def of(cls, outcome: Outcome) -> KernelCost:
        """Return the cost that an outcome of measuring is."""
        time, interval = outcome.time, None
        if outcome.ok and time is not None:
            half_s = time.spread * time.median_s
            interval = Interval(max(0.0, time.median_s - half_s), time.median_s + half_s)
        return cls(
            outcome.cost,
            interval,
            outcome.status,
            outcome.reason,
            outcome.error,
            outcome.build_s,
            outcome.recorded,
        )

    def __str__(self) -> str:
        if self.interval is None:
            return f"{self.status.value}: {self.reason}" if self.reason else self.status.value
        return f"{self.cost} [{self.interval.low * 1e6:.6g}, {self.interval.high * 1e6:.6g}]"


def measure(
    model: Any,
    target: TargetLike,
    *,
    inputs: Mapping[str, Any] = MappingProxyType({}),
    dims: Lengths = MappingProxyType({}),
    threads: int = 0,
    db: str | None = None,
    remeasure: bool = False,
    toolchains: Registry | None = None,
    workers: dict[str, Worker] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> KernelCost:
    """Measure a model as one kernel of a target.

    Args:
        model: A kernel or a whole model: a path, bytes, ``ModelProto``, ``onnx_ir.Model``, or a PyTorch export.
        target: The target.
        inputs: Representative inputs by name; those not given are made up.
        dims: Representative lengths of symbolic dimensions, see ``CompileOptions``.
        threads: Threads of the kernel; 0 is the toolchain's default.
        db: Timing database; None is the user's own.
        remeasure: Measure again even if the timing is known.
        toolchains: The registry of toolchains; the installed ones by default.
        workers: Worker processes to use and to leave running.
        say: Called with each line of progress.

    Raises:
        UsageError: An unknown target, or inputs that do not fit.
        ModelError: The model is not valid, or not safe.
        NothingCanRun: The model cannot be run for reference.
    """
    toolchains = toolchains or registry()
    wanted = toolchains.parse_target(target)
    prepared = prepare(separate_lengths(read_model(model), inputs, dims))
    with ExitStack() as stack:
        workspace = stack.enter_context(scratch())
        database = stack.enter_context(Database(db))
        session = stack.enter_context(
            MeasureSession(
                toolchains, database, workspace, threads=threads, remeasure=remeasure, workers=workers, say=say
            )
        )
        found = session.availability(wanted)
        if not found.available:
            return KernelCost.of(Outcome(Status.REFUSED, found.reason or "not available"))
        kernel = place_weights(prepared, workspace)
        kernel.graph.name = "measured_kernel"
        given = check_given(kernel, inputs)
        say("running the model once for reference")
        capture_made_up(kernel, session, with_lengths_of(kernel, given, dims), given)
        (outcome,) = MeasuringCostEstimator(session, weight_bytes(kernel)).measure([(kernel, wanted)])
        return KernelCost.of(outcome)
