"""The search room: disjoint candidate kernels that cover the graph at least cost.

A strategy decides which candidates are measured, and finds the best cover of those (``SearchStrategy``, found by ``strategies``).
`run_or_fall_back` runs it. One with a second phase is a ``RefiningStrategy``, which times whole covers.
Strategies are made of these functions:

* `shortest_path` and `k_best`: all costs known; exact.
* `lazy_shortest_path`: costs are measured only where they matter.
* `wide_shortest_path`: any candidates, also such as could feed each other.
* `placed_shortest_path`, `lazy_placed_path`: candidates on several devices, with copies between them.
* `overlapping_covers`: the same where devices work at once, and the end counts, not the sum.
* `stages_of`: parts of a graph that may run side by side, before any kernels are chosen.
"""

from __future__ import annotations

from collage.search._branches import Stage, stages_of, with_joined
from collage.search._evolution import EvolutionaryStrategy
from collage.search._lazy import LazyOptions, lazy_shortest_path
from collage.search._overlap import overlapping_covers
from collage.search._placed import lazy_placed_path, placed_shortest_path
from collage.search._quotient import find_cycle, kernel_successors
from collage.search._refinement import CoverTimer, RefiningStrategy, refine_or_leave
from collage.search._registry import STRATEGY_GROUP, StrategyRegistry, strategies
from collage.search._schedule import makespan_s
from collage.search._shortest_path import k_best, shortest_path
from collage.search._strategies import ExhaustiveStrategy, LazyStrategy, WideStrategy, run_or_fall_back
from collage.search._strategy import (
    CostSource,
    SearchLimits,
    SearchProblem,
    SearchStrategy,
    measure_all,
    result_of_cover,
    run_strategy,
)
from collage.search._transfers import PlacedCandidate, Transfer, copies_of
from collage.search._values import (
    Candidate,
    CostOf,
    DependencyGraph,
    NoCover,
    Partitioning,
    SearchResult,
    SearchStatistics,
)
from collage.search._wide import wide_shortest_path

__all__ = [
    "STRATEGY_GROUP",
    "Candidate",
    "CostOf",
    "CostSource",
    "CoverTimer",
    "DependencyGraph",
    "EvolutionaryStrategy",
    "ExhaustiveStrategy",
    "LazyOptions",
    "LazyStrategy",
    "NoCover",
    "Partitioning",
    "PlacedCandidate",
    "RefiningStrategy",
    "SearchLimits",
    "SearchProblem",
    "SearchResult",
    "SearchStatistics",
    "SearchStrategy",
    "Stage",
    "StrategyRegistry",
    "Transfer",
    "WideStrategy",
    "copies_of",
    "find_cycle",
    "k_best",
    "kernel_successors",
    "lazy_placed_path",
    "lazy_shortest_path",
    "makespan_s",
    "measure_all",
    "overlapping_covers",
    "placed_shortest_path",
    "refine_or_leave",
    "result_of_cover",
    "run_or_fall_back",
    "run_strategy",
    "shortest_path",
    "stages_of",
    "strategies",
    "wide_shortest_path",
    "with_joined",
]
