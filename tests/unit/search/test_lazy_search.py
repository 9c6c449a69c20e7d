from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence

import pytest

from collage.cost.cost import Cost
from collage.search import LazyOptions, Partitioning, lazy_shortest_path, shortest_path

from .search_oracle import Candidate, candidate, random_candidates, random_costs, random_graph

US = 1e-6
PROOFS = LazyOptions(bounds_are_proofs=True)
Menu = dict[Candidate, float]


def ruler(costs: Menu, seen: list[Candidate] | None = None) -> Callable[[Sequence[Candidate]], list[float]]:
    """Measures, and notes what was measured."""

    def measure(batch: Sequence[Candidate]) -> list[float]:
        if seen is not None:
            assert not set(seen) & set(batch), "measured twice"
            seen.extend(batch)
        return [costs[c] for c in batch]

    return measure


def chain_menu(n: int, depth: int, seed: int) -> Menu:
    rng = random.Random(seed)
    return {
        candidate(list(range(a, b)), t): (b - a) ** 0.8 * rng.uniform(1, 2) * US
        for a in range(n)
        for b in range(a + 1, min(n, a + depth) + 1)
        for t in "ab"
    }


def test_proof_bounds_give_the_eager_cost_and_measure_half_at_most() -> None:
    shares = []
    for seed in range(1000):
        rng = random.Random(seed)
        graph = random_graph(rng)
        candidates = random_candidates(rng, graph)
        costs = random_costs(rng, candidates)
        bounds = {c: rng.uniform(0.6, 1.0) * (cost if cost < math.inf else US) for c, cost in costs.items()}
        eager = shortest_path(graph.n, candidates, costs.__getitem__)
        seen: list[Candidate] = []
        lazy = lazy_shortest_path(graph.n, candidates, bounds.__getitem__, ruler(costs, seen), options=PROOFS)
        assert lazy.statistics.measured == len(seen)
        if not isinstance(eager, Partitioning):
            assert lazy.partitioning is None and lazy.missing is not None
            assert lazy.missing.node is not None
            continue
        assert lazy.partitioning is not None and lazy.stopped_by == "finished"
        assert lazy.partitioning.cost == eager.cost, seed
        assert lazy.partitioning.optimal and lazy.partitioning.gap == 0
        assert set(lazy.partitioning.candidates) <= set(seen)
        shares.append(len(seen) / len(candidates))
    assert statistics.median(shares) <= 0.5


def test_expected_bounds_are_not_called_optimal_but_have_a_gap_to_the_proof() -> None:
    costs = chain_menu(12, 4, 1)
    lazy = lazy_shortest_path(
        12, list(costs), lambda c: 0.95 * costs[c], ruler(costs), proof_bound_of=lambda c: 0.5 * costs[c]
    )
    assert lazy.partitioning is not None
    assert not lazy.partitioning.optimal
    assert 0 < lazy.partitioning.gap <= 0.5
    silent = lazy_shortest_path(12, list(costs), lambda c: 0.95 * costs[c], ruler(costs))
    assert silent.partitioning is not None and silent.partitioning.gap > lazy.partitioning.gap


def test_optimal_once_everything_is_known_whatever_the_bounds() -> None:
    costs = chain_menu(6, 3, 2)
    lazy = lazy_shortest_path(6, list(costs), lambda c: 0.0, ruler(costs), known_cost_of=costs.get)
    assert lazy.statistics.measured == 0
    assert lazy.partitioning is not None and lazy.partitioning.optimal


def test_a_measurement_below_its_proof_bound_withdraws_the_claim() -> None:
    costs = chain_menu(6, 3, 2)
    lazy = lazy_shortest_path(6, list(costs), lambda c: 1.5 * costs[c], ruler(costs), options=PROOFS)
    assert lazy.partitioning is not None
    assert not lazy.partitioning.optimal
    assert lazy.bound_violations > 0


