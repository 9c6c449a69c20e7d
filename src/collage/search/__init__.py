"""The search room: disjoint candidate kernels that cover the graph at least cost.

* `shortest_path` and `k_best`: all costs known; exact.
* `lazy_shortest_path`: costs are measured only where they matter.
* `wide_shortest_path`: any candidates, also such as could feed each other.
* `placed_shortest_path`, `lazy_placed_path`: candidates on several devices, with copies between them.
* `overlapping_covers`: the same where devices work at once, and the end counts, not the sum.
* `exact_cover`: the same as a constraint programme (extra ``exact``).
"""

from __future__ import annotations

from collage.search._exact import exact_cover
from collage.search._label_search import wide_shortest_path
from collage.search._lazy import LazyOptions, LazyResult, lazy_shortest_path
from collage.search._overlap import overlapping_covers
from collage.search._placed import lazy_placed_path, placed_shortest_path
from collage.search._schedule import makespan_s
from collage.search._shortest_path import k_best, shortest_path
from collage.search._transfers import PlacedCandidate, Transfer, copies_of
from collage.search._values import (
    Candidate,
    CostOf,
    DependencyGraph,
    NoCover,
    Partitioning,
    Search,
    SearchStatistics,
)

__all__ = [
    "Candidate",
    "CostOf",
    "DependencyGraph",
    "LazyOptions",
    "LazyResult",
    "NoCover",
    "Partitioning",
    "PlacedCandidate",
    "Search",
    "SearchStatistics",
    "Transfer",
    "copies_of",
    "exact_cover",
    "k_best",
    "lazy_placed_path",
    "lazy_shortest_path",
    "makespan_s",
    "overlapping_covers",
    "placed_shortest_path",
    "shortest_path",
    "wide_shortest_path",
]
