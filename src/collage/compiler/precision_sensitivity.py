"""Sensitivity: which nodes hurt most if they are quantised, found out with a bounded number of runs.

Nodes are taken together in **units**: a convolution or matrix product, and what follows it. At first each of a dozen
groups of units is quantised alone, in a copy of the model that rounds values to 8 bits and computes in float32. Then
the units of the worst groups are looked at one by one. The most sensitive ones stay in float32 in **variants** of the
8-bit targets, as few as keep the limits on choosing samples.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np
import onnx_ir as ir

from collage._errors import ToolchainError, Unsupported
from collage.calibration import find_metric, touches_unbounded
from collage.compiler.precision_session import MAX_ERROR, Limit, Precision, Verdict
from collage.compiler.problem import Problem
from collage.compiler.switched_rounding import PRODUCTS, RoundedRuns
from collage.database import FactKind
from collage.frontend import model_digest
from collage.graph import bits_of, constant_tensor, iterate_bits
from collage.measure.baselines import Baselines
from collage.measure.session import MeasureSession
from collage.status import Status
from collage.system.codec import Count, to_json
from collage.target import Target
from collage.toolchains import option_values
from collage.toolchains.sdk import narrow_weights
from collage.toolchains.sdk.precisions import NARROW_BITS
from collage.workers.machine_lock import build_lock

__all__ = [
    "EXEMPT",
    "FLOATS",
    "add_variants",
    "changes_products_alone",
    "expected_exempt",
    "is_product",
    "keep_unbounded_in_float",
    "profits",
    "ranked_units",
    "units_of",
    "with_rough_floats",
]

EXEMPT = "exempt"
"""Option of an 8-bit target: how many of the most sensitive units of a model it leaves in float32."""

FLOATS = "floats"
"""Option of some 8-bit targets: the type in which they compute what is exempt."""

_SENSITIVE_UNITS: FactKind[tuple[tuple[int, ...], ...]] = FactKind("sensitivity", tuple[tuple[Count, ...], ...])
_DYNAMIC = "int8-dynamic"
"""The value of the option ``precision`` with which matrix products alone are computed in 8 bits, without ranges."""
_GROUPS = 12
_WORST_GROUPS = 3
_MOST_UNITS = 18
_SAMPLES = 3
_ENOUGH = 0.7
"""A whole model in 8 bits whose error is below this share of the budget needs no variant."""


def keep_unbounded_in_float(precision: Precision, problem: Problem) -> None:
    """Have 8-bit kernels compute operators in float32 if they touch unbounded values, such as masks of minus infinity."""
    ranges = precision.ranges
    if ranges is None:
        return
    bits = bits_of(i for i, node in enumerate(problem.graph.nodes) if touches_unbounded(node, ranges))
    for target in _quantising(problem.menu):
        problem.kernels.keep_in_float(target, bits)


def add_variants(
    precision: Precision,
    problem: Problem,
    baselines: Baselines,
    session: MeasureSession,
    first: Callable[[], None] = lambda: None,
) -> tuple[Target, ...]:
    """Return variants of the 8-bit targets that leave sensitive nodes in float32, if they may pay.

    They may pay if an 8-bit target is fast and exceeds the budget, or was not timed because its error is so large.

    Args:
        precision: Has the samples and the ranges.
        problem: The model and the menu.
        baselines: Times and errors of targets on the whole model.
        session: Says what goes on, and remembers which nodes are sensitive.
        first: Called before the first run of a search for sensitive nodes. That search takes long.
    """
    hopeful = [target for target in _quantising(problem.menu) if _is_hopeful(precision, problem, baselines, target)]
    if precision.ranges is None or not hopeful:
        return ()
    units = units_of(problem)
    if len(units) < 2:
        return ()
    is_far = any(_is_far(problem, baselines, target) for target in hopeful)
    fact = {
        "model": model_digest(problem.model),
        "data": precision.data.digest,
        "ranges": to_json(precision.ranges),
        "limits": [[limit.metric.name, limit.most] for limit in precision.limits],
        "is_far": is_far,
    }
    told = None if problem.options.remeasure else session.database.local_fact(_SENSITIVE_UNITS, **fact)
    if told is None:
        first()
        session.say("finding the operators that lose most in 8 bits")
        nodes = problem.graph.nodes
        unit_of = {str(nodes[place].name): unit for unit, bits in enumerate(units) for place in iterate_bits(bits)}
        try:
            with RoundedRuns(problem.model, unit_of, len(units), session.workspace) as rounded:
                told = _levels(rounded, len(units), precision, problem, session.say, is_far=is_far)
        except Unsupported:  # Nothing profits.
            told = ()
        except ToolchainError as error:
            precision.is_cut_short = problem.options.time_budget_s is not None
            session.say(f"the most sensitive operators are not known: {error}")
            return ()
        session.database.keep_local_fact(_SENSITIVE_UNITS, told, **fact)
    added = []
    for indices in reversed(told):
        bits = 0
        for index in indices:
            bits |= units[index] if index < len(units) else 0
        precision.sensitive = bits
        for target in hopeful:
            plain = target.with_options(**{EXEMPT: str(len(indices))})
            is_fewest = indices is told[0]
            rough = with_rough_floats(problem, target, plain)
            # In bf16 exemptions cost little, so that of many of them nothing else is worth a try.
            for variant in (plain, rough) if is_fewest and rough is not None else (rough or plain,):
                problem.kernels.keep_in_float(variant, bits | problem.kernels.in_float(target))
                added.append(variant)
    return tuple(added)


def _quantising(menu: Iterable[Target]) -> list[Target]:
    return [target for target in menu if target.is_calibrated and target.option(EXEMPT) is None]


def with_rough_floats(problem: Problem, target: Target, variant: Target) -> Target | None:
    """Return a variant of a target that computes exempt nodes in bf16; None if bf16 is not on the menu, or no option."""
    is_faster = target.with_options(precision="bf16") in problem.menu
    values = option_values(problem.toolchains.get(target.toolchain), target).get(FLOATS) or ()
    return variant.with_options(**{FLOATS: "bf16"}) if is_faster and "bf16" in values else None


def _is_hopeful(precision: Precision, problem: Problem, baselines: Baselines, target: Target) -> bool:
    whole, budget = baselines[target].whole, problem.tolerance
    if whole.status is Status.WRONG:
        return True
    # What another metric says of a small error is seen when samples are answered.
    is_told = all(limit.metric.name == MAX_ERROR for limit in precision.limits)
    if not whole.ok or whole.time is None or (is_told and not _is_far(problem, baselines, target)):
        return False
    others = [
        found.whole.time.median_s
        for other, found in baselines.items()
        if found.whole.time is not None and not other.is_calibrated and (found.whole.error or 0.0) <= budget
    ]
    return whole.time.median_s < (1 - problem.options.min_gain) * min(others, default=math.inf)


def _is_far(problem: Problem, baselines: Baselines, target: Target) -> bool:
    """Return True if the error of a target alone, on the whole model, is near the budget or beyond."""
    whole = baselines[target].whole
    return whole.status is Status.WRONG or (whole.error or 0.0) > _ENOUGH * problem.tolerance


def units_of(problem: Problem) -> list[int]:
    """Return consecutive ranges of nodes as bits, each with one convolution or matrix product at its beginning."""
    nodes = problem.graph.nodes
    starts = [i for i, node in enumerate(nodes) if is_product(node)]
    if not starts:
        return []
    borders = [0, *starts[1:], len(nodes)]
    return [(1 << end) - (1 << start) for start, end in itertools.pairwise(borders)]


def _levels(
    rounded: RoundedRuns,
    count: int,
    precision: Precision,
    problem: Problem,
    say: Callable[[str], None],
    *,
    is_far: bool,
) -> tuple[tuple[int, ...], ...]:
    """Return the fewest most sensitive of all units that have to stay in float32, and twice as many.

    Nothing if half of all units do not do, or none have to, unless it is known that the whole model is too far off.

    Raises:
        ToolchainError: A process failed, or half of the time that a time budget leaves does not suffice.
    """
    has_numbers = any(output.dtype is not ir.DataType.STRING for output in problem.model.graph.outputs)
    metric = find_metric("snr" if has_numbers else MAX_ERROR)
    least_left_s, runs, began = problem.comparison_plan.left_s / 2, itertools.count(), time.monotonic()

    def stop_if_late(left: int) -> None:
        """Stop if the time does not suffice for all runs that are left, as long as those before took."""
        done = next(runs)
        expected_s = left * (time.monotonic() - began) / done if done else 0.0
        if problem.comparison_plan.left_s - expected_s < least_left_s:
            raise ToolchainError("the time budget leaves no time to measure them")

    def noise(units: Collection[int], left: int) -> float:
        stop_if_late(left)
        choose = precision.split.choose[:_SAMPLES]
        with build_lock():
            drops = precision.judge.drops(rounded.with_units(units), choose, [metric])[metric.name]
        return statistics.fmean(drops) if all(math.isfinite(drop) for drop in drops) else math.inf

    def verdict(units: Collection[int]) -> Verdict:
        stop_if_late(1)
        return precision.verdict_of(rounded.with_units(units), chooses=True)

    whole = verdict(range(count))
    if not is_far and whole.reason is None:
        return ()
    noise_of = ranked_units(count, noise, say)
    order, share = list(noise_of), min(_share_allowed(limit, whole) for limit in precision.limits)
    exempt = min(expected_exempt(list(noise_of.values()), share), max(1, count // 2))
    while exempt <= count // 2:
        if verdict(order[exempt:]).reason is None:
            more = (tuple(order[: 2 * exempt]),) if 2 * exempt <= count // 2 else ()
            return (tuple(order[:exempt]), *more)
        exempt *= 2
    return ()


def _share_allowed(limit: Limit, whole: Verdict) -> float:
    """Return the share of the whole model's error in 8 bits that a limit allows; 1 if its metric does not tell."""
    if limit.metric.name != MAX_ERROR or not math.isfinite(found := whole.estimates[MAX_ERROR].high):
        return 1.0
    return limit.most / found if found > limit.most else 1.0


