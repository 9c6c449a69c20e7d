"""The headroom of a model: where its time goes, how fast the libraries are there, and how far that is from the limit.

The model is cut into the kernels that ``FuseOps`` makes: an operator with the elementwise ones around it. The profiler of
the fastest library that has one says where the time of the whole model goes. Then distinct chains are timed as kernels of their
own on every target, the longest of each row first. If a library merges several chains, the time stands where its profiler
puts it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import onnx_ir as ir

from collage._errors import ModelError, NothingCanRun
from collage.byoc import fused_kernels
from collage.compiler.assumptions import assumed_lengths
from collage.compiler.effective_options import options_and_menu
from collage.compiler.opening import open_model
from collage.compiler.problem import Problem
from collage.compiler.refusals import check_reference
from collage.compiler.survey import baselines_of
from collage.cost.outcome import Outcome
from collage.database.database import Database
from collage.graph import DataflowGraph, IndexSet, SubGraph, constant_tensor, main_op_type
from collage.measure.baselines import Baselines, TargetBaseline
from collage.measure.estimator import MeasuringCostEstimator
from collage.measure.jobs import weight_bytes
from collage.measure.machine_rates import MachineRates, measure_rates
from collage.measure.overheads import measure_overheads
from collage.measure.segment_profile import profile_from_segments
from collage.measure.session import MeasureSession
from collage.measure.work import Work, Workload, shape_in
from collage.options import CompileOptions, compile_options
from collage.plan import PlannedKernel
from collage.system.scratch import scratch
from collage.target import Target, TargetLike
from collage.toolchains import Profiler, Registry, registry

__all__ = ["CHAINS_S", "headroom"]

CHAINS_S = 60.0
"""Seconds for timing chains if there is no time budget. On two cores about 15 distinct ones are built and timed meanwhile."""
_BATCH = 4
"""Distinct chains that are built side by side, and after which the time is looked at."""
_LEAST_SHARE = 0.1
"""The least share of a kernel's time that is left when the cost of the call is taken off."""
_LEAST_S = 1e-9
"""Least weight of a chain in a profile that is made of the times of chains."""
_MOST_DEPTH = 12
"""Operators on a path through a chain. The longest usual one has ten: a convolution, a scale and a written-out activation."""
_MOST_FUSIONS = 10_000
"""Fusions that are looked at. A chain of 1,000 elementwise operators has as many of up to that depth, which takes seconds."""
_SHOWN_TYPES = 3
"""Distinct operator types of a chain that name its row; chains that share them share the row."""


@dataclass(slots=True)
class _Chain:
    """All chains of a model that are alike but for names and weights.

    Attributes:
        places: The chains themselves.
        row: Name of the row that sums them up.
        work: The work of one, and its share of all runs, for each set of lengths; empty if it is not known.
        is_free: True if it moves no data.
        time_s: Seconds of all places together in a run of the whole model.
        limit_s: Seconds of all places together at the machine's rates; None if the work is not known.
        outcomes: The result of timing one of them alone, by target.
        alone_s: Seconds of all places together if each is a kernel of its own, without the cost of the calls, by target.
    """

    places: list[SubGraph]
    row: str
    work: list[tuple[Work, float]] = field(default_factory=list)
    is_free: bool = False
    time_s: float = 0.0
    limit_s: float | None = None
    outcomes: dict[Target, Outcome] = field(default_factory=dict)
    alone_s: dict[Target, float] = field(default_factory=dict)

    @property
    def bits(self) -> int:
        """Return the nodes of all places, as bits."""
        return sum(place.inside.bits for place in self.places)


