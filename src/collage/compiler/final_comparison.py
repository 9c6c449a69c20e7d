"""The finals: from plans to the one executable that is returned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from collage._errors import NothingCanRun, ToolchainError
from collage.compiler.plans import Plan, PlannedKernel, lower, on_the_host, predicted_s
from collage.compiler.session import CompileSession
from collage.cost.outcome import Status
from collage.cost.statistics import Interval, Summary
from collage.graph import IndexSet, SubGraph
from collage.measure.comparison import Comparison, Finalist, FinalistResult, compare_end_to_end, why_wrong
from collage.runtime import Recipe
from collage.target import HOST_TARGET, HOST_TOOLCHAIN

__all__ = [
    "FinalComparison",
    "choose",
    "finalist_of",
    "last_finalists",
    "plan_signature",
    "previous_winner",
    "remember",
    "unmeasured",
]

_RACE = "collage.measure._executable_worker:ExecutableWorker"


@dataclass(frozen=True, slots=True)
class FinalComparison:
    """How the finals ended.

    Attributes:
        recipe: The winner's, ready to run; None if nothing finished.
        plan: The winning plan.
        plans: All plans.
        standings: How every plan did, by its name.
        time: The winner's end-to-end latency.
        speedup: Over the best single target, and its interval; None if no single target finished.
        recorded: True if no race was needed: the same finalists raced here before.
        slowdown: How many times as long as at best the machine took while they raced (see ``collage.measure.noise_monitor``).
        additive_error: See ``collage.compiler.additivity``; None until it is judged, or if it is not known.
    """

    recipe: Recipe | None
    plan: Plan | None
    plans: Sequence[Plan]
    standings: dict[str, FinalistResult]
    time: Summary | None
    speedup: tuple[float, Interval] | None
    recorded: bool = False
    slowdown: float = 1.0
    additive_error: float | None = None

    def compared(self, session: CompileSession) -> list[tuple[FinalistResult, float | None]]:
        """Every standing, with the seconds that were predicted for its plan."""
        by_name = {plan.name: plan for plan in self.plans}
        return [(standing, predicted_s(session, by_name[name])) for name, standing in self.standings.items()]


def choose(session: CompileSession, plans: Sequence[Plan]) -> FinalComparison:
    """Races the plans end to end and returns the winner; where the same race was held before, its result stands."""
    if not session.options.finals:
        return _least_predicted(session, plans)
    signature = plan_signature(session, "race-5", plans)
    told = None if session.options.remeasure else session.database.local_fact(**signature)
    if told is not None and set(told["standings"]) <= {plan.name for plan in plans}:
        finals = _recorded(session, plans, told)
        if finals is not None:
            return finals
    try:
        recipes, failures = _built(session, plans)
        finalists = [finalist_of(session, plan, recipes[plan.name]) for plan in plans if plan.name in recipes]
        noise_monitor = session.measure_session.noise_monitor
        noise_monitor.renew()
        result = compare_end_to_end(
            finalists, session.tolerance, session.comparison_plan, session.say, when_quiet=noise_monitor.samples
        )
    except KeyboardInterrupt:
        session.say("interrupted: returning the best single, as measured by itself")
        return _least_predicted(session, [plan for plan in plans if plan.single] or plans)
    standings = {**failures, **{standing.finalist.name: standing for standing in result.standings}}
    finals = _finals(plans, recipes, result, standings, noise_monitor.slowdown_met)
    if finals.plan is not None:
        session.database.keep_local_fact(_as_fact(finals), **signature)
        _keep_winner(session, finals.plan)
    return finals


def _built(session: CompileSession, plans: Sequence[Plan]) -> tuple[dict[str, Recipe], dict[str, FinalistResult]]:
    """The plans that can be raced, and how the others failed: a kernel could not be built, or is wrong where it is."""
    recipes: dict[str, Recipe] = {}
    failures: dict[str, FinalistResult] = {}
    for plan in plans:
        session.say(f"building finalist {plan.name}")
        entry = finalist_of(session, plan, None)
        try:
            recipe, wrong = lower(session, plan), _wrong_kernel(session, plan)
        except ToolchainError as error:
            failures[plan.name] = FinalistResult(entry, Status.COMPILE_ERROR, reason=str(error))
            continue
        if wrong is None:
            recipes[plan.name] = recipe
        else:
            failures[plan.name] = FinalistResult(entry, Status.WRONG, reason=wrong)
    return recipes, failures


def _wrong_kernel(session: CompileSession, plan: Plan) -> str | None:
    """Which kernel of a mix is wrong, and why; what runs the model alone is checked by its outputs, in the race."""
    for place in plan.kernels if len(plan.kernels) > 1 else ():
        reason = session.why_wrong(place.sub_graph, place.target)
        if reason is not None:
            return f"kernel {session.kernels.model(place.sub_graph, place.target).graph.name}: {reason}"
    return None


def previous_winner(session: CompileSession) -> Plan | None:
    """The mix that won the last race of this model on this machine, where everything is measured anew; None otherwise.

    Without ``remeasure`` the search sees the same costs as then, and finds it by itself.
    """
    told = session.options.remeasure and session.database.local_fact(**session.fact("winner-1"))
    return _plan_again(session, "previous winner", told["kernels"]) if told else None


def _keep_winner(session: CompileSession, plan: Plan) -> None:
    """Notes the winner for later races, unless it is a single or its kernels are more than sets of nodes."""
    told = {"kernels": _as_sets(plan) if len(plan.kernels) > 1 else []}
    session.database.keep_local_fact(told, **session.fact("winner-1"))


def last_finalists(session: CompileSession, singles: Sequence[Plan]) -> list[Plan]:
    """What raced when this model was last compiled for this menu, on this machine; nothing where that is not known.

    The costs may have been corrected after that race, so that the search ends with fewer of these plans. Then their race
    stands, now as it did then.
    """
    told = None if session.options.remeasure else session.database.local_fact(**session.fact_of_menu("finalists-1"))
    plans = []
    for name, kernels in told["plans"] if told else ():
        plan = next((one for one in singles if one.name == name), None) or _plan_again(session, name, kernels)
        if plan is None or _as_sets(plan) != kernels:
            return []
        plans.append(plan)
    return plans


def remember(session: CompileSession, finals: FinalComparison) -> None:
    """Notes for the next compilation what raced in this one."""
    told = {"plans": [[plan.name, _as_sets(plan)] for plan in finals.plans]}
    session.database.keep_local_fact(told, **session.fact_of_menu("finalists-1"))


def _as_sets(plan: Plan) -> list[list[Any]]:
    """The kernels of a plan as targets and sets of nodes; empty if they are more than that."""
    if any(place.sub_graph.nested or place.device for place in plan.kernels):
        return []
    return [[str(place.target), list(place.sub_graph.inside)] for place in plan.kernels]


def _plan_again(session: CompileSession, name: str, kernels: Sequence[Any]) -> Plan | None:
    """A plan of these kernels; None if they are no cover of this model, or not of this menu."""
    known = {str(target): target for target in (*session.menu, HOST_TARGET)}
    nodes = sorted(node for _, inside in kernels for node in inside)
    if nodes != list(range(len(session.graph))) or any(target not in known for target, _ in kernels):
        return None
    places = [
        PlannedKernel(SubGraph(session.graph, IndexSet.of(*inside)), known[target], "an earlier finalist")
        for target, inside in kernels
    ]
    if any(place.sub_graph.why_invalid() is not None or not place.sub_graph.is_admissible for place in places):
        return None
    return Plan(name, tuple(places))


def unmeasured(session: CompileSession) -> FinalComparison:
    """What to return where the model could not be run for reference: the host, which runs it as it is written.

    Raises:
        NothingCanRun: Not even the host can build it.
    """
    plan = on_the_host(session)
    try:
        return FinalComparison(lower(session, plan), plan, [plan], {}, None, None)
    except ToolchainError as error:
        raise NothingCanRun(f"nothing can run the model: {error}; and {session.reference_failure}") from error


def _least_predicted(session: CompileSession, plans: Sequence[Plan]) -> FinalComparison:
    """Without finals: the first plan, by predicted cost, that can be built."""
    failures: dict[str, FinalistResult] = {}
    for plan in sorted(plans, key=lambda plan: predicted_s(session, plan) or float("inf")):
        try:
            return FinalComparison(lower(session, plan), plan, [plan], {}, None, None)
        except ToolchainError as error:
            failures[plan.name] = FinalistResult(
                finalist_of(session, plan, None), Status.COMPILE_ERROR, reason=str(error)
            )
    return FinalComparison(None, None, plans, failures, None, None)


def _finals(
    plans: Sequence[Plan],
    recipes: dict[str, Recipe],
    result: Comparison,
    standings: dict[str, FinalistResult],
    slowdown: float,
) -> FinalComparison:
    if result.winner is None:
        return FinalComparison(None, None, plans, standings, None, None)
    name = result.winner.finalist.name
    plan = next(plan for plan in plans if plan.name == name)
    return FinalComparison(recipes[name], plan, plans, standings, result.winner.time, result.speedup, slowdown=slowdown)


def finalist_of(session: CompileSession, plan: Plan, recipe: Recipe | None) -> Finalist:
    """A plan as an entry of the race; without a recipe only its name counts."""
    arguments: dict[str, Any] = {}
    if recipe is not None:
        # The host stands in for kernels that fail, as it does where the recipe is deployed.
        factories = {name: session.toolchains.factory(name) for name in {*recipe.toolchains, HOST_TOOLCHAIN}}
        arguments = {
            "recipe": recipe.as_json(),
            "workspace": str(session.workspace),
            "values": session.measure_session.value_folders,
            "weights": session.measure_session.weights,
            "lengths": [str(folder) for folder in session.measure_session.length_folders],
            "factories": factories,
        }
    return Finalist(plan.name, _RACE, arguments, len(plan.kernels), incumbent=plan.single is not None)


def plan_signature(session: CompileSession, fact: str, plans: Sequence[Plan]) -> dict[str, Any]:
    """Everything that a fact about running these plans end to end depends on: the name under which it is kept."""
    finalists = [[plan.name, [_kernel_name(place) for place in plan.kernels]] for plan in plans]
    targets = sorted({place.target for plan in plans for place in plan.kernels}, key=str)
    builds = {target.build_name: session.measure_session.build_of(target) for target in targets}
    return {**session.fact(fact), "contestants": finalists, "builds": builds}


def _kernel_name(place: PlannedKernel) -> list[Any]:
    name = [str(place.target), list(place.sub_graph.inside)]
    return name if place.device is None else [*name, str(place.device)]


def _as_fact(finals: FinalComparison) -> dict[str, Any]:
    def figures(time: Summary | None) -> list[float] | None:
        return None if time is None else [time.median_s, time.p10_s, time.p90_s, time.count, time.spread]

    assert finals.plan is not None
    return {
        "winner": finals.plan.name,
        "time": figures(finals.time),
        "pace": finals.slowdown,
        "speedup": finals.speedup and [finals.speedup[0], *finals.speedup[1].as_list()],
        "standings": {
            name: [s.status.value, figures(s.time), s.reason, s.max_abs, s.max_rel, s.paired_s, s.under_load_s]
            for name, s in finals.standings.items()
        },
    }


def _recorded(session: CompileSession, plans: Sequence[Plan], told: dict[str, Any]) -> FinalComparison | None:
    """The result of a race that was held before; only the winner has to be built, and checked.

    The race may have been that of a model with other weights, for which other kernels are right: then it does not count.
    """
    by_name = {plan.name: plan for plan in plans}
    standings = {
        name: FinalistResult(finalist_of(session, by_name[name], None), Status(s[0]), s[1] and Summary(*s[1]), *s[2:])
        for name, s in told["standings"].items()
    }
    plan = by_name[told["winner"]]
    recipe = lower(session, plan)
    session.say(f"checking {plan.name}, which won before")
    reason = why_wrong(finalist_of(session, plan, recipe), session.tolerance)
    if reason is not None:
        session.say(f"it does not run here as it did: {reason}")
        return None
    speedup = told["speedup"] and (told["speedup"][0], Interval(*told["speedup"][1:]))
    time = Summary(*told["time"])
    return FinalComparison(recipe, plan, plans, standings, time, speedup, recorded=True, slowdown=told["pace"])