def expected_exempt(noises: Sequence[float], share: float) -> int:
    """Return how many of the most sensitive units have to be exempt, one at least, so that a share of the noise is left.

    Noise of independent sources adds as squares do.

    Args:
        noises: The noise of each unit, the most sensitive one first.
        share: The share of the noise of all together.
    """
    left = np.cumsum(np.square(noises[::-1]))[::-1]
    few = [count for count in range(1, len(noises)) if left[count] <= share**2 * left[0]]
    return few[0] if few else len(noises)


def ranked_units(
    count: int, noise: Callable[[Collection[int], int], float], say: Callable[[str], None] = lambda _: None
) -> dict[int, float]:
    """Return the noise of each unit, the most sensitive one first.

    At most ``_GROUPS + _MOST_UNITS`` calls of ``noise``.

    Args:
        count: Number of units.
        noise: Returns the error of the outputs if only the given units are quantised. Its second
            argument is the most calls that are left.
        say: Called with each line of progress.
    """
    size = math.ceil(count / _GROUPS)
    groups = [list(range(start, min(start + size, count))) for start in range(0, count, size)]
    closer_count = min(_MOST_UNITS, _WORST_GROUPS * size) if size > 1 else 0
    left = iter(range(len(groups) + closer_count, 0, -1))
    by_group: list[tuple[float, list[int]]] = []
    for number, group in enumerate(groups, 1):
        say(f"quantising one part of the model at a time, {number} of {len(groups)}")
        by_group.append((noise(group, next(left)), group))
    by_group.sort(key=lambda found: (-found[0], found[1]))
    # Noise of independent sources adds as squares do.
    own = {index: level / math.sqrt(len(group)) for level, group in by_group for index in group}
    if size > 1:
        closer = [index for _, group in by_group[:_WORST_GROUPS] for index in group][:closer_count]
        say("quantising single operators of the worst parts")
        own |= {index: noise([index], next(left)) for index in closer}
    return dict(sorted(own.items(), key=lambda found: (-found[1], found[0])))


def is_product(node: ir.Node) -> bool:
    """Return True for a convolution or a matrix product with constant weights."""
    weights = node.inputs[1] if node.op_type in PRODUCTS and len(node.inputs) > 1 else None
    return weights is not None and constant_tensor(weights) is not None


def changes_products_alone(target: Target) -> bool:
    """Return True for targets of 8 bits or narrow weights, which compute in floats what has no product of constant weights."""
    return target.is_calibrated or target.option("precision") in (_DYNAMIC, *NARROW_BITS)


def profits(node: ir.Node, target: Target) -> bool:
    """Return True if such a target may compute a node otherwise than in floats."""
    if target.option("precision") in NARROW_BITS:
        return narrow_weights.profits(node)
    return is_product(node) and (target.is_calibrated or node.op_type in ("Gemm", "MatMul"))
