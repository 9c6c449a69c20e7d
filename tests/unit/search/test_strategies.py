"""Every strategy that is installed, against trying everything."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import pytest

from collage._errors import CollageError
from collage.search import (
    NoCover,
    Partitioning,
    SearchProblem,
    SearchResult,
    SearchStatistics,
    Transfer,
    measure_all,
    result_of_cover,
    run_strategy,
    shortest_path,
    strategies,
)

from .fake_costs import FakeCosts
from .search_oracle import Graph, candidate, covers, least_cost, random_candidates, random_costs, random_graph
from .test_placed_search import cost_with_copies, placed, random_problem

BUILT_IN = ("evolutionary", "exhaustive", "lazy", "wide")
PENALTY_S = 2.0**-19


def problem_of(graph: Graph, candidates: Sequence[Any], transfers: Sequence[Transfer] | None = None) -> SearchProblem:
    return SearchProblem(graph.n, tuple(candidates), graph, None if transfers is None else tuple(transfers))


def check_cover(problem: SearchProblem, result: SearchResult, costs: dict[Any, float], seed: int) -> float:
    """The cost of a result, which is one of the covers there are, in order; infinite without a cover."""
    if result.partitioning is None:
        return math.inf
    found = result.partitioning.candidates
    assert [c.first for c in found] == sorted(c.first for c in found), seed
    assert sorted(i for c in found for i in range(problem.n) if c.bits >> i & 1) == list(range(problem.n)), seed
    assert problem.graph.acyclic([c.bits for c in found]), seed  # type: ignore[attr-defined]
    assert set(found) <= set(problem.candidates)
    return result.partitioning.cost.seconds


def test_the_strategies_that_come_with_collage_are_installed() -> None:
    assert set(BUILT_IN) <= set(strategies().names())


@pytest.mark.parametrize("name", strategies().names())
@pytest.mark.parametrize("proves", [False, True])
def test_no_strategy_is_better_than_brute_force_and_those_that_claim_it_are_as_good(name: str, proves: bool) -> None:
    found = 0
    for seed in range(60):
        rng = random.Random(seed)
        graph = random_graph(rng, most=8)
        candidates = random_candidates(rng, graph)
        costs = random_costs(rng, candidates)
        expected = {c: rng.uniform(0.2, 3.0) * min(costs[c], 2.0**-16) for c in candidates}
        problem = problem_of(graph, candidates)
        source = FakeCosts(costs, expected=expected, penalty_s=PENALTY_S, proves=proves)
        result = run_strategy(strategies().get(name), problem, source, source)
        best_s = least_cost(graph.n, candidates, {c: cost + PENALTY_S for c, cost in costs.items()})
        cost_s = check_cover(problem, result, costs, seed)
        assert result.strategy == name
        assert cost_s >= best_s * (1 - 1e-9), seed
        if result.partitioning is None:
            assert best_s == math.inf or name not in BUILT_IN, seed
            continue
        assert cost_s == pytest.approx(sum(costs[c] + PENALTY_S for c in result.partitioning.candidates)), seed
        assert result.partitioning.lower_bound.seconds <= best_s * (1 + 1e-9), seed
        if result.partitioning.optimal:
            assert cost_s == pytest.approx(best_s, rel=1e-9), seed
        if name in BUILT_IN and (proves or name == "exhaustive"):
            assert result.partitioning.optimal, seed
        found += 1
    assert found > 20


@pytest.mark.parametrize("name", strategies().names())
def test_on_devices_copies_count(name: str) -> None:
    found = 0
    for seed in range(60):
        graph, candidates, costs, transfers = random_problem(seed, most=5)
        problem = problem_of(graph, candidates, transfers)
        source = FakeCosts(costs, proves=True)
        result = run_strategy(strategies().get(name), problem, source, source)
        valid = [c for c in candidates if costs[c] < math.inf]
        best_s = min((cost_with_copies(c, costs, transfers) for c in covers(graph.n, valid)), default=math.inf)
        cost_s = check_cover(problem, result, costs, seed)
        if result.partitioning is None:
            assert best_s == math.inf or name not in BUILT_IN, seed
            continue
        assert cost_s == pytest.approx(cost_with_copies(result.partitioning.candidates, costs, transfers)), seed
        assert cost_s >= best_s * (1 - 1e-9), seed
        if name in BUILT_IN:
            assert result.partitioning.optimal and cost_s == pytest.approx(best_s, rel=1e-9), seed
        found += 1
    assert found > 10


@pytest.mark.parametrize("name", strategies().names())
@pytest.mark.parametrize(
    "limits", [{"kernels": 5, "batch_size": 2}, {"calls": 1, "batch_size": 3}, {"calls": 0}, {"seconds_left": 0.0}]
)
def test_limits_hold(name: str, limits: dict[str, Any]) -> None:
    """`FakeCosts` refuses what is beyond them."""
    for seed in range(20):
        rng = random.Random(seed)
        graph = random_graph(rng, most=8)
        candidates = random_candidates(rng, graph)
        costs = random_costs(rng, candidates)
        problem = problem_of(graph, candidates)
        source = FakeCosts(costs, **limits)
        result = run_strategy(strategies().get(name), problem, source, source)
        cost_s = check_cover(problem, result, costs, seed)
        best_s = least_cost(graph.n, candidates, costs)
        assert cost_s >= best_s * (1 - 1e-9)
        if result.partitioning is not None and result.partitioning.optimal:
            assert cost_s == pytest.approx(best_s, rel=1e-9)


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("seed", range(10))
def test_equal_keys_are_measured_once_and_counted(name: str, seed: int) -> None:
    rng = random.Random(seed)
    graph = random_graph(rng, most=8)
    candidates = random_candidates(rng, graph)
    price = {(size, t): rng.randint(1, 16 * size) * 2.0**-20 for size in range(1, 9) for t in "abc"}
    costs = {c: price[c.bits.bit_count(), c.target] for c in candidates}
    source = FakeCosts(costs, key_of=lambda c: (c.bits.bit_count(), c.target), batch_size=4)
    problem = problem_of(graph, candidates)
    result = run_strategy(strategies().get(name), problem, source, source)
    known = sum(source.known_cost(c) is not None for c in candidates)
    assert (result.statistics.measured, result.statistics.measured_keys) == (known, source.measured)
    if name == "exhaustive":
        assert known == len(candidates)


def test_a_lazy_search_measures_less_than_an_exhaustive_one() -> None:
    measured = {"lazy": 0, "exhaustive": 0}
    for seed in range(20):
        rng = random.Random(seed)
        graph = random_graph(rng, most=8)
        candidates = random_candidates(rng, graph)
        costs = random_costs(rng, candidates)
        for name in measured:
            source = FakeCosts(costs, expected={c: 0.9 * min(costs[c], 1.0) for c in candidates})
            run_strategy(strategies().get(name), problem_of(graph, candidates), source, source)
            measured[name] += source.measured
    assert measured["lazy"] < 0.5 * measured["exhaustive"]


def test_an_exhaustive_search_that_is_limited_measures_first_what_a_lazy_one_asks_for() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        graph = random_graph(rng, most=8)
        candidates = random_candidates(rng, graph)
        costs = random_costs(rng, candidates)
        costs_s = []
        for name in ("lazy", "exhaustive"):
            source = FakeCosts(costs, kernels=6, batch_size=2)
            result = run_strategy(strategies().get(name), problem_of(graph, candidates), source, source)
            costs_s.append(check_cover(problem_of(graph, candidates), result, costs, seed))
        assert costs_s[1] <= costs_s[0]


def test_wide_is_exact_where_the_plain_search_returns_rings() -> None:
    misleading = 0
    for seed in range(1500):
        rng = random.Random(seed)
        graph = random_graph(rng, most=6)
        candidates = random_candidates(rng, graph, wide=True, largest=3)
        costs = random_costs(rng, candidates, invalid=0.02)
        costs = {c: cost / c.bits.bit_count() ** 2 for c, cost in costs.items()}
        problem = problem_of(graph, candidates)
        plain = shortest_path(graph.n, candidates, costs.__getitem__)
        if isinstance(plain, NoCover) or graph.acyclic([c.bits for c in plain.candidates]):
            continue
        source = FakeCosts(costs, proves=True)
        result = run_strategy(strategies().get("wide"), problem, source, source)
        valid = [c for c in candidates if costs[c] < math.inf]
        runnable = (c for c in covers(graph.n, valid) if graph.acyclic([kernel.bits for kernel in c]))
        best_s = min((sum(costs[kernel] for kernel in cover) for cover in runnable), default=math.inf)
        cost_s = check_cover(problem, result, costs, seed)
        assert cost_s == pytest.approx(best_s, rel=1e-9), seed
        assert result.partitioning is None or result.partitioning.optimal
        source = FakeCosts(costs, proves=True)
        with pytest.raises(CollageError, match=r"'lazy' returned .* ring"):
            run_strategy(strategies().get("lazy"), problem, source, source)
        misleading += 1
    assert misleading > 30


def test_wide_leaves_out_what_waits_for_itself() -> None:
    graph = Graph(3, [(0, 1), (1, 2)])
    costs = {candidate([0, 2]): 0.1, candidate([0]): 1.0, candidate([1]): 1.0, candidate([2]): 1.0}
    source = FakeCosts(costs)
    result = run_strategy(strategies().get("wide"), problem_of(graph, list(costs)), source, source)
    assert result.partitioning is not None and result.partitioning.cost.seconds == 3.0
    assert source.measured == 3


def test_wide_takes_only_admitted_candidates_on_devices() -> None:
    """The ring of 0 with 3 and 1 with 2 would be cheapest."""
    graph = Graph(4, [(0, 2), (1, 3)])
    ones = [placed([i], 0) for i in range(4)]
    costs = {placed([0, 3], 0): 0.1, placed([1, 2], 0): 0.1, **dict.fromkeys(ones, 1.0)}
    source = FakeCosts(costs)
    result = run_strategy(strategies().get("wide"), problem_of(graph, list(costs), []), source, source)
    assert result.partitioning is not None and graph.acyclic([c.bits for c in result.partitioning.candidates])
    with pytest.raises(CollageError, match="ring"):
        source = FakeCosts(costs)
        run_strategy(strategies().get("lazy"), problem_of(graph, list(costs), []), source, source)


class Given:
    """A strategy whose result is given."""

    name = "given"

    def __init__(self, *cover: Any, measures: Sequence[Any] = ()) -> None:
        self._cover, self._measures = cover, measures

    def run(self, problem: Any, costs: Any, limits: Any) -> Any:
        costs.measure(self._measures or self._cover)
        result = result_of_cover(self._cover, problem, costs)
        assert isinstance(result.partitioning, Partitioning)
        return result


PAIR, TAIL, ONE = candidate([0, 1]), candidate([2]), candidate([1])
UNABLE, STRANGER = candidate([2], "unable"), candidate([2], "stranger")


@pytest.mark.parametrize(
    ("strategy", "fault"),
    [
        (Given(PAIR, STRANGER), "not a candidate"),
        (Given(PAIR, ONE, TAIL), "twice"),
        (Given(PAIR), "leaves 1 nodes uncovered"),
        (Given(PAIR, UNABLE), "cannot run"),
        (Given(PAIR, TAIL, measures=[PAIR]), "was not measured"),
    ],
)
def test_what_is_no_cover_is_refused(strategy: Given, fault: str) -> None:
    costs = {PAIR: 1.0, TAIL: 1.0, ONE: 1.0, UNABLE: math.inf, STRANGER: 1.0}
    problem = problem_of(Graph(3, [(0, 1), (1, 2)]), [PAIR, TAIL, ONE, UNABLE])
    source = FakeCosts(costs)
    with pytest.raises(CollageError, match=f"search strategy 'given' returned .*{fault}"):
        run_strategy(strategy, problem, source, source)


def test_the_cost_of_a_cover_has_launch_penalties_and_copies_in_it() -> None:
    first, second = placed([0], 0), placed([1], 1)
    transfers = [Transfer(0, {1: None}, [[0.0, 4.0], [4.0, 0.0]])]
    source = FakeCosts({first: 1.0, second: 2.0}, penalty_s=0.25)
    problem = problem_of(Graph(2, [(0, 1)]), [first, second], transfers)
    result = run_strategy(Given(second, first), problem, source, source)
    assert result.strategy == "given"
    assert result.partitioning is not None and result.partitioning.candidates == (first, second)
    assert result.partitioning.cost.seconds == 1.0 + 2.0 + 2 * 0.25 + 4.0
    assert not result.partitioning.optimal and result.partitioning.gap == 1.0


def test_a_graph_without_nodes_and_one_without_a_cover() -> None:
    for name in BUILT_IN:
        source = FakeCosts({})
        empty = run_strategy(strategies().get(name), problem_of(Graph(0, []), []), source, source)
        assert empty.partitioning is not None and empty.partitioning.candidates == ()
        source = FakeCosts({PAIR: 1.0})
        result = run_strategy(strategies().get(name), problem_of(Graph(3, []), [PAIR]), source, source)
        assert result.partitioning is None and result.missing is not None and result.missing.node == 2


def test_measuring_everything_says_how_much_is_left() -> None:
    costs = dict.fromkeys([candidate([i]) for i in range(5)], 1.0)
    said: list[str] = []
    source = FakeCosts(costs, batch_size=2)
    assert measure_all(problem_of(Graph(5, []), list(costs)), source, source, said.append) == 5
    assert [line.split(": ")[1] for line in said] == [f"{left} kernels to go" for left in (5, 3, 1)]
    assert SearchResult(None).statistics == SearchStatistics(0)
