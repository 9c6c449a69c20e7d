"""Plans: covers of the graph with names, and phase 4, which makes executables of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from collage.fusion import CandidateKernel
from collage.graph import IndexSet, KernelSpec, SubGraph, partition
from collage.runtime import KernelRecord, Port, Recipe
from collage.search import Partitioning
from collage.target import HOST_TARGET, Target
from collage.tuning import Tuning

__all__ = ["Placement", "Plan", "kernel_attributes", "lower", "on_the_host", "predicted_s", "single_plans"]

_HOPELESS = 2.5
"""A single target this many times slower than the best, measured alone, is reported with that time and not raced."""


@dataclass(frozen=True, slots=True)
class Placement:
    """One kernel of a plan: which nodes, for which target, and which rule proposed it."""

    sub_graph: SubGraph
    target: Target
    rule: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A disjoint, covering, acyclic choice of kernels.

    Attributes:
        name: For people.
        kernels: In the order in which they run.
        single: The target that runs the whole model alone, if one does.
    """

    name: str
    kernels: tuple[Placement, ...]
    single: Target | None = None

    def same_kernels(self, other: Plan) -> bool:
        """Whether both run the same nodes in the same kernels, whoever proposed them."""
        mine, theirs = ([(place.sub_graph.inside, place.target) for place in plan.kernels] for plan in (self, other))
        return mine == theirs

    @classmethod
    def of(cls, cover: Partitioning[CandidateKernel], name: str) -> Plan:
        """The plan of a cover that the search found."""
        ordered = sorted(cover.candidates, key=lambda c: c.sub_graph.exit.last)
        return cls(name, tuple(Placement(c.sub_graph, c.target, " > ".join(c.rules)) for c in ordered))


def single_plans(tuning: Tuning) -> list[Plan]:
    """Every target alone; one that takes only parts of the model is completed by the host."""
    everything = IndexSet((1 << len(tuning.graph)) - 1)
    plans = []
    for target, found in tuning.survey.items():
        whole = found.whole
        if (
            whole.time is not None
            and tuning.is_right(whole)
            and whole.time.median_s <= _HOPELESS * tuning.best_single_s
        ):
            plans.append(Plan(str(target), (Placement(SubGraph(tuning.graph, everything), target, "whole"),), target))
        elif found.refusal is not None and found.ranges and all(outcome.ok for outcome in found.outcomes):
            plans.append(_partition_for(tuning, target, found.ranges))
    if not any(plan.single for plan in plans):
        plans.append(on_the_host(tuning))
    return plans


def on_the_host(tuning: Tuning) -> Plan:
    """The whole model on the host: what is left where nobody on the menu takes it."""
    everything = SubGraph(tuning.graph, IndexSet((1 << len(tuning.graph)) - 1))
    return Plan(str(HOST_TARGET), (Placement(everything, HOST_TARGET, "whole"),) if len(tuning.graph) else ())


def _partition_for(tuning: Tuning, target: Target, ranges: Sequence[int]) -> Plan:
    """The classic greedy partitioning: the largest ranges go to the target, everything between to the host."""
    taken = 0
    for bits in ranges:
        taken |= bits
    parts = [(bits, target) for bits in ranges]
    start = None
    for i in range(len(tuning.graph) + 1):
        free = i < len(tuning.graph) and not taken >> i & 1
        if free and start is None:
            start = i
        elif not free and start is not None:
            parts.append(((1 << i) - (1 << start), HOST_TARGET))
            start = None
    parts.sort(key=lambda part: part[0])
    kernels = [Placement(SubGraph(tuning.graph, IndexSet(bits)), owner, "partition_for") for bits, owner in parts]
    return Plan(f"partition_for({target.short})", tuple(kernels))


def lower(tuning: Tuning, plan: Plan) -> Recipe:
    """Phase 4: rewrites the model into one function per kernel, and builds every kernel.

    Raises:
        ToolchainError: A kernel could not be built.
    """
    specs, records = [], []
    for place in plan.kernels:
        kernel = tuning.kernels.model(place.sub_graph, place.target)
        name = str(kernel.graph.name)
        specs.append(KernelSpec(place.sub_graph, name, kernel_attributes(place.target, name)))
        compiled = tuning.workshop.build(kernel, place.target)
        records.append(
            KernelRecord(
                name=name,
                target=str(place.target),
                inputs=tuple(str(value.name) for value in kernel.graph.inputs),
                outputs=tuple(str(value.name) for value in kernel.graph.outputs),
                compiled=compiled,
            )
        )
    file = f"{records[0].name}_and_{len(records) - 1}_more.onnx" if records else "empty.onnx"
    ir.save(partition(tuning.model, specs), tuning.workspace / file)
    toolchains = dict.fromkeys(record.compiled.toolchain for record in records)
    return Recipe(
        inputs=tuple(Port.of(value) for value in tuning.model.graph.inputs),
        outputs=tuple(Port.of(value) for value in tuning.model.graph.outputs),
        kernels=tuple(records),
        threads=tuning.options.threads,
        model_file=file,
        model={},
        builds={name: tuning.workshop.availability(name).build for name in toolchains},
    )


def predicted_s(tuning: Tuning, plan: Plan) -> float | None:
    """Seconds that the kernels' own times add up to, launch penalties included; None if one was not measured."""
    total = 0.0
    for place in plan.kernels:
        outcome = tuning.outcome_of(place.sub_graph, place.target)
        if outcome is None or outcome.time is None:
            return None
        total += outcome.time.median_s
        if len(plan.kernels) > 1:
            total += tuning.launch_penalty_s(place.target)
    return total


def kernel_attributes(target: Target, name: str) -> dict[str, str]:
    """The spec's attributes of a kernel function."""
    attributes = {"Primitive": "1", "global_symbol": name, "target": str(target)}
    return attributes if target.is_native else {**attributes, "Compiler": target.toolchain}