def headroom(
    source: Any,
    targets: Iterable[TargetLike] | None = None,
    *,
    options: CompileOptions | Mapping[str, Any] | None = None,
    toolchains: Registry | None = None,
    say: Callable[[object], None] = lambda _: None,
) -> dict[str, Any]:
    """Measure where a model's time goes, and how far that is from the limit of this machine. Return JSON values.

    Args:
        source: As for ``compile``.
        targets: As for ``compile``.
        options: As for ``compile``. Reading the model and timing all of it on each library are never cut short. The rest of
            the time budget, or a minute without one, is for timing chains.
        toolchains: As for ``compile``.
        say: Called with each line of progress.

    Raises:
        ModelError: The source is not a valid model, not a safe one, or cannot be run.
        NothingCanRun: No target takes any of it.
    """
    began = time.monotonic()
    toolchains = toolchains or registry()
    options, menu = options_and_menu(compile_options(options), targets, toolchains)
    with ExitStack() as stack:
        workspace = stack.enter_context(scratch())
        database = stack.enter_context(Database(options.db))
        survey, session, facts = open_model(
            source, menu, options, toolchains, workspace, database, stack, workers=None, say=say, is_timed=False
        )
        problem = survey.problem
        if not len(problem.graph):
            raise ModelError("the model has no operators, and so takes no time")
        check_reference(survey, session)
        if survey.reference.failure is not None:
            raise NothingCanRun(f"nothing can be measured: {survey.reference.failure}")
        say("measuring the rates of this machine")
        rates = measure_rates(session.cores)
        workloads = [
            (Workload(problem.graph, partial(shape_in, values)), weight) for values, weight in session.occasions
        ]
        chains = _chains(problem, workloads, rates)
        libraries = [target for target in problem.menu if not target.is_native] or list(problem.menu)
        # A whole model that a target refuses takes a build of each operator, for a time that cannot be split up.
        profiled = [target for target in libraries if isinstance(toolchains.for_target(target), Profiler)]
        baselines = baselines_of(problem, profiled, session)
        if not any(outcome.time for found in baselines.values() for outcome in found.outcomes):
            baselines = baselines_of(problem, problem.menu, session)
        base = _base(baselines)
        seconds = _without_views(_node_seconds(base, baselines), problem.graph, workloads[0][0])
        for chain in chains:
            chain.time_s = sum(seconds.get(i, 0.0) for i in IndexSet(chain.bits))
        ends_at = began + options.time_budget_s if options.time_budget_s else time.monotonic() + CHAINS_S
        usable = [target for target in problem.menu if session.availability(target).available]
        _time_alone(chains, usable, problem, session, ends_at, base.outcomes[0])
        if not seconds:
            _profile_by_chains(chains, base)
        found = _as_json(chains, libraries, base, rates)
        return {
            "schema": 1,
            "model": {"path": facts["path"], "nodes": len(problem.graph)},
            "lengths": str(assumed_lengths(problem.model, problem.options.dims, options.dims) or ""),
            **found,
            "threads": session.cores,
            "targets": [_whole(found) for found in baselines.values()],
            "took_s": round(time.monotonic() - began, 1),
        }


def _chains(problem: Problem, workloads: Sequence[tuple[Workload, float]], rates: MachineRates) -> list[_Chain]:
    """Return the distinct chains of a model, with their limits."""
    graph, native = problem.graph, Target("llvm")
    fused = fused_kernels(graph, native, max_depth=_MOST_DEPTH, max_candidates=_MOST_FUSIONS)
    covered = [kernel.sub_graph for kernel in fused]
    left = (1 << len(graph)) - 1 - sum(place.inside.bits for place in covered)
    all_weight_bytes = max(workload.weight_bytes for workload, _ in workloads)
    found: dict[Hashable, _Chain] = {}
    for place in (*covered, *(SubGraph(graph, IndexSet(1 << i)) for i in IndexSet(left))):
        key = problem.kernels.key(PlannedKernel(place, native))
        # Equal chains have equal lengths too: the same operators occur at several where these are symbols.
        works = [(workload.of(place), weight) for workload, weight in workloads]
        known = [(work, weight) for work, weight in works if work is not None]
        chain = found.setdefault((key, *known), _Chain([], _row_of(place), known))
        chain.is_free = all(workload.is_free(place) for workload, _ in workloads)
        chain.places.append(place)
    for chain in found.values():
        if chain.work:
            each_s = sum(weight * work.limit_s(rates, all_weight_bytes) for work, weight in chain.work)
            chain.limit_s = len(chain.places) * each_s
    return list(found.values())


def _row_of(place: SubGraph) -> str:
    """Return the name of a chain's row: its main operator with its form, and the first others."""
    nodes = [node for node in place.nodes if node.op_type not in ("Identity", "Reshape", "Squeeze", "Unsqueeze")]
    nodes = nodes or list(place.nodes)
    main = main_op_type(node.op_type for node in nodes)
    types = list(dict.fromkeys(f"{_form(node)}" if node.op_type == main else node.op_type for node in nodes))
    return "+".join(types[:_SHOWN_TYPES]) + ("+…" if len(types) > _SHOWN_TYPES else "")


