"""The options of a compilation."""

from __future__ import annotations

import difflib
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collage._errors import UsageError
from collage.cost.objective import NEIGHBOURS, OBJECTIVES, Limit, read_limits
from collage.option_texts import (
    read_budget,
    read_dims,
    read_drop,
    read_lengths,
    read_penalties,
    read_precision,
    read_seconds,
    read_share,
    read_whole,
)
from collage.target import canonical

if TYPE_CHECKING:
    from collage.device import DeviceRequests
    from collage.frontend import Lengths
    from collage.fusion import FusionOptions
    from collage.plan_file import PlanFile

__all__ = [
    "BASIC",
    "DEFAULT_DROP",
    "DEFAULT_STRATEGY",
    "DEVICES",
    "EXPERTS",
    "GROUPS",
    "MACHINES",
    "PRECISION",
    "SEARCH",
    "SEARCHES",
    "CommandOption",
    "CompileOptions",
    "command_options",
    "command_text",
    "compile_options",
]

SEARCHES = ("fast", "proof", "exhaustive")
"""Kinds of search by thoroughness, see ``CompileOptions.search``."""

DEFAULT_STRATEGY = "lazy"

BASIC, PRECISION, SEARCH, DEVICES = "Options", "Precision", "Search", "Devices"
MACHINES, EXPERTS = "Several machines", "Experts"
GROUPS = (BASIC, PRECISION, SEARCH, DEVICES, MACHINES, EXPERTS)
"""The groups of options in the help of ``collage compile``, in their order."""

# The drop that MLPerf's closed division allows a quantised network, rounded to a whole percent of the original's answers.
DEFAULT_DROP = 0.01


@dataclass(frozen=True, slots=True)
class CommandOption:
    """A field of ``CompileOptions`` on the command line, in files, and as text in Python.

    Attributes:
        flag: Its name, such as ``--dim``.
        help: A sentence for the help.
        group: One of ``GROUPS``.
        metavar: The form of its value.
        kind: Its type, if that is not text: ``int`` or ``bool``.
        choices: The texts that it can be; empty for all.
        repeated: It may be given several times.
        read: Turns its text, or its texts if it is repeated, into its value; None keeps them.
    """

    flag: str
    help: str
    group: str
    metavar: str | None = None
    kind: type = str
    choices: Sequence[str] = ()
    repeated: bool = False
    read: Callable[[Any], Any] | None = None


def option(default: Any, help: str, group: str, *, flag: str = "", kind: type = str, **more: Any) -> Any:
    """Return a field of ``CompileOptions`` that is also an option of ``collage compile``. See ``CommandOption``."""
    told = CommandOption(flag, help, group, kind=bool if isinstance(default, bool) else kind, **more)
    metadata = {_KEY: told}
    return (
        field(default_factory=dict, metadata=metadata) if default is dict else field(default=default, metadata=metadata)
    )


_KEY = "command_option"
_MOST = 1 << 63
_NUMBERS: Mapping[str, tuple[Any, float]] = {
    "threads": (Integral, 1 << 16),
    "time_budget_s": (Real, math.inf),
    "tune_s": (Real, 1e9),
    "measure_budget": (Integral, _MOST),
    "finalists": (Integral, _MOST),
    "min_gain": (Real, 1.0),
    "seed": (Integral, _MOST),
}
"""Fields that are numbers from 0 up, unless they have their default: their kind, and the largest value."""
_KINDS: Sequence[tuple[Any, str, tuple[str, ...]]] = (
    (Mapping, "a dict", ("dims", "fixed", "inputs", "launch_penalties_s")),
    ((list, tuple), "texts", ("force", "forbid", "limits")),
    (str, "a text", ("db", "search", "strategy", "precision", "metric", "baseline", "passes")),
    (Real, "a number", ("accuracy_budget", "max_drop")),
    ((str, Path), "a path", ("plan_out",)),
)
"""Kinds of fields other than numbers from 0 up, their names, and the fields, which may also have their default."""


def command_options() -> dict[str, CommandOption]:
    """Return the options of ``collage compile`` that are fields of ``CompileOptions``, by field."""
    told = {each.name: each.metadata[_KEY] for each in fields(CompileOptions) if _KEY in each.metadata}
    return {name: replace(each, flag=each.flag or "--" + name.replace("_", "-")) for name, each in told.items()}


