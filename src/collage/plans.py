"""Plans, and the finals: from covers of the graph to executables, and from those to the one that is returned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from collage._errors import NothingCanRun, ToolchainError
from collage.cost.outcome import Status
from collage.cost.race import Contestant, Result, Standing, race
from collage.cost.statistics import Interval, Summary
from collage.fusion import CandidateKernel
from collage.graph import IndexSet, KernelSpec, SubGraph, partition, structural_hash
from collage.machine import this_machine
from collage.runtime import KernelRecord, Port, Recipe
from collage.search import Partitioning
from collage.target import HOST_TARGET, Target
from collage.tuning import Tuning

__all__ = [
    "Finals",
    "Placement",
    "Plan",
    "choose",
    "kernel_attributes",
    "lower",
    "plan_signature",
    "predicted_s",
    "race_contestant",
    "single_plans",
    "unmeasured",
]

_RACE = "collage.cost._race_service:RaceService"
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

    @classmethod
    def of(cls, cover: Partitioning[CandidateKernel], name: str) -> Plan:
        """The plan of a cover that the search found."""
        ordered = sorted(cover.candidates, key=lambda c: c.sub_graph.exit.last)
        return cls(name, tuple(Placement(c.sub_graph, c.target, " > ".join(c.rules)) for c in ordered))


@dataclass(frozen=True, slots=True)
class Finals:
    """How the finals ended.

    Attributes:
        recipe: The winner's, ready to run; None if nothing finished.
        plan: The winning plan.
        plans: All plans.
        standings: How every plan did, by its name.
        time: The winner's end-to-end latency.
        speedup: Over the best single target, and its interval; None if no single target finished.
        recorded: True if no race was needed: the same finalists raced here before.
    """

    recipe: Recipe | None
    plan: Plan | None
    plans: Sequence[Plan]
    standings: dict[str, Standing]
    time: Summary | None
    speedup: tuple[float, Interval] | None
    recorded: bool = False

    def compared(self, tuning: Tuning) -> list[tuple[Standing, float | None]]:
        """Every standing, with the seconds that were predicted for its plan."""
        by_name = {plan.name: plan for plan in self.plans}
        return [(standing, predicted_s(tuning, by_name[name])) for name, standing in self.standings.items()]


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
        plans.append(_on_the_host(tuning))
    return plans


def _on_the_host(tuning: Tuning) -> Plan:
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
        inputs=tuple(_port(value) for value in tuning.model.graph.inputs),
        outputs=tuple(_port(value) for value in tuning.model.graph.outputs),
        kernels=tuple(records),
        threads=tuning.options.threads,
        model_file=file,
        model={},
        builds={name: tuning.workshop.availability(name).build for name in toolchains},
    )


def choose(tuning: Tuning, plans: Sequence[Plan]) -> Finals:
    """Races the plans end to end and returns the winner; where the same race was held before, its result stands."""
    if not tuning.options.finals:
        return _least_predicted(tuning, plans)
    signature = plan_signature(tuning, "race-2", plans)
    told = None if tuning.options.remeasure else tuning.database.fact(**signature)
    if told is not None:
        return _recorded(tuning, plans, told)
    recipes: dict[str, Recipe] = {}
    failures: dict[str, Standing] = {}
    for plan in plans:
        tuning.say(f"building finalist {plan.name}")
        try:
            recipes[plan.name] = lower(tuning, plan)
        except ToolchainError as error:
            failures[plan.name] = Standing(race_contestant(tuning, plan, None), Status.COMPILE_ERROR, reason=str(error))
    contestants = [race_contestant(tuning, plan, recipes[plan.name]) for plan in plans if plan.name in recipes]
    result = race(contestants, tuning.tolerance, tuning.race_plan, tuning.say)
    standings = {**failures, **{standing.contestant.name: standing for standing in result.standings}}
    finals = _finals(plans, recipes, result, standings)
    if finals.plan is not None:
        tuning.database.keep_fact(_as_fact(finals), **signature)
    return finals


def unmeasured(tuning: Tuning) -> Finals:
    """What to return where the model could not be run for reference: the host, which runs it as it is written.

    Raises:
        NothingCanRun: Not even the host can build it.
    """
    plan = _on_the_host(tuning)
    try:
        return Finals(lower(tuning, plan), plan, [plan], {}, None, None)
    except ToolchainError as error:
        raise NothingCanRun(f"nothing can run the model: {error}; and {tuning.reference_failure}") from error


def _least_predicted(tuning: Tuning, plans: Sequence[Plan]) -> Finals:
    """Without finals: the first plan, by predicted cost, that can be built."""
    failures: dict[str, Standing] = {}
    for plan in sorted(plans, key=lambda plan: predicted_s(tuning, plan) or float("inf")):
        try:
            return Finals(lower(tuning, plan), plan, [plan], {}, None, None)
        except ToolchainError as error:
            failures[plan.name] = Standing(race_contestant(tuning, plan, None), Status.COMPILE_ERROR, reason=str(error))
    return Finals(None, None, plans, failures, None, None)


def predicted_s(tuning: Tuning, plan: Plan) -> float | None:
    """Seconds that the kernels' own times add up to, launch penalties included; None if one was not measured."""
    total = 0.0
    for place in plan.kernels:
        outcome = tuning.outcomes.get((place.sub_graph, place.target))
        if outcome is None or outcome.time is None:
            return None
        total += outcome.time.median_s
        if len(plan.kernels) > 1:
            total += tuning.launch_penalty_s(place.target)
    return total