def test_equal_keys_are_measured_once() -> None:
    costs = {c: c.bits.bit_count() ** 0.7 * US for c in chain_menu(30, 5, 0)}
    seen: list[Candidate] = []
    lazy = lazy_shortest_path(
        30,
        list(costs),
        lambda c: 0.8 * costs[c],
        ruler(costs, seen),
        options=PROOFS,
        key_of=lambda c: (c.bits.bit_count(), c.target),
    )
    assert len(seen) <= 10
    assert lazy.statistics.measured_keys == len(seen)
    assert lazy.statistics.measured > len(seen)
    assert lazy.partitioning is not None and lazy.partitioning.optimal


def test_batches_are_limited_and_filled_from_the_next_best_paths() -> None:
    costs = chain_menu(10, 4, 3)
    sizes = []

    def measure(batch: Sequence[Candidate]) -> list[float]:
        sizes.append(len(batch))
        return [costs[c] for c in batch]

    options = LazyOptions(bounds_are_proofs=True, batch_size=3)
    lazy = lazy_shortest_path(10, list(costs), lambda c: 0.7 * costs[c], measure, options=options)
    assert max(sizes) <= 3
    eager = shortest_path(10, list(costs), costs.__getitem__)
    assert isinstance(eager, Partitioning) and lazy.partitioning is not None
    assert lazy.partitioning.cost == eager.cost
    one_path = len(sizes)
    sizes.clear()
    options = LazyOptions(bounds_are_proofs=True, batch_size=8, paths_per_round=10)
    wide = lazy_shortest_path(10, list(costs), lambda c: 0.7 * costs[c], measure, options=options)
    assert wide.partitioning is not None and wide.partitioning.cost == eager.cost
    assert len(sizes) < one_path


@pytest.mark.parametrize(
    ("options", "stopped_by"),
    [
        (LazyOptions(bounds_are_proofs=True, max_measured=20), "max_measured"),
        (LazyOptions(bounds_are_proofs=True, deadline_s=0.0), "deadline"),
        (LazyOptions(bounds_are_proofs=True, min_gain=0.5), "min_gain"),
    ],
)
def test_stopped_early_it_returns_the_best_path_measured_through(options: LazyOptions, stopped_by: str) -> None:
    costs = chain_menu(20, 4, 4)
    singles = {c: cost for c, cost in costs.items() if c.bits.bit_count() == 1}
    lazy = lazy_shortest_path(
        20, list(costs), lambda c: 0.6 * costs[c], ruler(costs), options=options, known_cost_of=singles.get
    )
    assert lazy.stopped_by == stopped_by
    assert lazy.partitioning is not None and not lazy.partitioning.optimal
    eager = shortest_path(20, list(costs), costs.__getitem__)
    assert isinstance(eager, Partitioning)
    assert lazy.partitioning.lower_bound <= eager.cost <= lazy.partitioning.cost
    least = (1 - lazy.partitioning.gap) * lazy.partitioning.cost.seconds
    assert least <= eager.cost.seconds * (1 + 1e-9)


def test_a_least_gain_is_not_counted_in_ranks_of_unknown_costs() -> None:
    options = LazyOptions(bounds_are_proofs=True, min_gain=0.1)
    for seed in range(600):
        rng = random.Random(seed)
        graph = random_graph(rng)
        candidates = random_candidates(rng, graph)
        costs = {c: math.nan if rng.random() < 0.3 else cost for c, cost in random_costs(rng, candidates).items()}
        bounds = {c: 0.0 if math.isnan(cost) else 0.8 * min(cost, US) for c, cost in costs.items()}
        eager = shortest_path(graph.n, candidates, costs.__getitem__)
        lazy = lazy_shortest_path(graph.n, candidates, bounds.__getitem__, ruler(costs), options=options)
        if isinstance(eager, Partitioning):
            assert lazy.partitioning is not None
            assert lazy.partitioning.cost.unknown_rank == eager.cost.unknown_rank, seed
            assert 0.9 * lazy.partitioning.cost.seconds <= eager.cost.seconds * (1 + 1e-9), seed


def test_should_stop_before_anything_is_measured_leaves_nothing() -> None:
    costs = chain_menu(5, 2, 4)
    lazy = lazy_shortest_path(5, list(costs), lambda c: 0.0, ruler(costs), should_stop=lambda: True)
    assert lazy.partitioning is None
    assert lazy.stopped_by == "should_stop"
    assert lazy.missing is not None and lazy.missing.node is None