def command_text(options: CompileOptions, model: str, targets: Sequence[str] = ()) -> str:
    """Return the command that compiles a model with some options.

    Folders, the timing database and values that are not texts, such as arrays, are left out: the text is for other people.

    Args:
        options: The options.
        model: The model's path; ``model.onnx`` if that is empty.
        targets: The targets that were named.
    """
    words = ["collage", "compile", Path(model).name or "model.onnx", "-o", "model.collage"]
    words += [word for target in targets for word in ("-t", target)]
    plain = CompileOptions()
    for name, told in command_options().items():
        value = getattr(options, name)
        if told.group == MACHINES or value == getattr(plain, name):
            continue
        if name == "launch_penalties_s":
            value = {toolchain: seconds * 1e6 for toolchain, seconds in value.items()}
        elif told.metavar in ("DROP", "ERROR") and value is not None:
            value = f"{100 * value:g}%"
        for text in _texts(value):
            flag = told.flag.partition("/")[0 if value is not False else 2]
            words += [flag] if told.kind is bool else [flag, text]
    return shlex.join(words)


def _texts(value: Any) -> list[str]:
    """Return a value of an option as texts, one for each time that the option is given."""
    if isinstance(value, Mapping):
        pairs = {key: _lengths(each) for key, each in value.items()}
        return [f"{key}={each}" for key, each in pairs.items() if each]
    if isinstance(value, str | Path):
        return [Path(value).name if "/" in str(value) and Path(value).exists() else str(value)]
    if isinstance(value, list | tuple):
        return [each.text if isinstance(each, Limit) else str(each) for each in value]
    return [_number(value)] if isinstance(value, int | float) else []


def _lengths(value: Any) -> str:
    """Return a length, or several with weights, or a file; empty for an array."""
    if isinstance(value, Mapping):
        return ",".join(f"{length}:{_number(weight)}" for length, weight in value.items())
    return Path(value).name if isinstance(value, str) else _number(value) if isinstance(value, int | float) else ""


