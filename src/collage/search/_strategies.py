"""The strategies that come with Collage.

If the search chooses devices, each of them searches placed covers, with the copies between devices (``_placed``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from collage.search._dijkstra import DEFAULT_MAX_STATES
from collage.search._lazy import LazyOptions, lazy_shortest_path
from collage.search._placed import lazy_placed_path
from collage.search._problem import Problem
from collage.search._strategy import (
    CostSource,
    SearchLimits,
    SearchProblem,
    SearchStrategy,
    measure_all,
    run_strategy,
    why_at_fault,
)
from collage.search._values import C, SearchResult
from collage.search._wide import Flow

__all__ = ["ExhaustiveStrategy", "LazyStrategy", "WideStrategy", "run_or_fall_back"]

_CHARGES = (0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0)
"""Plans of few new kernels are looked for first, see ``LazyOptions``. Found by searching simulated costs of real models:
with the same number of measurements, the loss is a third of that of a search without charges.
"""

_STATES = 20_000
"""States of a round whose plan is measured next, and need not be proved. A round of basic-pitch, with 248 operators, settles
them in 1.7 s. It took 111 s for 2,000,000, and led to the same plan.
"""


class LazyStrategy:
    """Dijkstra's algorithm over covered sets, measuring only candidates that may lie on the best path."""

    name = "lazy"
    _max_states = _STATES

    def run(self, problem: SearchProblem[C], costs: CostSource[C], limits: SearchLimits) -> SearchResult[C]:
        """Search and measure in turns until the best path is measured through, or a limit is reached."""
        options = LazyOptions(
            bounds_are_proofs=limits.proves,
            batch_size=limits.batch_size,
            charges=_CHARGES,
            max_measured=limits.kernels_left,
            deadline_s=limits.seconds_left,
            min_gain=limits.min_gain,
            max_states=DEFAULT_MAX_STATES if limits.proves else self._max_states,
        )
        return self._search_for(problem)(
            problem.n,
            problem.candidates,
            costs.least_s if limits.proves else costs.expected_s,
            costs.measure,
            options=options,
            known_cost_of=costs.known_cost,
            key_of=costs.key_of,
            proof_bound_of=costs.least_s,
            launch_penalty_of=costs.launch_penalty_s,
            priority_of=costs.priority,
            should_stop=limits.should_stop,
        )

    def _search_for(self, problem: SearchProblem[C]) -> Callable[..., SearchResult[C]]:
        if problem.transfers is None:
            return partial(lazy_shortest_path, graph=problem.graph) if problem.is_wide else lazy_shortest_path
        search: Callable[..., SearchResult[Any]] = lazy_placed_path
        return partial(search, transfers=problem.transfers)


class ExhaustiveStrategy(LazyStrategy):
    """Measure every candidate, then take the best cover. Candidates of a lazy search come first, in case of a limit."""

    name = "exhaustive"
    _max_states = DEFAULT_MAX_STATES

    def run(self, problem: SearchProblem[C], costs: CostSource[C], limits: SearchLimits) -> SearchResult[C]:
        """Search lazily, measure the remaining candidates, and search again with all costs known."""
        unknown = _unknown(problem, costs)
        first = super().run(problem, costs, limits)
        others = measure_all(problem, costs, limits)
        result = super().run(problem, costs, limits) if others else first
        keys = first.statistics.measured_keys + others
        if result is not first:
            keys += result.statistics.measured_keys
        measured = unknown - _unknown(problem, costs)
        return replace(result, statistics=replace(result.statistics, measured=measured, measured_keys=keys))


class WideStrategy(LazyStrategy):
    """The lazy search for candidates that break the admission rule, which may feed each other in a ring.

    It is the plain search wherever that finds no ring. If the search chooses devices, only admitted candidates take part.
    """

    name = "wide"

    def run(self, problem: SearchProblem[C], costs: CostSource[C], limits: SearchLimits) -> SearchResult[C]:
        """Search as the lazy strategy does, checking covers against the data flow."""
        if problem.transfers is not None:
            flow = Flow(Problem(problem.n, problem.candidates), problem.graph)
            problem = replace(problem, candidates=tuple(c for c in problem.candidates if flow.is_admitted(c.bits)))
        return super().run(problem, costs, limits)

    def _search_for(self, problem: SearchProblem[C]) -> Callable[..., SearchResult[C]]:
        if problem.transfers is not None:
            return super()._search_for(problem)
        search: Callable[..., SearchResult[C]] = lazy_shortest_path
        return partial(search, graph=problem.graph)


def _unknown(problem: SearchProblem[C], costs: CostSource[C]) -> int:
    return sum(costs.known_cost(candidate) is None for candidate in problem.candidates)


def run_or_fall_back(
    strategy: SearchStrategy, problem: SearchProblem[C], costs: CostSource[C], limits: SearchLimits
) -> SearchResult[C]:
    """Run a strategy and check its result. If either fails, run the lazy strategy, and say why in the result."""
    if type(strategy) is LazyStrategy:
        return run_strategy(strategy, problem, costs, limits)
    try:
        return run_strategy(strategy, problem, costs, limits)
    except (Exception, SystemExit) as error:
        # A failure of measuring itself comes up again in the lazy search, and ends it.
        fault = f"{why_at_fault(strategy.name, error)}; the strategy 'lazy' ran instead"
    return replace(run_strategy(LazyStrategy(), problem, costs, limits), faults=(fault,))
