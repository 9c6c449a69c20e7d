from __future__ import annotations

import random

import pytest

from collage.search import NoCover, shortest_path, wide_shortest_path

from .exact_cover import exact_cover
from .search_oracle import candidate, random_candidates, random_costs, random_graph


@pytest.mark.parametrize("wide", [False, True])
def test_agrees_with_the_search(wide: bool) -> None:
    for seed in range(60):
        rng = random.Random(seed)
        graph = random_graph(rng, most=8)
        candidates = random_candidates(rng, graph, wide)
        costs = random_costs(rng, candidates)
        if wide:
            searched = wide_shortest_path(graph.n, candidates, costs.__getitem__, graph)
            exact = exact_cover(graph.n, candidates, costs.__getitem__, graph=graph)
        else:
            searched = shortest_path(graph.n, candidates, costs.__getitem__)
            exact = exact_cover(graph.n, candidates, costs.__getitem__)
        assert isinstance(searched, NoCover) == isinstance(exact, NoCover), seed
        if not isinstance(searched, NoCover) and not isinstance(exact, NoCover):
            assert exact.cost == searched.cost, seed
            assert exact.optimal
            assert graph.acyclic([c.bits for c in exact.candidates])


def test_candidates_that_do_not_fit_together() -> None:
    result = exact_cover(3, [candidate([0, 1]), candidate([1, 2])], lambda c: 1.0)
    assert isinstance(result, NoCover)
    assert result.node is None
