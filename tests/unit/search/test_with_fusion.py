from __future__ import annotations

import math

from tests.unit.fusion.oracles import mnist

from collage.fusion import FusionSpec, classic_fuse_ops, collect_candidates, max_coalesce, regions
from collage.graph import DataflowGraph
from collage.search import LazyOptions, Partitioning, lazy_shortest_path, shortest_path
from collage.target import Target
from collage.toolchains import Support

from .exact_cover import exact_cover

NATIVE, OTHER = Target("llvm"), Target("llvm", compiler="other")
US = 1e-6


def cost_of(kernel) -> float:
    """The k-th operator of a kernel costs 0.9^k of the first."""
    first = 10 * US if kernel.target == NATIVE else 11 * US
    return first * (1 - 0.9 ** kernel.bits.bit_count()) / 0.1


def menu():
    graph = DataflowGraph(mnist())
    specs = [
        FusionSpec("native", classic_fuse_ops(), (NATIVE,)),
        FusionSpec("other", regions(lambda node: Support(True)), (OTHER,)),
    ]
    return graph, list(collect_candidates(graph, specs))


def test_candidate_kernels_are_what_the_search_takes() -> None:
    graph, candidates = menu()
    best = shortest_path(len(graph), candidates, cost_of)
    assert isinstance(best, Partitioning)
    assert sum(kernel.bits for kernel in best.candidates) == (1 << len(graph)) - 1
    exact = exact_cover(len(graph), candidates, cost_of, graph=graph)
    assert isinstance(exact, Partitioning)
    assert math.isclose(best.cost.seconds, exact.cost.seconds, rel_tol=1e-12)


def test_lazily_it_is_the_same() -> None:
    graph, candidates = menu()
    best = shortest_path(len(graph), candidates, cost_of)
    lazy = lazy_shortest_path(
        len(graph),
        candidates,
        lambda kernel: 0.8 * cost_of(kernel),
        lambda batch: [cost_of(kernel) for kernel in batch],
        options=LazyOptions(bounds_are_proofs=True),
    )
    assert isinstance(best, Partitioning) and lazy.partitioning is not None
    assert lazy.partitioning.candidates == best.candidates
    assert lazy.statistics.measured < len(candidates)


def test_kernels_of_one_target_coalesce() -> None:
    graph, candidates = menu()
    singles = [c for c in candidates if c.bits.bit_count() == 1 and c.target == NATIVE]
    (joined,) = max_coalesce(graph, singles)
    assert joined.bits == (1 << len(graph)) - 1
