from __future__ import annotations

import math
import random

import numpy as np
import pytest

from collage.cost.cost import Cost
from collage.search import NoCover, Partitioning, k_best, shortest_path
from collage.search._dijkstra import find_paths
from collage.search._problem import Problem
from collage.search._results import as_partitioning, statistics_of, weigh

from .search_oracle import (
    Candidate,
    Graph,
    candidate,
    covers,
    least_cost,
    random_candidates,
    random_costs,
    random_graph,
)

US = 2.0**-20


@pytest.mark.parametrize("block", range(10))
def test_equals_brute_force_on_random_graphs(block: int) -> None:
    for seed in range(200 * block, 200 * block + 200):
        rng = random.Random(seed)
        graph = random_graph(rng)
        candidates = random_candidates(rng, graph)
        costs = random_costs(rng, candidates)
        best = least_cost(graph.n, candidates, costs)
        result = shortest_path(graph.n, candidates, costs.__getitem__)
        if isinstance(result, NoCover):
            assert best == math.inf, seed
            continue
        assert result.cost == Cost(0, best), seed
        assert result.optimal and result.gap == 0
        assert sum(c.bits for c in result.candidates) == (1 << graph.n) - 1
        assert graph.acyclic([c.bits for c in result.candidates])


@pytest.mark.parametrize("block", range(4))
def test_k_best_equals_brute_force(block: int) -> None:
    for seed in range(100 * block, 100 * block + 100):
        rng = random.Random(seed)
        graph = random_graph(rng, most=6)
        candidates = random_candidates(rng, graph)
        costs = random_costs(rng, candidates)
        valid = [c for c in candidates if costs[c] < math.inf]
        every = sorted(sum(costs[c] for c in cover) for cover in covers(graph.n, valid))
        k = rng.randint(1, 12)
        result = k_best(graph.n, candidates, costs.__getitem__, k)
        if isinstance(result, NoCover):
            assert not every
            continue
        assert [p.cost.seconds for p in result] == every[:k], seed
        assert len({p.candidates for p in result}) == len(result)


def chain(n: int) -> list[Candidate]:
    return [candidate(list(range(a, b))) for a in range(n) for b in range(a + 1, n + 1)]


def test_the_launch_penalty_is_paid_per_kernel() -> None:
    result = shortest_path(4, chain(4), lambda c: c.bits.bit_count() * US, launch_penalty_of=lambda c: 3 * US)
    assert isinstance(result, Partitioning)
    assert [c.bits for c in result.candidates] == [0b1111]
    assert result.cost == Cost(0, 7 * US)


def test_equal_costs_go_to_fewer_kernels_then_to_priority_then_to_order() -> None:
    menu = [Candidate(c.bits, c.first, t) for t in "xyz" for c in chain(5)]
    by_size = shortest_path(5, menu, lambda c: c.bits.bit_count() * US)
    assert isinstance(by_size, Partitioning)
    assert [(c.bits, c.target) for c in by_size.candidates] == [(0b11111, "x")]
    by_priority = shortest_path(5, menu, lambda c: c.bits.bit_count() * US, priority_of=lambda c: "zyx".index(c.target))
    assert isinstance(by_priority, Partitioning)
    assert [(c.bits, c.target) for c in by_priority.candidates] == [(0b11111, "z")]


def test_invalid_candidates_are_no_edges() -> None:
    result = shortest_path(2, chain(2), lambda c: math.inf if c.bits == 0b11 else US)
    assert isinstance(result, Partitioning)
    assert [c.bits for c in result.candidates] == [1, 2]
    assert result.statistics.valid == 2


def test_unknown_costs_are_avoided_then_ranked_by_priority() -> None:
    menu = [candidate([0], "slow"), candidate([0], "p"), candidate([0], "q"), candidate([1], "q"), candidate([1], "p")]

    def cost_of(c: Candidate) -> Cost:
        return Cost(0, 1000.0) if c.target == "slow" else Cost.UNKNOWN

    result = shortest_path(2, menu, cost_of, priority_of=lambda c: {"p": 0, "q": 1, "slow": 2}[c.target])
    assert isinstance(result, Partitioning)
    assert [c.target for c in result.candidates] == ["slow", "p"]
    assert result.cost == Cost(1, 1000.0)


def test_all_costs_unknown_is_quick_on_a_long_chain() -> None:
    n = 400
    menu = [candidate(list(range(a, b)), t) for a in range(n) for b in range(a + 1, min(n, a + 8) + 1) for t in "ab"]
    result = shortest_path(n, menu, lambda c: Cost.UNKNOWN, priority_of=lambda c: "ba".index(c.target))
    assert isinstance(result, Partitioning)
    assert result.cost == Cost(50, 0.0)
    assert {c.target for c in result.candidates} == {"b"}


