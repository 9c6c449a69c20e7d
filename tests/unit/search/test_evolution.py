"""The evolutionary search, on times of whole covers that do not add up, against all covers there are."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from collage.search import EvolutionaryStrategy, NoCover, SearchProblem, k_best, refine_or_leave
from collage.search._evolution import Genome, Population

from .fake_costs import FakeCosts
from .search_oracle import Candidate, Graph, candidate, covers, random_candidates, random_costs, random_graph

PAGE = Path(__file__).parents[3] / "docs" / "fusion.md"
Cover = tuple[Candidate, ...]


class Timer:
    """Times covers by a function, and refuses what is asked beyond its limits, or twice."""

    def __init__(self, time_of: Callable[[Cover], float], plans: int = 10**6, seed: int = 0, stops_after: int = 10**6):
        self.seed, self.times = seed, dict[Cover, float]()
        self._time_of, self._plans, self._stops_after = time_of, plans, stops_after

    @property
    def seconds_left(self) -> float:
        return float(self._plans - len(self.times))

    def should_stop(self) -> bool:
        return len(self.times) >= self._stops_after

    def time_of(self, cover: Sequence[Candidate]) -> float:
        made = tuple(cover)
        assert made not in self.times and self.seconds_left > 0 and not self.should_stop()
        self.times[made] = self._time_of(made)
        return self.times[made]


def chain(n: int) -> Graph:
    return Graph(n, [(i, i + 1) for i in range(n - 1)])


def all_ranges(n: int, targets: str = "ab") -> list[Candidate]:
    return [candidate(list(range(i, j)), t) for i in range(n) for j in range(i + 1, n + 1) for t in targets]


def with_switches(costs: dict[Candidate, float], switch_s: float) -> Callable[[Cover], float]:
    """Kernels add up, and each change of target costs something that no kernel shows."""

    def time_of(cover: Cover) -> float:
        changes = sum(a.target != b.target for a, b in pairwise(cover))
        return sum(costs[c] for c in cover) + switch_s * changes

    return time_of


def refined(problem: SearchProblem, costs: FakeCosts, seeds: Sequence[Cover], timer: Timer) -> Sequence[Cover]:
    found, fault = refine_or_leave(EvolutionaryStrategy(), problem, costs, seeds, timer)  # type: ignore[arg-type]
    assert fault is None
    return found


def known(costs: dict[Candidate, float], share: float = 1.0, rng: random.Random | None = None) -> FakeCosts:
    source = FakeCosts(costs)
    for c in costs:
        if rng is None or rng.random() < share:
            source.measure([c])
    return source


@pytest.mark.parametrize("seed", range(8))
def test_switches_that_no_kernel_shows_are_found_out(seed: int) -> None:
    """The exact search ends with a plan of many switches. One of few, which it takes for dearer, is in fact the best."""
    n, rng = 8, random.Random(seed)
    graph, ranges = chain(n), all_ranges(n)
    of_node = {(i, t): rng.uniform(1.0, 2.0) for i in range(n) for t in "ab"}
    costs = {c: sum(of_node[i, c.target] for i in range(n) if c.bits >> i & 1) for c in ranges}
    problem = SearchProblem(n, tuple(ranges), graph)
    found = k_best(n, ranges, lambda c: costs[c], 3)
    assert not isinstance(found, NoCover)
    time_of = with_switches(costs, 0.4)
    seeds = [cover.candidates for cover in found]
    timer = Timer(time_of, seed=seed)
    better = refined(problem, known(costs), seeds, timer)
    best_s = min(time_of(cover) for cover in covers(n, ranges))
    first_s = min(map(time_of, seeds))
    assert [time_of(c) for c in better] == sorted(time_of(c) for c in better)
    assert all(time_of(cover) < first_s for cover in better)
    reached = time_of(better[0]) if better else first_s
    assert first_s - reached >= 0.6 * (first_s - best_s)


def test_what_is_timed_and_returned_can_be_run_on_random_graphs() -> None:
    evolved = 0
    for seed in range(16):
        rng = random.Random(seed)
        graph = random_graph(rng, most=5)
        is_wide = seed % 2 == 1
        candidates = random_candidates(rng, graph, wide=is_wide)
        costs = random_costs(rng, candidates)
        runnable = [
            cover
            for cover in covers(graph.n, [c for c in candidates if costs[c] < math.inf])
            if graph.acyclic([c.bits for c in cover])
        ]
        if len(runnable) < 2:
            continue
        seeds = rng.sample(runnable, min(3, len(runnable)))
        noise = {cover: rng.uniform(0.5, 1.5) for cover in runnable}
        source = known(costs, 0.6, rng)
        problem = SearchProblem(graph.n, tuple(candidates), graph, is_wide=is_wide)
        timer = Timer(partial(_noisy, noise), plans=rng.choice([2, 12, 10**6]), seed=seed)
        better = refined(problem, source, seeds, timer)
        for cover in timer.times:
            assert sum(c.bits for c in cover) == (1 << graph.n) - 1 == _union(cover), seed
            assert set(cover) <= set(candidates) and graph.acyclic([c.bits for c in cover]), seed
            assert not any(source.known_cost(c) == math.inf for c in cover), seed
        tried = [timer.times[each] for each in seeds if each in timer.times]
        assert all(timer.times[cover] < min(tried) for cover in better), seed
        evolved += len(timer.times) > len(seeds)
    assert evolved > 3


def _noisy(times: dict[Cover, float], cover: Cover) -> float:
    return times.get(cover, math.inf)


def _union(cover: Cover) -> int:
    bits = 0
    for c in cover:
        bits |= c.bits
    return bits


@pytest.mark.parametrize("limits", [{"plans": 0}, {"plans": 1}, {"stops_after": 0}, {"stops_after": 4}, {"plans": 9}])
def test_limits_hold(limits: dict[str, int]) -> None:
    """`Timer` refuses what is beyond them."""
    n = 6
    costs = {c: 1.0 + 0.1 * c.bits.bit_count() for c in all_ranges(n)}
    seeds = [(candidate(list(range(n))),), (candidate([0, 1, 2]), candidate([3, 4, 5], "b"))]
    timer = Timer(with_switches(costs, 0.0), **limits)
    refined(SearchProblem(n, tuple(costs), chain(n)), known(costs), seeds, timer)
    assert len(timer.times) == min(limits.values())


def test_an_evolution_ends_by_itself_and_is_the_same_twice() -> None:
    n = 6
    costs = {c: 1.0 + 0.1 * c.bits.bit_count() for c in all_ranges(n)}
    seeds = [tuple(candidate([i], "ab"[i % 2]) for i in range(n))]
    runs = []
    for seed in (1, 1, 2):
        timer = Timer(with_switches(costs, 0.3), seed=seed)
        runs.append((refined(SearchProblem(n, tuple(costs), chain(n)), known(costs), seeds, timer), [*timer.times]))
    assert runs[0] == runs[1]
    assert runs[0][1] != runs[2][1]


def test_nothing_that_failed_or_is_no_better_is_returned() -> None:
    n = 4
    costs = dict.fromkeys(all_ranges(n), 1.0)
    problem = SearchProblem(n, tuple(costs), chain(n))
    seeds = [(candidate([0, 1]), candidate([2, 3], "b"))]
    assert refined(problem, known(costs), seeds, Timer(lambda _: 1.0)) == []
    assert refined(problem, known(costs), seeds, Timer(lambda _: math.inf)) == []
    assert refined(problem, known(costs), [], Timer(lambda _: 1.0)) == []


def population(n: int, seeds: Sequence[Cover], seed: int = 0) -> Population:
    costs = {c: float(c.bits.bit_count()) for c in all_ranges(n)}
    return Population(SearchProblem(n, tuple(costs), chain(n)), known(costs), seeds, random.Random(seed))


def test_the_second_phase_of_the_page_hands_over_one_kernel_at_a_time() -> None:
    section = PAGE.read_text().split("### Give a strategy a second phase")[1].split("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    room: dict[str, Any] = {}
    exec(code, room)
    n = 4
    costs = {c: float(c.bits.bit_count()) for c in all_ranges(n, "abc")}
    best = (candidate([0, 1]), candidate([2, 3]))
    times = {(best[0], candidate([2, 3], "c")): 0.8, (candidate([0, 1], "b"), best[1]): 0.9, best: 1.0}
    problem = SearchProblem(n, tuple(costs), chain(n))
    timer = Timer(lambda cover: times.get(cover, 2.0))
    found, fault = refine_or_leave(room["OneMove"](), problem, known(costs), [best], timer)  # type: ignore[arg-type]
    assert (found, fault) == (list(times)[:2], None)
    assert len(timer.times) == 5


def test_an_individual_is_an_assignment_to_groups_and_its_cover_has_the_fewest_kernels() -> None:
    mixed = (candidate([0, 1]), candidate([2]), candidate([3, 4], "b"))
    people = population(5, [mixed, (candidate([0]), candidate([1, 2, 3, 4], "b"))])
    assert people.groups == [0b1, 0b10, 0b100, 0b11000]
    a, b = (people.targets.index(t) for t in "ab")
    genome = people.genome_of(mixed)
    assert genome == Genome((a, a, a, b), frozenset({(1, 2)}))
    assert people.cover_of(genome) == mixed
    assert people.cover_of(Genome(genome.targets)) == (candidate([0, 1, 2]), candidate([3, 4], "b"))
    assert people.cover_of(Genome((b, b, b, b))) == (candidate([0, 1, 2, 3, 4], "b"),)


def test_children_differ_from_their_parents_and_keep_cuts_within_targets() -> None:
    seeds = [tuple(candidate([i], "ab"[i % 2]) for i in range(6)), (candidate(list(range(6))),)]
    people = population(6, seeds)
    parents = [people.genome_of(cover) for cover in seeds]
    children: list[Any] = [people.child_of(random.Random(i).sample(parents, 1 + i % 2)) for i in range(300)]
    assert len(set(children)) > 40
    for child in children:
        assert all(child.targets[x] == child.targets[y] for x, y in child.cuts)
        assert people.cover_of(child) is not None
