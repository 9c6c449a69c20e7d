"""The second phase of a search, if its strategy has one: whole plans are timed end to end, between search and final comparison.

The strategy's proposals join the finalists. It is never returned without the final comparison.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from collage._errors import ToolchainError
from collage.compiler.final_comparison import finalist_of
from collage.compiler.lab import Lab
from collage.compiler.partition_search import CostAccess
from collage.compiler.plans import lower, plan_of, predicted_s
from collage.compiler.problem import Problem
from collage.fusion import CandidateKernel, CandidateKernelIndex
from collage.measure.paired_timer import PairedTimer
from collage.measure.session import MeasureSession
from collage.plan import Plan, identity_of
from collage.search import RefiningStrategy, SearchProblem, refine_or_leave, strategies

__all__ = ["Refinement"]

_SECONDS = 60.0
"""Seconds that a second phase may take, unless the user grants a time budget: then it is what the search has left."""


class Refinement:
    """The second phase of one compilation.

    Args:
        lab: Builds plans, and has the costs of kernels.
        may_share: Says if the toolchains of a plan can share a process.
    """

    def __init__(self, lab: Lab, may_share: Callable[[Plan], bool]) -> None:
        self._problem, self._costs, self._session, self._may_share = lab.problem, lab.costs, lab.session, may_share
        strategy = strategies().get(lab.problem.options.strategy)
        self._strategy = strategy if isinstance(strategy, RefiningStrategy) else None
        self._spent_s = 0.0

    def plans(self, index: CandidateKernelIndex, finalists: Sequence[Plan]) -> list[Plan]:
        """Return plans that the strategy proposes beside the finalists that there are.

        Args:
            index: The candidates.
            finalists: The plans that are compared in any case.
        """
        problem, costs, strategy = self._problem, self._costs, self._strategy
        options = problem.options
        if strategy is None or costs.strategy_faults or costs.is_interrupted or problem.is_placed_by_search:
            return []
        if not options.finals or options.objective != "latency":
            return []
        if problem.comparison_plan.one_at_a_time:
            costs.say(f"{strategy.name}: no second phase, since two plans at once may be too much for the memory")
            return []
        seeds = self._seeds(index, finalists)
        left_s = _SECONDS if problem.options.time_budget_s is None else costs.search_s_left
        if len(index) < 2 or not seeds or left_s <= self._spent_s:
            return []
        costs.say(f"{strategy.name}: timing whole plans, for {left_s - self._spent_s:.0f} s at most")
        is_wide = any(not candidate.sub_graph.is_admissible for candidate in index)
        question = SearchProblem(len(problem.graph), tuple(index), problem.graph, None, is_wide)
        timer = _Timer(problem, self._session, self._may_share, left_s - self._spent_s)
        try:
            proposed, fault = refine_or_leave(strategy, question, CostAccess(problem, costs), seeds, timer)
        finally:
            timer.close()
            self._spent_s += timer.spent_s
            costs.is_interrupted |= timer.should_stop()
        costs.strategy_faults += () if fault is None else (fault,)
        costs.say(f"{strategy.name}: {timer.timed} plans timed in {timer.spent_s:.0f} s, {len(proposed)} better ones")
        plans = [plan_of(cover, f"refined {number}") for number, cover in enumerate(proposed, 1)]
        return [plan for plan in plans if self._may_share(plan)]

    def _seeds(self, index: CandidateKernelIndex, finalists: Sequence[Plan]) -> list[tuple[CandidateKernel, ...]]:
        """Return the finalists that candidates make up, the cheapest first."""
        known = {identity_of(candidate): candidate for candidate in index}
        covers = []
        for plan in sorted(finalists, key=lambda plan: predicted_s(self._problem, self._costs, plan) or math.inf):
            cover = [known.get(identity_of(place)) for place in plan.kernels]
            if all(cover):
                covers.append(tuple(candidate for candidate in cover if candidate is not None))
        return covers


class _Timer:
    """Times whole plans for a strategy (`CoverTimer`).

    Attributes:
        timed: Number of plans that were asked for.
        spent_s: Seconds that it took.
    """

    def __init__(
        self, problem: Problem, session: MeasureSession, may_share: Callable[[Plan], bool], budget_s: float
    ) -> None:
        self.seed = problem.options.seed
        self.timed = 0
        self._problem, self._session, self._may_share = problem, session, may_share
        self._deadline_s = budget_s
        self._began = time.monotonic()
        self._paired: PairedTimer | None = None
        self._is_interrupted = False

    @property
    def spent_s(self) -> float:
        return time.monotonic() - self._began

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._deadline_s - self.spent_s)

    def should_stop(self) -> bool:
        return self._is_interrupted

    def time_of(self, cover: Sequence[CandidateKernel]) -> float:
        """Build a plan, check it, and time it in turns with the first one that ran."""
        if self._is_interrupted or self.seconds_left <= 0:
            return math.inf
        self.timed += 1
        plan = plan_of(cover, f"plan {self.timed}")
        try:
            if not self._may_share(plan):
                return math.inf
            entry = finalist_of(self._problem, self._session, plan, lower(self._problem, self._session, plan))
            if self._paired is None:
                self._paired = PairedTimer(entry, self._problem.tolerance, self._problem.comparison_plan.neighbour)
            return self._paired.ratio(entry)
        except ToolchainError:
            return math.inf
        except KeyboardInterrupt:
            self._is_interrupted = True
            self._session.say("interrupted: continuing with the best plan so far")
            return math.inf

    def close(self) -> None:
        """End the processes."""
        if self._paired is not None:
            self._paired.close()
