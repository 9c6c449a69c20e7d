"""Plans: covers of the graph with names, and phase 4, which makes executables of them."""

from __future__ import annotations

import hashlib
import heapq
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace

import onnx_ir as ir

from collage._errors import NothingCanRun
from collage.compiler.cost_table import CostTable
from collage.compiler.device_placement import DeviceCandidate, DevicePlacement, lay_out
from collage.compiler.problem import Problem
from collage.compiler.survey import Survey
from collage.device import SEScope
from collage.frontend import bind_dims, describe_inputs, listed_outputs, shape_profiles
from collage.fusion import CandidateKernel, FusionReport, FusionSpec, HostFusionRule, greedy_cover
from collage.graph import IndexSet, KernelSpec, SubGraph
from collage.measure.kernel_factory import kernel_attributes, plan_kernel_name
from collage.measure.session import MeasureSession
from collage.plan import Plan, PlannedKernel
from collage.runtime import KernelRecord, Port, Recipe, output_ports
from collage.search import copies_of, kernel_successors, makespan_s
from collage.target import HOST_TARGET, Target
from collage.toolchains import TUNED

__all__ = [
    "estimate_s",
    "kernel_spec",
    "lower",
    "on_the_host",
    "plan_of",
    "predicted_s",
    "single_plans",
    "with_costs",
]


def plan_of(cover: Sequence[CandidateKernel], name: str, single: Target | None = None) -> Plan:
    """Return the plan of a cover, its kernels in an order in which they can run."""
    return Plan(name, tuple(map(_planned, _in_run_order(cover))), single)


def with_costs(plan: Plan, seconds: Iterable[float | None]) -> Plan:
    """Return the plan with the known costs in its kernels."""
    told = [None if each is None else f"{each * 1e6:.4g} µs" for each in seconds]
    kernels = [replace(kernel, cost=text) for kernel, text in zip(plan.kernels, told, strict=True)]
    return replace(plan, kernels=tuple(kernels))


