"""The options of a compilation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collage._errors import UsageError
from collage.cost.objective import OBJECTIVES, Limit, read_limits

if TYPE_CHECKING:
    from collage.device import DeviceRequests
    from collage.frontend import Lengths
    from collage.fusion import FusionOptions
    from collage.plan_file import PlanFile

__all__ = ["DEFAULT_STRATEGY", "SEARCHES", "CompileOptions"]

SEARCHES = ("fast", "proof", "exhaustive")
"""Kinds of search by thoroughness, see ``CompileOptions.search``."""

DEFAULT_STRATEGY = "lazy"


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """Options of ``compile``.

    Attributes:
        threads: Threads that each kernel may use; 0 is each toolchain's own default for this machine.
        db: Timing database: a path or an SQLAlchemy URL; None is the user's own.
        dims: Representative lengths of symbolic dimensions, by symbol; or several with weights, ``{"seq": {32: 3, 512: 1}}``.
            Then the cost of whatever is measured is the weighted mean, and all of it must be right at each of them.
        fixed: Lengths that symbolic dimensions have from now on, by symbol: everything is compiled for them, also by toolchains
            that take no others, and the executable takes no others either.
        inputs: Representative inputs by name, NumPy; those not given are made up.
        time_budget_s: Seconds that the whole compilation should take. What the comparison is expected to need is kept back,
            and the search gets what is left. Reading the model and timing it whole on every target are never cut short.
            With None a fast search ends where nothing promises a gain, after 35 s at most.
        tune_s: Seconds to spend on tuning, once a plan of untuned kernels stands, for targets whose toolchain can tune. Part
            of the time budget, if there is one. 0 tunes nothing.
        use_tuned: Let kernels take part that earlier compilations tuned, of this model or of others; it costs nothing.
        search: ``fast`` measures what it expects to gain by, within limits, and proves nothing. ``proof`` measures until no
            other plan of the candidates can cost less, whatever those cost that were not measured: never less than arithmetic
            and memory of this machine allow. ``exhaustive`` measures every candidate. The last two may take long; both end
            with the cheapest plan by the measured costs, which is not yet the fastest one: as always, the race decides that.
        strategy: Name of the search strategy, which decides what is measured first, and finds the cheapest plan of what was
            measured: ``lazy``, ``exhaustive``, ``wide``, or one of another package (see ``docs/fusion.md``).
        objective: The figure that is optimised: ``latency`` of one run at a time; ``throughput`` of several runs at once, whose
            number is chosen too; ``memory``, the largest resident set; ``size``, the bytes of the artefact.
        limits: Bounds that the result must keep, such as ``"p99<=20ms"`` or ``"rss<=400MB"``; see ``docs/objectives.md``.
        percentile: Which percentile of its latencies is a kernel's cost: 50, or 10 or 90.
        accuracy_budget: Largest end-to-end error that is acceptable, relative to an output's largest magnitude. Grants the
            search targets of reduced precision; None is what the model's own types allow.
        data: Samples of real inputs: a folder of ``.npz`` files, one ``.npz`` file with a leading axis of samples, or an
            iterable of inputs by name, each alone or in a pair with a label. Some calibrate 8-bit kernels, some choose, and the
            others judge; see ``docs/precision.md``.
        metric: How answers are compared with the original model's: ``max-error``, ``cosine``, ``snr``, ``top1``, ``top5`` or
            ``python:module:function``.
        max_drop: Largest drop of that metric that is acceptable. Grants the search targets of reduced precision, too.
        front: Compare plans for several accuracy budgets, and report the fastest for each.
        measure_budget: Measure at most so many kernels; None is, for a fast search, a ninth of those that there are, but at
            least 14 and at most 80. Kernels whose timing is known do not count.
        remeasure: Measure anew what the database knows.
        finalists: How many mixed partitionings are raced end to end against the single toolchains.
        finals: Race end to end at all. Without, the plan of the least predicted cost is returned.
        min_gain: Stop searching when even the most hopeful plan is not this share better than the best measured one.
        fusion: How deep kernels may be, and how each toolchain's operators are joined; None is what follows from each. A
            target whose toolchain, or depth, is named here has no kernels but those that its rule proposes, alone as well.
        launch_penalties_s: Seconds that each kernel of a toolchain costs beyond its own, by the toolchain's name; of others
            they are measured. Which target is preferred where costs are equal is the order of the menu.
        seed: Seed of made-up inputs.
        devices: Where operators run and outputs lie: the path of a plan of devices in TOML, or what was read of one. None
            is what annotations in the model say, if there are any.
        plan: Build exactly this plan: the path of a plan file, or what was read of one. Nothing is searched.
        plan_out: Write the plan of the result to this file.
        force: Operators that only one target may run, as ``"/Resize:llvm"``: a name or a type, with ``*`` and ``?``.
        forbid: Operators that a target may not run, as ``"openvino:TopK"``.
        allow_host: Let the host run the whole model, unoptimised, where no target of the menu runs any of it. Otherwise that
            is refused.
        baseline: What the user has, and gains are told over: the original file on ``onnxruntime`` with its defaults,
            the original model on another target, or ``none``.
        passes: How the model is prepared, as a pipeline: names of passes with commas between them, see
            ``transform.parse_pipeline``. Which of them run is also up to the ``PassContext`` around ``compile``.
    """

    threads: int = 0
    db: str | None = None
    dims: Lengths = field(default_factory=dict)
    fixed: Mapping[str, int] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    time_budget_s: float | None = None
    tune_s: float = 0.0
    use_tuned: bool = True
    search: str = "fast"
    strategy: str = DEFAULT_STRATEGY
    objective: str = "latency"
    limits: Sequence[str | Limit] = ()
    percentile: int = 50
    accuracy_budget: float | None = None
    data: Any = None
    metric: str | None = None
    max_drop: float | None = None
    front: bool = False
    measure_budget: int | None = None
    remeasure: bool = False
    finalists: int = 4
    finals: bool = True
    min_gain: float = 0.02
    fusion: FusionOptions | None = None
    launch_penalties_s: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    devices: str | Path | DeviceRequests | None = None
    plan: str | Path | PlanFile | None = None
    plan_out: str | Path | None = None
    force: tuple[str, ...] = ()
    forbid: tuple[str, ...] = ()
    allow_host: bool = False
    baseline: str = "onnxruntime"
    passes: str = "prepare"

    def __post_init__(self) -> None:
        if self.dims:
            # Here, as whoever loads artefacts makes options too, and needs no front door.
            from collage.frontend import shape_profiles

            shape_profiles(self.dims)  # Says what is wrong with them.
        if self.search not in SEARCHES:
            raise UsageError(f"search {self.search!r}: it is one of {', '.join(SEARCHES)}")
        if self.strategy != DEFAULT_STRATEGY:
            from collage.search import strategies  # Late for the same reason.

            strategies().get(self.strategy)  # Says which there are.
        if self.objective not in OBJECTIVES:
            raise UsageError(f"objective {self.objective!r}: it is one of {', '.join(OBJECTIVES)}")
        bounds = self.bounds  # Says what is wrong with them.
        if not self.finals and (bounds or self.objective != "latency"):
            raise UsageError("objectives and limits are measured end to end: they do not go with finals=False")
        if self.plan is not None and (self.force or self.forbid):
            raise UsageError("a plan says of every operator what runs it: force and forbid do not go with it")
        if self.percentile not in (10, 50, 90):
            raise UsageError(f"percentile {self.percentile}: latencies are kept at percentiles 10, 50 and 90")
        if self.accuracy_budget is not None and not 0 <= self.accuracy_budget < 1:
            raise UsageError(
                f"accuracy budget {self.accuracy_budget:g}: write a share of the outputs' magnitude, such as 1e-2"
            )

        if self.metric is not None:
            from collage.calibration import find_metric  # Late for the same reason.

            find_metric(self.metric)  # Says which there are.
        if self.max_drop is not None and not 0 <= self.max_drop < 1:
            raise UsageError(f"largest drop {self.max_drop:g}: write a share, such as 0.01 for one percent")

    @property
    def bounds(self) -> tuple[Limit, ...]:
        """The limits, read."""
        return read_limits(self.limits)

    @property
    def is_plain(self) -> bool:
        """True if the latency alone decides."""
        return self.objective == "latency" and not self.limits

    @property
    def weighs_bytes(self) -> bool:
        """True if a plan may be returned for its memory or its size, however slow it is."""
        return self.objective in ("memory", "size") or any(limit.quantity in ("rss", "size") for limit in self.bounds)

    @property
    def search_threads(self) -> int:
        """Threads of the kernels that the search measures; several streams of one thread each mostly get most done."""
        return self.threads or int(self.objective == "throughput")

    @property
    def allows_reduced(self) -> bool:
        """True if targets of reduced precision are granted."""
        return self.accuracy_budget is not None or self.max_drop is not None or self.front

    @property
    def proves(self) -> bool:
        """True if a search goes on until no other plan can cost less."""
        return self.search != "fast"
