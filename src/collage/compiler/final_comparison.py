"""The finals: from plans to the one executable that is returned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from collage._errors import NothingCanRun, ToolchainError
from collage.compiler.plans import Placement, Plan, lower, on_the_host, predicted_s
from collage.compiler.session import Tuning
from collage.cost.outcome import Status
from collage.cost.statistics import Interval, Summary
from collage.graph import IndexSet, SubGraph
from collage.measure.comparison import Contestant, Result, Standing, race, why_wrong
from collage.runtime import Recipe
from collage.target import HOST_TARGET, HOST_TOOLCHAIN

__all__ = [
    "Finals",
    "choose",
    "last_finalists",
    "plan_signature",
    "previous_winner",
    "race_contestant",
    "remember",
    "unmeasured",
]

_RACE = "collage.measure._executable_worker:RaceService"


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
        pace: How many times as long as at best the machine took while they raced (see ``collage.measure.noise_monitor``).
        additive_error: See ``collage.compiler.additivity``; None until it is judged, or if it is not known.
    """

    recipe: Recipe | None
    plan: Plan | None
    plans: Sequence[Plan]
    standings: dict[str, Standing]
    time: Summary | None
    speedup: tuple[float, Interval] | None
    recorded: bool = False
    pace: float = 1.0
    additive_error: float | None = None

    def compared(self, tuning: Tuning) -> list[tuple[Standing, float | None]]:
        """Every standing, with the seconds that were predicted for its plan."""
        by_name = {plan.name: plan for plan in self.plans}
        return [(standing, predicted_s(tuning, by_name[name])) for name, standing in self.standings.items()]


def choose(tuning: Tuning, plans: Sequence[Plan]) -> Finals:
    """Races the plans end to end and returns the winner; where the same race was held before, its result stands."""
    if not tuning.options.finals:
        return _least_predicted(tuning, plans)
    signature = plan_signature(tuning, "race-5", plans)
    told = None if tuning.options.remeasure else tuning.database.local_fact(**signature)
    if told is not None and set(told["standings"]) <= {plan.name for plan in plans}:
        finals = _recorded(tuning, plans, told)
        if finals is not None:
            return finals
    try:
        recipes, failures = _built(tuning, plans)
        contestants = [race_contestant(tuning, plan, recipes[plan.name]) for plan in plans if plan.name in recipes]
        calm = tuning.workshop.calm
        calm.renew()
        result = race(contestants, tuning.tolerance, tuning.race_plan, tuning.say, in_calm=calm.samples)
    except KeyboardInterrupt:
        tuning.say("interrupted: returning the best single, as measured by itself")
        return _least_predicted(tuning, [plan for plan in plans if plan.single] or plans)
    standings = {**failures, **{standing.contestant.name: standing for standing in result.standings}}
    finals = _finals(plans, recipes, result, standings, calm.pace_met)
    if finals.plan is not None:
        tuning.database.keep_local_fact(_as_fact(finals), **signature)
        _keep_winner(tuning, finals.plan)
    return finals


def _built(tuning: Tuning, plans: Sequence[Plan]) -> tuple[dict[str, Recipe], dict[str, Standing]]:
    """The plans that can be raced, and how the others failed: a kernel could not be built, or is wrong where it is."""
    recipes: dict[str, Recipe] = {}
    failures: dict[str, Standing] = {}
    for plan in plans:
        tuning.say(f"building finalist {plan.name}")
        entry = race_contestant(tuning, plan, None)
        try:
            recipe, wrong = lower(tuning, plan), _wrong_kernel(tuning, plan)
        except ToolchainError as error:
            failures[plan.name] = Standing(entry, Status.COMPILE_ERROR, reason=str(error))
            continue
        if wrong is None:
            recipes[plan.name] = recipe
        else:
            failures[plan.name] = Standing(entry, Status.WRONG, reason=wrong)
    return recipes, failures


def _wrong_kernel(tuning: Tuning, plan: Plan) -> str | None:
    """Which kernel of a mix is wrong, and why; what runs the model alone is checked by its outputs, in the race."""
    for place in plan.kernels if len(plan.kernels) > 1 else ():
        reason = tuning.why_wrong(place.sub_graph, place.target)
        if reason is not None:
            return f"kernel {tuning.kernels.model(place.sub_graph, place.target).graph.name}: {reason}"
    return None


def previous_winner(tuning: Tuning) -> Plan | None:
    """The mix that won the last race of this model on this machine, where everything is measured anew; None otherwise.

    Without ``remeasure`` the search sees the same costs as then, and finds it by itself.
    """
    told = tuning.options.remeasure and tuning.database.local_fact(**tuning.fact("winner-1"))
    return _plan_again(tuning, "previous winner", told["kernels"]) if told else None


def _keep_winner(tuning: Tuning, plan: Plan) -> None:
    """Notes the winner for later races, unless it is a single or its kernels are more than sets of nodes."""
    told = {"kernels": _as_sets(plan) if len(plan.kernels) > 1 else []}
    tuning.database.keep_local_fact(told, **tuning.fact("winner-1"))


def last_finalists(tuning: Tuning, singles: Sequence[Plan]) -> list[Plan]:
    """What raced when this model was last compiled for this menu, on this machine; nothing where that is not known.

    The costs may have been corrected after that race, so that the search ends with fewer of these plans. Then their race
    stands, now as it did then.
    """
    told = None if tuning.options.remeasure else tuning.database.local_fact(**tuning.fact_of_menu("finalists-1"))
    plans = []
    for name, kernels in told["plans"] if told else ():
        plan = next((one for one in singles if one.name == name), None) or _plan_again(tuning, name, kernels)
        if plan is None or _as_sets(plan) != kernels:
            return []
        plans.append(plan)
    return plans


