"""Covers whose kernels overlap on several devices, against trying everything with a clock of its own."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

import pytest

from collage.search import Partitioning, Transfer, makespan_s, overlapping_covers

from .search_oracle import covers
from .test_placed_search import HOST, Placed, placed, random_problem

US = 2.0**-20
FREE = [[0.0, 0.0], [0.0, 0.0]]


def edge(maker: int, *readers: int, copy_s: Sequence[Sequence[float]] = FREE) -> Transfer:
    return Transfer(maker, dict.fromkeys(readers), copy_s)


def ends(cover: Sequence[Placed], costs: dict[Placed, float], transfers: Sequence[Transfer]) -> float:
    """When a placed cover ends, by a clock that goes from event to event."""
    kernel_of = {node: c for c in cover for node in range(c.bits.bit_length()) if c.bits >> node & 1}

    def wants(kernel: Placed) -> list[tuple[Placed | None, float]]:
        """Whom a kernel waits for, and how long what they make travels."""
        found: list[tuple[Placed | None, float]] = []
        for value in transfers:
            maker = None if value.producer is None else kernel_of[value.producer]
            inside = [place for reader, place in value.readers.items() if kernel_of[reader] is kernel]
            if not inside or maker is kernel:
                continue
            home = value.home if maker is None else maker.device
            place = kernel.device if None in inside else inside[0]
            found.append((maker, 0.0 if home is None else value.copy_s[home][place]))
        return found

    needs = {kernel: wants(kernel) for kernel in cover}
    done: dict[Placed, float] = {}
    free: dict[int, float] = {}
    while len(done) < len(cover):
        ready = {
            kernel: max((way + (done[m] if m else 0.0) for m, way in needs[kernel]), default=0.0)
            for kernel in cover
            if kernel not in done and all(m is None or m in done for m, _ in needs[kernel])
        }
        if not ready:
            return math.inf
        kernel = min(ready, key=lambda one: (ready[one], cover.index(one)))
        done[kernel] = free[kernel.device] = max(ready[kernel], free.get(kernel.device, 0.0)) + costs[kernel]
    ways = [
        (done[kernel_of[v.producer]] if v.producer is not None else 0.0)
        + v.copy_s[kernel_of[v.producer].device if v.producer is not None else v.home or 0][place]
        for v in transfers
        for place in v.delivered
    ]
    return max([*done.values(), *ways])


@pytest.mark.parametrize("chunk", range(6))
def test_equals_brute_force_where_nothing_is_cut_off(chunk: int) -> None:
    found = 0
    for seed in range(chunk * 20, chunk * 20 + 20):
        graph, candidates, costs, transfers = random_problem(seed, most=5)
        valid = [c for c in candidates if costs[c] < math.inf]
        best = min((ends(c, costs, transfers) for c in covers(graph.n, valid)), default=math.inf)
        result = overlapping_covers(graph.n, candidates, costs.__getitem__, 3, transfers=transfers)
        if best == math.inf:
            assert not result, seed
            continue
        assert result[0].cost.seconds == pytest.approx(best), seed
        assert result[0].optimal
        for cover in result:
            assert cover.cost.seconds == pytest.approx(ends(cover.candidates, costs, transfers)), seed
            assert sum(c.bits for c in cover.candidates) == (1 << graph.n) - 1
        found += 1
    assert found > 5


def chain_of(nodes: list[int]) -> list[Transfer]:
    return [edge(a, b) for a, b in itertools.pairwise(nodes)]


def two_branches(width: int) -> tuple[list[Placed], list[Transfer]]:
    """Two chains and what joins them; any range may be a kernel, on either device."""
    n = 2 * width + 1
    ranges = [placed(list(range(i, j)), d) for i in range(n) for j in range(i + 1, n + 1) for d in range(2)]
    return ranges, [
        *chain_of(list(range(width))),
        *chain_of(list(range(width, 2 * width))),
        edge(width - 1, n - 1),
        edge(2 * width - 1, n - 1),
    ]


@pytest.mark.parametrize("width", [1, 6, 40])
def test_two_independent_branches_go_to_two_devices(width: int) -> None:
    ranges, transfers = two_branches(width)
    (best,) = overlapping_covers(
        2 * width + 1,
        ranges,
        lambda c: c.bits.bit_count() * US,
        transfers=transfers,
        launch_penalty_of=lambda c: US / 8,
    )
    assert best.cost.seconds == pytest.approx((width + 1) * US + 2 * US / 8)
    devices = {node: c.device for c in best.candidates for node in range(2 * width) if c.bits >> node & 1}
    assert {devices[node] for node in range(width)}.isdisjoint(devices[node] for node in range(width, 2 * width))


def test_branches_stay_together_where_the_copy_takes_longer_than_the_work() -> None:
    dear = [[0.0, 50 * US], [50 * US, 0.0]]
    ranges, transfers = two_branches(6)
    far = [Transfer(t.producer, t.readers, dear) for t in transfers]
    (best,) = overlapping_covers(13, ranges, lambda c: c.bits.bit_count() * US, transfers=far)
    assert len({c.device for c in best.candidates}) == 1 and len(best.candidates) == 1


def test_the_faster_of_two_devices_takes_the_longer_branch() -> None:
    """Nodes 0 and 1 are branches of 6 and 3; device 1 takes twice as long for everything."""
    kernels = [placed([node], device) for node in range(3) for device in range(2)]
    work = {0: 6 * US, 1: 3 * US, 2: US}
    values = [edge(0, 2), edge(1, 2)]
    (best,) = overlapping_covers(3, kernels, lambda c: work[c.first] * (1 + c.device), transfers=values)
    assert [c.device for c in best.candidates] == [0, 1, 0] and best.cost.seconds == 7 * US


def test_mirrored_covers_are_one_and_the_next_best_is_another() -> None:
    ranges, transfers = two_branches(2)
    results = overlapping_covers(5, ranges, lambda c: c.bits.bit_count() * US, 4, transfers=transfers)
    shares = [frozenset(frozenset(c.bits for c in r.candidates if c.device == d) for d in range(2)) for r in results]
    assert len(set(shares)) == len(results) > 1
    assert [r.cost.seconds for r in results] == sorted(r.cost.seconds for r in results)


def test_devices_take_what_is_ready_first_and_a_value_travels_while_they_work() -> None:
    """A feeds C over a way of 5; meanwhile device 1 works on B."""
    kernels = [(0b001, 0), (0b010, 1), (0b100, 1)]
    way = Transfer(0, {2: None}, [[0.0, 5.0], [5.0, 0.0]])
    assert makespan_s(kernels, [2.0, 4.0, 1.0], [way]) == 8.0
    assert makespan_s(kernels, [2.0, 9.0, 1.0], [way]) == 10.0
    shape = Transfer(0, {2: HOST}, [[0.0, 5.0], [5.0, 0.0]])
    assert makespan_s(kernels, [2.0, 0.0, 1.0], [shape]) == 3.0, "the host reads it, on device 0"
    out = Transfer(2, {}, [[0.0, 5.0], [5.0, 0.0]], delivered=frozenset({0}))
    assert makespan_s(kernels, [2.0, 0.0, 1.0], [out]) == 6.0


def test_kernels_that_wait_for_each_other_never_end() -> None:
    circle = [edge(0, 1), edge(1, 2)]
    assert makespan_s([(0b101, 0), (0b010, 0)], [1.0, 1.0], circle) == math.inf


def test_a_beam_that_cuts_says_that_it_is_not_known_to_be_best() -> None:
    rng = random.Random(3)
    kernels = [placed([node], device) for node in range(30) for device in range(3)]
    costs = {c: rng.uniform(1.0, 2.0) * US for c in kernels}
    prices = [[0.0 if i == j else 0.3 * US for j in range(3)] for i in range(3)]
    values = [Transfer(a, dict.fromkeys(rng.sample(range(a + 1, 30), min(3, 29 - a))), prices) for a in range(29)]
    (best,) = overlapping_covers(30, kernels, costs.__getitem__, transfers=values, most_expansions=1000)
    assert isinstance(best, Partitioning) and not best.optimal and best.statistics.caps == ("width",)
    assert best.cost.seconds == pytest.approx(ends(best.candidates, costs, values))
    assert (
        best.lower_bound.seconds
        < best.cost.seconds
        < sum(min(costs[c] for c in kernels if c.first == i) for i in range(30))
    )
