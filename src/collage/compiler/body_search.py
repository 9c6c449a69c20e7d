"""Bodies of If, Loop and Scan as graphs of their own: each is searched as a model is, on its inputs in the reference run.

The results are candidates for single nodes. They are measured as all others are, on the whole operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx_ir as ir

from collage._errors import CollageError, NothingCanRun, UsageError
from collage.compiler.choices import Choices
from collage.compiler.lab import Lab
from collage.compiler.opening import measure_session, on_given_inputs
from collage.compiler.plans import plan_of
from collage.compiler.problem import Problem
from collage.compiler.result_store import CompileResult
from collage.compiler.survey import Survey, survey_model
from collage.cost.cost import Cost
from collage.frontend import place_weights
from collage.fusion import CandidateKernel, FusionSpec, UnionFusionRule
from collage.graph import DataflowGraph, IndexSet, SubGraph, bodies, is_view
from collage.measure.body_problem import body_model, everything, is_searchable
from collage.measure.reference_run import capture_reference
from collage.numerics.value_store import ValueStore
from collage.options import CompileOptions
from collage.plan import Plan, PlannedKernel
from collage.runtime import BODIES_TARGET
from collage.status import Status
from collage.target import HOST_TARGET, Target

__all__ = ["body_candidate", "body_candidates", "body_options", "estimated_bodies", "moved_plan"]

FindPlan = Callable[[Lab], tuple[Lab, CompileResult]]
"""A function that finds the plan of a model, as `pipeline.find_plan` does."""

_LEAST_SHARE = 0.05
"""Least share of the model's time that an operator takes whose bodies are searched."""
_LEAST_RUN_S = 30e-6
"""Least time of one run of a body: to call kernels from here takes about a third of that."""
_SPEC = FusionSpec("bodies", UnionFusionRule(()), ())
_OCCASIONS = ("middle", "first", "last")
"""The runs of a body that are kept, the one that it is timed on first; the numbers are those of `record_bodies`."""
_NUMBERS = {"first": 0, "middle": 1, "last": 2}


def body_candidates(lab: Lab, find_plan: FindPlan) -> list[CandidateKernel]:
    """Return the operators whose bodies are kernels of their own as candidates, measured.

    Args:
        lab: Its costs learn of the candidates, and measure them.
        find_plan: Finds the plan of a body.
    """
    costs = lab.costs
    found = [candidate for candidate, _ in _search(lab, find_plan, lambda: costs.search_s_left)]
    if found:
        costs.introduce_variant(BODIES_TARGET, HOST_TARGET)
    costs.introduce(found)
    costs.measure(found)
    return found


def estimated_bodies(lab: Lab, find_plan: FindPlan) -> list[tuple[CandidateKernel, Cost]]:
    """Return the same candidates with estimated costs: the cost of each body times the number of its runs, summed.

    Args:
        lab: Nothing was timed in it.
        find_plan: Finds the plan of a body by the estimator's word.
    """
    return list(_search(lab, find_plan))


def _search(
    lab: Lab, find_plan: FindPlan, seconds_left: Callable[[], float] | None = None
) -> Iterator[tuple[CandidateKernel, Cost]]:
    """Yield candidates with the predicted cost of their bodies; without a clock, nothing is timed."""
    problem = lab.problem
    for i, node in enumerate(problem.graph.nodes if problem.placement is None else ()):
        if not is_searchable(node) or not _is_worth_it(lab.survey, i):
            continue
        seconds = None if seconds_left is None else seconds_left()
        if seconds is not None and seconds <= 0:
            return
        try:
            found = _BodySearch(lab, i, seconds, find_plan).plans()
        except CollageError as error:
            lab.say(f"the bodies of {node.name!r} are not searched: {str(error)[:200]}")
            continue
        for plans, cost in found:
            candidate = body_candidate(problem, i, plans)
            if problem.choices.allows(candidate.sub_graph, BODIES_TARGET):
                yield candidate, cost


def _is_worth_it(survey: Survey, index: int) -> bool:
    """Return False if the profile of the fastest target that runs the whole model shows that bodies take little time."""
    times = [(_node_s(survey, target, index), found.whole.time) for target, found in survey.baselines.items()]
    known = [
        (time.median_s, node_s / time.median_s) for node_s, time in times if node_s is not None and time is not None
    ]
    return not known or min(known)[1] >= _LEAST_SHARE


