"""Phases 1 and 2 for one model: which candidate kernels there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import onnx_ir as ir

from collage._errors import NothingCanRun
from collage.byoc import greedy_kernels, greedy_rest
from collage.compiler.precision_sensitivity import changes_products_alone, profits
from collage.compiler.problem import Problem
from collage.compiler.survey import Survey
from collage.fusion import (
    CandidateKernel,
    CandidateKernelIndex,
    FusionOptions,
    FusionReport,
    FusionSpec,
    GivenFusionRule,
    HostFusionRule,
    collect_candidates,
    gather_fusion_specs,
    max_coalesce,
)
from collage.graph import IndexSet, SubGraph, is_view, iterate_bits
from collage.target import HOST_TARGET, Target
from collage.toolchains import Support

__all__ = ["collect", "gather_specs", "has_what_profits", "host_spec", "joined_neighbors", "may_have"]


def gather_specs(survey: Survey) -> Sequence[FusionSpec]:
    """Gather fusion specs (phase 1), which define the candidates of each target of the menu."""
    problem, usable = survey.problem, survey.usable
    toolchain_of, fusion = problem.toolchains.for_target, problem.options.fusion
    if problem.placement is None:
        return [*gather_fusion_specs(usable, toolchain_of, survey.coverage_of, fusion), *_greedy_specs(survey)]
    # Rules that look for the largest kernels find those within one device only if they see nothing else.
    return [
        spec
        for device in problem.placement.devices
        for spec in gather_fusion_specs(usable, toolchain_of, partial(survey.coverage_on, device), fusion)
    ]


def _greedy_specs(survey: Survey) -> list[FusionSpec]:
    """Return specs of the kernels that classic partitioning makes: of ``partition_for`` each target, and of the native rest.

    With them, the cheapest cover costs at most what any of these partitionings does.
    """
    problem = survey.problem
    model, graph, names = problem.model, problem.graph, [str(node.name) for node in problem.graph.nodes]
    kernels: dict[Target, list[SubGraph]] = {}
    takes: dict[Target, Callable[[ir.Node], Support]] = {}
    for target in survey.usable:
        if not problem.is_bound(target) and not target.is_reduced:
            covers = survey.coverage_of(target)
            supports = {name: covers(node) for name, node in zip(names, graph.nodes, strict=True)}
            takes[target] = partial(_by_name, supports)
            kernels[target] = greedy_kernels(model, graph, target, problem.toolchains, takes[target])
    for target in [target for target in kernels if target.is_native]:
        rests = [
            greedy_rest(model, graph, others, takes[target], (problem.options.fusion or FusionOptions()).max_candidates)
            for other, others in list(kernels.items())
            if other != target and 0 < sum(map(len, others)) < len(graph)
        ]
        kernels[target] += [sub_graph for rest in rests for sub_graph in rest]
    return [
        FusionSpec(f"partition_for {target.short}", GivenFusionRule(tuple(dict.fromkeys(places))), (target,))
        for target, places in kernels.items()
    ]


def _by_name(supports: Mapping[str, Support], node: ir.Node) -> Support:
    return supports.get(str(node.name), Support(False, "not asked"))


def host_spec(takes: Callable[[ir.Node], bool] | None = None) -> FusionSpec:
    """Return the spec by which single operators are left to the host; None takes every operator."""
    return FusionSpec("host", HostFusionRule(takes), (HOST_TARGET,))


def collect(
    problem: Problem, specs: Sequence[FusionSpec], report: FusionReport, *, host_takes_all: bool = False
) -> CandidateKernelIndex:
    """Collect candidates (phase 2): the rules propose them; the host takes views, and operators that no other target takes.

    Args:
        problem: The model and the menu.
        specs: The fusion specs, which propose candidates.
        report: Takes notes of candidates that were left out.
        host_takes_all: Let the host take every operator, since proposals may turn out to be invalid.
    """
    # Where the search chooses devices, no cover may have to be checked for kernels that feed each other in a ring.
    collected = collect_candidates(problem.graph, specs, report, admissible_only=problem.is_placed_by_search)
    proposed = [c for c in problem.within_devices(collected) if has_what_profits(c.sub_graph, c.target)]
    covered = 0
    for candidate in proposed:
        covered |= candidate.bits
    left = host_spec(
        None if host_takes_all else lambda node: is_view(node) or not covered >> problem.graph.index_of(node) & 1
    )
    left_behind = problem.within_devices(left.all_candidates(problem.graph, report))
    index = CandidateKernelIndex([*proposed, *left_behind, *_made_earlier(problem)])
    _check_covered(problem, index)
    return index


def _made_earlier(problem: Problem) -> list[CandidateKernel]:
    """Return the kernels that the model has already: they stay as they are, so the host stands for their targets."""
    graph, spec = problem.graph, host_spec()
    calls = [SubGraph(graph, IndexSet.of(i)) for i in iterate_bits(graph.kernel_call_bits)]
    return [CandidateKernel(call, HOST_TARGET, spec, ("made earlier",)) for call in calls]


def _check_covered(problem: Problem, index: CandidateKernelIndex) -> None:
    """Raise NothingCanRun if devices leave an operator without a target."""
    covered = 0
    for candidate in index:
        covered |= candidate.bits
    for i, node in enumerate(problem.graph.nodes):
        if problem.placement is not None and not covered >> i & 1:
            raise NothingCanRun(
                f"{node.name!r} ({node.op_type}) is planned for {problem.placement.scope_of(node)}, and no target of the "
                f"menu that takes it refines that: {', '.join(map(str, problem.menu))}"
            )


def may_have(survey: Survey, sub_graph: SubGraph, target: Target) -> bool:
    """Return True if a kernel that no rule proposed is one that a target may have, and takes.

    If the user says which kernels a target may have, only these are admitted. Tuned kernels stay as they are.
    """
    if target == HOST_TARGET:
        return sub_graph.has_border and all(is_view(node) for node in sub_graph.nodes)
    if target not in survey.baselines or survey.problem.is_bound(target):
        return False
    covers = survey.coverage_of(target)
    is_taken = sub_graph.has_border and all(covers(node).ok for node in sub_graph.nodes)
    return is_taken and has_what_profits(sub_graph, target)


def has_what_profits(sub_graph: SubGraph, target: Target) -> bool:
    """Return False for kernels of 8 bits or narrow weights without a product of constant weights, which stay in floats."""
    return not changes_products_alone(target) or any(profits(node, target) for node in sub_graph.nodes)


def joined_neighbors(survey: Survey, cover: Sequence[CandidateKernel]) -> list[CandidateKernel]:
    """Return the kernels of a cover, neighbours of one target joined as far as the target may have and takes that."""
    graph = survey.problem.graph
    joined = max_coalesce(graph, cover, lambda candidate: may_have(survey, candidate.sub_graph, candidate.target))
    return [candidate for candidate in joined if candidate.sub_graph.is_admissible]
