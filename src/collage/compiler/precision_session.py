"""Reduced precision in one compilation: its samples, the ranges that they show, and verdicts on plans.

Samples come from the user, or are made up. Some calibrate: 8-bit scales follow from their ranges. Some choose: sensitive nodes
and plans are picked on them. The others judge: a plan is returned only if it keeps every limit on these.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from collage._errors import ToolchainError, UsageError
from collage.calibration import (
    CalibrationData,
    Estimate,
    Judge,
    Metric,
    Ranges,
    Sample,
    Split,
    annotate_ranges,
    collect_ranges,
    files_for,
    find_metric,
    least_samples,
    mean_axes,
    open_data,
    round_weights,
    runs_worker,
    share_outside,
    split_samples,
)
from collage.compiler.problem import Problem
from collage.database import FactKind
from collage.frontend import model_digest, shape_profiles, similar_inputs
from collage.measure.reference_run import MadeUp, inputs_at
from collage.measure.session import MeasureSession
from collage.numerics.judge import REDUCED_TOLERANCE
from collage.options import CompileOptions
from collage.runtime._decoder import token_symbol
from collage.target import Target
from collage.workers.machine_lock import build_lock
from collage.workers.worker import Worker

__all__ = [
    "MAX_ERROR",
    "Limit",
    "Precision",
    "Verdict",
    "needs_ranges",
    "open_precision",
    "with_data",
    "with_limits",
]

MAX_ERROR = "max-error"
PREPARED_FILE = "prepared.onnx"

# Every kernel is timed at each length of the samples, and each may get a plan of its own. Samples of more lengths say which one
# is usual by their first.
_MOST_LENGTHS = 4
_MADE_UP = Split(tuple(range(8)), tuple(range(8, 24)), tuple(range(24, 64)))
_RANGES: FactKind[Ranges] = FactKind("ranges", Ranges)
_MADE_UP_SEED = 1000
_KEEP_EVERY = 8
_ROUNDED = "w4"
"""The precision of which weights are rounded on samples. Of 8 bits the error is that small that nothing is won."""
_ROUNDING_SHARE = 0.1
_TOKENS = 128
_MOST_WATCHED = 8
"""Judging samples on which elements outside the calibrated ranges are counted."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit that a plan has to keep.

    Attributes:
        metric: The metric of the drop.
        most: Largest drop.
        option: The option that says so.
    """

    metric: Metric
    most: float
    option: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """A plan's answers to samples, in figures.

    Attributes:
        estimates: Its drop by metric.
        reason: The reason why it is refused; None if it keeps all limits.
        vague: Metrics for which there are too few samples.
    """

    estimates: Mapping[str, Estimate] = field(default_factory=dict)
    reason: str | None = None
    vague: tuple[str, ...] = ()


@dataclass(slots=True)
class Precision:
    """The facts on reduced precision in one compilation.

    Attributes:
        data: The samples.
        split: The purpose of each sample.
        judge: Compares answers with the original's.
        limits: The accuracy budget of a plan.
        is_made_up: The samples are not the user's.
        ranges: Ranges of all values; None if no target needs them.
        outside: Returns the share of elements on judging samples outside these ranges; None if it is not known. That takes
            as long as calibrating.
        sensitive: Nodes that 8 bits hurt most, as bits: as few as have to stay in float32. 0 if all may be quantised.
        refusals: The reasons why targets that take the whole model are refused, by name.
        verdicts: On judging samples, by plan.
        kept: True for plans that keep every limit on choosing samples, False for others that were tried.
        borders: Plans of two kernels that keep every limit on choosing samples, by their fine and their coarse target.
        is_cut_short: A time budget ended the search for sensitive nodes or borders.
        front: See ``collage.compiler.precision_front``; empty if it was not asked for.
    """

    data: CalibrationData
    split: Split
    judge: Judge
    limits: tuple[Limit, ...]
    is_made_up: bool
    ranges: Ranges | None = None
    outside: Callable[[], float | None] = lambda: None
    sensitive: int = 0
    refusals: dict[str, str] = field(default_factory=dict)
    verdicts: dict[Hashable, Verdict] = field(default_factory=dict)
    kept: dict[Hashable, bool] = field(default_factory=dict)
    borders: dict[tuple[Target, Target], list[Any]] = field(default_factory=dict)
    is_cut_short: bool = False
    front: list[dict[str, Any]] = field(default_factory=list)

    def assumptions(self) -> list[str]:
        """Return the limits and the purposes of the samples, in words."""
        told = [
            f"limit: errors of at most {limit.most:.2%} of the largest output"
            if limit.metric.name == MAX_ERROR
            else f"limit: {limit.metric.name} may get worse by {limit.most:.2%}"
            for limit in self.limits
        ]
        split = self.split
        told.append(
            f"{self.data.count} samples: {len(split.calibrate)} calibrate, {len(split.choose)} choose, "
            f"{len(split.judge)} judge"
        )
        return [*told, *([self.data.how] if self.data.how else [])]

    def too_few(self) -> str | None:
        """Return a warning if the samples cannot show a limit on a share of answers, with the number that can."""
        for limit in self.limits:
            needed = least_samples(limit.most) if limit.metric.name in ("top1", "top5") else 0
            if len(self.split.judge) < needed and not self.is_made_up:
                return (
                    f"{len(self.split.judge)} judging samples cannot show a drop of at most {limit.most:.2%}: "
                    f"that takes {needed}, so about {files_for(needed)} samples in --data"
                )
        return None

    def verdict_of(self, worker: Worker, *, chooses: bool = False) -> Verdict:
        """Return the scores of the executable in a worker on judging samples, or on choosing ones.

        On choosing samples, the interval must keep the limit that is expected on the judging samples.

        Raises:
            ToolchainError: It failed.
        """
        indices = self.split.choose if chooses else self.split.judge
        with build_lock():
            drops = self.judge.drops(worker, indices)
        most = {limit.metric.name: limit.most for limit in self.limits}
        count = len(self.split.judge) if chooses else 0
        found = {
            m.name: replace(
                m.sum_up(drops[m.name], most.get(m.name), count),
                original=self.judge.score_of_original(m, indices[: len(drops[m.name])]),
            )
            for m in self.judge.metrics
        }
        vague = tuple(name for name, estimate in found.items() if estimate.is_vague)
        for limit in self.limits:
            estimate = found[limit.metric.name]
            if not estimate.keeps(limit.most):
                told = limit.metric.told(estimate)
                samples = f"{estimate.samples} {'choosing' if chooses else 'judging'} samples"
                odd = [*self.judge.with_nan.values()] if not math.isfinite(estimate.value) else []
                because = f"; the inputs of {odd[0]} hold NaN" if odd else ""
                return Verdict(found, f"{told}, on {samples}; {limit.option} allows {limit.most:.2g}{because}", vague)
        return Verdict(found, None, vague)


def needs_ranges(menu: Sequence[Target]) -> bool:
    """Return True if a target quantises statically."""
    return any(target.is_calibrated for target in menu)


def with_limits(options: CompileOptions) -> CompileOptions:
    """Return options with an accuracy budget, if only a limit by another metric permits reduced precision.

    Then outputs need only be recognisable, and the metric decides.
    """
    if options.accuracy_budget is not None or options.max_drop is None:
        return options
    return replace(options, accuracy_budget=REDUCED_TOLERANCE)


def with_data(options: CompileOptions, model: ir.Model, workspace: Path, *, fitting: bool = False) -> CompileOptions:
    """Return options with the user's samples opened; kernels are timed on the first calibrating one, unless inputs are given.

    If the samples have a few lengths of one dimension, kernels are timed at these, as often as they occur. Texts for a decoder
    say nothing about the lengths of its steps.

    Args:
        options: The options of the user.
        model: The model.
        workspace: Folder for samples.
        fitting: Leave out samples of other lengths than the model's.

    Raises:
        UsageError: The samples cannot be read, do not fit the model, or there are none.
    """
    if options.data is None or isinstance(options.data, CalibrationData):
        return options
    data = open_data(options.data, model, workspace / "samples", fitting=fitting)
    if options.max_drop is not None and options.metric is None and not data.has_labels:
        raise UsageError("a largest drop needs a metric; name one, such as top1 or cosine")
    if options.inputs:
        return replace(options, data=data)
    first = data.read(split_samples(data.count).calibrate[0])
    if first.is_text:
        return replace(options, data=data)
    several = {name: lengths for name, lengths in data.lengths.items() if name not in options.dims}
    if len(several) > 1 or any(len(lengths) > _MOST_LENGTHS for lengths in several.values()):
        several = {}
    return replace(options, data=data, inputs=dict(first.feeds), dims={**several, **options.dims})


def open_precision(
    problem: Problem,
    session: MeasureSession,
    made: MadeUp | None,
    original: Path | None,
    stack: ExitStack,
) -> Precision | None:
    """Collect ranges if a target needs them, and return what judges plans; None if nothing on the menu is reduced.

    Args:
        problem: The model and the menu.
        session: Knows the workspace.
        database: The database that holds ranges.
        made: The made-up inputs of the reference run.
        original: The file of the original model, if it can be run.
        stack: Closes the processes.

    Raises:
        UsageError: A metric that is not there.
    """
    if not any(target.is_reduced for target in problem.menu) or not problem.options.allows_reduced or made is None:
        return None
    options, folder = problem.options, session.workspace / "judging"
    data, split = (options.data, split_samples(options.data.count)) if options.data else _made_up(problem, made)
    limits = _limits(options, data)
    metrics = {limit.metric.name: limit.metric for limit in limits}
    metrics.setdefault(MAX_ERROR, find_metric(MAX_ERROR))
    if options.metric is not None:
        metrics.setdefault(options.metric, find_metric(options.metric, data.has_labels))
    prepared = session.workspace / PREPARED_FILE
    ir.save(problem.model, prepared)
    original_worker = runs_worker(original or prepared, watches=False)
    judge = Judge(data, original_worker, list(metrics.values()), folder, lambda: problem.comparison_plan.left_s)
    stack.callback(judge.close)
    judge.find_functions()
    try:
        judge.rehearse(split.judge[0])
    except ToolchainError as error:
        if options.data is not None:
            raise UsageError(f"the model cannot be run on {data.read(split.judge[0]).name}: {error}") from error
    if options.data is None and options.inputs:
        try:
            judge.rehearse(split.choose[0])
        except ToolchainError:  # It takes no variations of the inputs.
            data, split = _as_given(problem)
            judge.data = data
    found = Precision(data, split, judge, limits, options.data is None and data.count > 1)  # One is the inputs given.
    session.say("; ".join(found.assumptions()))
    if needs_ranges(problem.menu):
        _calibrate(found, problem, session, prepared)
    if any(target.option("precision") == _ROUNDED for target in problem.menu):
        _round_weights(found, problem, session, prepared, made)
    return found


def _limits(options: CompileOptions, data: CalibrationData) -> tuple[Limit, ...]:
    limits = []
    if options.max_drop is not None:
        limits.append(Limit(find_metric(options.metric or "top1", data.has_labels), options.max_drop, "--max-drop"))
    is_own = options.max_drop is None or options.accuracy_budget != REDUCED_TOLERANCE
    # Of made-up samples a metric may say little: then outputs have to be recognisable too.
    if (
        options.accuracy_budget is not None
        and all(limit.metric.name != MAX_ERROR for limit in limits)
        and (is_own or options.data is None)
    ):
        option = "--accuracy-budget" if is_own else "--max-drop without --accuracy-budget"
        limits.append(Limit(find_metric(MAX_ERROR), options.accuracy_budget, option))
    return tuple(limits)


def _made_up(problem: Problem, made: MadeUp) -> tuple[CalibrationData, Split]:
    """Return samples like the inputs that were made up or given; those that judge have seeds that nothing else met.

    The first one that judges holds the given inputs as they are, all others variations of these.
    """
    model, options = problem.model, problem.options
    profiles = shape_profiles(options.dims)

    def read(index: int) -> Sample:
        seed = options.seed + _MADE_UP_SEED + index
        make, dims = made.reseeded(seed), profiles[index % len(profiles)].dims
        given = options.inputs if index == _MADE_UP.judge[0] else similar_inputs(model, options.inputs, seed)
        return Sample(f"made-up inputs {index}", inputs_at(model, make, given, dims))

    is_all_given = {str(value.name) for value in model.graph.inputs} <= set(options.inputs)
    if is_all_given and _digests(similar_inputs(model, options.inputs, options.seed)) == _digests(options.inputs):
        return _as_given(problem)
    told = f"made up, seed {options.seed}, {made.floats}, {[(p.dims, p.weight) for p in profiles]}"
    count = len(_MADE_UP.calibrate) + len(_MADE_UP.choose) + len(_MADE_UP.judge)
    origin = "variations of the inputs given" if options.inputs else "made-up inputs"
    return CalibrationData(count, f"{told}, {_digests(options.inputs)}", False, read, origin), _MADE_UP


def _as_given(problem: Problem) -> tuple[CalibrationData, Split]:
    """Return the inputs given as the only sample, which does everything."""
    given = problem.options.inputs
    sample = Sample("the inputs given", given)
    return CalibrationData(1, str(_digests(given)), False, lambda _: sample, sample.name), split_samples(1)


def _digests(inputs: Mapping[str, Any]) -> dict[str, str]:
    return {name: _digest(value) for name, value in sorted(inputs.items())}


def _digest(value: Any) -> str:
    items = value if isinstance(value, list) else [value]  # Tensors of a list may be of several shapes.
    return hashlib.sha256(b"".join(np.asarray(each).tobytes() for each in items)).hexdigest()


def _calibrate(precision: Precision, problem: Problem, session: MeasureSession, prepared: Path) -> None:
    """Collect ranges over the calibrating samples; what an interrupted compilation collected is not collected again.

    Raises:
        UsageError: The model cannot be run on a sample of the user's.
    """
    fact = {
        "model": model_digest(problem.model),
        "data": precision.data.digest,
        "samples": list(precision.split.calibrate),
    }
    known = None if problem.options.remeasure else session.database.local_fact(_RANGES, **fact)
    ranges = Ranges() if known is None else known
    wanted, folder = precision.split.calibrate, session.workspace / "calibrating"

    def keep() -> None:
        session.database.keep_local_fact(_RANGES, ranges, **fact)

    def after_each(found: Ranges) -> None:
        session.say(f"calibrating, {found.samples} of {len(wanted)}")
        if not found.samples % _KEEP_EVERY:
            keep()

    with runs_worker(prepared) as worker, build_lock():
        try:
            left = (sample.feeds for sample in precision.data.samples(wanted[ranges.samples :]))
            collect_ranges(worker, left, folder, ranges, after_each, mean_axes(problem.model))
        except KeyboardInterrupt:
            keep()
            session.say(
                f"interrupted: {ranges.samples} of {len(wanted)} calibrating samples are kept; the same command goes on there"
            )
            raise
        except ToolchainError as error:
            keep()
            name = precision.data.read(wanted[ranges.samples]).name
            if not precision.is_made_up:
                raise UsageError(f"the model cannot be run on {name}: {error}") from error
            session.say(f"8-bit kernels are not calibrated: the model cannot be run on {name}")
            return
        if ranges.samples and known is None:
            keep()
    precision.ranges = ranges
    precision.outside = partial(_share_outside, precision, prepared, folder)
    annotate_ranges(problem.model, ranges)


def _round_weights(
    precision: Precision, problem: Problem, session: MeasureSession, prepared: Path, maker: MadeUp
) -> None:
    """Round weights to 4 bits on the calibrating samples. Under a time budget, a tenth of it may go by.

    Made-up steps of a decoder have a row each, which says little. In their place there are rows of many tokens.
    """
    plan, budget_s = problem.comparison_plan, problem.time_budget_s
    least_s = -math.inf if budget_s is None else plan.left_s - _ROUNDING_SHARE * budget_s

    tokens = token_symbol(problem.model) if precision.is_made_up and not problem.options.inputs else None

    def samples() -> Iterator[Mapping[str, Any]]:
        if tokens is None:
            return (sample.feeds for sample in precision.data.samples(precision.split.calibrate))
        seeds = (problem.options.seed + _MADE_UP_SEED + index for index in precision.split.calibrate)
        return (inputs_at(problem.model, maker.reseeded(seed), {}, {tokens: _TOKENS}) for seed in seeds)

    try:
        with build_lock():
            made = round_weights(
                problem.model, prepared, samples, session.workspace, lambda: plan.left_s > least_s, session.say
            )
    except ToolchainError as error:
        session.say(f"weights of 4 bits are rounded without samples: {error}")
    else:
        problem.kernels.use_weights(_ROUNDED, made)


def _share_outside(precision: Precision, prepared: Path, folder: Path) -> float | None:
    watched = precision.data.samples(precision.split.judge[:_MOST_WATCHED])
    assert precision.ranges is not None
    with contextlib.suppress(ToolchainError), runs_worker(prepared) as worker, build_lock():
        return share_outside(worker, (sample.feeds for sample in watched), folder, precision.ranges)
    return None  # A sample that cannot be run is refused where plans are judged.