def test_bounds_may_learn_between_rounds() -> None:
    """Bounds that start far too low and are replaced by better ones measure less than those that stay low."""
    costs = chain_menu(25, 5, 6)
    fixed: list[Candidate] = []
    lazy_shortest_path(25, list(costs), lambda c: 0.0, ruler(costs, fixed))
    learning: list[Candidate] = []

    def bound_of(c: Candidate) -> float:
        return 0.9 * costs[c] if learning else 0.0

    lazy_shortest_path(25, list(costs), bound_of, ruler(costs, learning))
    assert len(learning) < len(fixed)


def test_invalid_and_unknown_measurements() -> None:
    menu = [candidate([0, 1], "x"), candidate([0], "y"), candidate([1], "y"), candidate([1], "z")]
    truth = {menu[0]: Cost.INVALID, menu[1]: Cost(0, 5 * US), menu[2]: Cost.UNKNOWN, menu[3]: Cost(0, 7 * US)}
    lazy = lazy_shortest_path(2, menu, lambda c: US, lambda batch: [truth[c] for c in batch], options=PROOFS)
    assert lazy.partitioning is not None
    assert lazy.partitioning.candidates == (menu[1], menu[3])


def test_a_rank_beyond_64_bits_comes_last() -> None:
    menu = [candidate([0], "x"), candidate([0], "y")]
    truth = {menu[0]: Cost(unknown_rank=2**70), menu[1]: Cost.UNKNOWN}
    lazy = lazy_shortest_path(1, menu, lambda c: 0.0, lambda batch: [truth[c] for c in batch], options=PROOFS)
    assert lazy.partitioning is not None and lazy.partitioning.candidates == (menu[1],)
    eager = shortest_path(1, menu, truth.__getitem__)
    assert isinstance(eager, Partitioning) and eager.candidates == (menu[1],)


@pytest.mark.parametrize("bound", [math.nan, -1.0])
def test_bounds_that_are_no_bounds_are_refused(bound: float) -> None:
    with pytest.raises(ValueError, match="bound"):
        lazy_shortest_path(1, [candidate([0])], lambda c: bound, lambda batch: [1.0 for _ in batch])


def test_deterministic() -> None:
    costs = chain_menu(15, 5, 7)
    runs = []
    for _ in range(2):
        seen: list[Candidate] = []
        lazy = lazy_shortest_path(15, list(costs), lambda c: 0.7 * costs[c], ruler(costs, seen), options=PROOFS)
        assert lazy.partitioning is not None
        runs.append((lazy.partitioning, seen))
    assert runs[0] == runs[1]


def test_a_search_of_many_small_rounds_ends() -> None:
    # Hopes that fall make each round plan anew, and on so small a graph it finds few covers near the best one, every time.
    costs, hope = chain_menu(4, 4, 0), [1.0]

    def measure(batch: Sequence[Candidate]) -> list[float]:
        hope[0] *= 0.9
        return [costs[c] for c in batch]

    options = LazyOptions(batch_size=1)
    lazy = lazy_shortest_path(4, list(costs), lambda c: hope[0] * costs[c], measure, options=options)
    assert lazy.partitioning is not None


def test_a_gap_to_loose_proofs_takes_no_more_states_than_the_search() -> None:
    # Any pairs of 20 operators: neighbours are cheap, and the proofs hardly tell pairs apart.
    rng, pairs = random.Random(3), [(a, b) for a in range(20) for b in range(a + 1, 20)]
    costs = {candidate([a, b]): (1 if a % 2 == 0 and b == a + 1 else 2) * US for a, b in pairs}
    proofs = {c: rng.uniform(0.19, 0.2) * US for c in costs}
    none, loose = (
        lazy_shortest_path(20, list(costs), lambda c: 0.999 * costs[c], ruler(costs), proof_bound_of=bounds)
        for bounds in (costs.__getitem__, proofs.__getitem__)
    )
    assert none.partitioning is not None and loose.partitioning is not None
    assert loose.partitioning.cost == none.partitioning.cost
    assert 0.8 <= loose.partitioning.gap <= 0.85, "the least sum of proofs is 1.9 of 10"
    assert loose.statistics.states <= 2 * none.statistics.states
