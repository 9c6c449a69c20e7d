from __future__ import annotations

import random

from collage.search import NoCover, coalesce, shortest_path

from .search_oracle import Candidate, Graph, candidate, random_candidates, random_costs, random_graph


def bits_of(groups: list[tuple[Candidate, ...]]) -> list[int]:
    return [sum(c.bits for c in group) for group in groups]


def test_a_fork_with_both_consumers_on_the_same_target_becomes_one() -> None:
    """Each kernel ends in exactly one group."""
    graph = Graph(3, [(0, 1), (0, 2)])
    groups = coalesce([candidate([0]), candidate([1]), candidate([2])], graph)
    assert bits_of(groups) == [0b111]


def test_kernels_that_would_feed_each_other_stay_apart() -> None:
    """A = {a1, a2}, B = {b1, b2} with a1 to b2 and b1 to a2: either may be joined, not both."""
    a1, b1, a2, b2 = range(4)
    graph = Graph(4, [(a1, a2), (b1, b2), (a1, b2), (b1, a2)])
    kernels = [candidate([a1], "a"), candidate([b1], "b"), candidate([a2], "a"), candidate([b2], "b")]
    groups = coalesce(kernels, graph)
    assert len(groups) == 3
    assert graph.acyclic(bits_of(groups))


def test_a_kernel_of_another_target_between_keeps_two_apart() -> None:
    graph = Graph(3, [(0, 1), (1, 2), (0, 2)])
    groups = coalesce([candidate([0], "a"), candidate([1], "b"), candidate([2], "a")], graph)
    assert bits_of(groups) == [0b001, 0b010, 0b100]


def test_a_diamond_is_joined_although_no_first_pair_of_its_ends_can_be() -> None:
    graph = Graph(4, [(0, 1), (0, 2), (1, 3), (2, 3)])
    assert bits_of(coalesce([candidate([i]) for i in range(4)], graph)) == [0b1111]


def test_the_toolchain_is_asked_with_all_members_and_may_refuse() -> None:
    graph = Graph(3, [(0, 1), (1, 2)])
    asked = []

    def at_most_two(kernels: tuple[Candidate, ...]) -> bool:
        asked.append([c.bits for c in kernels])
        return len(kernels) <= 2

    groups = coalesce([candidate([0]), candidate([1]), candidate([2])], graph, at_most_two)
    assert bits_of(groups) == [0b011, 0b100]
    assert asked == [[1, 2], [1, 2, 4]]


def test_random_partitionings_stay_disjoint_covering_and_acyclic() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        graph = random_graph(rng)
        candidates = random_candidates(rng, graph)
        costs = random_costs(rng, candidates)
        best = shortest_path(graph.n, candidates, costs.__getitem__)
        if isinstance(best, NoCover):
            continue
        groups = coalesce(best.candidates, graph)
        assert sorted(c.bits for group in groups for c in group) == sorted(c.bits for c in best.candidates)
        assert all(len({c.target for c in group}) == 1 for group in groups)
        bits = bits_of(groups)
        assert graph.acyclic(bits)
        for i, group in enumerate(bits):
            later = sum(bits[i + 1 :])
            fed_by_later = any(graph.after[node] & group for node in range(graph.n) if later >> node & 1)
            assert not fed_by_later, "groups come in an order in which they can be run"
