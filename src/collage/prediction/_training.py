"""Training: from the rows of a database to a predictor. It needs scikit-learn, which predicting does not."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from collage._distribution import WHERE, install_command
from collage._errors import TargetError, UsageError
from collage.cost.workload_key import METHOD
from collage.database import Database
from collage.database.queries import Choice, listing
from collage.measure.operator_work import WORK, WorkByOperator
from collage.measure.roofline import known_rates
from collage.prediction._compilation import COMPILATION, Compilation
from collage.prediction._features import CLASSES, Rates, amounts, parts_s
from collage.prediction._predictor import Held, Predictor
from collage.prediction._trees import Tree
from collage.system.texts import is_whole_number
from collage.target import Target

__all__ = ["Timing", "correction", "name_of", "timings_of", "train"]

_LEAST_MODELS = 6
"""Fewer compiled models say nothing about the next one."""
_LEAST_TIMINGS = 12
"""A target with fewer timings is not learned: it would have as many parameters."""
_PRIOR = 0.3
"""Weight of "as on the other targets" for each factor of a target, in timings that are off by their own size."""
_TREES: Mapping[str, Any] = {
    "n_estimators": 60,
    "learning_rate": 0.08,
    "max_depth": 3,
    "min_samples_leaf": 8,
    "loss": "huber",
    "random_state": 0,
}
_FEW = 4.0
"""Timings of a machine with which its correction counts half."""


@dataclass(frozen=True, slots=True)
class Timing:
    """A timing to learn from: the work of a kernel, its target, the rates that it had, and its seconds."""

    work: WorkByOperator
    target: str
    rates: Rates
    machine: str
    seconds: float


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A compilation, the digest of its model, and the rates of its machine."""

    source: str
    found: Compilation
    rates: Rates


def name_of(target: str, threads: int, cores: int) -> tuple[str, int]:
    """Return the name under which a target is learned, and its threads: threads are a part of the rates."""
    try:
        parsed = Target.parse(target)
    except TargetError:  # Of a newer version, or of a damaged row.
        return target, threads or cores
    given = parsed.option("threads") or ""
    kept = [f"{name}={value}" for name, value in parsed.options if name != "threads"]
    return " ".join([parsed.toolchain, *kept]), (int(given) if is_whole_number(given) else 0) or threads or cores


def timings_of(database: Database) -> list[Timing]:
    """Return the timings of kernels whose work is known."""
    works = {(str(name.get("kernel")), str(name.get("shapes"))): work for name, work in database.facts(WORK)}
    found, rates = [], dict[str, Rates | None]()
    for row in list(listing(database, Choice(status="ok"))):
        parts = row["parts"]
        work, machine = works.get((parts.get("kernel"), parts.get("shapes"))), str(parts.get("machine"))
        threads = parts.get("threads")
        if work is None or not work.operators or parts.get("method") != METHOD:
            continue
        if not isinstance(threads, int) or threads < 0:
            continue  # A row that was not made here.
        if machine not in rates:
            rates[machine] = _rates(database, machine)
        whole = rates[machine]
        if whole is None or not row["median_us"]:
            continue
        name, threads = name_of(parts["target"], threads, int(whole.threads))
        found.append(Timing(work, name, with_threads(whole, threads), machine, row["median_us"] / 1e6))
    return found


def with_threads(rates: Rates, threads: float) -> Rates:
    """Return the rates of some of the processors of a machine."""
    share = threads / rates.threads
    return Rates(rates.flops_per_s * share, rates.bytes_per_s * share, threads)


def train(database: Database, command: str) -> Predictor:
    """Return the predictor of a database, scored on each compiled model without what was measured for it.

    Raises:
        UsageError: Too few models were compiled or kernels timed, or scikit-learn is missing.
    """
    timings = timings_of(database)
    found = ((name, each, _rates(database, str(name.get("machine")))) for name, each in database.facts(COMPILATION))
    compiled = [
        _Compiled(str(name.get("model")), each, rates)
        for name, each, rates in found
        if rates is not None and each.work.operators and each.singles_s
    ]
    compiled.sort(key=lambda each: (each.found.model, each.source, each.found.wall_s))
    if len({each.source for each in compiled}) < _LEAST_MODELS:
        raise UsageError(
            f"{database.url} knows the compilations of {len({each.source for each in compiled})} models; "
            f"{_LEAST_MODELS} are the fewest to learn from"
        )
    held: list[Held] = []
    for source in dict.fromkeys(each.source for each in compiled):
        predictor = _fit([timing for timing in timings if timing.work.model != source], command)
        held += [_held(predictor, each) for each in compiled if each.source == source]
    if not (scored := tuple(each for each in held if each.singles_s)):
        raise UsageError(
            f"{database.url} has too few timings: {_LEAST_TIMINGS} on a target, without those of the model that is "
            "predicted, are the fewest to learn from"
        )
    every = {timing.machine: _rates(database, timing.machine) for timing in timings}
    machines = tuple(rates for _, rates in sorted(every.items()) if rates is not None)
    return replace(_fit(timings, command), machines=machines, held=scored)


