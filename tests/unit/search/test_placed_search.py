"""The search where kernels may run on several devices, against trying everything."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from collage.cost import Cost
from collage.search import (
    LazyOptions,
    NoCover,
    Partitioning,
    Transfer,
    lazy_placed_path,
    placed_shortest_path,
    shortest_path,
)

from .search_oracle import Graph, covers, random_candidates, random_graph

HOST = 0


@dataclass(frozen=True, slots=True)
class Placed:
    bits: int
    first: int
    target: str
    device: int


def placed(nodes: list[int], device: int, target: str = "a") -> Placed:
    return Placed(sum(1 << i for i in nodes), min(nodes), target, device)


def cost_with_copies(cover: Sequence[Placed], costs: dict[Placed, float], transfers: Sequence[Transfer]) -> float:
    """What a placed cover costs, by running through it value by value."""
    total = sum(costs[c] for c in cover)
    kernel_of = {node: c for c in cover for node in range(c.bits.bit_length()) if c.bits >> node & 1}
    for value in transfers:
        home = value.home if value.producer is None else kernel_of[value.producer].device
        destinations = set(value.delivered)
        for kernel in {kernel_of[reader] for reader in value.readers}:
            if value.producer is not None and kernel_of[value.producer] is kernel:
                continue
            inside = [where for reader, where in value.readers.items() if kernel_of[reader] is kernel]
            destinations.add(kernel.device if None in inside else inside[0])
        total += sum(value.copy_s[home][place] for place in destinations - {home})
    return total


def random_transfers(rng: random.Random, graph: Graph, devices: int) -> list[Transfer]:
    """One or two values of every node, read by some of its consumers, and some inputs of the model."""

    def prices() -> list[list[float]]:
        scale = rng.choice([0, 1, 8, 40])
        wall = rng.random() < 0.1
        return [
            [0.0 if i == j else math.inf if wall else rng.randint(0, scale) * 2.0**-20 for j in range(devices)]
            for i in range(devices)
        ]

    def readers(nodes: Sequence[int]) -> dict[int, int | None]:
        return {node: HOST if rng.random() < 0.15 else None for node in nodes}

    def delivered() -> frozenset[int]:
        return frozenset({rng.randrange(devices)}) if rng.random() < 0.3 else frozenset()

    found = []
    for node in range(graph.n):
        consumers = graph.consumers(node)
        split = rng.randint(0, len(consumers))
        for part in (consumers[:split], consumers[split:]):
            if part or not consumers:
                found.append(Transfer(node, readers(part), prices(), delivered=delivered()))
    for _ in range(rng.randint(0, 2)):
        some = rng.sample(range(graph.n), rng.randint(1, graph.n))
        found.append(Transfer(None, readers(some), prices(), home=rng.randrange(devices)))
    return found


def random_problem(seed: int, most: int) -> tuple[Graph, list[Placed], dict[Placed, float], list[Transfer]]:
    rng = random.Random(seed)
    graph = random_graph(rng, most)
    devices = rng.randint(2, 3)
    pinned = {node: rng.randrange(devices) for node in range(graph.n) if rng.random() < 0.2}
    candidates = []
    for c in random_candidates(rng, graph, largest=3):
        demanded = {pinned[node] for node in pinned if c.bits >> node & 1}
        candidates += [
            Placed(c.bits, c.first, c.target, device)
            for device in range(devices)
            if demanded <= {device} and rng.random() < 0.8
        ]
    costs = {c: math.inf if rng.random() < 0.05 else rng.randint(1, 16) * 2.0**-20 for c in candidates}
    return graph, candidates, costs, random_transfers(rng, graph, devices)


@pytest.mark.parametrize("chunk", range(10))
def test_equals_brute_force(chunk: int) -> None:
    found = 0
    for seed in range(chunk * 40, chunk * 40 + 40):
        graph, candidates, costs, transfers = random_problem(seed, most=6)
        result = placed_shortest_path(graph.n, candidates, costs.__getitem__, transfers=transfers)
        valid = [c for c in candidates if costs[c] < math.inf]
        best = min((cost_with_copies(c, costs, transfers) for c in covers(graph.n, valid)), default=math.inf)
        if best == math.inf:
            assert isinstance(result, NoCover), seed
            continue
        assert isinstance(result, Partitioning), seed
        assert result.cost.seconds == pytest.approx(best, rel=1e-9), seed
        assert cost_with_copies(result.candidates, costs, transfers) == pytest.approx(best, rel=1e-9), seed
        assert result.optimal and result.gap == 0
        found += 1
    assert found > 10


@pytest.mark.parametrize("seed", range(60))
def test_a_lazy_search_ends_with_the_same_cost_and_measures_less(seed: int) -> None:
    graph, candidates, costs, transfers = random_problem(seed, most=8)
    bounds = {c: 0.5 * min(costs[c], 2.0**-16) for c in candidates}
    measured: list[Placed] = []

    def measure(batch: Sequence[Placed]) -> list[float]:
        measured.extend(batch)
        return [costs[c] for c in batch]

    exact = placed_shortest_path(graph.n, candidates, costs.__getitem__, transfers=transfers)
    lazy = lazy_placed_path(
        graph.n,
        candidates,
        bounds.__getitem__,
        measure,
        transfers=transfers,
        options=LazyOptions(bounds_are_proofs=True),
    )
    assert len(set(measured)) == len(measured)
    if isinstance(exact, NoCover):
        assert lazy.partitioning is None
        return
    assert lazy.partitioning is not None and lazy.partitioning.optimal
    assert lazy.partitioning.cost.seconds == pytest.approx(exact.cost.seconds, rel=1e-9)


@pytest.mark.parametrize("seed", range(40))
def test_on_one_device_it_is_the_plain_search(seed: int) -> None:
    rng = random.Random(seed)
    graph = random_graph(rng, 9)
    candidates = [Placed(c.bits, c.first, c.target, 0) for c in random_candidates(rng, graph)]
    costs = {c: rng.randint(1, 16) * 2.0**-20 for c in candidates}
    plain = shortest_path(graph.n, candidates, costs.__getitem__)
    result = placed_shortest_path(graph.n, candidates, costs.__getitem__, transfers=[])
    assert type(plain) is type(result)
    if isinstance(plain, Partitioning) and isinstance(result, Partitioning):
        assert (result.candidates, result.cost) == (plain.candidates, plain.cost)


CHAIN = [placed([node], device) for node in range(3) for device in range(2)]
DEAR = [[0.0, 5.0], [5.0, 0.0]]


def test_a_faster_device_is_worth_its_copies_or_not() -> None:
    """The middle of a chain is faster elsewhere: by more than the way there and back, or by less."""
    values = [Transfer(0, {1: None}, DEAR), Transfer(1, {2: None}, DEAR)]
    for gain, there in ((11.0, 1), (9.0, 0)):
        cost = {c: 20.0 for c in CHAIN} | {CHAIN[3]: 20.0 - gain, CHAIN[1]: 99.0, CHAIN[5]: 99.0}
        result = placed_shortest_path(3, CHAIN, cost.__getitem__, transfers=values)
        assert isinstance(result, Partitioning)
        assert [c.device for c in result.candidates] == [0, there, 0]
        assert result.cost.seconds == min(60.0, 70.0 - gain)


def test_a_copy_is_paid_once_for_each_destination_whoever_reads_it() -> None:
    nodes = [placed([0], 0), *(placed([node], 1) for node in range(1, 6)), placed([6], 2)]
    prices = [[0.0, 5.0, 7.0], [0.0] * 3, [0.0] * 3]
    result = placed_shortest_path(7, nodes, lambda c: 1.0, transfers=[Transfer(0, dict.fromkeys(range(1, 7)), prices)])
    assert isinstance(result, Partitioning)
    assert result.cost.seconds == 7 * 1.0 + 5.0 + 7.0


def test_a_copy_for_an_output_serves_readers_too() -> None:
    nodes = [placed([0], 0), placed([1], 1)]
    for delivered in (frozenset(), frozenset({1}), frozenset({0, 1})):
        value = Transfer(0, {1: None}, DEAR, delivered=delivered)
        result = placed_shortest_path(2, nodes, lambda c: 1.0, transfers=[value])
        assert isinstance(result, Partitioning) and result.cost.seconds == 7.0


def test_an_input_is_copied_from_where_it_lies_and_a_shape_to_the_host() -> None:
    values = [Transfer(None, {0: None}, DEAR, home=0), Transfer(0, {1: HOST}, DEAR)]
    result = placed_shortest_path(2, [placed([0], 1), placed([1], 1)], lambda c: 1.0, transfers=values)
    assert isinstance(result, Partitioning) and result.cost.seconds == 12.0
    inside = placed_shortest_path(2, [placed([0, 1], 1)], lambda c: 1.0, transfers=values)
    assert isinstance(inside, Partitioning) and inside.cost.seconds == 6.0, "inside of a kernel nothing is copied"


def test_of_equal_plans_the_one_with_fewer_copies_and_the_first_device_wins() -> None:
    free = [[0.0, 0.0], [0.0, 0.0]]
    values = [Transfer(0, {1: None}, free), Transfer(1, {2: None}, free)]
    result = placed_shortest_path(3, CHAIN[::-1], lambda c: 1.0, transfers=values)
    assert isinstance(result, Partitioning)
    assert [c.device for c in result.candidates] == [0, 0, 0]


def test_what_cannot_be_copied_stays_together_and_says_so_where_it_cannot() -> None:
    wall = [[0.0, math.inf], [math.inf, 0.0]]
    value = Transfer(0, {1: None}, wall)
    apart = placed_shortest_path(2, [placed([0], 0), placed([1], 1)], lambda c: 1.0, transfers=[value])
    assert isinstance(apart, NoCover) and apart.node == 1 and "its device can reach" in apart.reason
    menu = [placed([0], 0), placed([0], 1), placed([1], 1)]
    together = placed_shortest_path(2, menu, lambda c: 1.0 + 9.0 * c.device, transfers=[value])
    assert isinstance(together, Partitioning) and [c.device for c in together.candidates] == [1, 1]


def test_the_cap_on_labels_leaves_a_good_cover_that_is_not_called_optimal() -> None:
    rng = random.Random(7)
    nodes = [placed([node], device) for node in range(40) for device in range(3)]
    costs = {c: rng.uniform(1.0, 2.0) for c in nodes}
    prices = [[0.0 if i == j else 0.3 for j in range(3)] for i in range(3)]
    values = [Transfer(a, dict.fromkeys(rng.sample(range(a + 1, 40), min(3, 39 - a))), prices) for a in range(39)]
    capped = placed_shortest_path(40, nodes, costs.__getitem__, transfers=values, max_states=5)
    assert isinstance(capped, Partitioning)
    assert not capped.optimal and capped.statistics.caps == ("states",) and capped.gap > 0
    assert capped.cost.seconds == pytest.approx(cost_with_copies(capped.candidates, costs, values))


def test_copies_that_take_longer_than_all_kernels_do_not_count_as_unknown_costs() -> None:
    known, unknown = [placed([0], 0), placed([1], 1)], placed([0, 1], 0)
    costs = {known[0]: Cost(seconds=1e-6), known[1]: Cost(seconds=1e-6), unknown: Cost.UNKNOWN}
    transfers = [Transfer(0, {1: None}, [[0.0, 1.0], [1.0, 0.0]])]
    found = placed_shortest_path(2, [*known, unknown], costs.__getitem__, transfers=transfers)
    lazy = lazy_placed_path(
        2, [*known, unknown], lambda _: 0.0, lambda batch: [costs[c] for c in batch], transfers=transfers
    ).partitioning
    assert isinstance(found, Partitioning) and lazy is not None
    assert found.candidates == lazy.candidates == tuple(known)
    assert found.optimal and found.lower_bound.is_known