def _finals(
    plans: Sequence[Plan], recipes: dict[str, Recipe], result: Result, standings: dict[str, Standing]
) -> Finals:
    if result.winner is None:
        return Finals(None, None, plans, standings, None, None)
    name = result.winner.contestant.name
    plan = next(plan for plan in plans if plan.name == name)
    return Finals(recipes[name], plan, plans, standings, result.winner.time, result.speedup)


def race_contestant(tuning: Tuning, plan: Plan, recipe: Recipe | None) -> Contestant:
    """A plan as an entry of the race; without a recipe only its name counts."""
    arguments: dict[str, Any] = {}
    if recipe is not None:
        values = [str(folder) for folder in tuning.workshop.value_folders]
        factories = {name: tuning.toolchains.factory(name) for name in recipe.builds}
        arguments = {
            "recipe": recipe.as_json(),
            "workspace": str(tuning.workspace),
            "values": values,
            "factories": factories,
        }
    return Contestant(plan.name, _RACE, arguments, len(plan.kernels), incumbent=plan.single is not None)


def plan_signature(tuning: Tuning, fact: str, plans: Sequence[Plan]) -> dict[str, Any]:
    """Everything that a fact about running these plans end to end depends on: the name under which it is kept."""
    contestants = [
        [plan.name, [[str(place.target), list(place.sub_graph.inside)] for place in plan.kernels]] for plan in plans
    ]
    values = tuning.workshop.values
    toolchains = sorted({place.target.toolchain for plan in plans for place in plan.kernels})
    return {
        "fact": fact,
        "model": structural_hash(tuning.model),
        "shapes": [list(values.get(str(v.name)).shape) for v in tuning.model.graph.inputs if v.name in values],
        "contestants": contestants,
        "builds": {name: tuning.workshop.availability(name).build for name in toolchains},
        "machine": this_machine().fingerprint,
        "threads": tuning.options.threads,
        "tolerance": tuning.tolerance,
    }


def _as_fact(finals: Finals) -> dict[str, Any]:
    def figures(time: Summary | None) -> list[float] | None:
        return None if time is None else [time.median_s, time.p10_s, time.p90_s, time.count, time.spread]

    assert finals.plan is not None
    return {
        "winner": finals.plan.name,
        "time": figures(finals.time),
        "speedup": finals.speedup and [finals.speedup[0], *finals.speedup[1].as_list()],
        "standings": {
            name: [s.status.value, figures(s.time), s.reason, s.max_abs, s.max_rel]
            for name, s in finals.standings.items()
        },
    }


def _recorded(tuning: Tuning, plans: Sequence[Plan], told: dict[str, Any]) -> Finals:
    """The result of a race that was held before; only the winner has to be built."""
    by_name = {plan.name: plan for plan in plans}
    standings = {
        name: Standing(race_contestant(tuning, by_name[name], None), Status(s[0]), s[1] and Summary(*s[1]), *s[2:])
        for name, s in told["standings"].items()
    }
    plan = by_name[told["winner"]]
    speedup = told["speedup"] and (told["speedup"][0], Interval(*told["speedup"][1:]))
    return Finals(lower(tuning, plan), plan, plans, standings, Summary(*told["time"]), speedup, recorded=True)


def kernel_attributes(target: Target, name: str) -> dict[str, str]:
    """The spec's attributes of a kernel function."""
    attributes = {"Primitive": "1", "global_symbol": name, "target": str(target)}
    return attributes if target.is_native else {**attributes, "Compiler": target.toolchain}


def _port(value: ir.Value) -> Port:
    tensor = value.dtype is not None and not isinstance(value.type, ir.SequenceType | ir.OptionalType)
    shape = None
    if value.shape is not None:
        shape = tuple(axis if isinstance(axis, int) else axis.value for axis in value.shape)
    dtype = None
    if tensor and value.dtype is not None:
        dtype = "string" if value.dtype == ir.DataType.STRING else value.dtype.numpy().name
    return Port(str(value.name), dtype, shape if tensor else None)