def _form(node: ir.Node) -> str:
    """Return an operator type with what decides its speed: the window, the groups, or that no operand is constant."""
    second = node.inputs[1] if len(node.inputs) > 1 else None
    if node.op_type in ("Conv", "ConvTranspose") and second is not None and second.shape is not None:
        lengths = tuple(second.shape)
        window = "x".join(map(str, lengths[2:]))
        groups = node.attributes.get_int("group", 1)
        kind = "" if groups < 2 else " depthwise" if lengths[1:2] == (1,) else " grouped"
        return f"{node.op_type} {window}{kind}"
    if node.op_type == "MatMul" and second is not None and constant_tensor(second) is None:
        return "MatMul of values"
    return node.op_type


def _base(baselines: Baselines) -> TargetBaseline:
    """Return the baseline whose time is split up: of those with a profile the fastest whole one, or the one of most operators.

    Raises:
        NothingCanRun: No target takes any operator.
    """
    timed = [found for found in baselines.values() if any(outcome.time is not None for outcome in found.outcomes)]
    if not timed:
        reasons = "; ".join(f"{target.short}: {found.whole.reason}" for target, found in baselines.items())
        raise NothingCanRun(f"no target takes any operator of the model: {reasons}")

    def rank(found: TargetBaseline) -> tuple[bool, float, float]:
        whole = found.whole
        nodes = sum(bits.bit_count() for bits in found.ranges)
        return not found.profile, -nodes, whole.time.median_s if whole.ok and whole.time is not None else math.inf

    return min(timed, key=rank)


def _node_seconds(base: TargetBaseline, baselines: Baselines) -> dict[int, float]:
    """Return the seconds of each operator by the base's profiler, and of those that it refuses by the fastest other one."""
    seconds: dict[int, float] = {}
    for found in baselines.values():
        for i, value in found.profile.items():
            seconds[i] = min(value, seconds.get(i, math.inf))
    return {**seconds, **base.profile} if base.profile else {}


def _without_views(seconds: Mapping[int, float], graph: DataflowGraph, workload: Workload) -> dict[int, float]:
    """Count the time of each view with the first operator that reads it.

    Views take none. A library that replaces an operator by some of its own names them after the view before it.
    """
    found = dict(seconds)
    for i in range(len(graph)):
        if i in found and graph.consumers(i) and workload.is_free(SubGraph(graph, IndexSet(1 << i))):
            reader = graph.consumers(i)[0]
            found[reader] = found.get(reader, 0.0) + found.pop(i)
    return found


def _profile_by_chains(chains: Sequence[_Chain], base: TargetBaseline) -> None:
    """Split up the time of a target without a profiler by the times of its chains alone, and by limits where these lack."""
    weights = {i: (chain.limit_s or 0.0) + _LEAST_S for i, chain in enumerate(chains)}
    alone = {1 << i: chain.alone_s[base.target] for i, chain in enumerate(chains) if base.target in chain.alone_s}
    total_s = sum(outcome.time.median_s for outcome in base.outcomes if outcome.time is not None)
    seconds = profile_from_segments(weights, alone, total_s)
    for i, chain in enumerate(chains):
        chain.time_s = seconds.get(i, total_s * weights[i] / sum(weights.values()))


def _time_alone(
    chains: Iterable[_Chain],
    targets: Sequence[Target],
    problem: Problem,
    session: MeasureSession,
    ends_at: float,
    whole: Outcome,
) -> None:
    """Time each chain as a kernel of its own on every target, while there is time: the longest of each row, then others."""
    if time.monotonic() > ends_at:
        return
    estimator = MeasuringCostEstimator(session, weight_bytes(problem.model))
    dispatch_s = {target: measure_overheads(target, session).dispatch_s for target in targets}
    most_s = math.inf if whole.time is None else whole.time.median_s
    # Kernels that were made earlier, and values other than tensors, cannot be had alone.
    left = [chain for chain in chains if not chain.is_free and chain.places[0].is_valid()]
    left.sort(key=lambda chain: (chain.time_s, chain.limit_s or 0.0), reverse=True)
    firsts = {chain.row: chain for chain in reversed(left)}
    left.sort(key=lambda chain: firsts[chain.row] is not chain)
    total, longest_s = len(left), 0.0
    while left and (began := time.monotonic()) + longest_s < ends_at:
        batch, left = left[:_BATCH], left[_BATCH:]
        session.say(f"timing chains of operators: {total - len(left)} of {total}, {ends_at - began:.0f} s left")
        places = [PlannedKernel(chain.places[0], target) for chain in batch for target in targets]
        outcomes = iter(estimator.measure([problem.kernel_of(place) for place in places], most_s))
        for chain in batch:
            for target in targets:
                outcome = chain.outcomes[target] = next(outcomes)
                if outcome.ok and outcome.time is not None:
                    each_s = outcome.time.median_s
                    each_s = max(each_s - dispatch_s[target], _LEAST_SHARE * each_s)
                    chain.alone_s[target] = len(chain.places) * each_s
        longest_s = max(longest_s, time.monotonic() - began)