def _node_s(survey: Survey, target: Target, index: int) -> float | None:
    """Return the seconds that a node takes on a target that runs all of the model; None if that is not known."""
    found = survey.baselines[target]
    if found.whole.time is None:
        return None
    return found.whole.time.median_s if len(survey.problem.graph) == 1 else found.profile.get(index)


@dataclass(frozen=True, slots=True)
class _BodySearch:
    """The search of the bodies of one node.

    Attributes:
        lab: Measures the kernels of the model.
        index: The node.
        seconds: Seconds that are left; None if nothing is timed.
        find_plan: Finds the plan of a body.
    """

    lab: Lab
    index: int
    seconds: float | None
    find_plan: FindPlan

    @property
    def _node(self) -> ir.Node:
        return self.lab.problem.graph.node(self.index)

    @property
    def _takers(self) -> list[Target]:
        """The targets that take the node with its bodies, and are not known to be wrong."""
        found = [target for target in self.lab.survey.usable if not target.is_reduced]
        right = [target for target in found if self.lab.survey.baselines[target].whole.status is not Status.WRONG]
        return [target for target in right if self.lab.survey.coverage_of(target)(self._node).ok]

    def plans(self) -> list[tuple[tuple[Plan, ...], Cost]]:
        """Return plans of the node's bodies, at most two: the best ones, and those of single targets.

        Each comes with the sum of what its bodies were predicted to cost.
        """
        problem, node = self.lab.problem, self._node
        graphs = [DataflowGraph(body, model=problem.model) for body in bodies(node)]
        folder = self.lab.session.workspace / f"bodies_{self.index}"
        runs = self._recorded(graphs, folder)
        times = [s for target in self._takers if (s := _node_s(self.lab.survey, target, self.index)) is not None]
        if times and min(times) < _LEAST_RUN_S * sum(runs):
            return []
        self.lab.say(f"searching the bodies of {node.name!r}, which ran {', '.join(map(str, runs))} times")
        plans = [
            self._plans(number, graph, count, folder)
            if count and len(graph) and not self.lab.costs.is_interrupted
            else [(self._alone(number, graph), Cost.ZERO)]
            for number, (graph, count) in enumerate(zip(graphs, runs, strict=True))
        ]
        chosen = [[body[min(choice, len(body) - 1)] for body in plans] for choice in range(max(map(len, plans)))]
        costs = {tuple(plan for plan, _ in each): Cost.sum(cost for _, cost in each) for each in chosen}
        return list(costs.items())

    def _recorded(self, graphs: Sequence[DataflowGraph], folder: Path) -> list[int]:
        """Run the node on the host, keep the inputs of its bodies, and return the number of runs of each."""
        problem = self.lab.problem
        plans = tuple(_whole(graph, HOST_TARGET) for graph in graphs)
        kernel = problem.kernels.model(1 << self.index, BODIES_TARGET, plans)
        return self.lab.session.record_bodies(kernel, BODIES_TARGET, self.lab.session.values, folder)

    def _alone(self, number: int, graph: DataflowGraph) -> Plan:
        """Return a body that the reference run did not enter as one kernel, on the first target that takes node and body."""
        target = HOST_TARGET
        if not all(map(is_view, graph.nodes)):
            model = body_model(graph, self._node, f"body_{number}_of_{self.index}_alone")
            target = next(
                (each for each in self._takers if self.lab.session.try_build(model, each) is None), HOST_TARGET
            )
        return _whole(graph, target)

    def _plans(self, number: int, graph: DataflowGraph, count: int, folder: Path) -> list[tuple[Plan, Cost]]:
        """Return the best plan of a body, and its fastest single target if that differs, with the cost of all its runs."""
        problem, node = self.lab.problem, self._node
        model = body_model(graph, node, f"body_{number}_of_{self.index}")
        stores = {name: ValueStore(folder / f"{number}_{_NUMBERS[name]}") for name in _OCCASIONS}
        workspace = folder / f"body_{number}"
        workspace.mkdir()
        inputs = _inputs(model, stores["middle"])
        budget_s = problem.options.time_budget_s
        options = replace(
            body_options(problem, graph),
            threads=self.lab.session.threads,
            inputs=inputs,
            time_budget_s=None if None in (budget_s, self.seconds) else max(1.0, (self.seconds or 0.0) / 2),
        )
        options = on_given_inputs(options, model)
        say = partial(_within, self.lab.session.say, str(node.name))
        menu = [
            target
            for target in problem.menu
            if not target.is_reduced and self.lab.survey.baselines[target].availability.available
        ]
        with measure_session(
            problem.toolchains, self.lab.database, workspace, options, workers=self.lab.session.workers, say=say
        ) as session:
            inner = Problem.of(place_weights(model, workspace), menu, problem.toolchains, options)
            inner = inner.ending_at(problem.comparison_plan.ends_at)
            survey = survey_model(inner, session, is_timed=self.seconds is not None)
            for name in _OCCASIONS[1:]:
                store = ValueStore(workspace / f"{name}_values")
                capture_reference(inner.model, _inputs(inner.model, stores[name]), session, store)
                session.other_folders.append(store.folder)
            lab, result = self.find_plan(Lab(survey, session))
            self.lab.costs.is_interrupted |= lab.costs.is_interrupted
            plan = result.finals.plan
            if plan is None:
                raise NothingCanRun(f"no plan of a body of {node.name!r} can be built")
            predicted = result.predicted_s.get(plan.name)
            unknown = Cost.unknown(len(problem.menu))
            costs = [unknown if predicted is None else Cost(seconds=count * predicted), unknown]
            moved = [moved_plan(lab.problem, graph, each) for each in (plan, *_fastest_single(lab.survey))]
            return [*zip(dict.fromkeys(moved), costs, strict=False)]