def _number(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """Options of ``compile``. Values may be texts, as on the command line: ``time_budget_s="2m"``, ``max_drop="0.5%"``.

    Attributes:
        threads: Threads of each kernel. 0 means the default of each toolchain.
        db: Timing database: a path or an SQLAlchemy URL; None is the user's own.
        dims: Representative lengths of symbolic dimensions, by symbol; or several with weights, ``{"seq": {32: 3, 512: 1}}``.
            With several, the cost of a kernel is the weighted mean, and its outputs must be right at each length.
        fixed: Fixed lengths of symbolic dimensions, by symbol. Toolchains that need fixed shapes can then take part. The
            executable accepts no other lengths.
        specialise: Compile the model again for each set of lengths that it is timed at, with these lengths fixed. The
            executable has the plans that are faster there than the plan for all lengths, and takes every length. None does so
            if you name lengths, by ``dims`` or by the shapes of ``inputs`` or ``data``, and nothing else excludes several plans.
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
        neighbour: The process beside which plans are compared: ``none``, or one that computes without end with ``idle`` or
            ``equal`` priority. Single kernels and limits are measured on the quiet machine in any case.
        limits: Limits that the result must satisfy, such as ``"p99<=20ms"`` or ``"rss<=400MB"``; see ``docs/objectives.md``.
        percentile: Percentile of a kernel's latencies that is its cost: 50, 10 or 90.
        precision: ``int8`` admits 8-bit kernels. It needs samples in ``data``. Without another limit the metric may drop by
            ``DEFAULT_DROP``.
        accuracy_budget: Largest end-to-end error that is acceptable, relative to an output's largest magnitude. It admits
            targets of reduced precision. None admits none.
        data: Samples of real inputs: a folder of ``.npz`` files, one ``.npz`` file with a leading axis of samples, or an
            iterable of inputs by name, each alone or in a pair with a label. They are split: some calibrate 8-bit kernels,
            some choose the plan, and the others judge it; see ``docs/precision.md``.
        metric: The metric that compares outputs with those of the original model: ``max-error``, ``cosine``, ``snr``,
            ``top1``, ``top5``, ``next-token``, ``kl``, ``perplexity`` or ``python:module:function``.
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

    threads: int = option(0, "Threads of each kernel; 0 is each toolchain's own default.", SEARCH, kind=int)
    db: str | None = option(None, "Timing database: a file or an SQLAlchemy URL.", MACHINES, metavar="URL")
    dims: Lengths = option(
        dict,
        "Representative length of a symbolic dimension, or several with weights.",
        BASIC,
        flag="--dim",
        metavar="NAME=V[:W,V:W...]",
        repeated=True,
        read=read_lengths,
    )
    fixed: Mapping[str, int] = option(
        dict,
        "Fixed length of a symbolic dimension; often faster.",
        BASIC,
        flag="--fix",
        metavar="NAME=V",
        repeated=True,
        read=partial(read_dims, option="--fix"),
    )
    specialise: bool | None = option(
        None,
        "Add a plan for each set of lengths that is timed, if it is faster there. Default: if you name lengths.",
        SEARCH,
        flag="--specialise/--no-specialise",
        kind=bool,
    )
    inputs: Mapping[str, Any] = option(
        dict,
        "A real input, to measure and check on.",
        SEARCH,
        flag="--input",
        metavar="NAME=FILE.npy",
        repeated=True,
    )
    time_budget_s: float | None = option(
        None,
        "Total time of the compilation, e.g. 90s or 5m.",
        BASIC,
        flag="--time-budget",
        metavar="TIME",
        read=read_budget,
    )
    tune_s: float = option(
        0.0,
        "Time for tuning kernels, if a toolchain can tune and a gain is expected.",
        SEARCH,
        flag="--tune",
        metavar="TIME",
        read=read_seconds,
    )
    use_tuned: bool = option(True, "Use kernels that were tuned before.", EXPERTS, flag="--use-tuned/--no-tuned")
    search: str = option(
        "fast",
        "fast; proof: until no other plan can be cheaper; exhaustive: measure every candidate.",
        SEARCH,
        choices=SEARCHES,
    )
    strategy: str = option(
        DEFAULT_STRATEGY,
        "Search strategy: lazy, exhaustive, evolutionary, wide, or one of an installed package.",
        EXPERTS,
        metavar="NAME",
    )
    objective: str = option("latency", "The figure to optimise.", BASIC, choices=OBJECTIVES)
    neighbour: str = option(
        "none",
        "Compare plans beside a busy process of this priority, for machines that do other work too.",
        SEARCH,
        choices=NEIGHBOURS,
    )
    limits: Sequence[str | Limit] = option(
        (),
        "A limit for the result: p99<=20ms, rss<=400MB, size<=10MB, throughput>=50/s.",
        SEARCH,
        flag="--limit",
        metavar="Q<=V",
        repeated=True,
    )
    percentile: int = option(
        50,
        "Percentile of a kernel's latencies that the search uses as its cost.",
        EXPERTS,
        choices=("10", "50", "90"),
        read=partial(read_whole, option="--percentile"),
    )
    precision: str | None = option(
        None,
        f"Admit 8-bit kernels; needs --data. The metric may drop by {DEFAULT_DROP:.0%} if no limit is given.",
        BASIC,
        metavar="int8",
        read=read_precision,
    )
    accuracy_budget: float | None = option(
        None,
        "Largest error of the whole model, relative to its outputs, e.g. 1% or 0.01.",
        PRECISION,
        metavar="ERROR",
        read=partial(read_share, option="--accuracy-budget"),
    )
    data: Any = option(
        None,
        "Samples of real inputs, for calibration and for judging plans; a folder of images by label is one, too.",
        BASIC,
        metavar="FOLDER|FILE.npz",
    )
    metric: str | None = option(
        None,
        "max-error, cosine, snr, top1, top5, next-token, kl, perplexity or python:MODULE:FUNCTION.",
        PRECISION,
        metavar="M",
    )
    max_drop: float | None = option(
        None, "Largest drop of the metric, e.g. 1% or 0.01; admits int8.", BASIC, metavar="DROP", read=read_drop
    )
    front: bool = option(False, "Show times and errors for several accuracy budgets.", PRECISION)
    measure_budget: int | None = option(None, "Largest number of kernels to measure.", EXPERTS, kind=int)
    remeasure: bool = option(False, "Ignore stored timings and measure again.", SEARCH)
    finalists: int = 4
    finals: bool = True
    min_gain: float = 0.02
    fusion: FusionOptions | None = None
    launch_penalties_s: Mapping[str, float] = option(
        dict,
        "Microseconds that each kernel costs in addition to its own time. Default: measured.",
        EXPERTS,
        flag="--launch-penalty",
        metavar="TOOLCHAIN=US",
        repeated=True,
        read=read_penalties,
    )
    seed: int = 0
    devices: str | Path | DeviceRequests | None = option(None, "A plan of devices.", DEVICES, metavar="PLAN.toml")
    plan: str | Path | PlanFile | None = option(None, "Build exactly this plan.", SEARCH, metavar="PLAN.json")
    plan_out: str | Path | None = option(
        None, "Write the plan of the result to this file.", SEARCH, metavar="PLAN.json"
    )
    force: tuple[str, ...] = option(
        (),
        "Only this target runs these operators: a name or type, with * and ?.",
        SEARCH,
        metavar="NODE:T",
        repeated=True,
    )
    forbid: tuple[str, ...] = option(
        (), "This target does not run these operators.", SEARCH, metavar="T:NODE", repeated=True
    )
    allow_host: bool = option(
        False, "If no target runs any operator, run the model on the host, without optimisations.", DEVICES
    )
    probe: str | None = option(
        None,
        "'nan': take only plans that keep NaN among the inputs, as tables need.",
        PRECISION,
        metavar="KIND",
    )
    baseline: str = option(
        "onnxruntime",
        "Baseline of the reported gain: the original file on onnxruntime, another target, or none.",
        SEARCH,
        metavar="T",
        read=canonical,
    )
    passes: str = option(
        "prepare", "Passes that prepare the model. The default is `prepare`.", EXPERTS, metavar="A,B{k=v}"
    )

    def __post_init__(self) -> None:
        for name, told in command_options().items():
            value = getattr(self, name)
            is_text = isinstance(value, str) or (
                told.repeated and isinstance(value, list | tuple) and all(isinstance(v, str) for v in value)
            )
            if is_text and told.repeated:
                value = (value,) if isinstance(value, str) else tuple(value)
            if is_text:
                read = partial(read_whole, option=told.flag) if told.kind is int and told.read is None else told.read
                object.__setattr__(self, name, value if read is None else read(value))
        self._check_kinds()
        self._check_numbers()
        self._check_precision()
        if twice := sorted(set(self.dims) & set(self.fixed)):
            raise UsageError(
                f"dimension {twice[0]!r} is given twice: with --dim and with --fix",
                hint="--fix for one length only, --dim for a typical one",
            )
        forbidden = [tuple(text.partition(":")[::2]) for text in self.forbid]
        for text in self.force:
            if tuple(text.rpartition(":")[::2]) in [(node, target) for target, node in forbidden]:
                raise UsageError(f"{text!r} is forced and forbidden", hint="leave out --force or --forbid")
        if self.dims:
            # Late, since programs that only load artefacts make options too, and need no front door.
            from collage.frontend import shape_profiles

            shape_profiles(self.dims)  # Says what is wrong with them.
        if self.search not in SEARCHES:
            raise UsageError(f"search {self.search!r}: it is one of {', '.join(SEARCHES)}")
        if self.strategy != DEFAULT_STRATEGY:
            from collage.search import strategies  # Late for the same reason.

            strategies().get(self.strategy)  # Says which there are.
        if self.objective not in OBJECTIVES:
            raise UsageError(f"objective {self.objective!r}: it is one of {', '.join(OBJECTIVES)}")
        if self.neighbour not in NEIGHBOURS:
            raise UsageError(f"neighbour {self.neighbour!r}: it is one of {', '.join(NEIGHBOURS)}")
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

    def _check_kinds(self) -> None:
        """Check that values are of the kinds that what follows, and the compilation, expect."""
        plain = {each.name: each.default for each in fields(self)}
        for kind, told, names in _KINDS:
            for name in names:
                value = getattr(self, name)
                texts = value if name in ("force", "forbid") or isinstance(value, Mapping) else ()
                if value is not plain[name] and not (
                    isinstance(value, kind) and all(isinstance(text, str) for text in texts)
                ):
                    named = " by names" if kind is Mapping else ""
                    raise UsageError(f"{name} is {value!r}, not {told}{named}")
        if not all(isinstance(given, str | Path | None) for given in (self.devices, self.fusion, self.plan)):
            # Late, since programs that only load artefacts make options too.
            from collage.device import DeviceRequests
            from collage.fusion import FusionOptions
            from collage.plan_file import PlanFile

            objects: Mapping[str, Any] = {"devices": DeviceRequests, "fusion": FusionOptions, "plan": PlanFile}
            for name, kind in objects.items():
                if not isinstance(getattr(self, name), (kind, str, Path, type(None))):
                    raise UsageError(f"{name} is {getattr(self, name)!r}, not a collage.{kind.__name__}")
        if isinstance(self.fusion, str | Path):
            raise UsageError(f"fusion is {self.fusion!r}, not a collage.FusionOptions")

    def _check_numbers(self) -> None:
        """Check what is a number or holds numbers, NaN among them, but for representative lengths."""
        for each in fields(self):
            kind, most = _NUMBERS.get(each.name, (object, 0))
            value = getattr(self, each.name)
            if (
                each.name in _NUMBERS
                and value is not each.default
                and not (isinstance(value, kind) and 0 <= value <= most)
            ):
                a_number = "a whole number" if kind is Integral else "a number"
                raise UsageError(f"{each.name} is {value!r}, not {a_number} from 0 to {most:g}")
        for toolchain, seconds in self.launch_penalties_s.items():
            if not (isinstance(seconds, Real) and 0 <= seconds <= 1e9):
                raise UsageError(
                    f"the launch penalty of {toolchain} is {seconds!r}, not a number of seconds from 0 to 1e9"
                )
        for name, length in self.fixed.items():
            if not (isinstance(length, Integral) and 0 <= length < _MOST):
                raise UsageError(f"dimension {name!r} cannot be {length!r}")

    def _check_precision(self) -> None:
        """Check what is said about reduced precision, and fill in the default limit of ``precision``."""
        if self.precision is not None and not self.allows_reduced:
            if self.data is None:
                raise UsageError(
                    "--precision int8 needs samples of real inputs, to calibrate and to judge",
                    hint="--data FOLDER with .npz files or images; --accuracy-budget 1% judges made-up inputs instead",
                )
            object.__setattr__(self, "max_drop", DEFAULT_DROP)
        if self.metric is not None and not self.allows_reduced:
            raise UsageError(f"metric {self.metric} decides nothing without a limit", hint="add --max-drop 1%")

    @property
    def bounds(self) -> tuple[Limit, ...]:
        """The limits, read."""
        return read_limits(self.limits)

    @property
    def is_plain(self) -> bool:
        """True if the latency alone decides."""
        return self.objective == "latency" and not self.limits

    @property
    def counts_bytes(self) -> bool:
        """True if the bytes of the artefact decide, or are limited."""
        return self.objective == "size" or any(limit.quantity == "size" for limit in self.bounds)

    @property
    def time_decides(self) -> bool:
        """True if a slow plan cannot be the result: neither bytes nor a resident set decide, or are limited."""
        is_limited = any(limit.quantity in ("size", "rss") for limit in self.bounds)
        return self.objective in ("latency", "throughput") and not is_limited

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


def compile_options(
    options: CompileOptions | Mapping[str, Any] | None = None, more: Mapping[str, Any] | None = None
) -> CompileOptions:
    """Return options from whatever callers may give: options, their fields in a mapping, or single fields.

    Raises:
        UsageError: A name is not an option, or a value is not valid.
    """
    if not isinstance(options, CompileOptions | Mapping | None):
        raise UsageError(f"options are a collage.CompileOptions or a dict, not {options!r}")
    given, more = dict(options) if isinstance(options, Mapping) else {}, more or {}
    known = [each.name for each in fields(CompileOptions)]
    for name in (*given, *more):
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            raise UsageError(
                f"{name!r} is not an option of compile",
                hint=f"did you mean {near[0]!r}?" if near else f"options are {', '.join(known)}",
            )
    base = options if isinstance(options, CompileOptions) else CompileOptions(**given)
    return replace(base, **more) if more else base
