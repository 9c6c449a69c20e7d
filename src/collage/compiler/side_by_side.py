"""Branches side by side: a plan whose independent parts run at the same time, each on one thread.

Many threads make some kernels no faster: recurrent layers, small operators in a row. If a model has parts of such that do
not wait for each other, each part has a core to itself. The cheapest plan and the cheapest single target are both split
along the branches. For each part the cheaper split is taken. The resulting plan is compared end to end as any other plan.
A model without branches costs nothing here, and one with them a measurement or two for each kernel of a branch.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from collage.compiler.cost_table import CostTable
from collage.compiler.plans import predicted_s
from collage.compiler.precision_sensitivity import EXEMPT
from collage.compiler.problem import Problem
from collage.fusion import CandidateKernel, FusionSpec, UnionFusionRule
from collage.graph import ANY_VALID, IndexSet, SubGraph, iterate_bits
from collage.plan import Plan, PlannedKernel
from collage.search import Stage, stages_of, with_joined
from collage.system.machine import this_machine, thread_count
from collage.target import HOST_TARGET, Target

__all__ = ["side_by_side"]

_LEAST_GAIN = 0.1
"""Share of the best plan's time that the branches of a stage must save if nothing is lost. Below it, the hand-over from thread
to thread, more kernels and a shared memory leave nothing."""
_MARGIN = 0.03
"""Share by which the prediction must be better than the best plan's to be compared."""
_MADE_FOR_ONE = ("threads", "trials", EXEMPT)
"""Options of targets whose kernels are chosen, tuned or kept in float32 for just this target."""
_RULE = "side by side"
_SPEC = FusionSpec(_RULE, UnionFusionRule(()), ())

Pieces = Sequence[CandidateKernel]
"""Kernels that run one after the other."""


def side_by_side(
    problem: Problem, costs: CostTable, plans: Sequence[Plan], may_share: Callable[[Plan], bool] = lambda _: True
) -> list[Plan]:
    """Return a plan with branches side by side, if the model has any and one is predicted to gain; else nothing.

    Args:
        problem: The model.
        costs: Costs of kernels. Those of branches are measured.
        plans: The plans that are compared in any case.
        may_share: Says if the toolchains of a plan can share a process.
    """
    options = problem.options
    cores = options.threads or thread_count() or this_machine().physical_cores
    if cores < 2 or options.objective != "latency" or not options.finals or problem.placement is not None:
        return []
    known = {plan.name: predicted_s(problem, costs, plan) for plan in plans}
    ordered = sorted((plan for plan in plans if known[plan.name]), key=lambda plan: known[plan.name] or math.inf)
    if not ordered or len(problem.graph) < 2:
        return []
    best, best_s = ordered[0], known[ordered[0].name] or math.inf
    own = None if best.single is None else best.single.toolchain
    other = [plan for plan in ordered[1:] if plan.single is not None and plan.single.toolchain != own]
    plan = _Splitter(problem, costs, [best, *other[:1]], best_s).plan(cores)
    if plan is None or not may_share(plan):
        return []
    expected_s = predicted_s(problem, costs, plan)
    if expected_s is None:
        return []
    costs.say(
        f"{plan.name}: predicted {expected_s * 1e3:.3f} ms, and {best_s * 1e3:.3f} ms without branches side by side"
    )
    return [plan] if expected_s <= (1.0 - _MARGIN) * best_s else []