def _in_run_order(cover: Sequence[CandidateKernel]) -> list[CandidateKernel]:
    """Return kernels so that each comes after those that feed it; admissible ones by their last exits."""
    if not cover:
        return []
    after = kernel_successors(cover[0].sub_graph.graph, [candidate.bits for candidate in cover])
    waiting = [0] * len(cover)
    for fed in after:
        for kernel in fed:
            waiting[kernel] += 1
    ready = [(cover[i].sub_graph.exit.last, i) for i, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    ordered = []
    while ready:
        _, first = heapq.heappop(ready)
        ordered.append(cover[first])
        for kernel in after[first]:
            waiting[kernel] -= 1
            if not waiting[kernel]:
                heapq.heappush(ready, (cover[kernel].sub_graph.exit.last, kernel))
    return ordered


def _planned(candidate: CandidateKernel) -> PlannedKernel:
    device = candidate.scope if isinstance(candidate, DeviceCandidate) else None
    rule = " > ".join(candidate.rules)
    return PlannedKernel(candidate.sub_graph, candidate.target, rule, device, bodies=candidate.bodies)


def single_plans(problem: Problem, survey: Survey, candidates: Iterable[CandidateKernel]) -> list[Plan]:
    """Every target alone; one that takes only parts of the model is completed by the host.

    A target whose kernels are bound to a rule has no others, alone as well: the largest first.

    If operators are placed on devices, alone means: on every device that the target may serve, by one kernel for each
    range of operators there. Operators without a demand go to the device on which that takes the fewest kernels.
    """
    everything = IndexSet((1 << len(problem.graph)) - 1)
    plans = []
    if problem.placement is not None:
        free = {t: found for t, found in survey.baselines.items() if not problem.is_bound(t)}
        right = [t for t, found in free.items() if found.whole.time is None or survey.is_right(found.whole)]
        found_plans = [_alone_on_devices(problem, survey, target, problem.placement) for target in right]
        plans = [plan for plan in found_plans if plan is not None]
        by_host = (
            None
            if any(plan.single for plan in plans)
            else _alone_on_devices(problem, survey, HOST_TARGET, problem.placement)
        )
        return plans if by_host is None else [*plans, by_host]
    for target, found in survey.baselines.items():
        whole = found.whole
        if problem.is_bound(target):
            if bound := _bound_plan(problem, [c for c in candidates if c.target == target], target):
                plans.append(bound)
        elif whole.time is not None and survey.is_right(whole):
            plans.append(
                Plan(target.title, (PlannedKernel(SubGraph(problem.graph, everything), target, "whole"),), target)
            )
        elif found.refusal is not None:
            # A range can fail although each of its operators can be built.
            ranges = [bits for bits, outcome in zip(found.ranges, found.outcomes, strict=True) if outcome.ok]
            if ranges:
                plans.append(_partition_for(problem, target, ranges))
    if not any(plan.single for plan in plans):
        plans.append(on_the_host(problem, survey))
    return plans


def _bound_plan(problem: Problem, candidates: Sequence[CandidateKernel], target: Target) -> Plan | None:
    """Return what a target does alone with the kernels that it may have, the host taking the rest; None if there are none."""
    chosen = greedy_cover(candidate for candidate in candidates if candidate.sub_graph.is_admissible)
    covered = 0
    for candidate in chosen:
        covered |= candidate.bits
    report, spec = FusionReport(), FusionSpec("host", HostFusionRule(), (HOST_TARGET,))
    rest = [c for c in spec.all_candidates(problem.graph, report) if not c.bits & covered]
    return plan_of([*chosen, *rest], target.title, target) if chosen else None


def _alone_on_devices(problem: Problem, survey: Survey, target: Target, placement: DevicePlacement) -> Plan | None:
    """A target wherever it may serve, the host elsewhere; None if that is nowhere, or not allowed."""
    rests = placement.devices if placement.is_free else (None,)
    plans = [plan for rest in rests if (plan := _alone_with_rest(problem, survey, target, placement, rest)) is not None]
    return min(plans, key=lambda plan: len(plan.kernels), default=None)


def _alone_with_rest(
    problem: Problem, survey: Survey, target: Target, placement: DevicePlacement, rest: SEScope | None
) -> Plan | None:
    """The same, with all free operators on one device."""
    owners: list[tuple[SEScope, Target]] = []
    for node in problem.graph.nodes:
        device = placement.scope_of(node, rest).device
        takers = [target] if target == HOST_TARGET or survey.coverage_on(device, target)(node).ok else []
        owner = next((t for t in (*takers, HOST_TARGET) if placement.why_not(node, device, t) is None), None)
        if owner is None:
            return None
        owners.append((device, owner))
    if all(owner != target for _, owner in owners):
        return None
    kernels, start = [], 0
    for (device, owner), members in itertools.groupby(owners):
        stop = start + len(list(members))
        sub_graph = SubGraph(problem.graph, IndexSet.range(start, stop))
        if sub_graph.why_invalid() is not None:
            return None
        kernels.append(PlannedKernel(sub_graph, owner, "alone on a device", device if placement.is_free else None))
        start = stop
    if all(place.target == target for place in kernels):
        return Plan(target.title, tuple(kernels), target)
    return Plan(f"partition_for({target.short})", tuple(kernels))


def on_the_host(problem: Problem, survey: Survey) -> Plan:
    """The whole model on the host: the last resort if no target of the menu takes it.

    Raises:
        NothingCanRun: The plan of devices does not let the host run everything.
    """
    if problem.placement is not None and len(problem.graph):
        plan = _alone_on_devices(problem, survey, HOST_TARGET, problem.placement)
        if plan is None:
            raise NothingCanRun("the plan of devices assigns operators to targets that do not support them")
        return plan
    everything = SubGraph(problem.graph, IndexSet((1 << len(problem.graph)) - 1))
    return Plan(str(HOST_TARGET), (PlannedKernel(everything, HOST_TARGET, "whole"),) if len(problem.graph) else ())


def _partition_for(problem: Problem, target: Target, ranges: Sequence[int]) -> Plan:
    """The classic greedy partitioning: the largest ranges go to the target, everything between to the host."""
    taken = 0
    for bits in ranges:
        taken |= bits
    parts = [(bits, target) for bits in ranges]
    start = None
    for i in range(len(problem.graph) + 1):
        free = i < len(problem.graph) and not taken >> i & 1
        if free and start is None:
            start = i
        elif not free and start is not None:
            parts.append(((1 << i) - (1 << start), HOST_TARGET))
            start = None
    parts.sort(key=lambda part: part[0])
    kernels = [PlannedKernel(SubGraph(problem.graph, IndexSet(bits)), owner, "partition_for") for bits, owner in parts]
    return Plan(f"partition_for({target.short})", tuple(kernels))


def lower(problem: Problem, session: MeasureSession, plan: Plan) -> Recipe:
    """Phase 4: rewrites the model into one function per kernel, and builds every kernel.

    Raises:
        ToolchainError: A kernel could not be built.
    """
    records, specs, made = [], [], [plan.name]
    for number, place in enumerate(plan.kernels, 1):
        kernel = problem.kernels.of(place)
        name = plan_kernel_name(number, len(plan.kernels), place.sub_graph, place.target)
        made.append(str(kernel.graph.name))
        specs.append(kernel_spec(problem, place, name))
        records.append(
            KernelRecord(
                name=name,
                target=str(place.target),
                inputs=tuple(str(value.name) for value in kernel.graph.inputs),
                outputs=tuple(str(value.name) for value in kernel.graph.outputs),
                compiled=session.build(kernel, place.target),
                branch=place.branch,
            )
        )
    # Plans that differ in one kernel, or only in where and when kernels run, are different files of one workspace.
    which = hashlib.sha256("\n".join(made).encode()).hexdigest()[:12]
    file = f"{records[0].name}_and_{len(records) - 1}_more_{which}.onnx" if records else "empty.onnx"
    model, devices = problem.kernels.partitioned(plan.kernels, specs), None
    if problem.placement is not None:
        model, records, devices = lay_out(model, records, problem.placement)
    ir.save(model, session.workspace / file)
    return Recipe(
        inputs=tuple(Port.of(value) for value in problem.model.graph.inputs),
        outputs=output_ports(problem.model),
        listed=listed_outputs(problem.model),
        kernels=tuple(records),
        threads=problem.options.threads,
        model_file=file,
        model={},
        builds={target.build_name: session.availability(target).build for target in (*plan.targets, *plan.leaves)},
        devices=devices,
        empty=_empty_dimensions(problem),
    )


def _empty_dimensions(problem: Problem) -> tuple[str, ...]:
    """Return the dimensions that are 0 at a representative length: every kernel was checked there."""
    shapes = [bind_dims(problem.model, profile.dims) for profile in shape_profiles(problem.options.dims)]
    return tuple(
        dict.fromkeys(
            dim or f"{spec.name}[{axis}]"
            for spec in describe_inputs(problem.model)
            for axis, dim in enumerate(spec.shape or ())
            if not isinstance(dim, int) and any(shape[spec.name][axis] == 0 for shape in shapes)
        )
    )


def kernel_spec(problem: Problem, place: PlannedKernel, name: str = "") -> KernelSpec:
    """Return the partition of a planned kernel in the partitioned model, with all known facts as metadata."""
    kernel = problem.kernels.of(place)
    name, placement = name or str(kernel.graph.name), problem.placement
    scope = None if placement is None else placement.result_scope(place.sub_graph.nodes, place.target, place.device)
    notes = {key: text for key, text in kernel.metadata_props.items() if key == TUNED}
    notes["rule"] = place.rule
    if place.cost is not None:
        notes["cost"] = place.cost
    return KernelSpec(place.sub_graph, name, kernel_attributes(place.target, name, scope) | notes)


def estimate_s(costs: CostTable, kernel: PlannedKernel) -> float | None:
    """Return the seconds that one kernel is expected to take, its launch not included; None if it was not measured."""
    outcome = costs.outcome_of(kernel)
    if outcome is None or outcome.time is None:
        return None
    return outcome.time.median_s


def predicted_s(problem: Problem, costs: CostTable, plan: Plan) -> float | None:
    """Seconds until a plan's last kernel ends; None if a kernel was not measured.

    If the search placed them on devices, copies count too, and kernels of devices that work at once overlap. So do kernels
    of different branches.
    """
    seconds = []
    for place in plan.kernels:
        if (kernel_s := estimate_s(costs, place)) is None:
            return None
        seconds.append(kernel_s + (costs.launch_penalty_s(place.target) if len(plan.kernels) > 1 else 0.0))
    if plan.branches > 1:
        numbers = sorted({place.branch or 0 for place in plan.kernels})
        in_lanes = [(place.sub_graph.inside.bits, numbers.index(place.branch or 0)) for place in plan.kernels]
        return makespan_s(in_lanes, seconds, costs.hand_overs(len(numbers)))
    placement = problem.placement
    if placement is None or any(place.device is None for place in plan.kernels):
        return sum(seconds)
    devices = placement.devices
    placed = [(p.sub_graph.inside.bits, devices.index(p.device)) for p in plan.kernels if p.device is not None]
    transfers = costs.transfers
    if placement.has_overlap:
        return makespan_s(placed, seconds, transfers)
    return sum(seconds) + sum(transfer.copy_s[src][dst] for transfer, src, dst in copies_of(placed, transfers))