def correction(predictor: Predictor, timings: Iterable[Timing]) -> dict[str, float]:
    """Return a factor by target: the median error of a predictor on timings of one machine, less if they are few."""
    errors = defaultdict(list)
    for timing in timings:
        if timing.target in predictor.coefficients and (
            parts := predictor.class_s(timing.work, timing.target, timing.rates)
        ):
            errors[timing.target].append(math.log(timing.seconds / sum(parts.values())))
    return {
        name: math.exp(float(np.median(each)) * len(each) / (len(each) + _FEW)) for name, each in sorted(errors.items())
    }


def _rates(database: Database, machine: str) -> Rates | None:
    known = known_rates(database, machine)
    return None if known is None else Rates(*known)


def _fit(timings: Sequence[Timing], command: str) -> Predictor:
    targets = sorted({timing.target for timing in timings})
    of_target = {name: [t for t in timings if t.target == name] for name in targets}
    of_target = {name: each for name, each in of_target.items() if len(each) >= _LEAST_TIMINGS}
    learned = [timing for each in of_target.values() for timing in each]
    if not learned:
        return Predictor(command, 0, (), (), 0.0, {}, (), ())
    common = _coefficients(learned, {})
    predictor = Predictor(
        command,
        len(learned),
        (),
        tuple(sorted({label for timing in learned for label in timing.work.operators})),
        max((timing.seconds for timing in learned), default=0.0),
        {name: _coefficients(each, common) for name, each in of_target.items()},
        (),
        (),
    )
    return replace(predictor, trees=_trees(predictor, learned))


def _coefficients(timings: Sequence[Timing], common: Mapping[str, float]) -> dict[str, float]:
    """Return the factors on the parts of a time that make the smallest relative errors; none is negative."""
    nnls = _library().nnls
    rows = [(amounts(timing.work, timing.rates), timing.seconds) for timing in timings]
    names = sorted({name for parts, _ in rows for name in parts} | set(common))
    matrix = [[parts.get(name, 0.0) / seconds for name in names] for parts, seconds in rows]
    wanted = [1.0] * len(matrix)
    for i, name in enumerate(names):
        if common.get(name):
            matrix.append([_PRIOR / common[name] if i == j else 0.0 for j in range(len(names))])
            wanted.append(_PRIOR)
    found, _ = nnls(np.array(matrix), np.array(wanted))
    values = dict(zip(names, map(float, found), strict=True))
    for kind in ("flops", "bytes"):
        # An operator of a class that never occurred is taken for a usual one.
        usual = [value for name, value in values.items() if name.endswith(kind) and value]
        values = {f"{each} {kind}": statistics.median(usual or [1.0]) for each in CLASSES} | values
    return {name: float(f"{value:.6g}") for name, value in values.items()}


def _trees(predictor: Predictor, timings: Sequence[Timing]) -> tuple[Tree, ...]:
    features, errors = [], []
    for timing in timings:
        parts = parts_s(timing.work, timing.rates, predictor.coefficients[timing.target])
        if (total_s := sum(parts.values())) > 0:
            features.append(predictor.features(timing.work, timing.target, timing.rates, parts))
            errors.append(math.log(timing.seconds / total_s))
    grown = _library().boosting(**_TREES).fit(np.array(features, np.float32), np.array(errors))
    constant = float(grown.init_.predict(np.array(features[:1]))[0])
    trees = [Tree((0,), (0.0,), (0,), (0,), (constant,))]
    for (estimator,) in grown.estimators_:
        tree = estimator.tree_
        trees.append(
            Tree(
                tuple(max(0, int(each)) for each in tree.feature),
                tuple(float(each) for each in tree.threshold),
                tuple(max(0, int(each)) for each in tree.children_left),
                tuple(max(0, int(each)) for each in tree.children_right),
                tuple(float(f"{_TREES['learning_rate'] * each:.6g}") for each in tree.value[:, 0, 0]),
            )
        )
    return tuple(trees)


def _held(predictor: Predictor, compiled: _Compiled) -> Held:
    """Return the outcome of a model, with the times on each target alone that a predictor says."""
    found, singles = compiled.found, {}
    for target, true_s in found.singles_s.items():
        name, threads = name_of(target, 0, int(compiled.rates.threads))
        if name in predictor.coefficients and (
            parts := predictor.class_s(found.work, name, with_threads(compiled.rates, threads))
        ):
            singles[target] = sum(parts.values()), true_s
    return Held(found.model, singles, found.gain[0], found.wall_s if found.is_whole else None)


@dataclass(frozen=True, slots=True)
class _Library:
    nnls: Any
    boosting: Any


def _library() -> _Library:
    try:
        from scipy.optimize import nnls
        from sklearn.ensemble import GradientBoostingRegressor
    except ImportError as error:
        raise UsageError(f"learning needs the package scikit-learn: {install_command('learn')}{WHERE}") from error
    return _Library(nnls, GradientBoostingRegressor)