def remember(tuning: Tuning, finals: Finals) -> None:
    """Notes for the next compilation what raced in this one."""
    told = {"plans": [[plan.name, _as_sets(plan)] for plan in finals.plans]}
    tuning.database.keep_local_fact(told, **tuning.fact_of_menu("finalists-1"))


def _as_sets(plan: Plan) -> list[list[Any]]:
    """The kernels of a plan as targets and sets of nodes; empty if they are more than that."""
    if any(place.sub_graph.nested or place.device for place in plan.kernels):
        return []
    return [[str(place.target), list(place.sub_graph.inside)] for place in plan.kernels]


def _plan_again(tuning: Tuning, name: str, kernels: Sequence[Any]) -> Plan | None:
    """A plan of these kernels; None if they are no cover of this model, or not of this menu."""
    known = {str(target): target for target in (*tuning.menu, HOST_TARGET)}
    nodes = sorted(node for _, inside in kernels for node in inside)
    if nodes != list(range(len(tuning.graph))) or any(target not in known for target, _ in kernels):
        return None
    places = [
        Placement(SubGraph(tuning.graph, IndexSet.of(*inside)), known[target], "an earlier finalist")
        for target, inside in kernels
    ]
    if any(place.sub_graph.why_invalid() is not None or not place.sub_graph.is_admissible for place in places):
        return None
    return Plan(name, tuple(places))


def unmeasured(tuning: Tuning) -> Finals:
    """What to return where the model could not be run for reference: the host, which runs it as it is written.

    Raises:
        NothingCanRun: Not even the host can build it.
    """
    plan = on_the_host(tuning)
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


def _finals(
    plans: Sequence[Plan], recipes: dict[str, Recipe], result: Result, standings: dict[str, Standing], pace: float
) -> Finals:
    if result.winner is None:
        return Finals(None, None, plans, standings, None, None)
    name = result.winner.contestant.name
    plan = next(plan for plan in plans if plan.name == name)
    return Finals(recipes[name], plan, plans, standings, result.winner.time, result.speedup, pace=pace)


def race_contestant(tuning: Tuning, plan: Plan, recipe: Recipe | None) -> Contestant:
    """A plan as an entry of the race; without a recipe only its name counts."""
    arguments: dict[str, Any] = {}
    if recipe is not None:
        # The host stands in for kernels that fail, as it does where the recipe is deployed.
        factories = {name: tuning.toolchains.factory(name) for name in {*recipe.toolchains, HOST_TOOLCHAIN}}
        arguments = {
            "recipe": recipe.as_json(),
            "workspace": str(tuning.workspace),
            "values": tuning.workshop.value_folders,
            "weights": tuning.workshop.weights,
            "lengths": [str(folder) for folder in tuning.workshop.length_folders],
            "factories": factories,
        }
    return Contestant(plan.name, _RACE, arguments, len(plan.kernels), incumbent=plan.single is not None)


def plan_signature(tuning: Tuning, fact: str, plans: Sequence[Plan]) -> dict[str, Any]:
    """Everything that a fact about running these plans end to end depends on: the name under which it is kept."""
    contestants = [[plan.name, [_kernel_name(place) for place in plan.kernels]] for plan in plans]
    targets = sorted({place.target for plan in plans for place in plan.kernels}, key=str)
    builds = {target.build_name: tuning.workshop.build_of(target) for target in targets}
    return {**tuning.fact(fact), "contestants": contestants, "builds": builds}


def _kernel_name(place: Placement) -> list[Any]:
    name = [str(place.target), list(place.sub_graph.inside)]
    return name if place.device is None else [*name, str(place.device)]


def _as_fact(finals: Finals) -> dict[str, Any]:
    def figures(time: Summary | None) -> list[float] | None:
        return None if time is None else [time.median_s, time.p10_s, time.p90_s, time.count, time.spread]

    assert finals.plan is not None
    return {
        "winner": finals.plan.name,
        "time": figures(finals.time),
        "pace": finals.pace,
        "speedup": finals.speedup and [finals.speedup[0], *finals.speedup[1].as_list()],
        "standings": {
            name: [s.status.value, figures(s.time), s.reason, s.max_abs, s.max_rel, s.paired_s, s.beside_s]
            for name, s in finals.standings.items()
        },
    }


def _recorded(tuning: Tuning, plans: Sequence[Plan], told: dict[str, Any]) -> Finals | None:
    """The result of a race that was held before; only the winner has to be built, and checked.

    The race may have been that of a model with other weights, for which other kernels are right: then it does not count.
    """
    by_name = {plan.name: plan for plan in plans}
    standings = {
        name: Standing(race_contestant(tuning, by_name[name], None), Status(s[0]), s[1] and Summary(*s[1]), *s[2:])
        for name, s in told["standings"].items()
    }
    plan = by_name[told["winner"]]
    recipe = lower(tuning, plan)
    tuning.say(f"checking {plan.name}, which won before")
    reason = why_wrong(race_contestant(tuning, plan, recipe), tuning.tolerance)
    if reason is not None:
        tuning.say(f"it does not run here as it did: {reason}")
        return None
    speedup = told["speedup"] and (told["speedup"][0], Interval(*told["speedup"][1:]))
    time = Summary(*told["time"])
    return Finals(recipe, plan, plans, standings, time, speedup, recorded=True, pace=told["pace"])