@dataclass(frozen=True, slots=True)
class _Splitter:
    """Splits plans along the branches of a model.

    Attributes:
        problem: The model.
        costs: Costs of kernels.
        plans: The plans, the cheapest first.
        best_s: Predicted seconds of the cheapest.
    """

    problem: Problem
    costs: CostTable
    plans: Sequence[Plan]
    best_s: float

    def plan(self, cores: int) -> Plan | None:
        """Return the plan with branches side by side that is predicted to end first; None if no branches are worth it."""
        # Some profilers tell the time of all that one operator was merged with, so each plan's is asked.
        profiles = [self.costs.node_seconds(plan.kernels) for plan in self.plans]
        hopeful = (s for s in profiles if any(stage.is_parallel for stage in self._stages(s, cores)))
        if (found := next(hopeful, None)) is None:
            return None
        seconds = self._alike(found)
        stages = self._stages(seconds, cores)
        scale = self.best_s / sum(seconds)
        lanes = self._cheapest([lane for stage in stages if stage.is_parallel for lane in stage.lanes], in_branch=True)
        if lanes is None:
            return None
        slow = [
            number
            for number, stage in enumerate(stages)
            if stage.is_parallel
            and max(self._seconds(lanes[lane]) for lane in stage.lanes)
            >= scale * sum(seconds[node] for node in iterate_bits(stage.bits))
        ]
        stages = with_joined(stages, slow)
        if not any(stage.is_parallel for stage in stages):
            self.costs.say("branches are not faster side by side on one thread each")
            return None
        rest = self._cheapest([stage.bits for stage in stages if not stage.is_parallel], in_branch=False)
        if rest is None:
            return None
        kernels = [
            PlannedKernel(
                piece.sub_graph,
                piece.target,
                piece.rules[-1],
                branch=number if stage.is_parallel else None,
                bodies=piece.bodies,
            )
            for stage in stages
            for number, lane in enumerate(stage.lanes, 1)
            for piece in (lanes if stage.is_parallel else rest)[lane]
        ]
        count = max(len(stage.lanes) for stage in stages)
        return Plan(f"{count} branches side by side", tuple(kernels))

    def _stages(self, seconds: Sequence[float], cores: int) -> list[Stage]:
        return stages_of(self.problem.graph.consumer_bits, seconds, cores, _LEAST_GAIN * sum(seconds))

    def _alike(self, seconds: Sequence[float]) -> list[float]:
        """Return the seconds of operators. Equal operators get one common time, since a profile measures each only once."""
        graph, signature = self.problem.graph, self.problem.kernels.signature
        kinds = [signature(SubGraph(graph, IndexSet(1 << node))) for node in range(len(graph))]
        times: dict[object, list[float]] = {}
        for kind, each in zip(kinds, seconds, strict=True):
            times.setdefault(kind, []).append(each)
        medians = {kind: statistics.median(found) for kind, found in times.items()}
        return [medians[kind] for kind in kinds]

    def _cheapest(self, parts: Sequence[int], *, in_branch: bool) -> dict[int, Pieces] | None:
        """Return the cheapest kernels of each part of the model, given as bits, once measured; None if time is short."""
        ways = {
            part: [found for plan in self.plans if (found := self._split(plan, part, in_branch=in_branch)) is not None]
            for part in parts
        }
        if not all(ways.values()) or not self._measured([*itertools.chain(*itertools.chain(*ways.values()))]):
            return None
        return {part: min(found, key=self._seconds) for part, found in ways.items()}

    def _measured(self, kernels: Pieces) -> bool:
        """Measure kernels; False if there is no time for it, or the user ends it."""
        costs, unknown = self.costs, dict[object, CandidateKernel]()
        costs.introduce(kernels)
        costs.recall(kernels)
        for kernel in kernels:
            if costs.known_cost(kernel) is None:
                unknown.setdefault(self.problem.key_of(kernel), kernel)
        if not unknown:
            return True
        if len(unknown) > costs.kernels_left or costs.search_s_left <= 0:
            return False
        costs.say(f"measuring {len(unknown)} kernels for branches that may run side by side")
        try:
            costs.measure(list(unknown.values()))
        except KeyboardInterrupt:
            costs.is_interrupted = True
            costs.say("interrupted: continuing without branches side by side")
            return False
        return True

    def _seconds(self, pieces: Pieces) -> float:
        """Return the seconds of measured kernels that run one after the other; infinite if one is not right."""
        costs, total = self.costs, 0.0
        for piece in pieces:
            cost = costs.known_cost(piece)
            is_right = cost is not None and cost.is_known and not cost.is_invalid
            total += cost.seconds + costs.launch_penalty_s(piece.target) if cost is not None and is_right else math.inf
        return total

    def _split(self, plan: Plan, part: int, *, in_branch: bool) -> Pieces | None:
        """Return the pieces of a plan's kernels in a part of the model; None if that makes no kernels."""
        pieces = []
        for place in plan.kernels:
            inside = place.sub_graph.inside.bits & part
            if not inside:
                continue
            is_whole = inside == place.sub_graph.inside.bits
            if not is_whole and (place.sub_graph.nested or self.problem.is_bound(place.target)):
                return None
            sub_graph = place.sub_graph if is_whole else SubGraph(self.problem.graph, IndexSet(inside))
            is_host = place.target == HOST_TARGET
            target = self._on_one_thread(place.target) if in_branch else place.target
            reason = sub_graph.why_ill_formed(ANY_VALID) if is_host else sub_graph.why_invalid()
            if reason is not None or target is None or not self.problem.choices.allows(sub_graph, target):
                return None
            pieces.append(CandidateKernel(sub_graph, target, _SPEC, (_RULE,)))
        return pieces

    def _on_one_thread(self, target: Target) -> Target | None:
        """Return a target with one thread; None if there is none, or kernels of the target are made for it alone."""
        if target == HOST_TARGET or target.option("threads") == "1":
            return target
        is_own = any(target.option(name) is not None for name in _MADE_FOR_ONE) or self.problem.kernels.in_float(target)
        if target.kind != "llvm" or is_own:
            return None
        if "threads" not in self.problem.toolchains.for_target(target).options:
            return None
        alone = target.with_options(threads="1")
        self.costs.introduce_variant(alone, target)
        return alone