def test_names_the_first_node_without_a_valid_candidate() -> None:
    result = shortest_path(
        4, [candidate([0]), candidate([1, 2]), candidate([3])], lambda c: math.inf if c.first == 1 else 1
    )
    assert isinstance(result, NoCover)
    assert result.node == 1
    assert "node 1" in result.reason


def test_names_the_node_at_which_every_attempt_ends() -> None:
    result = shortest_path(4, [candidate([0]), candidate([1, 2]), candidate([2, 3])], lambda c: 1.0)
    assert isinstance(result, NoCover)
    assert result.node == 3


def test_nothing_to_cover_costs_nothing() -> None:
    result = shortest_path(0, [], lambda c: 1.0)
    assert isinstance(result, Partitioning)
    assert result.candidates == () and result.cost == Cost.ZERO


def test_no_candidates_at_all() -> None:
    result = shortest_path(3, [], lambda c: 1.0)
    assert isinstance(result, NoCover)
    assert result.node == 0


def test_a_candidate_outside_the_graph_is_refused() -> None:
    with pytest.raises(ValueError, match="nodes of 0 to 1"):
        shortest_path(2, [candidate([2])], lambda c: 1.0)


def test_the_cap_on_states_is_reported_and_the_cover_is_not_called_optimal() -> None:
    rng = random.Random(5)
    n = 14
    menu = [candidate(sorted(rng.sample(range(n), rng.randint(1, 3)))) for _ in range(400)]
    menu += [candidate([i]) for i in range(n)]
    costs = {c: rng.randint(10, 20) * US for c in menu}
    full = shortest_path(n, menu, costs.__getitem__)
    assert isinstance(full, Partitioning) and full.statistics.states > 2
    capped = shortest_path(n, menu, costs.__getitem__, max_states=2)
    assert isinstance(capped, Partitioning)
    assert capped.statistics.caps == ("states",)
    assert not capped.optimal
    assert capped.lower_bound <= full.cost <= capped.cost
    assert 0 <= capped.gap < 1


@pytest.mark.parametrize("price", [-(10**15), 10**15])
def test_a_capped_search_that_began_with_prices_of_other_costs_bounds_by_nothing(price: int) -> None:
    """As where the search of a model of 568 operators was cut short: its bound was below zero, and no cost."""
    rng = random.Random(5)
    n = 14
    menu = [candidate(sorted(rng.sample(range(n), rng.randint(1, 3)))) for _ in range(400)]
    menu += [candidate([i]) for i in range(n)]
    problem = Problem(n, menu)
    weights = weigh(problem, [rng.randint(10, 20) * US for _ in menu], None)
    prices = np.array([price if i % 2 else -price for i in range(n)])
    found = find_paths(problem, weights, prices=prices, max_states=1)
    assert found.capped and found.lower_bound is not None and found.lower_bound < 0
    result = as_partitioning(problem, weights, found, found.paths[0], statistics_of(problem, weights, found, 0.0))
    assert Cost(0, 0.0) <= result.lower_bound <= result.cost
    assert 0 <= result.gap <= 1 and not result.optimal


def test_same_problem_same_plan_whatever_the_costs_of_others_did() -> None:
    """Ties are decided by the problem, not by the order in which states were met."""
    for seed in range(100):
        rng = random.Random(seed)
        graph = random_graph(rng, most=7)
        candidates = random_candidates(rng, graph)
        costs = {c: rng.randint(1, 3) * US for c in candidates}
        first = shortest_path(graph.n, candidates, costs.__getitem__)
        again = shortest_path(graph.n, candidates, costs.__getitem__)
        assert first == again
        if isinstance(first, Partitioning):
            best = [
                cover for cover in covers(graph.n, candidates) if sum(costs[c] for c in cover) == first.cost.seconds
            ]
            assert len(first.candidates) == min(len(cover) for cover in best)


def test_very_large_and_very_small_costs_together() -> None:
    graph = Graph(3, [(0, 1), (1, 2)])
    menu = [candidate([0]), candidate([1]), candidate([2]), candidate([0, 1]), candidate([1, 2])]
    costs = dict(zip(menu, [1e-9, 1e9, 1e-12, 5e8, 3e8], strict=True))
    result = shortest_path(graph.n, menu, costs.__getitem__)
    assert isinstance(result, Partitioning)
    assert [c.bits for c in result.candidates] == [0b001, 0b110]