def body_candidate(problem: Problem, index: int, plans: tuple[Plan, ...]) -> CandidateKernel:
    """Return a node as a candidate whose bodies have these plans."""
    return CandidateKernel(SubGraph(problem.graph, IndexSet.of(index)), BODIES_TARGET, _SPEC, ("bodies",), bodies=plans)


def body_options(problem: Problem, graph: DataflowGraph) -> CompileOptions:
    """Return the options of a search of a body: for latency, in the own precision of the model, without a comparison."""
    options = problem.options

    def fitting(texts: Iterable[str], name: str) -> tuple[str, ...]:
        return tuple(text for text in texts if _is_choice(graph, problem.menu, {name: (text,)}))

    return CompileOptions(
        db=options.db,
        use_tuned=options.use_tuned,
        search=options.search,
        strategy=options.strategy,
        percentile=options.percentile,
        measure_budget=options.measure_budget,
        remeasure=options.remeasure,
        finals=False,
        min_gain=options.min_gain,
        fusion=options.fusion,
        launch_penalties_s=options.launch_penalties_s,
        seed=options.seed,
        force=fitting(options.force, "force"),
        forbid=fitting(options.forbid, "forbid"),
        baseline="none",
    )


def _whole(graph: DataflowGraph, target: Target) -> Plan:
    """Return a body as one kernel."""
    return Plan("", (PlannedKernel(everything(graph), target),) if len(graph) else ())


def moved_plan(inner: Problem, graph: DataflowGraph, plan: Plan) -> Plan:
    """Return the plan of a body's own problem as a plan of the body."""
    index = {str(node.name): i for i, node in enumerate(graph.nodes)}
    moved = {i: index[str(node.name)] for i, node in enumerate(inner.graph.nodes)}
    return Plan(
        "",
        tuple(
            PlannedKernel(
                place.sub_graph.substitute(graph, moved), place.target.without_rule, place.rule, bodies=place.bodies
            )
            for place in plan.kernels
        ),
    )


def _fastest_single(survey: Survey) -> list[Plan]:
    """Return the fastest target that runs all of a body alone as a plan; none if no target does."""
    problem = survey.problem
    timed = [
        (found.whole.time.median_s, problem.priority(target), target)
        for target, found in survey.baselines.items()
        if found.whole.time is not None and survey.is_right(found.whole) and not problem.is_bound(target)
    ]
    whole = everything(problem.graph)
    allowed = [(seconds, rank, target) for seconds, rank, target in timed if problem.choices.allows(whole, target)]
    return [plan_of([CandidateKernel(whole, min(allowed)[2], _SPEC, ("whole",))], "single")] if allowed else []


def _is_choice(graph: DataflowGraph, menu: Sequence[Target], choice: Mapping[str, tuple[str, ...]]) -> bool:
    """Return True if a choice of the user is about an operator of a graph."""
    try:
        Choices.of(graph, menu, choice.get("force", ()), choice.get("forbid", ()))
    except UsageError:
        return False
    return True


def _inputs(model: ir.Model, store: ValueStore) -> dict[str, Any]:
    return {str(value.name): store.input(str(value.name)) for value in model.graph.inputs}


def _within(say: Callable[[str], None], name: str, text: str) -> None:
    say(f"in {name}: {text}")
