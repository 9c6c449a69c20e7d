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
        threads: Threads of each kernel. 0 means the default of each toolchain.
        db: Timing database: a path or an SQLAlchemy URL; None is the user's own.
        dims: Representative lengths of symbolic dimensions, by symbol; or several with weights, ``{"seq": {32: 3, 512: 1}}``.
            With several, the cost of a kernel is the weighted mean, and its outputs must be right at each length.
        fixed: Fixed lengths of symbolic dimensions, by symbol. Toolchains that need fixed shapes can then take part. The
            executable accepts no other lengths.
        inputs: Representative inputs by name, NumPy. Inputs that are not given are generated.
        time_budget_s: Seconds of the whole compilation. The expected time of the comparison is reserved, and the search gets the
            rest. Reading the model and timing the whole model on every target are never cut short. With None a fast search
            ends when no candidate promises a gain, or after 35 s.
        tune_s: Seconds for tuning after the search, if a toolchain can tune. They are part of the time budget, if there is one.
            0 tunes nothing.
        use_tuned: Use kernels that earlier compilations tuned, of this model or of others.
        search: ``fast`` measures candidates that promise a gain, within limits. ``proof`` measures until no other plan can cost
            less, even if unmeasured kernels are as fast as arithmetic and memory of this machine allow. ``exhaustive``
            measures every candidate. The last two may take long. Both end with the cheapest plan by the measured costs. As
            always, the final comparison decides.
        strategy: Name of the search strategy. It chooses the candidates to measure, and finds the cheapest plan of the
            measured ones: ``lazy``, ``exhaustive``, ``evolutionary``, ``wide``, or one of another package. See
            ``docs/fusion.md``.
        objective: The figure that is optimised: ``latency`` of one run at a time; ``throughput`` of several concurrent runs,
            whose number is chosen too; ``memory``, the largest resident set; ``size``, the bytes of the artefact.
        limits: Limits that the result must satisfy, such as ``"p99<=20ms"`` or ``"rss<=400MB"``; see ``docs/objectives.md``.
        percentile: Percentile of a kernel's latencies that is its cost: 50, 10 or 90.
        accuracy_budget: Largest end-to-end error that is acceptable, relative to an output's largest magnitude. It admits
            targets of reduced precision. None admits none.
        data: Samples of real inputs: a folder of ``.npz`` files, one ``.npz`` file with a leading axis of samples, or an
            iterable of inputs by name, each alone or in a pair with a label. They are split: some calibrate 8-bit kernels,
            some choose the plan, and the others judge it; see ``docs/precision.md``.
        metric: The metric that compares outputs with those of the original model: ``max-error``, ``cosine``, ``snr``,
            ``top1``, ``top5`` or ``python:module:function``.
        max_drop: Largest drop of that metric that is acceptable. It admits targets of reduced precision, too.
        front: Compare plans for several accuracy budgets, and report the fastest for each.
        measure_budget: Largest number of kernels to measure. With None, a fast search measures a ninth of all kernels, but at
            least 14 and at most 80. Kernels whose timing is known do not count.
        remeasure: Ignore stored timings and measure again.
        finalists: Number of mixed plans that are compared end to end with the single toolchains.
        finals: False skips the end-to-end comparison, and returns the plan with the lowest predicted cost.
        min_gain: The search stops when the most promising plan is better than the best measured one by less than this share.
        fusion: Depth of kernels and fusion style by toolchain. None uses each toolchain's default. If a toolchain is named
            here, its targets have only the kernels that the rule proposes, also as single toolchains.
        launch_penalties_s: Seconds that each kernel of a toolchain costs in addition to its own time, by the toolchain's
            name. For other toolchains they are measured. Among equal costs, the order of the menu decides.
        seed: Seed of generated inputs.
        devices: Devices of operators and outputs: the path of a plan of devices in TOML, or the plan. None uses the
            annotations in the model, if there are any.
        plan: Build exactly this plan: the path of a plan file, or the plan. Nothing is searched.
        plan_out: Write the plan of the result to this file.
        force: Operators that only one target may run, as ``"/Resize:llvm"``: a name or a type, with ``*`` and ``?``.
        forbid: Operators that a target may not run, as ``"openvino:TopK"``.
        allow_host: If no target of the menu runs any operator, run the model on the host, without optimisations. Otherwise
            such a model is refused.
        probe: Further kinds of inputs on which plans have to be right: ``nan``, for models of tables with missing values.
        baseline: The baseline of the gains: the original file on ``onnxruntime`` with its defaults,
            the original model on another target, or ``none``.
        passes: The passes that prepare the model: names with commas between them, see ``transform.parse_pipeline``. The
            ``PassContext`` around ``compile`` also affects which of them run.

    Raises:
        UsageError: A value is not valid, or two options exclude each other.
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
    probe: str | None = None
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
        if self.probe not in (None, "nan"):
            raise UsageError(f"probe {self.probe!r}: the only one is 'nan'")
        if self.plan is not None and (self.force or self.forbid):
            raise UsageError("a plan assigns every operator: force and forbid cannot be combined with it")
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
