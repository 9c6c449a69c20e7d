"""Branches of random graphs against the definition: stages are legal, complete, and as short as they are said to be."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage.graph import bits_of, iterate_bits
from collage.search import Stage, stages_of, with_joined
from collage.search._branches import pack


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[int], list[float]]:
    """Consumers and seconds of a random graph: of random edges, or of towers between waists with a few edges more."""
    rng = random.Random(draw(st.integers(0, 10**9)))
    n = rng.randint(1, 14)
    edges = set()
    if rng.random() < 0.5:
        edges = {(i, j) for i, j in itertools.combinations(range(n), 2) if rng.random() < rng.choice([0.1, 0.3])}
    else:
        node = 0
        while node < n:
            count, depth = rng.randint(1, 3), rng.randint(1, 3)
            towers = [list(range(node + 1 + t * depth, node + 1 + (t + 1) * depth)) for t in range(count)]
            for tower in towers:
                edges |= set(itertools.pairwise([node, *tower, node + 1 + count * depth]))
            node += 1 + count * depth
        edges = {(i, j) for i, j in edges if j < n}
        edges |= {(rng.randrange(n), rng.randrange(n)) for _ in range(rng.randint(0, 1))}
        edges = {(i, j) for i, j in edges if i < j}
    consumers = [bits_of(j for i, j in edges if i == node) for node in range(n)]
    return consumers, [rng.choice([0.0, 0.001, 1.0, 2.0, rng.random()]) for _ in range(n)]


def stage_and_lane(stages: list[Stage]) -> dict[int, tuple[int, int]]:
    return {
        node: (s, lane)
        for s, stage in enumerate(stages)
        for lane, bits in enumerate(stage.lanes)
        for node in iterate_bits(bits)
    }


def assert_legal(consumers: list[int], stages: list[Stage]) -> None:
    places = stage_and_lane(stages)
    assert sorted(places) == list(range(len(consumers)))
    assert sum(bits.bit_count() for stage in stages for bits in stage.lanes) == len(consumers), (
        "no node is in two lanes"
    )
    for node, readers in enumerate(consumers):
        for reader in iterate_bits(readers):
            (before, lane), (after, other) = places[node], places[reader]
            assert before < after or (before == after and lane == other), (node, reader)
    assert all(a.is_parallel or b.is_parallel for a, b in itertools.pairwise(stages)), (
        "neighbours of one lane are one stage"
    )


@settings(max_examples=150, deadline=None)
@given(graphs(), st.integers(1, 4), st.sampled_from([0.0, 0.1, 1.0]), st.integers(0, 3))
def test_stages_are_legal_and_lanes_save_what_was_asked(
    graph: tuple[list[int], list[float]], most_lanes: int, least: float, most_parallel: int
) -> None:
    consumers, seconds = graph
    least_s = least * sum(seconds)
    stages = stages_of(consumers, seconds, most_lanes, least_s, most_parallel)
    assert_legal(consumers, stages)
    parallel = [stage for stage in stages if stage.is_parallel]
    assert len(parallel) <= most_parallel
    cheap_s = 0.02 * sum(seconds)
    for stage in parallel:
        times = [sum(seconds[node] for node in iterate_bits(lane)) for lane in stage.lanes]
        assert len(times) <= most_lanes
        assert sum(times) - max(times) >= least_s - cheap_s - 1e-9
    for number, _ in enumerate(stages):
        assert_legal(consumers, with_joined(stages, [number]))


@settings(max_examples=100, deadline=None)
@given(graphs())
def test_every_part_that_is_free_between_two_waists_is_found(graph: tuple[list[int], list[float]]) -> None:
    """With times that hide nothing, one stage of lanes is there for each gap between waists that falls into parts."""
    consumers, _ = graph
    n = len(consumers)
    reach = [[bool(consumers[i] >> j & 1) for j in range(n)] for i in range(n)]
    for k, i, j in itertools.product(range(n), repeat=3):
        reach[i][j] = reach[i][j] or (reach[i][k] and reach[k][j])
    waists = [i for i in range(n) if all(i == j or reach[i][j] or reach[j][i] for j in range(n))]
    gaps: dict[int, set[int]] = {}
    for node in set(range(n)) - set(waists):
        gaps.setdefault(sum(reach[waist][node] for waist in waists), set()).add(node)
    wanted = []
    for _, gap in sorted(gaps.items()):
        parts = [{node} for node in gap]
        for i, j in itertools.permutations(gap, 2):
            if consumers[i] >> j & 1:
                one, other = (next(part for part in parts if x in part) for x in (i, j))
                if one is not other:
                    parts.remove(other)
                    one |= other
        if len(parts) > 1:
            wanted.append(sorted(bits_of(part) for part in parts))
    found = stages_of(consumers, [1.0] * n, most_lanes=n, least_gain_s=0.0, most_parallel=n)
    assert [s.bits for s in found if s.is_parallel] == [sum(parts) for parts in wanted]
    for stage, parts in zip([s for s in found if s.is_parallel], wanted, strict=True):
        assert all(any(part & ~lane == 0 for lane in stage.lanes) for part in parts), "a lane is made of whole parts"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.01, 10.0), min_size=1, max_size=6), st.integers(1, 4))
def test_lanes_are_packed_near_the_best_way(times: list[float], most: int) -> None:
    lanes = pack([(1 << i, s) for i, s in enumerate(times)], most)
    assert sorted(i for lane in lanes for i in iterate_bits(lane)) == list(range(len(times)))
    assert 1 <= len(lanes) <= most
    longest = max(sum(times[i] for i in iterate_bits(lane)) for lane in lanes)
    ways = itertools.product(range(most), repeat=len(times))
    best = min(
        max(sum(s for s, w in zip(times, way, strict=True) if w == lane) for lane in range(most)) for way in ways
    )
    assert longest <= 4 / 3 * 1.02 * best + 1e-9, "the bound of Graham's rule"


def test_two_towers_and_what_joins_them() -> None:
    # 0 -> 1, 2 -> 3, both -> 4 -> 5.
    consumers = [2, 16, 8, 16, 32, 0]
    assert stages_of(consumers, [1.0] * 6, 2, 1.0) == [Stage((3, 12)), Stage((48,))]
    assert stages_of(consumers, [1.0] * 6, 1, 0.0) == [Stage((63,))]
    assert stages_of(consumers, [1.0] * 6, 2, 2.5) == [Stage((63,))], "too little to save"


def test_a_mask_that_both_towers_read_hides_nothing() -> None:
    # 0 is read by every layer of the towers 1-2 and 3-4, which 5 joins; 6 reads both 2 and 4 beside it.
    consumers = [bits_of([1, 2, 3, 4]), 4, bits_of([5, 6]), 16, bits_of([5, 6]), 0, 0]
    seconds = [0.001, 1.0, 1.0, 1.0, 1.0, 0.001, 0.001]
    assert stages_of(consumers, seconds, 2, 1.0) == [Stage((1,)), Stage((6, 24)), Stage((96,))]


@pytest.mark.parametrize("n", [0, 1])
def test_small_graphs_have_no_branches(n: int) -> None:
    assert not any(stage.is_parallel for stage in stages_of([0] * n, [1.0] * n, 4, 0.0))


def test_a_chain_of_many_nodes_has_one_stage_soon() -> None:
    n = 3000
    assert stages_of([1 << i + 1 for i in range(n - 1)] + [0], [1.0] * n, 4, 0.0) == [Stage(((1 << n) - 1,))]