def _as_json(
    chains: Sequence[_Chain], libraries: Sequence[Target], base: TargetBaseline, rates: MachineRates
) -> dict[str, Any]:
    """Return the table: rows by the time above the limit, and each distinct chain of a row."""
    total_s = sum(chain.time_s for chain in chains)
    groups: dict[str, list[_Chain]] = {}
    for chain in chains:
        groups.setdefault(chain.row, []).append(chain)
    rows = [_row(name, group, libraries, base.target, total_s) for name, group in groups.items()]
    rows.sort(key=lambda row: (row["limit_ms"] or 0.0) - row["time_ms"])
    timed = [chain for chain in chains if chain.outcomes]
    return {
        "base": base.target.short,
        "is_whole": base.refusal is None,
        "time_ms": 1e3 * total_s,
        "limit_ms": 1e3 * sum(chain.limit_s or 0.0 for chain in chains),
        "timed_share": sum(chain.time_s for chain in timed) / total_s if total_s else 0.0,
        "timed_chains": [len(timed), sum(not chain.is_free for chain in chains)],
        "rows": rows,
        "rates": {
            "gflops": rates.flops_per_s / 1e9,
            "gbytes_per_s": [[size, rate / 1e9] for size, rate in rates.bytes_per_s],
        },
    }


def _row(
    name: str, chains: Sequence[_Chain], libraries: Sequence[Target], base: Target, total_s: float
) -> dict[str, Any]:
    time_s = sum(chain.time_s for chain in chains)
    limits = [chain.limit_s for chain in chains]
    limit_s = None if None in limits else sum(limit for limit in limits if limit is not None)
    by_library: dict[str, float] = {}
    ours_s = theirs_s = 0.0
    for chain in chains:
        alone = {target: seconds for target, seconds in chain.alone_s.items() if target in libraries}
        inside = {base: chain.time_s} if chain.time_s > 0 or not alone else {}
        best = min((*inside.items(), *alone.items()), key=lambda pair: pair[1])
        by_library[best[0].short] = by_library.get(best[0].short, 0.0) + best[1]
        native = [seconds for target, seconds in chain.alone_s.items() if target.is_native]
        if native and alone:
            ours_s, theirs_s = ours_s + min(native), theirs_s + min(alone.values())
    fastest_s = sum(by_library.values())
    if 0 < time_s < fastest_s:
        # Some of its chains are merged into others of it.
        by_library, fastest_s = {base.short: time_s}, time_s
    return {
        "operators": name,
        "count": sum(len(chain.places) for chain in chains),
        "time_ms": 1e3 * time_s,
        "share": time_s / total_s if total_s else 0.0,
        "fastest_ms": 1e3 * fastest_s,
        "fastest": max(by_library, key=by_library.__getitem__),
        "limit_ms": None if limit_s is None else 1e3 * limit_s,
        # Nothing is known of what is merged into other rows, and was not timed alone.
        "over_limit": fastest_s / limit_s if limit_s and fastest_s else None,
        "native_ms": 1e3 * ours_s if theirs_s else None,
        "native_over_fastest": ours_s / theirs_s if theirs_s else None,
        "chains": [_chain(chain) for chain in sorted(chains, key=lambda each: -each.time_s)],
    }


def _chain(chain: _Chain) -> dict[str, Any]:
    return {
        "operators": chain.places[0].label,
        "first": str(chain.places[0].nodes[0].name),
        "count": len(chain.places),
        "time_ms": 1e3 * chain.time_s,
        "limit_ms": None if chain.limit_s is None else 1e3 * chain.limit_s,
        "work": [
            {"flops": work.flops, "weight_bytes": work.weight_bytes, "other_bytes": work.other_bytes, "share": weight}
            for work, weight in chain.work
        ],
        "alone_ms": {target.short: 1e3 * seconds for target, seconds in chain.alone_s.items()},
        "refused": {target.short: found.reason for target, found in chain.outcomes.items() if not found.ok},
    }


def _whole(found: TargetBaseline) -> dict[str, Any]:
    whole = found.whole
    return {
        "target": found.target.short,
        "time_ms": None if whole.time is None else 1e3 * whole.time.median_s,
        "reason": whole.reason,
        "has_profile": bool(found.profile),
    }
